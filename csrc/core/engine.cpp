#include "core/engine.h"

#include <algorithm>

#include "core/populate_job.h"
#include "core/transfer_job.h"

namespace wt {
namespace {

constexpr int64_t kMinChunkNbytes = 256 << 10;
constexpr int64_t kMaxChunkNbytes = 4 << 20;
constexpr int64_t kChunksPerThread = 4;  // so that threads that were held up leave little to wait for

enum class Side { Local, Remote };

std::vector<Stretch> resolve(const std::vector<Span>& spans, const Memory& local, Side from, bool with_digest) {
  std::vector<Stretch> stretches;
  stretches.reserve(spans.size());
  for (const Span& span : spans) {
    if (span.nbytes == 0) continue;
    const int64_t here = local.empty() ? 0 : local.block_start(span.block) + span.src;
    const bool out = from == Side::Local;
    stretches.push_back(
        {out ? here : span.dst, out ? span.dst : here, span.nbytes, span.tensor, with_digest ? span.position : 0});
  }
  return stretches;
}

}  // namespace

Result<std::shared_ptr<Engine>> Engine::create(int copy_threads) {
  if (copy_threads < 1 || copy_threads > kMaxCopyThreads)
    return Status{ErrCode::INVALID, "copy_threads must be 1 to " + std::to_string(kMaxCopyThreads)};
  Result<std::shared_ptr<CompletionQueue>> completions = CompletionQueue::create();
  if (!completions.ok()) return completions.status();
  Result<std::shared_ptr<CopyPool>> pool = CopyPool::create(copy_threads);
  if (!pool.ok()) return pool.status();
  return std::shared_ptr<Engine>(new Engine(std::move(completions.value()), std::move(pool.value())));
}

Engine::~Engine() { close(); }

std::shared_ptr<Work> Engine::new_work(int64_t nbytes, size_t num_digests) {
  return std::make_shared<Work>(draw_id(), nbytes, num_digests, completions_);
}

std::shared_ptr<Work> Engine::refused_work(Status status, int64_t nbytes, size_t num_digests) {
  std::shared_ptr<Work> work = new_work(nbytes, num_digests);
  work->settle(std::move(status), false);
  return work;
}

std::shared_ptr<Work> Engine::copy(Memory from, Memory to, const std::vector<Span>& spans, size_t num_digests, uint32_t flags) {
  const bool with_digest = (flags & kFlagDigest) != 0;
  Status status = check_local(spans, from);
  if (status.ok()) status = check_remote(spans, to.nbytes());
  std::vector<Stretch> stretches;
  if (status.ok()) stretches = resolve(spans, from, Side::Local, with_digest);
  return transfer({std::move(from), std::move(to), true, with_digest}, std::move(status), std::move(stretches), spans,
                  num_digests);
}

std::shared_ptr<Work> Engine::copy_from(Memory from, Memory to, const std::vector<Span>& spans, size_t num_digests,
                                        uint32_t flags) {
  const bool with_digest = (flags & kFlagDigest) != 0;
  Status status = check_local(spans, to);
  if (status.ok()) status = check_remote(spans, from.nbytes());
  std::vector<Stretch> stretches;
  if (status.ok()) stretches = resolve(spans, to, Side::Remote, with_digest);
  return transfer({std::move(from), std::move(to), true, with_digest}, std::move(status), std::move(stretches), spans,
                  num_digests);
}

std::shared_ptr<Work> Engine::digest(Memory memory, const std::vector<Span>& spans, size_t num_digests, bool local) {
  Status status = local ? check_local(spans, memory) : check_remote(spans, memory.nbytes());
  std::vector<Stretch> stretches;
  if (status.ok()) stretches = resolve(spans, local ? memory : Memory(), local ? Side::Local : Side::Remote, true);
  return transfer({std::move(memory), Memory(), false, true}, std::move(status), std::move(stretches), spans, num_digests);
}

std::shared_ptr<Work> Engine::transfer(Ends ends, Status status, std::vector<Stretch> stretches, const std::vector<Span>& spans,
                                       size_t num_digests) {
  if (status.ok() && ends.with_digest) status = check_digests(spans, num_digests);
  if (status.ok() && ends.store && !ends.to.writable())
    status = {ErrCode::INVALID, "the destination is mapped read-only, or has elements that share memory"};
  const int64_t total = total_nbytes(spans);
  if (!status.ok()) return refused_work(std::move(status), total, num_digests);
  const int64_t chunk = std::clamp(total / (pool_->num_threads() * kChunksPerThread), kMinChunkNbytes, kMaxChunkNbytes);
  return start(
      std::make_shared<TransferJob>(std::move(ends.from), std::move(ends.to), std::move(stretches), ends.with_digest, chunk),
      new_work(total, num_digests));
}

std::shared_ptr<Work> Engine::populate(std::shared_ptr<Mapping> mapping) {
  std::shared_ptr<Work> work = new_work(mapping->nbytes(), 0);
  return start(std::make_shared<PopulateJob>(std::move(mapping)), std::move(work));
}

std::shared_ptr<Work> Engine::start(std::shared_ptr<Job> job, std::shared_ptr<Work> work) {
  if (!pool_->open()) {
    work->settle({ErrCode::CLOSED, "the engine is closed, or belongs to the process that forked this one"}, false);
  } else if (work->nbytes() <= kInlineNbytes) {
    CopyPool::run_inline(*job, *work);
  } else {
    pool_->submit(std::move(job), work);
  }
  return work;
}

void Engine::close() { pool_->close(); }

}  // namespace wt
