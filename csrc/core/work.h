// A submitted transfer: counts its bytes and pieces, sums its digests, settles exactly once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/completion.h"
#include "core/result.h"

namespace wt {

class Work : public std::enable_shared_from_this<Work> {
 public:
  // Settling pushes one event to `queue`. `nbytes` is what is expected to move.
  Work(uint64_t id, int64_t nbytes, size_t num_digests, std::shared_ptr<CompletionQueue> queue);

  uint64_t id() const { return id_; }
  int64_t nbytes() const { return nbytes_; }
  int64_t progress() const { return done_.load(std::memory_order_relaxed); }
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  // OK until settled with something else.
  ErrCode code() const { return settled() ? final_.code : ErrCode::OK; }
  std::string detail() const { return settled() ? final_.detail : std::string(); }
  std::vector<uint64_t> digests() const;

  // Asks the owner of the work to drop what has not started; returns at once. No effect on a settled work.
  void cancel();
  bool cancel_asked() const { return cancel_asked_.load(std::memory_order_acquire); }

  // ---- for the one who carries the work out ----

  // Called once by cancel(), on its caller's thread, with no lock held. Set it before the work is handed out; it is
  // dropped when the work settles. It must not keep this work alive.
  void on_cancel(std::function<void()> hook);
  void advance(int64_t nbytes) { done_.fetch_add(nbytes, std::memory_order_relaxed); }
  void add_digest(int64_t tensor, uint64_t sum) {
    digests_[static_cast<size_t>(tensor)].fetch_add(sum, std::memory_order_relaxed);
  }
  size_t num_digests() const { return digests_.size(); }
  // Notes a failure; the first one noted is what settling by finish() reports.
  void fail(Status failure);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Pieces still to finish; set before the first piece may run.
  void expect(int64_t pieces) { remaining_.store(pieces, std::memory_order_relaxed); }
  // True for the one caller that finished the last piece, which then releases its memory and calls settle_noted().
  bool finish(int64_t pieces) { return remaining_.fetch_sub(pieces, std::memory_order_acq_rel) == pieces; }
  // Settles with the noted failure; without one, with CANCELLED if asked for and bytes are missing, else OK.
  void settle_noted(bool announce = true);
  // First call wins and returns true; every later one does nothing. `announce`: push the event.
  bool settle(Status status, bool announce = true);

 private:
  const uint64_t id_;
  const int64_t nbytes_;
  const std::shared_ptr<CompletionQueue> queue_;
  std::vector<std::atomic<uint64_t>> digests_;
  std::atomic<int64_t> done_{0};
  std::atomic<int64_t> remaining_{0};
  std::atomic<bool> cancel_asked_{false};
  std::atomic<bool> failed_{false};
  std::atomic<bool> settled_{false};
  std::mutex mutex_;  // guards noted_, hook_, and the race to settle
  Status noted_;
  Status final_;  // written once, before settled_ is released
  std::function<void()> hook_;
};

}  // namespace wt
