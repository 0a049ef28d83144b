// Transposing a small square of elements in vector registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace wt {

// Elements on one side of the square of `kNbytes`-byte elements: as many as fill a 16-byte register.
template <size_t kNbytes>
constexpr int64_t kTransposeSide = 16 / kNbytes;

namespace transpose_detail {

template <class T>
struct Vector {
  typedef T Type __attribute__((vector_size(16)));
};

inline void zip(Vector<uint8_t>::Type a, Vector<uint8_t>::Type b, Vector<uint8_t>::Type& low, Vector<uint8_t>::Type& high) {
  low = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  high = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

inline void zip(Vector<uint16_t>::Type a, Vector<uint16_t>::Type b, Vector<uint16_t>::Type& low, Vector<uint16_t>::Type& high) {
  low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  high = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
}

inline void zip(Vector<uint32_t>::Type a, Vector<uint32_t>::Type b, Vector<uint32_t>::Type& low, Vector<uint32_t>::Type& high) {
  low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
}

inline void zip(Vector<uint64_t>::Type a, Vector<uint64_t>::Type b, Vector<uint64_t>::Type& low, Vector<uint64_t>::Type& high) {
  low = __builtin_shufflevector(a, b, 0, 2);
  high = __builtin_shufflevector(a, b, 1, 3);
}

}  // namespace transpose_detail

// out[y][x] = in[x][y] over a square of kTransposeSide elements of kNbytes (1, 2, 4 or 8), whose lines lie `in_stride` and
// `out_stride` bytes apart; elements of a line are adjacent.
template <size_t kNbytes>
inline void transpose_square(const std::byte* in, int64_t in_stride, std::byte* out, int64_t out_stride) {
  using T = std::conditional_t<kNbytes == 1, uint8_t,
                               std::conditional_t<kNbytes == 2, uint16_t, std::conditional_t<kNbytes == 4, uint32_t, uint64_t>>>;
  constexpr int64_t kSide = kTransposeSide<kNbytes>;
  typename transpose_detail::Vector<T>::Type lines[kSide];
  typename transpose_detail::Vector<T>::Type mixed[kSide];
  for (int64_t i = 0; i < kSide; ++i) std::memcpy(&lines[i], in + i * in_stride, 16);
  // Every round interleaves the two halves of the list; after log2(side) rounds lines and columns have changed places.
  for (int64_t rounds = kSide; rounds > 1; rounds /= 2) {
    for (int64_t i = 0; i < kSide / 2; ++i) transpose_detail::zip(lines[i], lines[i + kSide / 2], mixed[2 * i], mixed[2 * i + 1]);
    std::memcpy(lines, mixed, sizeof lines);
  }
  for (int64_t i = 0; i < kSide; ++i) std::memcpy(out + i * out_stride, &lines[i], 16);
}

}  // namespace wt
