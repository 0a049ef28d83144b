#include "tcp/landing.h"

#include <algorithm>

#include "core/digest.h"

namespace wt::tcp {

void Landing::open(const Memory& memory, int64_t offset, int64_t nbytes, bool digest, int64_t position) {
  memory_ = &memory;
  offset_ = offset;
  left_ = nbytes;
  position_ = position;
  take_digest_ = digest;
  digest_ = 0;
}

void Landing::open_drain(int64_t nbytes) {
  memory_ = nullptr;
  left_ = nbytes;
  digest_ = 0;
}

std::byte* Landing::scratch() {
  scratch_.resize(kPiece);
  return scratch_.data();
}

Inlet::Got Landing::step(Inlet& inlet, int64_t& moved) {
  int64_t n = std::min(left_, kPiece);
  std::byte* to = nullptr;
  if (memory_ != nullptr) {
    Memory::Run run = memory_->run(offset_, n);
    if (run.data != nullptr) {
      to = run.data;
      n = run.nbytes;
    }
  }
  bool direct = to != nullptr;
  if (!direct) {
    to = scratch();
  }
  size_t received = 0;
  Inlet::Got got = inlet.payload(to, static_cast<size_t>(n), n == left_, received);
  if (got != Inlet::Got::Some) {
    return got;
  }
  moved = static_cast<int64_t>(received);
  if (memory_ != nullptr) {
    if (take_digest_) {
      digest_ += digest_bytes(to, received, position_);
    }
    if (!direct) {
      memory_->scatter(offset_, to, moved);
    }
    offset_ += moved;
    position_ += moved;
  }
  left_ -= moved;
  return got;
}

}  // namespace wt::tcp
