// One watched peer: its beat socket, its pidfd, its clock.
#pragma once

#include <cstdint>
#include <memory>

#include "heart/beat_socket.h"
#include "heart/pulse.h"

namespace wt::heart {

// A descriptor that becomes readable when the process it names has exited.
class PidFd {
 public:
  explicit PidFd(int fd);
  ~PidFd();
  PidFd(const PidFd&) = delete;
  PidFd& operator=(const PidFd&) = delete;

  [[nodiscard]] int fd() const { return fd_; }

 private:
  const int fd_;
};

struct Peer {
  uint64_t handle = 0;
  std::shared_ptr<BeatSocket> socket;  // null: none was added, or it has ended
  std::shared_ptr<PidFd> process;      // null: not watched, or exited
  Pulse pulse{0};
};

}  // namespace wt::heart
