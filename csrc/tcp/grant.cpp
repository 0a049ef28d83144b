#include "tcp/grant.h"

#include <limits>
#include <utility>

namespace wt::tcp {
namespace {

uint64_t generation_word(const Memory& memory) { return memory.mapping() ? memory.mapping()->generation() : 0; }

}  // namespace

Grant::Grant(Memory memory, uint64_t generation, bool writable, size_t num_digests)
    : memory_(std::move(memory)),
      nbytes_(memory_.nbytes()),
      generation_(generation),
      word_(generation_word(memory_)),
      writable_(writable && memory_.writable()),
      accounts_(num_digests) {}

ErrCode Grant::judge(const FrameHeader& frame) const {
  if (frame.generation != generation_ || revoked_.load(std::memory_order_acquire)) {
    return ErrCode::STALE;
  }
  uint64_t size = static_cast<uint64_t>(nbytes_);
  if (frame.nbytes > size || frame.offset > size - frame.nbytes) {
    return ErrCode::BOUNDS;
  }
  constexpr uint64_t kMaxPosition = std::numeric_limits<int64_t>::max();
  if (frame.position > kMaxPosition - frame.nbytes) {
    return ErrCode::BOUNDS;
  }
  if (static_cast<Op>(frame.op) == Op::Write) {
    bool accounted = frame.tensor < accounts_.size() || (accounts_.empty() && !frame.has(kFrameDigest));
    if (!writable_ || !accounted) {
      return ErrCode::BOUNDS;
    }
  }
  return ErrCode::OK;
}

bool Grant::current() const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return generation_word(memory_) == word_;
}

bool Grant::enter() {
  if (revoked_.load(std::memory_order_acquire)) {
    return false;
  }
  gate_.lock_shared();
  if (revoked_.load(std::memory_order_acquire)) {
    gate_.unlock_shared();
    return false;
  }
  return true;
}

void Grant::revoke() {
  // Set before the gate is asked for: streams that come and go all the time would else keep it shut for ever.
  revoked_.store(true, std::memory_order_release);
  std::unique_lock lock(gate_);
  memory_ = Memory();
}

void Grant::account(uint32_t tensor, uint64_t digest, int64_t nbytes) {
  if (tensor < accounts_.size()) {
    accounts_[tensor].digest.fetch_add(digest, std::memory_order_relaxed);
    accounts_[tensor].nbytes.fetch_add(nbytes, std::memory_order_relaxed);
  }
}

Grant::Ledger Grant::ledger() const {
  Ledger ledger;
  ledger.digests.reserve(accounts_.size());
  ledger.nbytes.reserve(accounts_.size());
  for (const Account& account : accounts_) {
    ledger.digests.push_back(account.digest.load(std::memory_order_relaxed));
    ledger.nbytes.push_back(account.nbytes.load(std::memory_order_relaxed));
  }
  return ledger;
}

void Grant::reset_ledger() {
  for (Account& account : accounts_) {
    account.digest.store(0, std::memory_order_relaxed);
    account.nbytes.store(0, std::memory_order_relaxed);
  }
}

void GrantTable::put(uint64_t key, std::shared_ptr<Grant> grant) {
  std::shared_ptr<Grant> older;
  {
    std::lock_guard lock(mutex_);
    auto& entry = grants_[key];
    older = std::exchange(entry, std::move(grant));
  }
  if (older) {
    older->revoke();
  }
}

void GrantTable::revoke(uint64_t key) {
  std::shared_ptr<Grant> grant;
  {
    std::lock_guard lock(mutex_);
    auto found = grants_.find(key);
    if (found == grants_.end()) {
      return;
    }
    grant = std::move(found->second);
    grants_.erase(found);
  }
  grant->revoke();
}

void GrantTable::revoke_all() {
  std::unordered_map<uint64_t, std::shared_ptr<Grant>> grants;
  {
    std::lock_guard lock(mutex_);
    grants.swap(grants_);
  }
  for (auto& [key, grant] : grants) {
    grant->revoke();
  }
}

std::shared_ptr<Grant> GrantTable::find(uint64_t key) const {
  std::lock_guard lock(mutex_);
  auto found = grants_.find(key);
  return found == grants_.end() ? nullptr : found->second;
}

}  // namespace wt::tcp
