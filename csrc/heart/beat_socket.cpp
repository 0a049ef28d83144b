#include "heart/beat_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace wt::heart {
namespace {

constexpr size_t kReadNbytes = 1024;
constexpr int kReadsAtOnce = 16;

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

BeatSocket::BeatSocket(int fd) : fd_(fd) {
  int flags = fcntl(fd_, F_GETFD);
  if (flags >= 0) {
    fcntl(fd_, F_SETFD, flags | FD_CLOEXEC);
  }
  int one = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

BeatSocket::~BeatSocket() { ::close(fd_); }

bool BeatSocket::send_rest() {
  ssize_t moved = ::send(fd_, out_.data() + out_.size() - out_nbytes_, out_nbytes_, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (moved < 0) {
    return would_block();
  }
  out_nbytes_ -= static_cast<size_t>(moved);
  return true;
}

bool BeatSocket::send(const Beat& beat) {
  if (out_nbytes_ > 0 && !send_rest()) {
    return false;
  }
  if (out_nbytes_ > 0) {
    return true;
  }
  std::memcpy(out_.data(), &beat, sizeof beat);
  out_nbytes_ = sizeof beat;
  if (!send_rest()) {
    return false;
  }
  if (out_nbytes_ == sizeof beat) {
    out_nbytes_ = 0;
  }
  return true;
}

bool BeatSocket::receive(std::optional<Beat>& newest) {
  std::byte buffer[kReadNbytes];
  for (int reads = 0; reads < kReadsAtOnce; ++reads) {
    ssize_t moved = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
    if (moved < 0) {
      return would_block();
    }
    if (moved == 0) {
      return false;
    }
    size_t length = static_cast<size_t>(moved);
    for (size_t at = 0; at < length;) {
      size_t part = std::min(length - at, in_.size() - in_nbytes_);
      std::memcpy(in_.data() + in_nbytes_, buffer + at, part);
      in_nbytes_ += part;
      at += part;
      if (in_nbytes_ < in_.size()) {
        break;
      }
      in_nbytes_ = 0;
      Beat beat;
      std::memcpy(&beat, in_.data(), sizeof beat);
      if (beat.magic != kBeatMagic) {
        return false;
      }
      newest = beat;
    }
    if (length < sizeof buffer) {
      return true;
    }
  }
  return true;
}

}  // namespace wt::heart
