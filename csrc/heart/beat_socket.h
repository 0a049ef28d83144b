// A non-blocking stream socket that carries beats both ways and never half of one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "heart/beat.h"

namespace wt::heart {

class BeatSocket {
 public:
  explicit BeatSocket(int fd);
  ~BeatSocket();
  BeatSocket(const BeatSocket&) = delete;
  BeatSocket& operator=(const BeatSocket&) = delete;

  [[nodiscard]] int fd() const { return fd_; }

  // A full socket buffer skips the beat. False: the socket is of no more use.
  bool send(const Beat& beat);

  // Reads what is there, within a bound, so that a peer that floods cannot keep the thread from the others.
  // `newest` is the last whole beat. False: the stream ended, failed, or carried something that is not a beat.
  bool receive(std::optional<Beat>& newest);

 private:
  bool send_rest();

  int fd_;
  std::array<std::byte, sizeof(Beat)> out_{};
  size_t out_nbytes_ = 0;  // of a beat that the socket took in part
  std::array<std::byte, sizeof(Beat)> in_{};
  size_t in_nbytes_ = 0;
};

}  // namespace wt::heart
