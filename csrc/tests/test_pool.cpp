// The pool, works and the completion queue with jobs that stop where the test wants them to.
#include "core/copy_pool.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <semaphore>
#include <thread>
#include <vector>

#include "tests/check.h"

using namespace wt;

namespace {

class GatedJob : public Job {
 public:
  explicit GatedJob(int64_t chunks) : chunks_(chunks) {}
  int64_t num_chunks() const override { return chunks_; }
  void run(int64_t, Work& work, Scratch&) override {
    started.release();
    gate.acquire();
    work.advance(1);
  }
  void release() override { ++released; }

  std::counting_semaphore<> started{0};
  std::counting_semaphore<> gate{0};
  std::atomic<int> released{0};

 private:
  const int64_t chunks_;
};

struct Bench {
  std::shared_ptr<CompletionQueue> queue = CompletionQueue::create().value();
  std::shared_ptr<CopyPool> pool;
  uint64_t next_id = 1;

  explicit Bench(int threads) : pool(CopyPool::create(threads).value()) {}
  std::shared_ptr<Work> work(int64_t nbytes) { return std::make_shared<Work>(next_id++, nbytes, 0, queue); }
  bool readable() const {
    pollfd entry{queue->fd(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }
  // Waits for the next events, as an event loop would.
  std::vector<Event> wait() const {
    pollfd entry{queue->fd(), POLLIN, 0};
    CHECK(::poll(&entry, 1, 60000) == 1);
    std::vector<Event> events;
    queue->drain(events);
    return events;
  }
};

void a_work_settles_once() {
  Bench bench(1);
  std::shared_ptr<Work> work = bench.work(5);
  std::atomic<int> winners{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      if (work->settle({i % 2 == 0 ? ErrCode::OK : ErrCode::IO, "x"})) ++winners;
      work->cancel();
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(winners == 1);
  CHECK(bench.wait().size() == 1);
  CHECK(!bench.readable());
}

void the_first_failure_counts() {
  Bench bench(1);
  std::shared_ptr<Work> work = bench.work(5);
  work->fail({ErrCode::IO, "first"});
  work->fail({ErrCode::BOUNDS, "second"});
  CHECK(work->code() == ErrCode::OK && work->detail().empty() && !work->settled());
  work->settle_noted();
  CHECK(work->code() == ErrCode::IO && work->detail() == "first");
}

void cancelling_drops_what_waits() {
  Bench bench(1);
  auto running = std::make_shared<GatedJob>(3);
  auto waiting = std::make_shared<GatedJob>(1000);
  std::shared_ptr<Work> first = bench.work(3), second = bench.work(1000);
  bench.pool->submit(running, first);
  running->started.acquire();
  bench.pool->submit(waiting, second);
  // Nothing of it runs: it settles at once, on this thread.
  second->cancel();
  CHECK(second->settled() && second->code() == ErrCode::CANCELLED && waiting->released == 1);
  // One chunk is in flight: the work settles when that has ended.
  first->cancel();
  CHECK(!first->settled() && running->released == 0);
  CHECK(bench.wait().front().id == second->id());
  running->gate.release();
  const std::vector<Event> events = bench.wait();
  CHECK(events.size() == 1 && events[0].id == first->id() && events[0].value == 1);
  CHECK(events[0].code == static_cast<int32_t>(ErrCode::CANCELLED) && running->released == 1);
  second->cancel();
  CHECK(second->code() == ErrCode::CANCELLED && !bench.readable());
}

void cancelling_too_late_changes_nothing() {
  Bench bench(1);
  auto job = std::make_shared<GatedJob>(1);
  std::shared_ptr<Work> work = bench.work(1);
  bench.pool->submit(job, work);
  job->started.acquire();
  work->cancel();
  job->gate.release();
  CHECK(bench.wait().front().code == static_cast<int32_t>(ErrCode::OK));
}

void a_failed_chunk_drops_the_rest() {
  struct Failing : Job {
    int64_t num_chunks() const override { return 100; }
    void run(int64_t, Work& work, Scratch&) override { work.fail({ErrCode::IO, "disk"}); }
    void release() override {}
  };
  Bench bench(2);
  std::shared_ptr<Work> work = bench.work(100);
  bench.pool->submit(std::make_shared<Failing>(), work);
  CHECK(bench.wait().front().code == static_cast<int32_t>(ErrCode::IO));
}

void closing_settles_everything() {
  Bench bench(2);
  std::vector<std::shared_ptr<GatedJob>> jobs;
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 20; ++i) {
    jobs.push_back(std::make_shared<GatedJob>(4));
    works.push_back(bench.work(4));
    bench.pool->submit(jobs.back(), works.back());
  }
  jobs[0]->started.acquire();
  jobs[0]->started.acquire();
  std::thread closer([&] { bench.pool->close(); });
  std::thread second_closer([&] { bench.pool->close(); });
  size_t settled = 0;
  while (settled < 19) settled += bench.wait().size();
  CHECK(!works[0]->settled());
  jobs[0]->gate.release(2);
  closer.join();
  second_closer.join();
  for (const std::shared_ptr<Work>& work : works) CHECK(work->settled() && work->code() == ErrCode::CANCELLED);
  CHECK(!bench.pool->open());
  std::shared_ptr<Work> late = bench.work(4);
  bench.pool->submit(std::make_shared<GatedJob>(4), late);
  CHECK(late->settled() && late->code() == ErrCode::CLOSED);
}

// A child has no copy threads: it must neither hang on their locks nor touch the parent's events.
void a_forked_child_leaves_in_peace() {
  auto bench = std::make_unique<Bench>(2);
  auto job = std::make_shared<GatedJob>(8);
  std::shared_ptr<Work> work = bench->work(8);
  bench->pool->submit(job, work);
  job->started.acquire();
  job->started.acquire();
  std::shared_ptr<Work> done = bench->work(0);
  done->settle({});
  const pid_t child = ::fork();
  CHECK(child >= 0);
  if (child == 0) {
    ::alarm(60);
    work->cancel();
    std::vector<Event> events;
    bench->queue->drain(events);
    const bool quiet = events.empty() && !bench->pool->open();
    bench->pool->close();
    bench.reset();
    ::_exit(quiet ? 0 : 1);
  }
  int status = 0;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  job->gate.release(8);
  size_t settled = 0;
  while (settled < 2) settled += bench->wait().size();
  CHECK(work->code() == ErrCode::OK && work->progress() == 8);
}

}  // namespace

int main() {
  a_work_settles_once();
  the_first_failure_counts();
  cancelling_drops_what_waits();
  cancelling_too_late_changes_nothing();
  a_failed_chunk_drops_the_rest();
  closing_settles_everything();
  a_forked_child_leaves_in_peace();
  return 0;
}
