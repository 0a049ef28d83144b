#include "core/completion.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

namespace wt {

Result<std::shared_ptr<CompletionQueue>> CompletionQueue::create() {
  const int fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) return errno_status("eventfd", errno);
  return std::shared_ptr<CompletionQueue>(new CompletionQueue(fd));
}

CompletionQueue::~CompletionQueue() { ::close(fd_); }

void CompletionQueue::push(const Event& event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(event);
  if (events_.size() != 1) return;
  // Cannot block: the counter is 0 or 1. Written under the lock, so that a drain never leaves an event without a wake-up.
  const uint64_t one = 1;
  while (::write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void CompletionQueue::drain(std::vector<Event>& out) {
  if (guard_.in_child()) return;
  const std::lock_guard lock(mutex_);
  uint64_t count;
  while (::read(fd_, &count, sizeof count) < 0 && errno == EINTR) {
  }
  out.insert(out.end(), events_.begin(), events_.end());
  events_.clear();
}

}  // namespace wt
