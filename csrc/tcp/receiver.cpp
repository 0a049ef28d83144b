#include "tcp/receiver.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "core/fork_guard.h"
#include "tcp/fate.h"
#include "tcp/receiver_stream.h"

namespace wt::tcp {

struct TcpReceiver::State {
  explicit State(const std::shared_ptr<Engine>& engine) : fate(engine->completions(), engine->draw_id()) {}

  void end_all() {
    for (const auto& stream : streams) {
      stream->shutdown();
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
  Fate fate;
  GrantTable grants;
  std::atomic<uint64_t> refused{0};
  std::vector<std::unique_ptr<ReceiverStream>> streams;
  std::mutex join_mutex;
};

Result<std::unique_ptr<TcpReceiver>> TcpReceiver::create(std::shared_ptr<Engine> engine, const std::vector<int>& fds,
                                                         uint64_t epoch) {
  auto* state = new State(engine);
  std::unique_ptr<TcpReceiver> receiver(new TcpReceiver(state));
  for (size_t i = 0; i < fds.size(); ++i) {
    state->streams.push_back(std::make_unique<ReceiverStream>(i, fds[i], epoch, state->grants, state->refused, state->fate,
                                                              [state] { state->end_all(); }));
  }
  if (fds.empty()) {
    return Status{ErrCode::INVALID, "an endpoint needs at least one socket"};
  }
  for (const auto& stream : state->streams) {
    Status status = stream->start();
    if (!status.ok()) {
      return status;
    }
  }
  return receiver;
}

TcpReceiver::~TcpReceiver() {
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

uint64_t TcpReceiver::id() const { return state_->fate.id(); }

bool TcpReceiver::alive() const { return state_->fate.open() && !state_->guard.in_child(); }

Status TcpReceiver::status() const { return state_->fate.open() ? Status{} : state_->fate.status(); }

Status TcpReceiver::grant(uint64_t key, Memory memory, uint64_t generation, bool writable, size_t num_digests) {
  if (!alive()) {
    return state_->guard.in_child() ? Status{ErrCode::CLOSED, "the endpoint belongs to the parent process"} : status();
  }
  if (writable && !memory.writable()) {
    return {ErrCode::INVALID, "the region cannot be written"};
  }
  state_->grants.put(key, std::make_shared<Grant>(std::move(memory), generation, writable, num_digests));
  return {};
}

void TcpReceiver::revoke(uint64_t key) {
  if (!state_->guard.in_child()) {
    state_->grants.revoke(key);
  }
}

std::optional<Grant::Ledger> TcpReceiver::ledger(uint64_t key) const {
  std::shared_ptr<Grant> grant = state_->guard.in_child() ? nullptr : state_->grants.find(key);
  if (!grant) {
    return std::nullopt;
  }
  return grant->ledger();
}

bool TcpReceiver::reset_ledger(uint64_t key) {
  std::shared_ptr<Grant> grant = state_->guard.in_child() ? nullptr : state_->grants.find(key);
  if (grant) {
    grant->reset_ledger();
  }
  return grant != nullptr;
}

uint64_t TcpReceiver::refused() const { return state_->refused.load(std::memory_order_relaxed); }

void TcpReceiver::abort() {
  if (state_->guard.in_child()) {
    return;
  }
  state_->fate.end({ErrCode::ABORTED, "the endpoint was aborted here"}, false);
  state_->end_all();
}

void TcpReceiver::close() {
  if (state_->guard.in_child()) {
    return;
  }
  state_->fate.begin_close();
  for (const auto& stream : state_->streams) {
    stream->wake();
  }
  state_->join();
  state_->fate.end({ErrCode::CLOSED, "the endpoint was closed here"}, false);
  state_->grants.revoke_all();
}

}  // namespace wt::tcp
