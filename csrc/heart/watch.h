// The heart's thread and what it goes through at every tick of its timer.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <poll.h>

#include "core/completion.h"
#include "core/fork_guard.h"
#include "core/result.h"
#include "heart/heart.h"
#include "heart/peer.h"

namespace wt::heart {

class Watch {
 public:
  Watch(std::shared_ptr<CompletionQueue> completions, int64_t interval_ns, int64_t silent_after_ns);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  Status start();
  Status add(uint64_t peer, std::shared_ptr<BeatSocket> socket);
  Status watch_pid(uint64_t peer, std::shared_ptr<PidFd> process);
  void remove(uint64_t peer);
  void touch();
  [[nodiscard]] std::optional<Heart::Stats> stats(uint64_t peer) const;
  void close();
  // For a forked child: gives the descriptors back without a lock and is then never used again.
  void abandon();

 private:
  // What one descriptor in the poll set stands for. Holding it keeps the descriptor's number from being given out again
  // while the thread polls it.
  struct Entry {
    uint64_t peer = 0;
    std::shared_ptr<BeatSocket> socket;
    std::shared_ptr<PidFd> process;
  };

  void run();
  void gather();
  void look(const std::vector<pollfd>& polled);
  void tick();
  void receive(Peer& peer, int64_t now_ns);
  void report(const Peer& peer, Liveness liveness, int64_t now_ns);
  void drop_socket(Peer& peer, int64_t now_ns);
  void ring() const;

  const std::shared_ptr<CompletionQueue> completions_;
  const int64_t interval_ns_;
  const int64_t silent_after_ns_;
  int wake_fd_ = -1;
  int timer_fd_ = -1;
  std::thread thread_;
  std::mutex join_mutex_;
  std::atomic<int64_t> touched_at_ns_;

  mutable std::mutex mutex_;  // guards what follows; events are pushed under it
  std::map<uint64_t, Peer> peers_;
  bool closed_ = false;
  bool changed_ = true;  // the poll set is out of date

  // The thread's own.
  std::vector<Entry> entries_;
  std::vector<pollfd> polled_;
  int64_t woke_at_ns_ = 0;
  uint64_t seq_ = 0;
};

}  // namespace wt::heart
