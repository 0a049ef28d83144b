// Events from native threads to the event loop: one queue on one eventfd, which is readable while events wait.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/fork_guard.h"
#include "core/result.h"

namespace wt {

enum class EventKind : int32_t { WorkSettled = 0, Liveness = 1, EndpointBroken = 2 };

struct Event {
  EventKind kind;
  uint64_t id;    // work id, peer handle, or endpoint id
  int32_t code;   // ErrCode, or LIVENESS_*
  int64_t value;  // bytes done, or age in nanoseconds
};

class CompletionQueue {
 public:
  static Result<std::shared_ptr<CompletionQueue>> create();
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  int fd() const { return fd_; }
  void push(const Event& event);
  // Moves every waiting event to the end of `out`, oldest first; never blocks. In a forked child it finds nothing.
  void drain(std::vector<Event>& out);

 private:
  explicit CompletionQueue(int fd) : fd_(fd) {}

  const int fd_;
  const ForkGuard guard_;
  std::mutex mutex_;
  std::vector<Event> events_;
};

}  // namespace wt
