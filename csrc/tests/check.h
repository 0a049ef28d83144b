// What the native tests share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/digest.h"

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                        \
    }                                                                      \
  } while (0)

namespace wt::test {

// Repeatable noise.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed) {}
  uint64_t next() { return splitmix64(state_++); }
  int64_t below(int64_t bound) { return static_cast<int64_t>(next() % static_cast<uint64_t>(bound)); }
  void fill(std::vector<std::byte>& bytes) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(next());
  }

 private:
  uint64_t state_;
};

// The definition, byte by byte.
inline uint64_t digest_reference(const std::byte* data, size_t n, int64_t position) {
  uint64_t sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t at = static_cast<uint64_t>(position) + i;
    const uint64_t lane = (splitmix64(at / 4 % 1024) >> 32) | 1;
    const uint64_t block = splitmix64(at / 4096 + 0x9E3779B97F4A7C15u) | 1;
    sum += (static_cast<uint64_t>(data[i]) << (8 * (at % 4))) * lane * block;
  }
  return sum;
}

}  // namespace wt::test
