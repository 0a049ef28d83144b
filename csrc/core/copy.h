// Copies of contiguous memory, with and without the digest taken in the same pass, by the best kernel this CPU has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wt {

// Large copies use non-temporal stores: the destination does not displace the caches. Ranges must not overlap.
void copy_bytes(void* dst, const void* src, size_t n);
// Same, and returns digest_bytes(src, n, position) of the very bytes that were stored.
uint64_t copy_digest(void* dst, const void* src, size_t n, int64_t position);

// The kernels one instruction set offers; all agree bit for bit.
struct CopyKernels {
  const char* name;
  void (*copy)(void* dst, const void* src, size_t n);  // non-temporal where the instruction set has it
  uint64_t (*copy_digest)(void* dst, const void* src, size_t n, int64_t position);         // non-temporal
  uint64_t (*copy_digest_cached)(void* dst, const void* src, size_t n, int64_t position);  // ordinary stores
  uint64_t (*digest)(const void* data, size_t n, int64_t position);
};

enum class Isa { Portable, Avx2, Avx512 };

// Null where this CPU, or this build, lacks it. Portable is always there.
const CopyKernels* kernels_of(Isa isa);
const CopyKernels& best_kernels();

}  // namespace wt
