#include "core/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstring>

#include "core/digest.h"

#define WT_TARGET __attribute__((target("avx2")))

namespace wt::kernels {
namespace {

struct V {
  using Reg = __m256i;
  static constexpr size_t kNbytes = 32;
  WT_TARGET static Reg zero() { return _mm256_setzero_si256(); }
  WT_TARGET static Reg load(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const Reg*>(from)); }
  WT_TARGET static void store(std::byte* to, Reg words) { _mm256_storeu_si256(reinterpret_cast<Reg*>(to), words); }
  WT_TARGET static void stream(std::byte* to, Reg words) { _mm256_stream_si256(reinterpret_cast<Reg*>(to), words); }
  WT_TARGET static Reg mul_even(Reg a, Reg b) { return _mm256_mul_epu32(a, b); }
  WT_TARGET static Reg odd(Reg words) { return _mm256_srli_epi64(words, 32); }
  WT_TARGET static Reg add(Reg a, Reg b) { return _mm256_add_epi64(a, b); }
  WT_TARGET static uint64_t reduce(Reg sums) {
    alignas(32) uint64_t part[4];
    _mm256_store_si256(reinterpret_cast<Reg*>(part), sums);
    return part[0] + part[1] + part[2] + part[3];
  }
};

#include "core/kernels_simd.inc"

}  // namespace

const CopyKernels* avx2() {
  static constexpr CopyKernels kernels{"avx2", copy_stream, copy_digest_stream, copy_digest_cached, digest_only};
  return __builtin_cpu_supports("avx2") ? &kernels : nullptr;
}

}  // namespace wt::kernels

#else

namespace wt::kernels {
const CopyKernels* avx2() { return nullptr; }
}  // namespace wt::kernels

#endif
