// Whether an endpoint still works and, once it does not, why: decided once, told once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "core/completion.h"
#include "core/result.h"

namespace wt::tcp {

class Fate {
 public:
  Fate(std::shared_ptr<CompletionQueue> completions, uint64_t id) : completions_(std::move(completions)), id_(id) {}

  [[nodiscard]] uint64_t id() const { return id_; }
  [[nodiscard]] bool open() const { return open_.load(std::memory_order_acquire); }

  // From now on whatever ends the endpoint is part of its being closed, and no news.
  void begin_close() { closing_.store(true, std::memory_order_release); }
  [[nodiscard]] bool closing() const { return closing_.load(std::memory_order_acquire); }

  // The first call wins and returns true. `announce`: the event loop is told that the endpoint broke.
  bool end(Status status, bool announce) {
    if (closing()) {
      status = {ErrCode::CLOSED, "the endpoint was closed here"};
      announce = false;
    }
    {
      std::lock_guard lock(mutex_);
      if (!open_.load(std::memory_order_relaxed)) {
        return false;
      }
      status_ = std::move(status);
      open_.store(false, std::memory_order_release);
    }
    if (announce) {
      completions_->push({EventKind::EndpointBroken, id_, static_cast<int32_t>(status_.code), 0});
    }
    return true;
  }

  // Precondition: not open().
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const std::shared_ptr<CompletionQueue> completions_;
  const uint64_t id_;
  std::mutex mutex_;
  std::atomic<bool> open_{true};
  std::atomic<bool> closing_{false};
  Status status_;  // written once, before open_ is released
};

}  // namespace wt::tcp
