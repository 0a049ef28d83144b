// The writing end of one stream: frames in order, payloads straight from where they lie, digests taken just before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/memory.h"
#include "core/work.h"
#include "tcp/frame.h"
#include "tcp/grant.h"
#include "tcp/socket.h"

namespace wt::tcp {

class Outlet {
 public:
  enum class Pumped { Idle, Blocked, Failed };

  explicit Outlet(const Socket& socket) : socket_(socket) {}

  void push(const FrameHeader& header);
  // `header.nbytes` bytes from `offset` of `memory` follow the header; `work`, if any, gets their digest. Memory and work
  // must stay until the frame counts as sent.
  void push(const FrameHeader& header, const Memory& memory, int64_t offset, Work* work);
  // The same from granted memory, which may be revoked at any moment: what is left is then sent as zeros, since the
  // header has promised a length.
  void push(const FrameHeader& header, std::shared_ptr<Grant> grant, int64_t offset);

  // Hands the kernel as much as it takes without blocking.
  Pumped pump();
  [[nodiscard]] bool idle() const { return parcels_.empty() && next_ == segments_.size(); }
  // Payload bytes pushed and not yet put into a batch; frames likewise.
  [[nodiscard]] int64_t queued_nbytes() const { return queued_nbytes_; }
  [[nodiscard]] size_t queued_frames() const { return parcels_.size(); }
  // Number of the frame pushed last, counted from 1, and of the last that the kernel has taken whole.
  [[nodiscard]] uint64_t pushed() const { return pushed_; }
  [[nodiscard]] uint64_t sent() const { return sent_; }
  // Granted bytes sent since the last call were revoked or granted anew while they were being sent.
  bool take_spoiled();
  // Of the call that Failed.
  [[nodiscard]] int error() const { return error_; }
  // Forgets every frame; memory is not touched again.
  void clear();

 private:
  static constexpr int64_t kBatch = 256 << 10;
  static constexpr size_t kHeaders = 64;
  static constexpr size_t kSegments = 256;

  struct Parcel {
    FrameHeader header;
    const Memory* memory;  // null: the grant's
    std::shared_ptr<Grant> grant;
    Work* work;
    int64_t offset;
    int64_t left;
    int64_t position;
    bool announced = false;  // its header is in a batch already
  };

  void add(Parcel parcel);
  void prepare(bool entered);
  bool load(Parcel& parcel, bool entered);
  void blank();
  void advance(size_t nbytes);
  std::byte* scratch();

  const Socket& socket_;
  std::deque<Parcel> parcels_;
  int64_t queued_nbytes_ = 0;
  uint64_t pushed_ = 0;
  uint64_t sent_ = 0;
  bool spoiled_ = false;
  int error_ = 0;

  // The batch under way.
  std::vector<iovec> segments_;
  std::vector<bool> in_region_;  // per segment: it points into a region, not into headers_ or scratch_
  size_t next_ = 0;
  std::array<FrameHeader, kHeaders> headers_;
  size_t num_headers_ = 0;
  int64_t batch_nbytes_ = 0;
  uint64_t batch_frames_ = 0;  // that end within it
  std::shared_ptr<Grant> batch_grant_;
  std::vector<std::byte> scratch_;
  int64_t scratch_used_ = 0;
};

}  // namespace wt::tcp
