#include "core/digest.h"

#include <cstring>
#include <vector>

#include "core/copy.h"
#include "tests/check.h"

using namespace wt;
using test::digest_reference;

namespace {

// Values of wtransport/weights/digest.py, which the Python tests hold against the same definition.
void vectors() {
  CHECK(splitmix64(0) == 0xE220A8397B1DCDAFu);
  CHECK(splitmix64(1) == 0x910A2DEC89025CC1u);
  CHECK(kLaneWeights[0] == (0xE220A839u | 1));
  CHECK(digest_bytes("", 0, 0) == 0);
  std::vector<std::byte> count(10000);
  for (size_t i = 0; i < count.size(); ++i) count[i] = static_cast<std::byte>(i % 251);
  CHECK(digest_bytes(count.data(), 1, 0) == 0);
  CHECK(digest_bytes(count.data(), count.size(), 0) == 0x3695B5FE8072764Au);
  CHECK(digest_bytes(count.data(), count.size(), 4099) == 0xFE7A301DEC3281B2u);
}

void any_split_adds_up() {
  test::Noise noise(1);
  std::vector<std::byte> data(70000);
  noise.fill(data);
  const uint64_t whole = digest_reference(data.data(), data.size(), 1 << 20);
  for (int round = 0; round < 200; ++round) {
    uint64_t sum = 0;
    for (size_t at = 0; at < data.size();) {
      const int64_t most = round % 2 == 0 ? 64 : 30000;
      const size_t n = std::min(data.size() - at, static_cast<size_t>(1 + noise.below(most)));
      sum += digest_bytes(data.data() + at, n, (1 << 20) + static_cast<int64_t>(at));
      at += n;
    }
    CHECK(sum == whole);
  }
}

// Rows of a box lie apart in the global tensor; four boxes tile it.
void boxes_add_up() {
  test::Noise noise(2);
  constexpr int64_t kRows = 37, kCols = 1501, kItem = 2;
  std::vector<std::byte> data(kRows * kCols * kItem);
  noise.fill(data);
  const uint64_t whole = digest_bytes(data.data(), data.size(), 0);
  for (int round = 0; round < 50; ++round) {
    const int64_t row = noise.below(kRows + 1), col = noise.below(kCols + 1);
    uint64_t sum = 0;
    for (const auto& [r0, r1] : {std::pair{int64_t{0}, row}, std::pair{row, kRows}}) {
      for (const auto& [c0, c1] : {std::pair{int64_t{0}, col}, std::pair{col, kCols}}) {
        for (int64_t r = r0; r < r1; ++r) {
          const int64_t at = (r * kCols + c0) * kItem;
          sum += digest_bytes(data.data() + at, static_cast<size_t>((c1 - c0) * kItem), at);
        }
      }
    }
    CHECK(sum == whole);
  }
}

void a_changed_byte_changes_it() {
  test::Noise noise(3);
  std::vector<std::byte> data(20000);
  noise.fill(data);
  const uint64_t before = digest_bytes(data.data(), data.size(), 0);
  for (int round = 0; round < 1000; ++round) {
    std::byte& byte = data[static_cast<size_t>(noise.below(20000))];
    const std::byte old = byte;
    byte ^= static_cast<std::byte>(1 + noise.below(255));
    CHECK(digest_bytes(data.data(), data.size(), 0) != before);
    byte = old;
  }
}

void huge_positions() {
  test::Noise noise(4);
  std::vector<std::byte> data(20000);
  noise.fill(data);
  for (const int64_t position : {int64_t{1} << 40, (int64_t{1} << 62) + 12345}) {
    CHECK(digest_bytes(data.data(), data.size(), position) == digest_reference(data.data(), data.size(), position));
  }
}

}  // namespace

int main() {
  vectors();
  any_split_adds_up();
  boxes_add_up();
  a_changed_byte_changes_it();
  huge_positions();
  return 0;
}
