// One native thread that beats for this process whatever Python does, and listens for the beats and the end of its peers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/completion.h"
#include "core/result.h"

namespace wt::heart {

class Heart {
 public:
  // INVALID unless 0 < interval_ns < silent_after_ns.
  static Result<std::unique_ptr<Heart>> create(std::shared_ptr<CompletionQueue> completions, int64_t interval_ns,
                                               int64_t silent_after_ns);
  // As close(). In a forked child only closes descriptors.
  ~Heart();
  Heart(const Heart&) = delete;
  Heart& operator=(const Heart&) = delete;

  // `fd`: a connected stream socket whose other end is another Heart's; it belongs to the heart. The peer's clock starts
  // now; an earlier socket of the same peer is closed. CLOSED after close().
  Status add(uint64_t peer, int fd);
  // `pidfd` belongs to the heart.
  Status watch_pid(uint64_t peer, int pidfd);
  // Closes what is held for the peer; no event about it is queued after this returns.
  void remove(uint64_t peer);
  // Python made progress. Never blocks.
  void touch();

  struct Stats {
    int64_t last_rx_age_ns;
    uint64_t python_age_ns;  // as the peer's newest beat has it
  };
  // Empty for a peer that has no socket.
  [[nodiscard]] std::optional<Stats> stats(uint64_t peer) const;

  // Joins the thread and closes every descriptor. Idempotent.
  void close();

 private:
  struct State;
  explicit Heart(State* state) : state_(state) {}

  // Leaked on purpose in a forked child, where its thread does not exist and its lock may be held for ever.
  State* state_;
};

}  // namespace wt::heart
