#include "tcp/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace wt::tcp {
namespace {

constexpr int kSocketBufferNbytes = 4 << 20;

// The plain option is silently clamped to net.core.?mem_max and then switches the kernel's own tuning off, so a clamped
// value would be worse than none: it is only set when it fits.
void set_buffer(int fd, int force_option, int option, const char* limit_path) {
  if (setsockopt(fd, SOL_SOCKET, force_option, &kSocketBufferNbytes, sizeof kSocketBufferNbytes) == 0) {
    return;
  }
  int limit_fd = open(limit_path, O_RDONLY | O_CLOEXEC);
  if (limit_fd < 0) {
    return;
  }
  char text[32] = {};
  ssize_t length = read(limit_fd, text, sizeof text - 1);
  ::close(limit_fd);
  if (length > 0 && std::strtoll(text, nullptr, 10) >= kSocketBufferNbytes) {
    setsockopt(fd, SOL_SOCKET, option, &kSocketBufferNbytes, sizeof kSocketBufferNbytes);
  }
}

IoResult failed() {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    return {IoResult::Kind::Again, 0, 0};
  }
  return {IoResult::Kind::Error, 0, errno};
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  int flags = fcntl(fd_, F_GETFD);
  if (flags >= 0) {
    fcntl(fd_, F_SETFD, flags | FD_CLOEXEC);
  }
  int one = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  set_buffer(fd_, SO_SNDBUFFORCE, SO_SNDBUF, "/proc/sys/net/core/wmem_max");
  set_buffer(fd_, SO_RCVBUFFORCE, SO_RCVBUF, "/proc/sys/net/core/rmem_max");
}

Socket::~Socket() { close(); }

IoResult Socket::send(std::span<const iovec> segments) const {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(segments.data());
  message.msg_iovlen = segments.size();
  ssize_t moved = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (moved < 0) {
    return failed();
  }
  return {IoResult::Kind::Moved, static_cast<size_t>(moved), 0};
}

IoResult Socket::receive(std::span<iovec> segments) const {
  msghdr message{};
  message.msg_iov = segments.data();
  message.msg_iovlen = segments.size();
  ssize_t moved = recvmsg(fd_, &message, MSG_DONTWAIT);
  if (moved < 0) {
    return failed();
  }
  if (moved == 0) {
    return {IoResult::Kind::Eof, 0, 0};
  }
  return {IoResult::Kind::Moved, static_cast<size_t>(moved), 0};
}

void Socket::shutdown() {
  std::lock_guard lock(mutex_);
  if (fd_ >= 0) {
    ::shutdown(fd_, SHUT_RDWR);
  }
}

void Socket::finish() {
  std::lock_guard lock(mutex_);
  if (fd_ >= 0) {
    ::shutdown(fd_, SHUT_WR);
  }
}

void Socket::close() {
  std::lock_guard lock(mutex_);
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
}

void Socket::abandon() {
  if (fd_ >= 0) {
    ::close(std::exchange(fd_, -1));
  }
}

Wake::Wake() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), error_(fd_ < 0 ? errno : 0) {}

Wake::~Wake() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void Wake::ring() const {
  uint64_t one = 1;
  // A full counter means that it is already readable, which is all that is wanted.
  [[maybe_unused]] ssize_t written = write(fd_, &one, sizeof one);
}

short Wake::wait(const Socket& socket, short events) const {
  pollfd entries[2] = {{socket.fd(), events, 0}, {fd_, POLLIN, 0}};
  if (poll(entries, 2, -1) < 0) {
    return 0;
  }
  if (entries[1].revents != 0) {
    uint64_t count;
    [[maybe_unused]] ssize_t taken = read(fd_, &count, sizeof count);
  }
  return entries[0].revents;
}

void Wake::abandon() const { ::close(fd_); }

std::string errno_text(int error) {
  char buffer[128] = {};
  // The GNU variant: it may return a static text instead of filling the buffer.
  const char* text = strerror_r(error, buffer, sizeof buffer);
  return std::string(text) + " (errno " + std::to_string(error) + ")";
}

}  // namespace wt::tcp
