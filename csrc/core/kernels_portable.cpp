#include <algorithm>
#include <cstring>

#include "core/digest.h"
#include "core/kernels.h"

namespace wt::kernels {
namespace {

// Up to one word of `n` bytes at `position`, none of which reaches the next word.
uint64_t partial_word(const std::byte* data, size_t n, int64_t position) {
  uint64_t word = 0;
  for (size_t i = 0; i < n; ++i) word |= static_cast<uint64_t>(data[i]) << (8 * ((static_cast<uint64_t>(position) + i) % 4));
  const uint64_t index = static_cast<uint64_t>(position) / 4;
  return word * kLaneWeights[index % kDigestLanes] * block_weight(index / kDigestLanes);
}

void copy_plain(void* dst, const void* src, size_t n) {
  if (n != 0) std::memcpy(dst, src, n);
}

// The digest is taken from a bounce buffer, so that it is that of the bytes stored even if the source changes meanwhile.
uint64_t copy_digest_bounced(void* dst, const void* src, size_t n, int64_t position) {
  alignas(64) std::byte buffer[kDigestBlockNbytes];
  auto* to = static_cast<std::byte*>(dst);
  auto* from = static_cast<const std::byte*>(src);
  uint64_t sum = 0;
  while (n != 0) {
    const size_t piece = std::min(n, static_cast<size_t>(kDigestBlockNbytes - position % kDigestBlockNbytes));
    std::memcpy(buffer, from, piece);
    sum += digest_scalar(buffer, piece, position);
    std::memcpy(to, buffer, piece);
    to += piece;
    from += piece;
    position += static_cast<int64_t>(piece);
    n -= piece;
  }
  return sum;
}

uint64_t digest_plain(const void* data, size_t n, int64_t position) {
  return digest_scalar(static_cast<const std::byte*>(data), n, position);
}

}  // namespace

uint64_t digest_scalar(const std::byte* data, size_t n, int64_t position) {
  uint64_t sum = 0;
  if (const auto shift = static_cast<size_t>(position % 4); shift != 0) {
    const size_t head = std::min(n, 4 - shift);
    sum += partial_word(data, head, position);
    data += head;
    position += static_cast<int64_t>(head);
    n -= head;
  }
  while (n >= 4) {
    const uint64_t index = static_cast<uint64_t>(position) / 4;
    const size_t lane = index % kDigestLanes;
    const size_t words = std::min(n / 4, kDigestLanes - lane);
    uint64_t acc = 0;
    for (size_t i = 0; i < words; ++i) {
      uint32_t word;
      std::memcpy(&word, data + 4 * i, 4);
      acc += static_cast<uint64_t>(word) * kLaneWeights[lane + i];
    }
    sum += acc * block_weight(index / kDigestLanes);
    data += 4 * words;
    position += static_cast<int64_t>(4 * words);
    n -= 4 * words;
  }
  return n == 0 ? sum : sum + partial_word(data, n, position);
}

const CopyKernels* portable() {
  static constexpr CopyKernels kernels{"portable", copy_plain, copy_digest_bounced, copy_digest_bounced, digest_plain};
  return &kernels;
}

}  // namespace wt::kernels
