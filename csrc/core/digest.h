// The composable digest "wt1": D = sum over 32-bit words u[j] of the global tensor of u[j] * lane[j % 1024] * block(j / 1024),
// mod 2^64.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace wt {

constexpr int64_t kDigestBlockNbytes = 4096;
constexpr size_t kDigestLanes = 1024;

constexpr uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  uint64_t z = x;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

constexpr uint64_t block_weight(uint64_t block) { return splitmix64(block + 0x9E3779B97F4A7C15u) | 1; }

constexpr std::array<uint32_t, kDigestLanes> make_lane_weights() {
  std::array<uint32_t, kDigestLanes> lanes{};
  for (size_t i = 0; i < kDigestLanes; ++i) lanes[i] = static_cast<uint32_t>(splitmix64(i) >> 32) | 1;
  return lanes;
}

alignas(64) inline constexpr std::array<uint32_t, kDigestLanes> kLaneWeights = make_lane_weights();

// What `n` bytes at global byte position `position` add to their tensor's digest. Any alignment, any position >= 0;
// contributions of disjoint byte ranges add up mod 2^64.
uint64_t digest_bytes(const void* data, size_t n, int64_t position);

}  // namespace wt
