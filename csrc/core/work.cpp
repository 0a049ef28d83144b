#include "core/work.h"

namespace wt {

Work::Work(uint64_t id, int64_t nbytes, size_t num_digests, std::shared_ptr<CompletionQueue> queue)
    : id_(id), nbytes_(nbytes), queue_(std::move(queue)), digests_(num_digests) {}

std::vector<uint64_t> Work::digests() const {
  std::vector<uint64_t> sums(digests_.size());
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = digests_[i].load(std::memory_order_relaxed);
  return sums;
}

void Work::cancel() {
  if (settled() || cancel_asked_.exchange(true, std::memory_order_acq_rel)) return;
  std::function<void()> hook;
  {
    const std::lock_guard lock(mutex_);
    hook = hook_;
  }
  if (hook) hook();
}

void Work::on_cancel(std::function<void()> hook) {
  const std::lock_guard lock(mutex_);
  if (!settled()) hook_ = std::move(hook);
}

void Work::fail(Status failure) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  noted_ = std::move(failure);
  failed_.store(true, std::memory_order_release);
}

void Work::settle_noted(bool announce) {
  Status status;
  {
    const std::lock_guard lock(mutex_);
    status = noted_;
  }
  if (status.ok() && cancel_asked() && progress() < nbytes_) status.code = ErrCode::CANCELLED;
  settle(std::move(status), announce);
}

bool Work::settle(Status status, bool announce) {
  std::function<void()> hook;  // dropped after the lock: it may hold the last reference to something
  const auto code = static_cast<int32_t>(status.code);
  {
    const std::lock_guard lock(mutex_);
    if (settled()) return false;
    final_ = std::move(status);
    hook = std::move(hook_);
    hook_ = nullptr;
    settled_.store(true, std::memory_order_release);
  }
  if (announce) queue_->push({EventKind::WorkSettled, id_, code, progress()});
  return true;
}

}  // namespace wt
