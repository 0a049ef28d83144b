#include "tcp/sender_stream.h"

#include <poll.h>

#include <utility>

#include "core/thread.h"

namespace wt::tcp {
namespace {

// Requested and not yet received, on one stream.
constexpr int64_t kReadWindow = 4 << 20;
constexpr size_t kReadWindowFrames = 512;

}  // namespace

SenderStream::SenderStream(size_t index, int fd, uint64_t epoch, TransferQueue& queue, Fate& fate, std::function<void()> end_all)
    : index_(index),
      epoch_(epoch),
      queue_(queue),
      fate_(fate),
      end_all_(std::move(end_all)),
      socket_(fd),
      inlet_(socket_),
      outlet_(socket_) {}

Status SenderStream::start(std::function<void()> left) {
  if (!wake_.valid()) {
    return errno_status("eventfd", wake_.error());
  }
  Result<std::thread> thread = start_thread("wt-tcp-send", Priority::Normal, [this, left = std::move(left)] {
    run();
    leave(left);
  });
  if (!thread.ok()) {
    return thread.status();
  }
  thread_ = std::move(thread.value());
  return {};
}

void SenderStream::run() {
  while (fate_.open()) {
    short events = POLLIN;
    Step step;
    int error;
    {
      std::lock_guard lock(mutex_);
      step = pump();
      error = outlet_.error();
    }
    if (step == Step::Failed) {
      // What the peer said before it closed tells more than the errno of writing to it; an end of file tells less.
      if (read_input(errno_text(error))) {
        lost(errno_text(error));
      }
      return;
    }
    if (step != Step::Idle) {
      events |= POLLOUT;
    }
    // What was read ahead is no longer in the socket, so that polling would miss it.
    bool readable = more_input_ || (wake_.wait(socket_, events) & ~POLLOUT) != 0;
    if (readable && fate_.open() && !read_input("the peer closed the connection")) {
      return;
    }
  }
}

void SenderStream::leave(const std::function<void()>& left) {
  {
    std::lock_guard lock(mutex_);
    dead_ = true;
    outlet_.clear();
    chunk_ = {};
    expected_.clear();
    shares_.clear();
    held_ = nullptr;
  }
  left();
}

bool SenderStream::try_pump() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || dead_) {
    return false;
  }
  return pump() == Step::Idle;
}

void SenderStream::shutdown() {
  socket_.shutdown();
  wake_.ring();
}

void SenderStream::say_bye() {
  std::lock_guard lock(mutex_);
  FrameHeader bye;
  bye.op = static_cast<uint8_t>(Op::Bye);
  bye.epoch = epoch_;
  outlet_.push(bye);
  outlet_.pump();
  socket_.finish();
}

void SenderStream::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

SenderStream::Step SenderStream::pump() {
  bool sent = false;
  for (;;) {
    if (outlet_.idle()) {
      if (!refill()) {
        return Step::Idle;
      }
      // One chunk at a time, so that answers are read in between.
      if (sent) {
        return Step::More;
      }
    }
    switch (outlet_.pump()) {
      case Outlet::Pumped::Idle:
        sent = true;
        break;
      case Outlet::Pumped::Blocked:
        return Step::Blocked;
      case Outlet::Pumped::Failed:
        return Step::Failed;
    }
  }
}

bool SenderStream::refill() {
  for (;;) {
    int64_t room = expected_.size() < kReadWindowFrames ? kReadWindow - expected_nbytes_ : 0;
    switch (queue_.take(index_, held_ ? held_->transfer.get() : nullptr, room, chunk_)) {
      case TransferQueue::Taken::Flush: {
        FrameHeader flush = header_of(*held_->transfer, Op::Flush);
        flush.flags |= kFrameLast;
        outlet_.push(flush);
        close_share();
        break;
      }
      case TransferQueue::Taken::Nothing:
        return !outlet_.idle();
      case TransferQueue::Taken::Chunk:
        put_chunk();
        return true;
    }
  }
}

FrameHeader SenderStream::header_of(const Transfer& transfer, Op op) const {
  FrameHeader header;
  header.op = static_cast<uint8_t>(op);
  header.flags = transfer.digest ? kFrameDigest : 0;
  header.epoch = epoch_;
  header.key = transfer.target.key;
  header.generation = transfer.target.generation;
  header.work = transfer.work->id();
  return header;
}

void SenderStream::put_chunk() {
  if (held_ == nullptr) {
    held_ = &shares_.emplace_back();
    held_->transfer = chunk_.transfer;
  }
  const Transfer& transfer = *chunk_.transfer;
  bool write = transfer.kind == Transfer::Kind::Write;
  FrameHeader header = header_of(transfer, write ? Op::Write : Op::Read);
  for (size_t i = 0; i < chunk_.pieces.size(); ++i) {
    const Piece& piece = chunk_.pieces[i];
    header.offset = static_cast<uint64_t>(piece.remote);
    header.nbytes = static_cast<uint64_t>(piece.nbytes);
    header.position = static_cast<uint64_t>(piece.position);
    header.tensor = piece.tensor;
    if (chunk_.last && i + 1 == chunk_.pieces.size()) {
      header.flags |= kFrameLast;
    }
    if (write) {
      outlet_.push(header, transfer.memory(), piece.local, transfer.digest ? transfer.work.get() : nullptr);
    } else {
      outlet_.push(header);
      expected_.push_back({held_, piece});
      expected_nbytes_ += piece.nbytes;
      ++held_->expected;
    }
  }
  held_->asked += chunk_.nbytes;
  if (chunk_.last) {
    close_share();
  }
  chunk_.transfer.reset();
}

void SenderStream::close_share() {
  held_->last_frame = outlet_.pushed();
  held_ = nullptr;
}

}  // namespace wt::tcp
