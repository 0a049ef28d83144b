#include "heart/peer.h"

#include <fcntl.h>
#include <unistd.h>

namespace wt::heart {

PidFd::PidFd(int fd) : fd_(fd) {
  int flags = fcntl(fd_, F_GETFD);
  if (flags >= 0) {
    fcntl(fd_, F_SETFD, flags | FD_CLOEXEC);
  }
}

PidFd::~PidFd() { ::close(fd_); }

}  // namespace wt::heart
