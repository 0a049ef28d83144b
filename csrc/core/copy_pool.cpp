#include "core/copy_pool.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/thread.h"

namespace wt {
namespace {

struct Entry {
  std::shared_ptr<Job> job;
  std::shared_ptr<Work> work;
  int64_t next;
  int64_t end;
};

void finish(Job& job, Work& work, int64_t chunks) {
  if (!work.finish(chunks)) return;
  job.release();
  work.settle_noted();
}

bool given_up(const Work& work) { return work.cancel_asked() || work.failed(); }

}  // namespace

struct CopyPool::State {
  std::mutex mutex;  // guards queue and stopping
  std::condition_variable ready;
  std::deque<Entry> queue;
  bool stopping = false;
  std::mutex joining;
  std::vector<std::thread> threads;

  void serve() {
    Scratch scratch;
    std::unique_lock lock(mutex);
    for (;;) {
      ready.wait(lock, [this] { return stopping || !queue.empty(); });
      if (queue.empty()) return;
      Entry& front = queue.front();
      const std::shared_ptr<Job> job = front.job;
      const std::shared_ptr<Work> work = front.work;
      const bool drop = given_up(*work);
      const int64_t chunk = front.next;
      const int64_t taken = drop ? front.end - front.next : 1;
      front.next += taken;
      if (front.next == front.end) queue.pop_front();
      lock.unlock();
      if (!drop) job->run(chunk, *work, scratch);
      finish(*job, *work, taken);
      // Kernels without preemption take a core away at their ticks only (4 ms at 250 Hz): a thread that woke up on it meanwhile would wait.
      std::this_thread::yield();
      lock.lock();
    }
  }
};

CopyPool::CopyPool(std::unique_ptr<State> state, int num_threads) : state_(std::move(state)), num_threads_(num_threads) {}

Result<std::shared_ptr<CopyPool>> CopyPool::create(int num_threads) {
  std::shared_ptr<CopyPool> pool(new CopyPool(std::make_unique<State>(), num_threads));
  State* const state = pool->state_.get();
  for (int i = 0; i < num_threads; ++i) {
    Result<std::thread> thread = start_thread("wt-copy", Priority::Batch, [state] { state->serve(); });
    if (!thread.ok()) return thread.status();
    state->threads.push_back(std::move(thread.value()));
  }
  return pool;
}

CopyPool::~CopyPool() {
  if (guard_.in_child()) {
    // Leaked: its threads do not exist here, and its condition variable would wait for them.
    static_cast<void>(state_.release());
    return;
  }
  close();
}

bool CopyPool::open() const {
  if (guard_.in_child()) return false;
  const std::lock_guard lock(state_->mutex);
  return !state_->stopping;
}

void CopyPool::submit(std::shared_ptr<Job> job, std::shared_ptr<Work> work) {
  const int64_t chunks = job->num_chunks();
  work->expect(chunks);
  work->on_cancel([pool = weak_from_this(), self = work.get()] {
    if (const std::shared_ptr<CopyPool> alive = pool.lock()) alive->drop(*self);
  });
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->stopping) {
      state_->queue.push_back({std::move(job), std::move(work), 0, chunks});
    }
  }
  if (work) {
    work->fail({ErrCode::CLOSED, "the engine is closed"});
    finish(*job, *work, chunks);
  } else if (chunks == 1) {
    state_->ready.notify_one();
  } else {
    state_->ready.notify_all();
  }
}

void CopyPool::run_inline(Job& job, Work& work) {
  Scratch scratch;
  const int64_t chunks = job.num_chunks();
  for (int64_t chunk = 0; chunk < chunks && !given_up(work); ++chunk) job.run(chunk, work, scratch);
  job.release();
  work.settle_noted(false);
}

void CopyPool::drop(const Work& work) {
  if (guard_.in_child()) return;
  Entry dropped;
  {
    const std::lock_guard lock(state_->mutex);
    std::deque<Entry>& queue = state_->queue;
    const auto found = std::find_if(queue.begin(), queue.end(), [&](const Entry& entry) { return entry.work.get() == &work; });
    if (found == queue.end()) return;
    dropped = std::move(*found);
    queue.erase(found);
  }
  finish(*dropped.job, *dropped.work, dropped.end - dropped.next);
}

void CopyPool::close() {
  if (guard_.in_child()) return;
  std::deque<Entry> dropped;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    dropped.swap(state_->queue);
  }
  state_->ready.notify_all();
  for (const Entry& entry : dropped) {
    entry.work->fail({ErrCode::CANCELLED, "the engine was closed"});
    finish(*entry.job, *entry.work, entry.end - entry.next);
  }
  const std::lock_guard lock(state_->joining);
  for (std::thread& thread : state_->threads) thread.join();
  state_->threads.clear();
}

}  // namespace wt
