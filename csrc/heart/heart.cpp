#include "heart/heart.h"

#include <unistd.h>

#include <utility>

#include "heart/watch.h"

namespace wt::heart {

struct Heart::State {
  State(std::shared_ptr<CompletionQueue> completions, int64_t interval_ns, int64_t silent_after_ns)
      : watch(std::move(completions), interval_ns, silent_after_ns) {}

  const ForkGuard guard;
  Watch watch;
};

Result<std::unique_ptr<Heart>> Heart::create(std::shared_ptr<CompletionQueue> completions, int64_t interval_ns,
                                             int64_t silent_after_ns) {
  if (interval_ns <= 0 || silent_after_ns <= interval_ns) {
    return Status{ErrCode::INVALID, "silent_after must be longer than the interval, and both positive"};
  }
  std::unique_ptr<Heart> heart(new Heart(new State(std::move(completions), interval_ns, silent_after_ns)));
  Status status = heart->state_->watch.start();
  if (!status.ok()) {
    return status;
  }
  return heart;
}

Heart::~Heart() {
  if (state_->guard.in_child()) {
    state_->watch.abandon();
    return;
  }
  state_->watch.close();
  delete state_;
}

Status Heart::add(uint64_t peer, int fd) {
  auto socket = std::make_shared<BeatSocket>(fd);
  if (state_->guard.in_child()) {
    return {ErrCode::CLOSED, "the heart belongs to the parent process"};
  }
  return state_->watch.add(peer, std::move(socket));
}

Status Heart::watch_pid(uint64_t peer, int pidfd) {
  auto process = std::make_shared<PidFd>(pidfd);
  if (state_->guard.in_child()) {
    return {ErrCode::CLOSED, "the heart belongs to the parent process"};
  }
  return state_->watch.watch_pid(peer, std::move(process));
}

void Heart::remove(uint64_t peer) {
  if (!state_->guard.in_child()) {
    state_->watch.remove(peer);
  }
}

void Heart::touch() { state_->watch.touch(); }

std::optional<Heart::Stats> Heart::stats(uint64_t peer) const {
  if (state_->guard.in_child()) {
    return std::nullopt;
  }
  return state_->watch.stats(peer);
}

void Heart::close() {
  if (!state_->guard.in_child()) {
    state_->watch.close();
  }
}

}  // namespace wt::heart
