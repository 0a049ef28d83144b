#include "core/kernels.h"

#if defined(__x86_64__)

// GCC 12 takes the deliberately undefined inputs of these intrinsics for uninitialised variables (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstring>

#include "core/digest.h"

#define WT_TARGET __attribute__((target("avx512f")))

namespace wt::kernels {
namespace {

struct V {
  using Reg = __m512i;
  static constexpr size_t kNbytes = 64;
  WT_TARGET static Reg zero() { return _mm512_setzero_si512(); }
  WT_TARGET static Reg load(const std::byte* from) { return _mm512_loadu_si512(from); }
  WT_TARGET static void store(std::byte* to, Reg words) { _mm512_storeu_si512(to, words); }
  WT_TARGET static void stream(std::byte* to, Reg words) { _mm512_stream_si512(reinterpret_cast<Reg*>(to), words); }
  WT_TARGET static Reg mul_even(Reg a, Reg b) { return _mm512_mul_epu32(a, b); }
  WT_TARGET static Reg odd(Reg words) { return _mm512_srli_epi64(words, 32); }
  WT_TARGET static Reg add(Reg a, Reg b) { return _mm512_add_epi64(a, b); }
  // The intrinsic adds signed numbers, whose overflow is undefined.
  WT_TARGET static uint64_t reduce(Reg sums) {
    alignas(64) uint64_t part[8];
    _mm512_store_si512(part, sums);
    return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  }
};

#include "core/kernels_simd.inc"

}  // namespace

const CopyKernels* avx512() {
  static constexpr CopyKernels kernels{"avx512", copy_stream, copy_digest_stream, copy_digest_cached, digest_only};
  return __builtin_cpu_supports("avx512f") ? &kernels : nullptr;
}

}  // namespace wt::kernels

#else

namespace wt::kernels {
const CopyKernels* avx512() { return nullptr; }
}  // namespace wt::kernels

#endif
