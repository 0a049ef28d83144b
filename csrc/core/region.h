// Memory that takes part in transfers: private memory by reference, and sealed shared memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/result.h"
#include "core/strided.h"

namespace wt {

// Private memory by reference: an ordered list of blocks, one per tensor. Keeps nothing alive.
//
// Shared from this, as every class that Python hands to native threads: the binding then gives out true shared ownership; else
// its pointers own the Python object, and the native thread that drops the last one would need the GIL.
class LocalRegion : public std::enable_shared_from_this<LocalRegion> {
 public:
  struct BlockSpec {
    uintptr_t address;
    int64_t itemsize;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;  // bytes
  };
  struct Block {
    std::byte* base;
    StridedLayout layout;
    int64_t start;  // of its serialisation in the region's byte space, where blocks follow one another
  };

  static Result<std::shared_ptr<LocalRegion>> create(const std::vector<BlockSpec>& specs);

  int64_t nbytes() const { return nbytes_; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  const Block& block(int64_t index) const { return blocks_[static_cast<size_t>(index)]; }
  // Some block holds two logical elements in one cell, so that storing would be ambiguous.
  bool overlapping() const { return overlapping_; }
  // The block that holds byte `offset` of the region. Precondition: 0 <= offset < nbytes().
  const Block& block_at(int64_t offset) const;

 private:
  std::vector<Block> blocks_;
  int64_t nbytes_ = 0;
  bool overlapping_ = false;
};

// One mapped memfd; unmapped and closed when its last user lets go.
class Mapping {
 public:
  enum class Origin { Created, Attached };

  Mapping(int fd, std::byte* base, int64_t nbytes, bool writable, Origin origin)
      : fd_(fd), base_(base), nbytes_(nbytes), writable_(writable), origin_(origin) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  int fd() const { return fd_; }
  bool writable() const { return writable_; }
  // Somebody else made the memory, and its pages with it.
  bool attached() const { return origin_ == Origin::Attached; }
  int64_t nbytes() const { return nbytes_; }  // of the data
  std::byte* data() const { return base_ + kHeaderNbytes; }
  uint64_t generation() const { return generation_word().load(std::memory_order_acquire); }
  // Precondition of both: writable().
  void set_generation(uint64_t value) { generation_word().store(value, std::memory_order_release); }
  void bump_generation() { generation_word().fetch_add(1); }

  static constexpr int64_t kHeaderNbytes = 4096;

 private:
  // The header page's first word, in memory shared with other processes.
  std::atomic<uint64_t>& generation_word() const { return *reinterpret_cast<std::atomic<uint64_t>*>(base_); }

  const int fd_;
  std::byte* const base_;
  const int64_t nbytes_;
  const bool writable_;
  const Origin origin_;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A handle on a Mapping. close() lets go of it; works that run over it keep it mapped until they settle.
class SharedRegion : public std::enable_shared_from_this<SharedRegion> {
 public:
  static Result<std::shared_ptr<SharedRegion>> create(int64_t nbytes);
  // Takes a dup of `fd`. Refuses (INVALID) whatever could raise SIGBUS later: a file that is no memfd of ordinary pages,
  // that is not sealed against shrinking and growing, or whose size is not header + nbytes.
  static Result<std::shared_ptr<SharedRegion>> attach(int fd, int64_t nbytes, bool writable);

  explicit SharedRegion(std::shared_ptr<Mapping> mapping) : nbytes_(mapping->nbytes()), mapping_(std::move(mapping)) {}

  int64_t nbytes() const { return nbytes_; }
  // Null once closed.
  std::shared_ptr<Mapping> mapping() const;
  // Moves the generation on, then gives every data page back, though others still map them: they read as zeros.
  Status punch();
  void close();

 private:
  const int64_t nbytes_;
  mutable std::mutex mutex_;
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace wt
