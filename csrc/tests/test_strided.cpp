#include "core/strided.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/memory.h"
#include "tests/check.h"

using namespace wt;

namespace {

using Sizes = std::vector<int64_t>;

// Element by element, with no regard for speed.
std::vector<std::byte> serialise(const std::byte* base, int64_t itemsize, const Sizes& shape, const Sizes& strides) {
  std::vector<std::byte> out;
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  for (int64_t index = 0; index < count; ++index) {
    int64_t rest = index, offset = 0;
    for (size_t d = shape.size(); d-- > 0;) {
      offset += rest % shape[d] * strides[d];
      rest /= shape[d];
    }
    out.insert(out.end(), base + offset, base + offset + itemsize);
  }
  return out;
}

int64_t extent(int64_t itemsize, const Sizes& shape, const Sizes& strides) {
  int64_t reach = itemsize;
  for (size_t d = 0; d < shape.size(); ++d) reach += std::max<int64_t>(shape[d] - 1, 0) * strides[d];
  return reach;
}

void compare(int64_t itemsize, const Sizes& shape, const Sizes& strides, test::Noise& noise) {
  Result<StridedLayout> made = StridedLayout::create(itemsize, shape, strides);
  CHECK(made.ok());
  const StridedLayout& layout = made.value();
  std::vector<std::byte> cells(static_cast<size_t>(extent(itemsize, shape, strides)));
  noise.fill(cells);
  const std::vector<std::byte> flat = serialise(cells.data(), itemsize, shape, strides);
  CHECK(layout.nbytes() == static_cast<int64_t>(flat.size()));
  if (flat.empty()) return;
  for (int round = 0; round < 20; ++round) {
    const int64_t begin = round == 0 ? 0 : noise.below(layout.nbytes());
    int64_t n = round == 0 ? layout.nbytes() : 1 + noise.below(layout.nbytes() - begin);
    if (!layout.contiguous() && round % 2 == 1) n = layout.whole_rows(begin, n);
    CHECK(n >= 1 && begin + n <= layout.nbytes());
    std::vector<std::byte> got(static_cast<size_t>(n) + 1, std::byte{0xA5});
    layout.gather(cells.data(), begin, got.data(), n);
    CHECK(std::equal(got.begin(), got.end() - 1, flat.begin() + begin));
    CHECK(got.back() == std::byte{0xA5});
    if (layout.overlapping()) continue;
    // Scattering the piece into other memory and serialising that gives the piece, and touches nothing else.
    std::vector<std::byte> other(cells.size(), std::byte{0x5A});
    layout.scatter(other.data(), begin, got.data(), n);
    std::vector<std::byte> expected(flat.size(), std::byte{0x5A});
    std::copy(got.begin(), got.end() - 1, expected.begin() + begin);
    CHECK(serialise(other.data(), itemsize, shape, strides) == expected);
    const auto untouched = std::count(other.begin(), other.end(), std::byte{0x5A});
    CHECK(untouched >= static_cast<int64_t>(cells.size()) - n);
  }
}

Sizes row_major(int64_t itemsize, const Sizes& shape, const Sizes& order) {
  Sizes strides(shape.size());
  int64_t step = itemsize;
  for (size_t i = order.size(); i-- > 0;) {
    strides[static_cast<size_t>(order[i])] = step;
    step *= std::max<int64_t>(shape[static_cast<size_t>(order[i])], 1);
  }
  return strides;
}

void layouts_match_the_naive_walk() {
  test::Noise noise(11);
  for (const int64_t item : {1, 2, 3, 4, 8, 12, 16}) {
    compare(item, {}, {}, noise);
    compare(item, {7}, {item}, noise);
    compare(item, {7}, {3 * item}, noise);
    compare(item, {5}, {0}, noise);
    compare(item, {4, 5}, {0, item}, noise);
    compare(item, {4, 5}, {5 * item, 0}, noise);
    compare(item, {0, 5}, {5 * item, item}, noise);
    compare(item, {1, 9, 1}, {1000 * item, item, 77 * item}, noise);
    compare(item, {40, 70}, {item, 40 * item}, noise);
    compare(item, {100, 33}, {item, 128 * item}, noise);
    compare(item, {6, 21, 17}, {21 * 17 * item, item, 21 * item}, noise);
    compare(item, {8, 16, 3, 3}, {16 * 9 * item, item, 16 * 3 * item, 16 * item}, noise);
    compare(item, {12, 10}, {25 * item, item}, noise);
  }
}

void random_permutations() {
  test::Noise noise(12);
  for (int round = 0; round < 400; ++round) {
    const int64_t item = std::vector<int64_t>{1, 2, 4, 8, 16, 6}[static_cast<size_t>(noise.below(6))];
    Sizes shape(static_cast<size_t>(1 + noise.below(5)));
    for (int64_t& size : shape) size = 1 + noise.below(9);
    Sizes order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[static_cast<size_t>(noise.below(static_cast<int64_t>(i)))]);
    Sizes strides = row_major(item, shape, order);
    if (round % 3 == 0) {
      for (int64_t& stride : strides) stride *= 2;
    }
    compare(item, shape, strides, noise);
  }
}

