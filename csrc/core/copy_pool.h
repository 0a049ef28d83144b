// The pool of copy threads: takes jobs apart into chunks, first come first served, and settles their works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/result.h"
#include "core/work.h"

namespace wt {

// What a work consists of. run() is called once per chunk, from several threads at once.
class Job {
 public:
  virtual ~Job() = default;
  virtual int64_t num_chunks() const = 0;
  virtual void run(int64_t chunk, Work& work) = 0;
  // Lets go of memory; called once, after the last chunk and before the work settles.
  virtual void release() = 0;
};

class CopyPool : public std::enable_shared_from_this<CopyPool> {
 public:
  static Result<std::shared_ptr<CopyPool>> create(int num_threads);
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  // The work settles when all chunks ran, or were dropped by its cancel() or by close(). CLOSED after close().
  void submit(std::shared_ptr<Job> job, std::shared_ptr<Work> work);
  // All chunks on this thread; settles without an event.
  static void run_inline(Job& job, Work& work);
  void close();
  int num_threads() const { return num_threads_; }

 private:
  struct State;
  CopyPool(State* state, int num_threads) : state_(state), num_threads_(num_threads) {}
  void drop(const std::shared_ptr<Work>& work);
  static void serve(State& state);

  // Leaked on purpose in a forked child: its condition variable has waiters that do not exist there.
  State* const state_;
  const int num_threads_;
};

}  // namespace wt
