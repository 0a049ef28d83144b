// What the owner allows one peer to do with one region, and the account of what the peer stored there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "core/memory.h"
#include "core/result.h"
#include "tcp/frame.h"

namespace wt::tcp {

class Grant {
 public:
  Grant(Memory memory, uint64_t generation, bool writable, size_t num_digests);

  // OK, STALE or BOUNDS for one Write or Read frame of the right epoch; nothing is touched before it says OK.
  [[nodiscard]] ErrCode judge(const FrameHeader& frame) const;

  // memory() and current() may be used only between enter() and leave(); enter() is false once revoked. Hold it for
  // one non-blocking step only: revoke() waits for it.
  [[nodiscard]] bool enter();
  void leave() { gate_.unlock_shared(); }
  [[nodiscard]] const Memory& memory() const { return memory_; }
  // The region's own generation word stands where it stood when this was granted. True after the last byte was loaded,
  // as well as before the first, means that nothing was granted anew in between.
  [[nodiscard]] bool current() const;
  // When it returns nobody touches the memory any more, and never will.
  void revoke();

  void account(uint32_t tensor, uint64_t digest, int64_t nbytes);
  struct Ledger {
    std::vector<uint64_t> digests;
    std::vector<int64_t> nbytes;  // stored, per tensor
  };
  [[nodiscard]] Ledger ledger() const;
  void reset_ledger();

 private:
  struct Account {
    std::atomic<uint64_t> digest{0};
    std::atomic<int64_t> nbytes{0};
  };

  Memory memory_;
  const int64_t nbytes_;
  const uint64_t generation_;
  const uint64_t word_;  // the region's generation word at the time of the grant; 0 where it has none
  const bool writable_;
  std::vector<Account> accounts_;
  std::shared_mutex gate_;
  std::atomic<bool> revoked_{false};
};

// The grants of one endpoint by key. Any thread.
class GrantTable {
 public:
  // Takes the place of an older grant of this key, which is revoked first.
  void put(uint64_t key, std::shared_ptr<Grant> grant);
  void revoke(uint64_t key);
  void revoke_all();
  [[nodiscard]] std::shared_ptr<Grant> find(uint64_t key) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<Grant>> grants_;
};

}  // namespace wt::tcp
