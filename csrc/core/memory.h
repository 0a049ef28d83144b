// A pinned, linear byte space over a region: what copiers, senders and receivers work on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/region.h"

namespace wt {

// For a LocalRegion the space is its blocks' row-major serialisations, one after another; for a Mapping its data.
// Holding a Memory keeps a Mapping mapped; the bytes of a LocalRegion are kept by whoever owns them.
class Memory {
 public:
  struct Run {
    std::byte* data;  // null: these bytes are strided; use gather or scatter
    int64_t nbytes;   // >= 1, within one block; where strided, cut to whole rows if it can be
  };

  Memory() = default;
  explicit Memory(std::shared_ptr<const LocalRegion> local) : local_(std::move(local)) {}
  explicit Memory(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}

  bool empty() const { return !local_ && !mapping_; }
  int64_t nbytes() const { return local_ ? local_->nbytes() : mapping_ ? mapping_->nbytes() : 0; }
  bool writable() const { return local_ ? !local_->overlapping() : mapping_ && mapping_->writable(); }
  int64_t num_blocks() const { return local_ ? local_->num_blocks() : 1; }
  // First byte, and size, of a block in the space. Precondition: 0 <= block < num_blocks().
  int64_t block_start(int64_t block) const { return local_ ? local_->block(block).start : 0; }
  int64_t block_nbytes(int64_t block) const { return local_ ? local_->block(block).layout.nbytes() : nbytes(); }

  // A run of at most n bytes from `offset`; as long as its block allows where it is contiguous. Precondition: [offset, offset +
  // n) is inside, n >= 1.
  Run run(int64_t offset, int64_t n) const;
  // Copies [offset, offset + n) out, or in, whatever its layout and however many blocks it spans.
  void gather(int64_t offset, std::byte* out, int64_t n) const;
  void scatter(int64_t offset, const std::byte* in, int64_t n) const;

  const std::shared_ptr<Mapping>& mapping() const { return mapping_; }

 private:
  std::shared_ptr<const LocalRegion> local_;
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace wt
