// The clock of one peer: which liveness transition a beat, or the lack of one, makes. No I/O, no time source.
#pragma once

#include <cstdint>
#include <optional>

#include "heart/beat.h"

namespace wt::heart {

class Pulse {
 public:
  explicit Pulse(int64_t now_ns) : last_rx_ns_(now_ns) {}

  // At most two transitions follow from one beat (Resumed, then Stalled or Unstalled).
  struct News {
    std::optional<Liveness> first;
    std::optional<Liveness> second;
  };

  News on_beat(const Beat& beat, int64_t now_ns, int64_t silent_after_ns) {
    News news;
    last_rx_ns_ = now_ns;
    python_age_ns_ = beat.python_age_ns;
    if (silent_) {
      silent_ = false;
      news.first = Liveness::Resumed;
    }
    bool stalled = beat.python_age_ns > static_cast<uint64_t>(silent_after_ns);
    if (stalled != stalled_) {
      stalled_ = stalled;
      news.second = stalled ? Liveness::Stalled : Liveness::Unstalled;
    }
    return news;
  }

  std::optional<Liveness> on_tick(int64_t now_ns, int64_t silent_after_ns) {
    if (silent_ || now_ns - last_rx_ns_ <= silent_after_ns) {
      return std::nullopt;
    }
    silent_ = true;
    return Liveness::Silent;
  }

  // This process was away: its own absence says nothing about the peer.
  void restart(int64_t now_ns) { last_rx_ns_ = now_ns; }

  [[nodiscard]] int64_t last_rx_age_ns(int64_t now_ns) const { return now_ns - last_rx_ns_; }
  [[nodiscard]] uint64_t python_age_ns() const { return python_age_ns_; }

 private:
  int64_t last_rx_ns_;
  uint64_t python_age_ns_ = 0;
  bool silent_ = false;
  bool stalled_ = false;
};

}  // namespace wt::heart
