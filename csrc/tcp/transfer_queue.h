// The transfers of one endpoint, first come first served; every stream takes from it what it can carry.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/result.h"
#include "tcp/transfer.h"

namespace wt::tcp {

struct Chunk {
  std::shared_ptr<Transfer> transfer;
  std::vector<Piece> pieces;
  int64_t nbytes = 0;
  bool last = false;  // of its transfer
};

class TransferQueue {
 public:
  enum class Taken { Chunk, Flush, Nothing };

  explicit TransferQueue(size_t num_streams) : idle_(num_streams, false) {}

  // False once closed. `idle` names the streams that wait for something to take.
  bool enqueue(std::shared_ptr<Transfer> transfer, std::vector<size_t>& idle);

  // For `stream`, which holds an open share of `held` (or null) and may ask for `room` more bytes of reads.
  // Chunk: a share of chunk.transfer is held from now on. Flush: nothing more of `held` comes, ask for its acknowledgement.
  Taken take(size_t stream, const Transfer* held, int64_t room, Chunk& chunk);
  // A share has been acknowledged for good.
  void give_back(const std::shared_ptr<Transfer>& transfer);
  // Notes the failure and drops what has not been taken.
  void fail(Transfer& transfer, Status failure);
  void cancel(uint64_t work_id);

  // Refuses what comes from now on.
  void close();
  // Returns when every work has settled.
  void wait_drained();
  // close(), and settles every work. Precondition: no stream touches the memory of any of them.
  void settle_all(const Status& status);

 private:
  using Lock = std::unique_lock<std::mutex>;

  void drop_exhausted();
  // Settles and forgets the transfer if nothing of it is under way; gives the lock up meanwhile.
  void settle_if_done(Lock& lock, std::shared_ptr<Transfer> transfer);

  std::mutex mutex_;
  std::condition_variable drained_;
  bool closed_ = false;
  std::deque<std::shared_ptr<Transfer>> waiting_;  // in order; the first is the one that is being cut
  std::unordered_map<uint64_t, std::shared_ptr<Transfer>> unsettled_;
  std::vector<bool> idle_;
};

}  // namespace wt::tcp
