// The initiator's side of one TCP endpoint: writes to and reads from what the peer has granted, over several sockets.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/engine.h"
#include "core/fork_guard.h"
#include "core/memory.h"
#include "core/result.h"
#include "core/spans.h"
#include "core/work.h"
#include "tcp/fate.h"
#include "tcp/sender_stream.h"
#include "tcp/transfer.h"
#include "tcp/transfer_queue.h"

namespace wt::tcp {

class TcpSender {
 public:
  // The descriptors are connected stream sockets and belong to the sender, also when it cannot be created.
  static Result<std::unique_ptr<TcpSender>> create(std::shared_ptr<Engine> engine, const std::vector<int>& fds, uint64_t epoch);
  // Aborts, and waits for the threads, which then have nothing to wait for. In a forked child only closes descriptors.
  ~TcpSender();
  TcpSender(const TcpSender&) = delete;
  TcpSender& operator=(const TcpSender&) = delete;

  [[nodiscard]] uint64_t id() const;
  [[nodiscard]] bool alive() const;
  // Why it is not alive; OK while it is.
  [[nodiscard]] Status status() const;

  // The work settles OK when the owner has stored every byte (Write), or every byte is stored here and the grant was
  // current throughout (Read). The caller keeps the bytes of a LocalRegion until it has settled. Never blocks.
  std::shared_ptr<Work> submit(Transfer::Kind kind, Memory memory, Transfer::Target target, std::vector<Span> spans,
                               size_t num_digests, uint32_t flags);

  // Never waits: the works settle with ABORTED as soon as the threads are off their memory.
  void abort();
  // Takes nothing more, waits until every work has settled, says goodbye, closes. Idempotent; abort() ends the wait.
  void close();

 private:
  struct State;
  explicit TcpSender(State* state) : state_(state) {}

  // Leaked on purpose in a forked child, where its threads do not exist and its locks may be held for ever.
  State* state_;
};

}  // namespace wt::tcp
