// SenderStream: what comes back from the owner. Nothing in it is believed before it is checked.
#include <algorithm>
#include <utility>

#include "tcp/sender_stream.h"

namespace wt::tcp {
namespace {

constexpr int64_t kInputBudget = 2 << 20;

bool known_code(uint16_t code) { return code <= static_cast<uint16_t>(ErrCode::INTERNAL); }

Status refusal(uint16_t code) {
  ErrCode known = static_cast<ErrCode>(code);
  return {known, std::string("refused by the owner: ") + error_text(known)};
}

}  // namespace

bool SenderStream::end(Status status) {
  fate_.end(std::move(status), true);
  end_all_();
  return false;
}

bool SenderStream::lost(const std::string& why) {
  return end({ErrCode::PEER_LOST, "stream " + std::to_string(index_) + ": " + why});
}

bool SenderStream::broken(const std::string& why) {
  return end({ErrCode::PROTOCOL, "stream " + std::to_string(index_) + ": " + why});
}

bool SenderStream::read_input(const std::string& if_ended) {
  more_input_ = false;
  int64_t budget = kInputBudget;
  while (budget > 0) {
    Inlet::Got got;
    if (landing_.left() > 0) {
      int64_t moved = 0;
      got = landing_.step(inlet_, moved);
      if (got == Inlet::Got::Some) {
        budget -= moved;
        landing_for_.share->transfer->work->advance(moved);
        if (landing_.left() == 0) {
          finish_data();
        }
        continue;
      }
    } else {
      FrameHeader header;
      got = inlet_.header(header);
      if (got == Inlet::Got::Some) {
        budget -= static_cast<int64_t>(sizeof header);
        if (!handle(header)) {
          return false;
        }
        continue;
      }
    }
    switch (got) {
      case Inlet::Got::Ended:
        return lost(if_ended);
      case Inlet::Got::Failed:
        return lost(errno_text(inlet_.error()));
      default:
        return true;
    }
  }
  more_input_ = true;
  return true;
}

bool SenderStream::handle(const FrameHeader& header) {
  bool bye = static_cast<Op>(header.op) == Op::Bye;
  if (header.magic != kFrameMagic || !known_code(header.code) || (header.epoch != epoch_ && !bye)) {
    return broken("an answer that is no frame of this endpoint");
  }
  switch (static_cast<Op>(header.op)) {
    case Op::Data:
      return handle_data(header);
    case Op::Ack:
      return handle_ack(header);
    case Op::Bye:
      return end({ErrCode::CLOSED, "the peer closed its end"});
    default:
      return broken("an answer of unknown kind " + std::to_string(header.op));
  }
}

bool SenderStream::handle_data(const FrameHeader& header) {
  std::unique_lock lock(mutex_);
  if (expected_.empty() || expected_.front().share->transfer->work->id() != header.work) {
    lock.unlock();
    return broken("data that nobody asked for");
  }
  Expected expected = expected_.front();
  const Transfer& transfer = *expected.share->transfer;
  if (header.code != 0 && header.nbytes == 0) {
    expected_.pop_front();
    expected_nbytes_ -= expected.piece.nbytes;
    --expected.share->expected;
    queue_.fail(*expected.share->transfer, refusal(header.code));
    return true;
  }
  if (header.code != 0 || header.nbytes != static_cast<uint64_t>(expected.piece.nbytes)) {
    lock.unlock();
    return broken("data of another length than asked for");
  }
  lock.unlock();
  landing_for_ = expected;
  inlet_.expect_payload(header.nbytes);
  landing_.open(transfer.memory(), expected.piece.local, expected.piece.nbytes, transfer.digest, expected.piece.position);
  return true;
}

void SenderStream::finish_data() {
  std::lock_guard lock(mutex_);
  const Transfer& transfer = *landing_for_.share->transfer;
  if (transfer.digest) {
    transfer.work->add_digest(landing_for_.piece.tensor, landing_.digest());
  }
  expected_.pop_front();
  expected_nbytes_ -= landing_for_.piece.nbytes;
  --landing_for_.share->expected;
}

bool SenderStream::handle_ack(const FrameHeader& header) {
  std::unique_lock lock(mutex_);
  auto share =
      std::find_if(shares_.begin(), shares_.end(), [&](const Share& each) { return each.transfer->work->id() == header.work; });
  bool last = header.has(kFrameLast);
  bool believable = share != shares_.end() && header.nbytes <= static_cast<uint64_t>(share->asked) &&
                    header.nbytes >= static_cast<uint64_t>(share->acknowledged);
  if (believable && last) {
    // The kernel has every byte, so that nothing of ours refers to the memory any more, and nothing is still to come.
    believable = share->last_frame != 0 && share->last_frame <= outlet_.sent() && share->expected == 0 &&
                 (header.code != 0 || header.nbytes == static_cast<uint64_t>(share->asked));
  }
  if (!believable) {
    lock.unlock();
    return broken("an acknowledgement that cannot be true");
  }
  std::shared_ptr<Transfer> transfer = share->transfer;
  int64_t nbytes = static_cast<int64_t>(header.nbytes);
  if (transfer->kind == Transfer::Kind::Write) {
    transfer->work->advance(nbytes - share->acknowledged);
  }
  share->acknowledged = nbytes;
  if (header.code != 0) {
    queue_.fail(*transfer, refusal(header.code));
  }
  if (last) {
    shares_.erase(share);
    lock.unlock();
    queue_.give_back(transfer);
  }
  return true;
}

}  // namespace wt::tcp
