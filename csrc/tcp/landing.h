// Where the payload of the frame in hand goes: a range of memory, or nowhere. Takes the digest while the bytes are in cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory.h"
#include "tcp/inlet.h"

namespace wt::tcp {

class Landing {
 public:
  // The caller has checked that [offset, offset + nbytes) is inside `memory`, which must outlive the landing.
  void open(const Memory& memory, int64_t offset, int64_t nbytes, bool digest, int64_t position);
  // Takes `nbytes` off the stream and forgets them.
  void open_drain(int64_t nbytes);
  // What is left of the payload is forgotten; the memory is not touched again.
  void divert() { memory_ = nullptr; }

  // Receives one piece, small enough to be digested from the cache. Precondition: left() > 0.
  Inlet::Got step(Inlet& inlet, int64_t& moved);

  [[nodiscard]] int64_t left() const { return left_; }
  [[nodiscard]] bool draining() const { return memory_ == nullptr; }
  [[nodiscard]] uint64_t digest() const { return digest_; }

 private:
  static constexpr int64_t kPiece = 256 << 10;

  std::byte* scratch();

  const Memory* memory_ = nullptr;
  int64_t offset_ = 0;
  int64_t left_ = 0;
  int64_t position_ = 0;
  bool take_digest_ = false;
  uint64_t digest_ = 0;
  std::vector<std::byte> scratch_;  // for strided memory and for what is drained
};

}  // namespace wt::tcp
