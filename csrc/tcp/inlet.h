// The reading end of one stream: headers through a small buffer, payloads straight to where they belong.
#pragma once

#include <cstddef>
#include <vector>

#include "tcp/frame.h"
#include "tcp/socket.h"

namespace wt::tcp {

class Inlet {
 public:
  enum class Got { Some, Again, Ended, Failed };

  explicit Inlet(const Socket& socket);

  // Some: a whole header, of any content. Ended: end of file, on a frame's boundary or not.
  Got header(FrameHeader& header);
  // Some: 1..n bytes of payload at `to`. `last`: the payload ends within these n bytes, so that what follows may be
  // read ahead in the same call. Precondition: n >= 1.
  Got payload(std::byte* to, size_t n, bool last, size_t& moved);

  // How long the payload of the frame in hand is: long ones are followed by few bytes read ahead, since every byte
  // read ahead is copied once more.
  void expect_payload(size_t nbytes) { long_frames_ = nbytes >= kLongFrame; }
  // Nothing of a next frame was taken from the socket.
  [[nodiscard]] bool empty() const { return begin_ == end_; }
  // Of the call that Failed.
  [[nodiscard]] int error() const { return error_; }

 private:
  static constexpr size_t kStage = 64 << 10;
  static constexpr size_t kStageOfLongFrames = 4 << 10;
  static constexpr size_t kLongFrame = 128 << 10;

  Got judge(const IoResult& result);
  [[nodiscard]] size_t limit() const { return long_frames_ ? kStageOfLongFrames : kStage; }

  const Socket& socket_;
  std::vector<std::byte> stage_;
  size_t begin_ = 0;  // stage_[begin_, end_) is received and not yet handed out
  size_t end_ = 0;
  bool long_frames_ = false;
  int error_ = 0;
};

}  // namespace wt::tcp
