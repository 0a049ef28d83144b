#include "tcp/sender.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace wt::tcp {
namespace {

constexpr int64_t kMinChunk = 256 << 10;
constexpr int64_t kMaxChunk = 1 << 20;
// So many chunks per stream let a faster stream take more without a slow one holding the last of them for long.
constexpr int64_t kChunksPerStream = 8;

}  // namespace

struct TcpSender::State {
  State(std::shared_ptr<Engine> engine_, size_t num_streams)
      : engine(std::move(engine_)),
        queue(std::make_shared<TransferQueue>(num_streams)),
        fate(engine->completions(), engine->draw_id()) {}

  void end_all() {
    for (const auto& stream : streams) {
      stream->shutdown();
    }
  }

  void left() {
    if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      Status status = fate.status();
      if (status.code == ErrCode::CLOSED) {
        status = {ErrCode::PEER_LOST, status.detail};
      }
      queue->settle_all(status);
    }
  }

  void join() {
    std::lock_guard lock(join_mutex);
    for (const auto& stream : streams) {
      stream->join();
      stream->close();
    }
  }

  const ForkGuard guard;
  const std::shared_ptr<Engine> engine;
  const std::shared_ptr<TransferQueue> queue;  // shared with the cancel hooks of its works
  Fate fate;
  std::vector<std::unique_ptr<SenderStream>> streams;
  std::atomic<size_t> running{0};
  std::mutex join_mutex;
};

Result<std::unique_ptr<TcpSender>> TcpSender::create(std::shared_ptr<Engine> engine, const std::vector<int>& fds,
                                                     uint64_t epoch) {
  auto* state = new State(std::move(engine), fds.size());
  std::unique_ptr<TcpSender> sender(new TcpSender(state));
  for (size_t i = 0; i < fds.size(); ++i) {
    state->streams.push_back(
        std::make_unique<SenderStream>(i, fds[i], epoch, *state->queue, state->fate, [state] { state->end_all(); }));
  }
  if (fds.empty()) {
    return Status{ErrCode::INVALID, "an endpoint needs at least one socket"};
  }
  state->running.store(fds.size());
  for (size_t i = 0; i < fds.size(); ++i) {
    Status status = state->streams[i]->start([state] { state->left(); });
    if (!status.ok()) {
      // The streams that were not started will never leave.
      state->running.fetch_sub(fds.size() - i);
      return status;
    }
  }
  return sender;
}

TcpSender::~TcpSender() {
  if (state_->guard.in_child()) {
    for (const auto& stream : state_->streams) {
      stream->abandon();
    }
    return;
  }
  abort();
  state_->join();
  delete state_;
}

uint64_t TcpSender::id() const { return state_->fate.id(); }

bool TcpSender::alive() const { return state_->fate.open() && !state_->guard.in_child(); }

Status TcpSender::status() const { return state_->fate.open() ? Status{} : state_->fate.status(); }

std::shared_ptr<Work> TcpSender::submit(Transfer::Kind kind, Memory memory, Transfer::Target target, std::vector<Span> spans,
                                        size_t num_digests, uint32_t flags) {
  State& state = *state_;
  bool digest = (flags & kFlagDigest) != 0;
  Status status = check_local(spans, memory);
  if (status.ok()) {
    // The owner knows its own size and checks against it; here it is only made sure that numbers are numbers.
    status = check_remote(spans, std::numeric_limits<int64_t>::max());
  }
  if (status.ok()) {
    status = check_digests(spans, digest ? num_digests : std::numeric_limits<uint32_t>::max());
  }
  if (status.ok() && kind == Transfer::Kind::Read && !memory.writable()) {
    status = {ErrCode::INVALID, "the local region cannot be written"};
  }
  if (status.ok() && !alive()) {
    status = state.guard.in_child() ? Status{ErrCode::CLOSED, "the endpoint belongs to the parent process"} : this->status();
  }
  int64_t nbytes = status.ok() ? total_nbytes(spans) : 0;
  if (!status.ok() || nbytes == 0) {
    return state.engine->refused_work(std::move(status), nbytes, num_digests);
  }
  std::shared_ptr<Work> work = state.engine->new_work(nbytes, num_digests);
  work->on_cancel([queue = std::weak_ptr(state.queue), id = work->id()] {
    if (auto alive = queue.lock()) {
      alive->cancel(id);
    }
  });
  int64_t streams = static_cast<int64_t>(state.streams.size());
  int64_t chunk_nbytes = std::clamp(nbytes / (streams * kChunksPerStream), kMinChunk, kMaxChunk);
  auto transfer = std::make_shared<Transfer>(kind, work, std::move(memory), target, std::move(spans), digest, chunk_nbytes);
  std::vector<size_t> idle;
  if (!state.queue->enqueue(std::move(transfer), idle)) {
    Status closed = state.fate.open() ? Status{ErrCode::CLOSED, "the endpoint is being closed"} : state.fate.status();
    work->settle(std::move(closed), false);
    return work;
  }
  // A small work goes out on this very thread: waking another one first would take longer than sending it.
  bool small = nbytes <= kMinChunk;
  for (size_t stream : idle) {
    if (small && state.streams[stream]->try_pump()) {
      return work;
    }
    state.streams[stream]->wake();
    if (small) {
      return work;
    }
  }
  return work;
}

void TcpSender::abort() {
  if (state_->guard.in_child()) {
    return;
  }
  state_->fate.end({ErrCode::ABORTED, "the endpoint was aborted here"}, false);
  state_->end_all();
}

void TcpSender::close() {
  if (state_->guard.in_child()) {
    return;
  }
  state_->queue->close();
  state_->queue->wait_drained();
  if (state_->fate.end({ErrCode::CLOSED, "the endpoint was closed here"}, false)) {
    for (const auto& stream : state_->streams) {
      stream->say_bye();
      stream->wake();
    }
  }
  state_->join();
}

}  // namespace wt::tcp
