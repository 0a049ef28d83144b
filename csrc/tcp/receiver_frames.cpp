// ReceiverStream: what a frame asks for, what it gets, and what is answered.
#include <time.h>

#include <utility>

#include "tcp/receiver_stream.h"

namespace wt::tcp {
namespace {

// An acknowledgement on the way tells the initiator that bytes still arrive, however slowly.
constexpr int64_t kProgressNbytes = 16 << 20;
constexpr int64_t kProgressNs = 50'000'000;

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

ReceiverStream::Step ReceiverStream::handle(const FrameHeader& header) {
  if (header.magic != kFrameMagic) {
    return broken("a frame without the magic number");
  }
  switch (static_cast<Op>(header.op)) {
    case Op::Write:
      return handle_write(header);
    case Op::Read:
      if (header.nbytes == 0 || header.nbytes > kMaxFramePayload) {
        return broken("a request for " + std::to_string(header.nbytes) + " bytes");
      }
      handle_read(header);
      return Step::Some;
    case Op::Flush:
      begin(header);
      if (header.epoch != epoch_) {
        refuse(ErrCode::STALE);
      }
      share_.owes_answer = true;
      return Step::Some;
    case Op::Bye:
      return end({ErrCode::CLOSED, "the peer closed its end"});
    default:
      return broken("a frame of unknown kind " + std::to_string(header.op));
  }
}

void ReceiverStream::begin(const FrameHeader& header) {
  if (share_.open && share_.work == header.work && share_.epoch == header.epoch) {
    return;
  }
  share_ = Share{};
  share_.work = header.work;
  share_.epoch = header.epoch;
  share_.open = true;
  share_.acknowledged_at_ns = now_ns();
}

ErrCode ReceiverStream::find_grant(const FrameHeader& header) {
  if (header.epoch != epoch_) {
    return ErrCode::STALE;
  }
  grant_ = grants_.find(header.key);
  return grant_ ? grant_->judge(header) : ErrCode::STALE;
}

void ReceiverStream::refuse(ErrCode code) {
  refused_.fetch_add(1, std::memory_order_relaxed);
  if (share_.code == ErrCode::OK) {
    share_.code = code;
  }
}

ReceiverStream::Step ReceiverStream::handle_write(const FrameHeader& header) {
  if (header.nbytes > kMaxFramePayload) {
    return broken("a frame of " + std::to_string(header.nbytes) + " bytes");
  }
  begin(header);
  frame_ = header;
  bool first_refusal = share_.code == ErrCode::OK;
  ErrCode code = find_grant(header);
  int64_t nbytes = static_cast<int64_t>(header.nbytes);
  inlet_.expect_payload(header.nbytes);
  if (code == ErrCode::OK && grant_->enter()) {
    landing_.open(grant_->memory(), static_cast<int64_t>(header.offset), nbytes, header.has(kFrameDigest),
                  static_cast<int64_t>(header.position));
    grant_->leave();
  } else {
    refuse(code == ErrCode::OK ? ErrCode::STALE : code);
    landing_.open_drain(nbytes);
    if (first_refusal && !header.has(kFrameLast)) {
      // Told at once, so that the initiator need not send what would be thrown away.
      push_ack(false);
    }
  }
  if (nbytes == 0) {
    finish_write();
  }
  return Step::Some;
}

void ReceiverStream::finish_write() {
  if (!landing_.draining()) {
    grant_->account(frame_.tensor, landing_.digest(), static_cast<int64_t>(frame_.nbytes));
  }
  grant_.reset();
  share_.owes_answer = frame_.has(kFrameLast);
}

void ReceiverStream::note_progress() {
  int64_t fresh = share_.done - share_.acknowledged;
  if (share_.owes_answer || fresh == 0) {
    return;
  }
  if (fresh >= kProgressNbytes || now_ns() - share_.acknowledged_at_ns >= kProgressNs) {
    push_ack(false);
  }
}

void ReceiverStream::handle_read(const FrameHeader& header) {
  begin(header);
  ErrCode code = find_grant(header);
  FrameHeader data;
  data.op = static_cast<uint8_t>(Op::Data);
  data.epoch = header.epoch;
  data.work = header.work;
  data.tensor = header.tensor;
  data.position = header.position;
  if (code == ErrCode::OK && share_.code == ErrCode::OK) {
    data.nbytes = header.nbytes;
    share_.done += static_cast<int64_t>(header.nbytes);
    outlet_.push(data, std::move(grant_), static_cast<int64_t>(header.offset));
  } else {
    refuse(code == ErrCode::OK ? share_.code : code);
    data.code = static_cast<uint16_t>(share_.code);
    outlet_.push(data);
  }
  grant_.reset();
  share_.owes_answer = header.has(kFrameLast);
}

void ReceiverStream::answer() {
  // Everything served has been handed to the kernel, so that it is now known whether the grant lasted until then.
  if (outlet_.take_spoiled()) {
    refuse(ErrCode::STALE);
  }
  push_ack(true);
  share_ = Share{};
}

void ReceiverStream::push_ack(bool last) {
  FrameHeader ack;
  ack.op = static_cast<uint8_t>(Op::Ack);
  ack.flags = last ? kFrameLast : 0;
  ack.code = static_cast<uint16_t>(share_.code);
  ack.epoch = share_.epoch;
  ack.work = share_.work;
  ack.nbytes = static_cast<uint64_t>(share_.done);
  outlet_.push(ack);
  urgent_ = true;
  share_.acknowledged = share_.done;
  share_.acknowledged_at_ns = now_ns();
}

}  // namespace wt::tcp
