#include "core/strided.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>

#include "core/transpose.h"

namespace wt {
namespace {

Status invalid(const std::string& what) { return {ErrCode::INVALID, what}; }

// One run, from its cell to its place in the serialisation or back. kRun 0: the size is in `n`.
template <bool kGather, size_t kRun, class Cell, class Flat>
inline void move_run(Cell* cell, Flat* flat, int64_t n) {
  const size_t size = kRun != 0 ? kRun : static_cast<size_t>(n);
  if constexpr (kGather) {
    std::memcpy(flat, cell, size);
  } else {
    std::memcpy(cell, flat, size);
  }
}

template <bool kGather, size_t kRun, class Cell, class Flat>
void move_line(Cell* cell, int64_t stride, Flat* flat, int64_t count, int64_t run) {
  for (int64_t i = 0; i < count; ++i) move_run<kGather, kRun>(cell + i * stride, flat + i * run, run);
}

// `rows` lines of `cols` runs whose rows lie closer in memory than their columns: walked in squares, so that a cache line of
// cells is used up while it is cached.
template <bool kGather, size_t kRun, class Cell, class Flat>
void move_transposed(Cell* cell, int64_t row_stride, int64_t col_stride, Flat* flat, int64_t rows, int64_t cols) {
  constexpr int64_t kWidth = kRun;
  constexpr int64_t kSide = kRun < 16 ? kTransposeSide<kRun> : 4;
  constexpr int64_t kRowBlock = kRun < 16 ? 64 / kWidth : 4;  // one cache line
  constexpr int64_t kColBlock = 64;
  const int64_t line = cols * kWidth;
  const auto move_square = [&](int64_t r, int64_t c, int64_t height, int64_t width) {
    Cell* from = cell + r * row_stride + c * col_stride;
    Flat* to = flat + r * line + c * kWidth;
    if constexpr (kRun < 16) {
      if (row_stride == kWidth && height == kSide && width == kSide) {
        if constexpr (kGather) {
          transpose_square<kRun>(from, col_stride, to, line);
        } else {
          transpose_square<kRun>(to, line, from, col_stride);
        }
        return;
      }
    }
    for (int64_t y = 0; y < height; ++y)
      move_line<kGather, kRun>(from + y * row_stride, col_stride, to + y * line, width, kWidth);
  };
  for (int64_t r0 = 0; r0 < rows; r0 += kRowBlock) {
    const int64_t r1 = std::min(rows, r0 + kRowBlock);
    for (int64_t c0 = 0; c0 < cols; c0 += kColBlock) {
      const int64_t c1 = std::min(cols, c0 + kColBlock);
      for (int64_t r = r0; r < r1; r += kSide) {
        for (int64_t c = c0; c < c1; c += kSide) move_square(r, c, std::min(kSide, r1 - r), std::min(kSide, c1 - c));
      }
    }
  }
}

}  // namespace

Result<StridedLayout> StridedLayout::create(int64_t itemsize, const std::vector<int64_t>& shape,
                                            const std::vector<int64_t>& strides) {
  if (itemsize < 1 || itemsize > kMaxItemsize) return invalid("item size " + std::to_string(itemsize));
  if (shape.size() != strides.size()) return invalid("shape and strides differ in length");
  if (shape.size() > kMaxDims) return invalid(std::to_string(shape.size()) + " dimensions");
  StridedLayout layout;
  layout.nbytes_ = itemsize;
  layout.run_nbytes_ = itemsize;
  int64_t extent = itemsize;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0 || strides[i] < 0) return invalid("negative size or stride");
    int64_t reach = 0;
    if (__builtin_mul_overflow(layout.nbytes_, shape[i], &layout.nbytes_) ||
        __builtin_mul_overflow(std::max<int64_t>(shape[i] - 1, 0), strides[i], &reach) ||
        __builtin_add_overflow(extent, reach, &extent))
      return invalid("the size overflows");
    if (shape[i] == 1) continue;
    std::vector<Dim>& dims = layout.dims_;
    if (!dims.empty() && dims.back().stride == shape[i] * strides[i]) {
      dims.back() = {dims.back().size * shape[i], strides[i]};
    } else {
      dims.push_back({shape[i], strides[i]});
    }
  }
  if (layout.nbytes_ == 0) {
    layout.dims_.clear();
    return layout;
  }
  std::vector<Dim> by_stride = layout.dims_;
  std::sort(by_stride.begin(), by_stride.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  int64_t covered = itemsize;
  for (const Dim& dim : by_stride) {
    layout.overlapping_ = layout.overlapping_ || dim.stride < covered;
    covered += (dim.size - 1) * dim.stride;
  }
  if (!layout.dims_.empty() && layout.dims_.back().stride == itemsize) {
    layout.run_nbytes_ = layout.dims_.back().size * itemsize;
    layout.dims_.pop_back();
  }
  return layout;
}

