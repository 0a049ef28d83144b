#include "tcp/transfer_queue.h"

#include <utility>

namespace wt::tcp {

bool TransferQueue::enqueue(std::shared_ptr<Transfer> transfer, std::vector<size_t>& idle) {
  std::lock_guard lock(mutex_);
  if (closed_) {
    return false;
  }
  unsettled_.emplace(transfer->work->id(), transfer);
  waiting_.push_back(std::move(transfer));
  for (size_t stream = 0; stream < idle_.size(); ++stream) {
    if (idle_[stream]) {
      idle.push_back(stream);
    }
  }
  return true;
}

void TransferQueue::drop_exhausted() {
  while (!waiting_.empty() && waiting_.front()->exhausted()) {
    waiting_.pop_front();
  }
}

TransferQueue::Taken TransferQueue::take(size_t stream, const Transfer* held, int64_t room, Chunk& chunk) {
  std::lock_guard lock(mutex_);
  drop_exhausted();
  if (held != nullptr && held->exhausted()) {
    return Taken::Flush;
  }
  idle_[stream] = waiting_.empty();
  if (waiting_.empty()) {
    return Taken::Nothing;
  }
  const std::shared_ptr<Transfer>& transfer = waiting_.front();
  if (transfer->kind == Transfer::Kind::Read && room <= 0) {
    return Taken::Nothing;
  }
  if (transfer.get() != held) {
    ++transfer->shares;
  }
  chunk.transfer = transfer;
  chunk.pieces.clear();
  chunk.nbytes = transfer->cut(chunk.pieces);
  chunk.last = transfer->exhausted();
  return Taken::Chunk;
}

void TransferQueue::settle_if_done(Lock& lock, std::shared_ptr<Transfer> transfer) {
  if (!transfer->exhausted() || transfer->shares > 0 || transfer->settling) {
    return;
  }
  transfer->settling = true;
  lock.unlock();
  transfer->release();
  transfer->work->settle_noted();
  lock.lock();
  unsettled_.erase(transfer->work->id());
  if (unsettled_.empty()) {
    drained_.notify_all();
  }
}

void TransferQueue::give_back(const std::shared_ptr<Transfer>& transfer) {
  Lock lock(mutex_);
  --transfer->shares;
  settle_if_done(lock, transfer);
}

void TransferQueue::fail(Transfer& transfer, Status failure) {
  std::lock_guard lock(mutex_);
  transfer.work->fail(std::move(failure));
  transfer.drop_rest();
}

void TransferQueue::cancel(uint64_t work_id) {
  Lock lock(mutex_);
  auto found = unsettled_.find(work_id);
  if (found == unsettled_.end()) {
    return;
  }
  std::shared_ptr<Transfer> transfer = found->second;
  transfer->drop_rest();
  std::erase(waiting_, transfer);
  settle_if_done(lock, std::move(transfer));
}

void TransferQueue::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

void TransferQueue::wait_drained() {
  Lock lock(mutex_);
  drained_.wait(lock, [this] { return unsettled_.empty(); });
}

void TransferQueue::settle_all(const Status& status) {
  std::vector<std::shared_ptr<Transfer>> left;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    waiting_.clear();
    for (auto& [id, transfer] : unsettled_) {
      if (!transfer->settling) {
        transfer->settling = true;
        left.push_back(transfer);
      }
    }
  }
  for (const auto& transfer : left) {
    transfer->release();
    transfer->work->settle(status);
  }
  std::lock_guard lock(mutex_);
  for (const auto& transfer : left) {
    unsettled_.erase(transfer->work->id());
  }
  if (unsettled_.empty()) {
    drained_.notify_all();
  }
}

}  // namespace wt::tcp
