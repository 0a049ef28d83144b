// The owner's side of one TCP endpoint: lets the peer write and read what it was granted, and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/engine.h"
#include "core/memory.h"
#include "core/result.h"
#include "tcp/grant.h"

namespace wt::tcp {

class TcpReceiver {
 public:
  // The descriptors are connected stream sockets and belong to the receiver, also when it cannot be created.
  static Result<std::unique_ptr<TcpReceiver>> create(std::shared_ptr<Engine> engine, const std::vector<int>& fds, uint64_t epoch);
  // Aborts, and waits for the threads. In a forked child only closes descriptors.
  ~TcpReceiver();
  TcpReceiver(const TcpReceiver&) = delete;
  TcpReceiver& operator=(const TcpReceiver&) = delete;

  [[nodiscard]] uint64_t id() const;
  [[nodiscard]] bool alive() const;
  // Why it is not alive; OK while it is.
  [[nodiscard]] Status status() const;

  // The caller keeps the bytes of a LocalRegion until revoke(), or close(), has returned. The generation word of a
  // shared region is set before: a grant is over once the word moves. INVALID if `writable` and the memory is not.
  Status grant(uint64_t key, Memory memory, uint64_t generation, bool writable, size_t num_digests);
  // When it returns nobody touches the memory, and frames for the key are refused.
  void revoke(uint64_t key);
  // Of what was stored since the grant or the last reset. Empty without a grant of this key.
  [[nodiscard]] std::optional<Grant::Ledger> ledger(uint64_t key) const;
  // False without a grant of this key.
  bool reset_ledger(uint64_t key);
  // Frames refused so far.
  [[nodiscard]] uint64_t refused() const;

  // Never waits.
  void abort();
  // Waits until no frame is under way, says goodbye, closes, revokes every grant. Idempotent; abort() ends the wait.
  void close();

 private:
  struct State;
  explicit TcpReceiver(State* state) : state_(state) {}

  // Leaked on purpose in a forked child, where its threads do not exist and its locks may be held for ever.
  State* state_;
};

}  // namespace wt::tcp
