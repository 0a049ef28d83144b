#include "core/memory.h"

#include <algorithm>
#include <cstring>

namespace wt {

Memory::Run Memory::run(int64_t offset, int64_t n) const {
  if (!local_) return {mapping_->data() + offset, n};
  const LocalRegion::Block& block = local_->block_at(offset);
  const int64_t within = offset - block.start;
  const int64_t size = std::min(n, block.layout.nbytes() - within);
  if (block.layout.contiguous()) return {block.base + within, size};
  return {nullptr, block.layout.whole_rows(within, size)};
}

void Memory::gather(int64_t offset, std::byte* out, int64_t n) const {
  if (!local_) {
    std::memcpy(out, mapping_->data() + offset, static_cast<size_t>(n));
    return;
  }
  while (n > 0) {
    const LocalRegion::Block& block = local_->block_at(offset);
    const int64_t within = offset - block.start;
    const int64_t size = std::min(n, block.layout.nbytes() - within);
    block.layout.gather(block.base, within, out, size);
    offset += size;
    out += size;
    n -= size;
  }
}

void Memory::scatter(int64_t offset, const std::byte* in, int64_t n) const {
  if (!local_) {
    std::memcpy(mapping_->data() + offset, in, static_cast<size_t>(n));
    return;
  }
  while (n > 0) {
    const LocalRegion::Block& block = local_->block_at(offset);
    const int64_t within = offset - block.start;
    const int64_t size = std::min(n, block.layout.nbytes() - within);
    block.layout.scatter(block.base, within, in, size);
    offset += size;
    in += size;
    n -= size;
  }
}

}  // namespace wt
