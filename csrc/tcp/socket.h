// A connected stream socket, and the eventfd that wakes the thread which polls it.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <mutex>
#include <span>
#include <string>

namespace wt::tcp {

// Result of one non-blocking call: bytes moved, or why none.
struct IoResult {
  enum class Kind { Moved, Again, Eof, Error };
  Kind kind = Kind::Moved;
  size_t nbytes = 0;
  int error = 0;
};

// Owns the descriptor. All calls are non-blocking whatever the descriptor's own mode is.
class Socket {
 public:
  explicit Socket(int fd);
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  IoResult send(std::span<const iovec> segments) const;
  IoResult receive(std::span<iovec> segments) const;

  // Both directions end; a thread that polls the socket wakes. Any thread, also after close().
  void shutdown();
  // Ends our direction only, so that what was sent last still arrives.
  void finish();
  // Precondition: nobody sends, receives or polls any more.
  void close();
  // For a forked child, where the lock may be held for ever by a thread that does not exist.
  void abandon();

 private:
  std::mutex mutex_;  // orders shutdown() and close(), which would else hit a descriptor that was given out again
  int fd_;
};

class Wake {
 public:
  Wake();
  ~Wake();
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  // The errno of its creation, where not valid().
  [[nodiscard]] int error() const { return error_; }
  void ring() const;
  // Waits until the socket has one of `events` or somebody rang; takes the rings. Returns the socket's revents.
  short wait(const Socket& socket, short events) const;
  // For a forked child: closes the descriptor early; the object is then never used again.
  void abandon() const;

 private:
  const int fd_;
  const int error_;
};

// "Connection reset by peer (errno 104)".
std::string errno_text(int error);

}  // namespace wt::tcp
