#include "heart/watch.h"

#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/thread.h"

namespace wt::heart {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
constexpr size_t kFixedEntries = 2;  // the wake eventfd and the timer

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerSecond + now.tv_nsec;
}

void take_count(int fd) {
  uint64_t count;
  [[maybe_unused]] ssize_t taken = read(fd, &count, sizeof count);
}

}  // namespace

Watch::Watch(std::shared_ptr<CompletionQueue> completions, int64_t interval_ns, int64_t silent_after_ns)
    : completions_(std::move(completions)),
      interval_ns_(interval_ns),
      silent_after_ns_(silent_after_ns),
      touched_at_ns_(now_ns()) {}

Watch::~Watch() {
  if (wake_fd_ >= 0) {
    ::close(wake_fd_);
  }
  if (timer_fd_ >= 0) {
    ::close(timer_fd_);
  }
}

Status Watch::start() {
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ < 0) {
    return errno_status("eventfd", errno);
  }
  timer_fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (timer_fd_ < 0) {
    return errno_status("timerfd_create", errno);
  }
  itimerspec times{};
  times.it_interval = {interval_ns_ / kNsPerSecond, interval_ns_ % kNsPerSecond};
  times.it_value = times.it_interval;
  if (timerfd_settime(timer_fd_, 0, &times, nullptr) != 0) {
    return errno_status("timerfd_settime", errno);
  }
  woke_at_ns_ = now_ns();
  Result<std::thread> thread = start_thread("wt-heart", Priority::Normal, [this] { run(); });
  if (!thread.ok()) {
    return thread.status();
  }
  thread_ = std::move(thread.value());
  return {};
}

void Watch::ring() const {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(wake_fd_, &one, sizeof one);
}

Status Watch::add(uint64_t peer, std::shared_ptr<BeatSocket> socket) {
  std::lock_guard lock(mutex_);
  if (closed_) {
    return {ErrCode::CLOSED, "the heart is closed"};
  }
  Peer& entry = peers_[peer];
  entry.handle = peer;
  entry.socket = std::move(socket);
  entry.pulse = Pulse(now_ns());
  changed_ = true;
  ring();
  return {};
}

Status Watch::watch_pid(uint64_t peer, std::shared_ptr<PidFd> process) {
  std::lock_guard lock(mutex_);
  if (closed_) {
    return {ErrCode::CLOSED, "the heart is closed"};
  }
  auto [found, fresh] = peers_.try_emplace(peer);
  Peer& entry = found->second;
  if (fresh) {
    entry.handle = peer;
    entry.pulse = Pulse(now_ns());
  }
  entry.process = std::move(process);
  changed_ = true;
  ring();
  return {};
}

void Watch::remove(uint64_t peer) {
  std::lock_guard lock(mutex_);
  peers_.erase(peer);
  changed_ = true;
  if (!closed_) {
    ring();
  }
}

void Watch::touch() { touched_at_ns_.store(now_ns(), std::memory_order_relaxed); }

std::optional<Heart::Stats> Watch::stats(uint64_t peer) const {
  std::lock_guard lock(mutex_);
  auto found = peers_.find(peer);
  if (found == peers_.end() || !found->second.socket) {
    return std::nullopt;
  }
  const Pulse& pulse = found->second.pulse;
  return Heart::Stats{pulse.last_rx_age_ns(now_ns()), pulse.python_age_ns()};
}

void Watch::close() {
  std::lock_guard join_lock(join_mutex_);
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    peers_.clear();
  }
  if (thread_.joinable()) {
    ring();
    thread_.join();
  }
  entries_.clear();
}

void Watch::abandon() {
  for (auto& [handle, peer] : peers_) {
    if (peer.socket) {
      ::close(peer.socket->fd());
    }
    if (peer.process) {
      ::close(peer.process->fd());
    }
  }
  ::close(wake_fd_);
  ::close(timer_fd_);
}

