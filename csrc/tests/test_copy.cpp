#include "core/copy.h"

#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/check.h"

using namespace wt;
using test::digest_reference;

namespace {

constexpr size_t kGuard = 128;

// Source, destination and position each at their own misalignment; guard bytes around the destination must survive.
void once(const CopyKernels& kernels, const std::vector<std::byte>& noise, size_t n, size_t src_shift, size_t dst_shift,
          int64_t position) {
  const std::byte* src = noise.data() + src_shift;
  const uint64_t expected = digest_reference(src, n, position);
  CHECK(kernels.digest(src, n, position) == expected);
  const auto stored_whole = [&](auto&& copy) {
    std::vector<std::byte> room(n + 2 * kGuard + 64, std::byte{0xA5});
    std::byte* dst = room.data() + kGuard + dst_shift;
    copy(dst);
    CHECK(std::memcmp(dst, src, n) == 0);
    for (const std::byte* at = room.data(); at < dst; ++at) CHECK(*at == std::byte{0xA5});
    for (const std::byte* at = dst + n; at < room.data() + room.size(); ++at) CHECK(*at == std::byte{0xA5});
  };
  stored_whole([&](std::byte* dst) { kernels.copy(dst, src, n); });
  stored_whole([&](std::byte* dst) { CHECK(kernels.copy_digest(dst, src, n, position) == expected); });
  stored_whole([&](std::byte* dst) { CHECK(kernels.copy_digest_cached(dst, src, n, position) == expected); });
}

void every_alignment(const CopyKernels& kernels, const std::vector<std::byte>& noise) {
  for (size_t shift = 0; shift < 64; ++shift) {
    const auto at = static_cast<int64_t>(shift);
    once(kernels, noise, 20000, shift, 0, 0);
    once(kernels, noise, 20000, 0, shift, 0);
    once(kernels, noise, 20000, 0, 0, at);
    once(kernels, noise, 40000, shift, shift, at);
    once(kernels, noise, 40000, (shift * 7) % 64, shift, 4096 * 3 - 64 + at);
  }
}

void every_small_size(const CopyKernels& kernels, const std::vector<std::byte>& noise) {
  for (size_t n = 0; n < 300; ++n) once(kernels, noise, n, n % 5, n % 3, 4090 + static_cast<int64_t>(n % 7));
}

void random_shapes(const CopyKernels& kernels, const std::vector<std::byte>& noise) {
  test::Noise random(7);
  for (int round = 0; round < 200; ++round) {
    const auto n = static_cast<size_t>(random.below(100000));
    once(kernels, noise, n, static_cast<size_t>(random.below(64)), static_cast<size_t>(random.below(64)), random.below(1 << 20));
  }
}

void dispatch_by_size() {
  test::Noise random(9);
  std::vector<std::byte> src(3 << 20);
  random.fill(src);
  for (const size_t n : {size_t{0}, size_t{1}, size_t{4096}, size_t{32767}, size_t{32768}, size_t{262144}, src.size() - 3}) {
    std::vector<std::byte> dst(n + 1);
    copy_bytes(dst.data(), src.data() + 3, n);
    CHECK(std::memcmp(dst.data(), src.data() + 3, n) == 0);
    std::memset(dst.data(), 0, n);
    CHECK(copy_digest(dst.data(), src.data() + 3, n, 8192) == digest_reference(src.data() + 3, n, 8192));
    CHECK(std::memcmp(dst.data(), src.data() + 3, n) == 0);
  }
}

}  // namespace

int main() {
  std::vector<std::byte> noise(100000 + 64);
  test::Noise(5).fill(noise);
  for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512}) {
    const CopyKernels* kernels = kernels_of(isa);
    if (kernels == nullptr) continue;
    std::printf("%s\n", kernels->name);
    every_alignment(*kernels, noise);
    every_small_size(*kernels, noise);
    random_shapes(*kernels, noise);
  }
  dispatch_by_size();
  return 0;
}