void sixteen_dimensions() {
  test::Noise noise(13);
  const Sizes shape(16, 2);
  Sizes order(16);
  std::iota(order.rbegin(), order.rend(), 0);
  compare(2, shape, row_major(2, shape, order), noise);
}

void what_is_refused() {
  const auto code = [](int64_t item, const Sizes& shape, const Sizes& strides) {
    Result<StridedLayout> made = StridedLayout::create(item, shape, strides);
    return made.ok() ? ErrCode::OK : made.status().code;
  };
  CHECK(code(0, {1}, {1}) == ErrCode::INVALID);
  CHECK(code(17, {1}, {1}) == ErrCode::INVALID);
  CHECK(code(2, {2}, {-2}) == ErrCode::INVALID);
  CHECK(code(2, {-1}, {2}) == ErrCode::INVALID);
  CHECK(code(2, {2, 2}, {2}) == ErrCode::INVALID);
  CHECK(code(2, Sizes(17, 1), Sizes(17, 2)) == ErrCode::INVALID);
  CHECK(code(2, {int64_t{1} << 40, int64_t{1} << 40}, {2, 2}) == ErrCode::INVALID);
  CHECK(code(2, {3}, {int64_t{1} << 62}) == ErrCode::INVALID);
}

void overlap_is_seen() {
  const auto overlapping = [](const Sizes& shape, const Sizes& strides) {
    return StridedLayout::create(2, shape, strides).value().overlapping();
  };
  CHECK(!overlapping({4, 5}, {10, 2}));
  CHECK(!overlapping({5, 4}, {2, 10}));
  CHECK(!overlapping({1, 4}, {0, 2}));
  CHECK(overlapping({4}, {0}));
  CHECK(overlapping({4, 3}, {2, 2}));
  CHECK(overlapping({4}, {1}));
}

void memory_spans_blocks() {
  test::Noise noise(14);
  std::vector<std::byte> first(100), third(60);
  noise.fill(first);
  noise.fill(third);
  const auto address = [](std::vector<std::byte>& bytes) { return reinterpret_cast<uintptr_t>(bytes.data()); };
  Result<std::shared_ptr<LocalRegion>> made = LocalRegion::create(
      {{0, 2, {0}, {2}}, {address(first), 1, {100}, {1}}, {0, 4, {3, 0}, {0, 4}}, {address(third), 2, {5, 6}, {2, 10}}});
  CHECK(made.ok());
  const Memory memory(made.value());
  CHECK(memory.nbytes() == 160 && memory.num_blocks() == 4);
  std::vector<std::byte> flat = first;
  for (const std::byte byte : serialise(third.data(), 2, {5, 6}, {2, 10})) flat.push_back(byte);
  for (int64_t begin = 0; begin < 160; ++begin) {
    std::vector<std::byte> got(static_cast<size_t>(160 - begin));
    memory.gather(begin, got.data(), 160 - begin);
    CHECK(std::equal(got.begin(), got.end(), flat.begin() + begin));
    const Memory::Run run = memory.run(begin, 160 - begin);
    CHECK((run.data != nullptr) == (begin < 100));
    if (run.data != nullptr) CHECK(run.nbytes == 100 - begin && run.data == first.data() + begin);
  }
  std::vector<std::byte> fresh(160);
  noise.fill(fresh);
  memory.scatter(0, fresh.data(), 160);
  std::vector<std::byte> back(160);
  memory.gather(0, back.data(), 160);
  CHECK(back == fresh);
}

}  // namespace

int main() {
  layouts_match_the_naive_walk();
  random_permutations();
  sixteen_dimensions();
  what_is_refused();
  overlap_is_seen();
  memory_spans_blocks();
  return 0;
}
