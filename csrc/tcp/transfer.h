// One submitted work on its way over the streams of an endpoint, cut into chunks as streams ask for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/memory.h"
#include "core/spans.h"
#include "core/work.h"

namespace wt::tcp {

// A part of one span, as one frame carries it.
struct Piece {
  int64_t local;   // offset in the memory
  int64_t remote;  // offset in the granted region
  int64_t nbytes;
  int64_t position;
  uint32_t tensor;
};

class Transfer {
 public:
  enum class Kind { Write, Read };

  struct Target {
    uint64_t key;
    uint64_t generation;
  };

  // The spans have been checked. `chunk_nbytes`: how much a stream takes at once.
  Transfer(Kind kind, std::shared_ptr<Work> work, Memory memory, Target target, std::vector<Span> spans, bool digest,
           int64_t chunk_nbytes);

  const Kind kind;
  const std::shared_ptr<Work> work;
  const Target target;
  const bool digest;

  // Valid until the work settles.
  [[nodiscard]] const Memory& memory() const { return memory_; }

  // ---- for the queue, under its lock ----

  [[nodiscard]] bool exhausted() const { return next_span_ == spans_.size(); }
  // Precondition: not exhausted(). Appends the next chunk's pieces and returns their bytes.
  int64_t cut(std::vector<Piece>& pieces);
  // What has not been cut never will be.
  void drop_rest() { next_span_ = spans_.size(); }
  // Lets go of the memory.
  void release() { memory_ = Memory(); }

  int shares = 0;         // streams that carry a part the owner has not acknowledged
  bool settling = false;  // somebody settles it already

 private:
  static constexpr size_t kFramesPerChunk = 256;

  void skip_empty();

  Memory memory_;
  const std::vector<Span> spans_;
  const int64_t chunk_nbytes_;
  size_t next_span_ = 0;
  int64_t next_offset_ = 0;  // in that span
};

}  // namespace wt::tcp
