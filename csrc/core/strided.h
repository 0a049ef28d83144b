// The row-major serialisation of a strided array, readable and writable from any byte offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/result.h"

namespace wt {

class StridedLayout {
 public:
  static constexpr size_t kMaxDims = 16;
  static constexpr int64_t kMaxItemsize = 16;

  // Strides are in bytes, none negative. INVALID if sizes do not match, overflow, or exceed the limits above.
  static Result<StridedLayout> create(int64_t itemsize, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

  int64_t nbytes() const { return nbytes_; }
  bool contiguous() const { return dims_.empty(); }
  // Two logical elements share one cell: such an array can be read, not written.
  bool overlapping() const { return overlapping_; }
  // Shortens [offset, offset + n) so that it ends with a row of the innermost dimension, if it holds the end of one: gathering
  // whole rows is faster. Precondition: not contiguous().
  int64_t whole_rows(int64_t offset, int64_t n) const;
  // Serialised bytes [offset, offset + n) to `out`, or from `in`. The caller has checked the bounds.
  void gather(const std::byte* base, int64_t offset, std::byte* out, int64_t n) const;
  void scatter(std::byte* base, int64_t offset, const std::byte* in, int64_t n) const;

 private:
  struct Dim {
    int64_t size;
    int64_t stride;
  };

  template <bool kGather, class Cell, class Flat>
  void move(Cell* base, int64_t offset, Flat* flat, int64_t n) const;
  template <bool kGather, size_t kRun, class Cell, class Flat>
  void walk(Cell* base, int64_t offset, Flat* flat, int64_t n) const;

  std::vector<Dim> dims_;  // outer to inner, over runs of run_nbytes_ contiguous bytes; empty: all one run
  int64_t run_nbytes_ = 0;
  int64_t nbytes_ = 0;
  bool overlapping_ = false;
};

}  // namespace wt
