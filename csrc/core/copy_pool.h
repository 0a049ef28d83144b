// The pool of copy threads: takes jobs apart into chunks, first come first served, and settles their works.
#pragma once

#include <cstdint>
#include <memory>

#include "core/fork_guard.h"
#include "core/result.h"
#include "core/scratch.h"
#include "core/work.h"

namespace wt {

// What a work consists of. run() is called once per chunk, from several threads at once.
class Job {
 public:
  virtual ~Job() = default;
  virtual int64_t num_chunks() const = 0;
  virtual void run(int64_t chunk, Work& work, Scratch& scratch) = 0;
  // Lets go of memory; called once, after the last chunk and before the work settles.
  virtual void release() = 0;
};

class CopyPool : public std::enable_shared_from_this<CopyPool> {
 public:
  static Result<std::shared_ptr<CopyPool>> create(int num_threads);
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  int num_threads() const { return num_threads_; }
  // False after close() and in a forked child, where nothing would ever run.
  bool open() const;
  // The work settles when all chunks ran, or were dropped by a failure, its cancel() or close().
  void submit(std::shared_ptr<Job> job, std::shared_ptr<Work> work);
  // All chunks on this thread; settles without an event.
  static void run_inline(Job& job, Work& work);
  // Drops what has not started, waits for the chunks that run, joins the threads. Idempotent; any thread but the pool's own.
  void close();

 private:
  struct State;
  CopyPool(std::unique_ptr<State> state, int num_threads);
  void drop(const Work& work);

  const ForkGuard guard_;
  std::unique_ptr<State> state_;
  const int num_threads_;
};

}  // namespace wt