void Watch::run() {
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) {
        return;
      }
      if (std::exchange(changed_, false)) {
        gather();
      }
    }
    if (poll(polled_.data(), polled_.size(), -1) < 0) {
      continue;
    }
    std::lock_guard lock(mutex_);
    int64_t now = now_ns();
    if (now - std::exchange(woke_at_ns_, now) > silent_after_ns_) {
      // This process was stopped, or starved: neither its peers nor its own Python can be blamed for the gap.
      for (auto& [handle, peer] : peers_) {
        peer.pulse.restart(now);
      }
      touched_at_ns_.store(now, std::memory_order_relaxed);
    }
    if (polled_[0].revents != 0) {
      take_count(wake_fd_);
    }
    look(polled_);
    if (polled_[1].revents != 0) {
      take_count(timer_fd_);
      tick();
    }
  }
}

void Watch::gather() {
  entries_.assign(kFixedEntries, Entry{});
  polled_.assign({{wake_fd_, POLLIN, 0}, {timer_fd_, POLLIN, 0}});
  for (auto& [handle, peer] : peers_) {
    if (peer.socket) {
      entries_.push_back({handle, peer.socket, nullptr});
      polled_.push_back({peer.socket->fd(), POLLIN, 0});
    }
    if (peer.process) {
      entries_.push_back({handle, nullptr, peer.process});
      polled_.push_back({peer.process->fd(), POLLIN, 0});
    }
  }
}

void Watch::look(const std::vector<pollfd>& polled) {
  int64_t now = now_ns();
  for (size_t i = kFixedEntries; i < polled.size(); ++i) {
    if (polled[i].revents == 0) {
      continue;
    }
    auto found = peers_.find(entries_[i].peer);
    if (found == peers_.end()) {
      continue;
    }
    Peer& peer = found->second;
    if (entries_[i].socket && entries_[i].socket == peer.socket) {
      receive(peer, now);
    } else if (entries_[i].process && entries_[i].process == peer.process) {
      peer.process.reset();
      changed_ = true;
      report(peer, Liveness::Exited, now);
    }
  }
}

void Watch::receive(Peer& peer, int64_t now) {
  std::optional<Beat> beat;
  bool usable = peer.socket->receive(beat);
  if (beat) {
    Pulse::News news = peer.pulse.on_beat(*beat, now, silent_after_ns_);
    if (news.first) {
      report(peer, *news.first, now);
    }
    if (news.second) {
      report(peer, *news.second, now);
    }
  }
  if (!usable) {
    drop_socket(peer, now);
  }
}

void Watch::drop_socket(Peer& peer, int64_t now) {
  peer.socket.reset();
  changed_ = true;
  report(peer, Liveness::Eof, now);
}

void Watch::tick() {
  int64_t now = now_ns();
  Beat beat;
  beat.seq = ++seq_;
  int64_t python_age = now - touched_at_ns_.load(std::memory_order_relaxed);
  beat.python_age_ns = python_age > 0 ? static_cast<uint64_t>(python_age) : 0;
  for (auto& [handle, peer] : peers_) {
    if (!peer.socket) {
      continue;
    }
    // Beats that wait in the socket count before the lack of them does.
    receive(peer, now);
    if (peer.socket && !peer.socket->send(beat)) {
      drop_socket(peer, now);
    }
    if (peer.socket) {
      if (std::optional<Liveness> news = peer.pulse.on_tick(now, silent_after_ns_)) {
        report(peer, *news, now);
      }
    }
  }
}

void Watch::report(const Peer& peer, Liveness liveness, int64_t now) {
  bool python = liveness == Liveness::Stalled || liveness == Liveness::Unstalled;
  int64_t age = python ? static_cast<int64_t>(peer.pulse.python_age_ns()) : peer.pulse.last_rx_age_ns(now);
  completions_->push({EventKind::Liveness, peer.handle, static_cast<int32_t>(liveness), age});
}

}  // namespace wt::heart