int64_t StridedLayout::whole_rows(int64_t offset, int64_t n) const {
  const int64_t row = dims_.back().size * run_nbytes_;
  const int64_t end = (offset + n) / row * row;
  return end > offset ? end - offset : n;
}

template <bool kGather, size_t kRun, class Cell, class Flat>
void StridedLayout::walk(Cell* base, int64_t offset, Flat* flat, int64_t n) const {
  const int64_t run = kRun != 0 ? static_cast<int64_t>(kRun) : run_nbytes_;
  const size_t last = dims_.size() - 1;
  std::array<int64_t, kMaxDims> at{};
  Cell* cell = base;
  int64_t index = offset / run;
  for (size_t d = dims_.size(); d-- > 0;) {
    at[d] = index % dims_[d].size;
    index /= dims_[d].size;
    cell += at[d] * dims_[d].stride;
  }
  // Moves on by `count` steps of dimension d, which end at or before its end.
  const auto advance = [&](size_t d, int64_t count) {
    at[d] += count;
    cell += count * dims_[d].stride;
    while (at[d] == dims_[d].size && d > 0) {
      cell -= at[d] * dims_[d].stride;
      at[d] = 0;
      --d;
      ++at[d];
      cell += dims_[d].stride;
    }
  };
  if (const int64_t skip = offset % run; skip != 0) {
    const int64_t part = std::min(n, run - skip);
    move_run<kGather, 0>(cell + skip, flat, part);
    flat += part;
    n -= part;
    advance(last, 1);
  }
  while (n >= run) {
    const Dim& inner = dims_[last];
    if constexpr (kRun != 0) {
      const int64_t row = inner.size * run;
      if (last > 0 && at[last] == 0 && n >= 2 * row && dims_[last - 1].stride < inner.stride) {
        const int64_t rows = std::min(n / row, dims_[last - 1].size - at[last - 1]);
        move_transposed<kGather, kRun>(cell, dims_[last - 1].stride, inner.stride, flat, rows, inner.size);
        flat += rows * row;
        n -= rows * row;
        advance(last - 1, rows);
        continue;
      }
    }
    const int64_t count = std::min(n / run, inner.size - at[last]);
    move_line<kGather, kRun>(cell, inner.stride, flat, count, run);
    flat += count * run;
    n -= count * run;
    advance(last, count);
  }
  if (n > 0) move_run<kGather, 0>(cell, flat, n);
}

template <bool kGather, class Cell, class Flat>
void StridedLayout::move(Cell* base, int64_t offset, Flat* flat, int64_t n) const {
  if (n == 0) return;
  if (contiguous()) return move_run<kGather, 0>(base + offset, flat, n);
  switch (run_nbytes_) {
    case 1:
      return walk<kGather, 1>(base, offset, flat, n);
    case 2:
      return walk<kGather, 2>(base, offset, flat, n);
    case 4:
      return walk<kGather, 4>(base, offset, flat, n);
    case 8:
      return walk<kGather, 8>(base, offset, flat, n);
    case 16:
      return walk<kGather, 16>(base, offset, flat, n);
    default:
      return walk<kGather, 0>(base, offset, flat, n);
  }
}

void StridedLayout::gather(const std::byte* base, int64_t offset, std::byte* out, int64_t n) const {
  move<true>(base, offset, out, n);
}

void StridedLayout::scatter(std::byte* base, int64_t offset, const std::byte* in, int64_t n) const {
  move<false>(base, offset, in, n);
}

}  // namespace wt
