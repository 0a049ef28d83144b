// Copy threads and the completion queue: the object that all other native objects hang off.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/completion.h"
#include "core/copy_pool.h"
#include "core/memory.h"
#include "core/result.h"
#include "core/spans.h"
#include "core/work.h"

namespace wt {

struct Stretch;

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  static Result<std::shared_ptr<Engine>> create(int copy_threads);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::shared_ptr<CompletionQueue>& completions() const { return completions_; }
  // An id for a work, or for anything else that reports to completions(); never given twice.
  uint64_t draw_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  // A work with a fresh id that reports to completions(); the caller carries it out and settles it.
  std::shared_ptr<Work> new_work(int64_t nbytes, size_t num_digests);
  // A work that is settled already, and whose event is not queued.
  std::shared_ptr<Work> refused_work(Status status, int64_t nbytes, size_t num_digests);

  // Bytes of `from` to `to`. The local side (columns block, src) is `from` for copy, `to` for copy_from; the other side is the
  // remote one (column dst). Up to kInlineNbytes they run on the caller's thread and are settled on return, without an event.
  // Spans must not overlap where they are stored.
  std::shared_ptr<Work> copy(Memory from, Memory to, const std::vector<Span>& spans, size_t num_digests, uint32_t flags);
  std::shared_ptr<Work> copy_from(Memory from, Memory to, const std::vector<Span>& spans, size_t num_digests, uint32_t flags);
  // Reads memory again. `local`: addressed by columns block and src, else by column dst.
  std::shared_ptr<Work> digest(Memory memory, const std::vector<Span>& spans, size_t num_digests, bool local);
  // Faults in every page, so that the first copy runs at full speed; contents stay.
  std::shared_ptr<Work> populate(std::shared_ptr<Mapping> mapping);

  // Cancels what is queued, waits for chunks that run, joins the threads; later calls settle with CLOSED. Idempotent; any thread.
  void close();

  static constexpr int64_t kInlineNbytes = 256 << 10;
  static constexpr int kMaxCopyThreads = 256;

 private:
  struct Ends {
    Memory from;
    Memory to;
    bool store;
    bool with_digest;
  };

  Engine(std::shared_ptr<CompletionQueue> completions, std::shared_ptr<CopyPool> pool)
      : completions_(std::move(completions)), pool_(std::move(pool)) {}

  std::shared_ptr<Work> transfer(Ends ends, Status status, std::vector<Stretch> stretches, const std::vector<Span>& spans,
                                 size_t num_digests);
  std::shared_ptr<Work> start(std::shared_ptr<Job> job, std::shared_ptr<Work> work);

  const std::shared_ptr<CompletionQueue> completions_;
  const std::shared_ptr<CopyPool> pool_;
  std::atomic<uint64_t> next_id_{1};
};

}  // namespace wt
