#include "tcp/receiver_stream.h"

#include <poll.h>

#include <utility>

#include "core/thread.h"

namespace wt::tcp {
namespace {

// Queued to be sent before the next frame is taken.
constexpr int64_t kOutputNbytes = 1 << 20;
constexpr size_t kOutputFrames = 64;

}  // namespace

ReceiverStream::ReceiverStream(size_t index, int fd, uint64_t epoch, GrantTable& grants, std::atomic<uint64_t>& refused,
                               Fate& fate, std::function<void()> end_all)
    : index_(index),
      epoch_(epoch),
      grants_(grants),
      refused_(refused),
      fate_(fate),
      end_all_(std::move(end_all)),
      socket_(fd),
      inlet_(socket_),
      outlet_(socket_) {}

Status ReceiverStream::start() {
  if (!wake_.valid()) {
    return errno_status("eventfd", wake_.error());
  }
  Result<std::thread> thread = start_thread("wt-tcp-recv", Priority::Normal, [this] {
    run();
    outlet_.clear();
    grant_.reset();
  });
  if (!thread.ok()) {
    return thread.status();
  }
  thread_ = std::move(thread.value());
  return {};
}

void ReceiverStream::shutdown() {
  socket_.shutdown();
  wake_.ring();
}

void ReceiverStream::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void ReceiverStream::run() {
  while (fate_.open()) {
    bool reading = takes_input();
    Step step = reading ? take_input() : Step::Again;
    if (step == Step::Failed) {
      return;
    }
    if (step == Step::Some && !urgent_) {
      continue;
    }
    urgent_ = false;
    Outlet::Pumped pumped = outlet_.pump();
    if (pumped == Outlet::Pumped::Failed) {
      lost(errno_text(outlet_.error()));
      return;
    }
    if (step == Step::Some) {
      continue;
    }
    if (pumped == Outlet::Pumped::Idle) {
      if (share_.owes_answer) {
        answer();
        continue;
      }
      if (!reading) {
        continue;
      }
      if (fate_.closing() && landing_.left() == 0 && inlet_.empty()) {
        say_bye();
        return;
      }
    }
    short events = 0;
    if (reading) {
      events |= POLLIN;
    }
    if (pumped == Outlet::Pumped::Blocked) {
      events |= POLLOUT;
    }
    wake_.wait(socket_, events);
  }
}

void ReceiverStream::say_bye() {
  FrameHeader bye;
  bye.op = static_cast<uint8_t>(Op::Bye);
  bye.epoch = epoch_;
  outlet_.push(bye);
  // With nothing else queued a header fits, unless the peer has stopped reading; it is then gone without a goodbye.
  outlet_.pump();
  socket_.finish();
}

bool ReceiverStream::takes_input() const {
  return !share_.owes_answer && outlet_.queued_nbytes() < kOutputNbytes && outlet_.queued_frames() < kOutputFrames;
}

ReceiverStream::Step ReceiverStream::judge(Inlet::Got got) {
  switch (got) {
    case Inlet::Got::Some:
      return Step::Some;
    case Inlet::Got::Again:
      return Step::Again;
    case Inlet::Got::Ended:
      return lost("the peer closed the connection");
    case Inlet::Got::Failed:
      break;
  }
  return lost(errno_text(inlet_.error()));
}

ReceiverStream::Step ReceiverStream::take_input() {
  if (landing_.left() > 0) {
    return take_payload();
  }
  FrameHeader header;
  Step step = judge(inlet_.header(header));
  return step == Step::Some ? handle(header) : step;
}

ReceiverStream::Step ReceiverStream::take_payload() {
  int64_t moved = 0;
  if (!landing_.draining()) {
    if (grant_->enter()) {
      if (grant_->current()) {
        Step step = judge(landing_.step(inlet_, moved));
        bool moved_on = landing_.left() == 0 && !grant_->current();
        grant_->leave();
        if (step != Step::Some) {
          return step;
        }
        share_.done += moved;
        if (moved_on) {
          landing_.divert();
          refuse(ErrCode::STALE);
        }
        if (landing_.left() == 0) {
          finish_write();
        }
        note_progress();
        return Step::Some;
      }
      grant_->leave();
    }
    landing_.divert();
    refuse(ErrCode::STALE);
  }
  Step step = judge(landing_.step(inlet_, moved));
  if (step == Step::Some && landing_.left() == 0) {
    finish_write();
  }
  return step;
}

ReceiverStream::Step ReceiverStream::end(Status status) {
  fate_.end(std::move(status), true);
  end_all_();
  return Step::Failed;
}

ReceiverStream::Step ReceiverStream::lost(const std::string& why) {
  return end({ErrCode::PEER_LOST, "stream " + std::to_string(index_) + ": " + why});
}

ReceiverStream::Step ReceiverStream::broken(const std::string& why) {
  return end({ErrCode::PROTOCOL, "stream " + std::to_string(index_) + ": " + why});
}

}  // namespace wt::tcp
