// One socket of the initiator's side and the thread that drives it: takes chunks, sends them, reads the answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "core/result.h"
#include "tcp/fate.h"
#include "tcp/inlet.h"
#include "tcp/landing.h"
#include "tcp/outlet.h"
#include "tcp/socket.h"
#include "tcp/transfer_queue.h"

namespace wt::tcp {

class SenderStream {
 public:
  // `fate`: what the streams of the endpoint share; `end_all` shuts all of them down once it is decided.
  SenderStream(size_t index, int fd, uint64_t epoch, TransferQueue& queue, Fate& fate, std::function<void()> end_all);

  // `left` runs on the stream's thread, when it no longer touches the memory of any work.
  Status start(std::function<void()> left);
  // The caller's thread carries what is waiting as far as the kernel takes it at once. False: the thread is at it, wake it.
  bool try_pump();
  void wake() { wake_.ring(); }
  void shutdown();
  // Tells the peer that this end is an orderly one. Precondition: every work has settled.
  void say_bye();
  void join();
  void close() { socket_.close(); }
  // For a forked child: gives the descriptors back and is then never used again.
  void abandon() {
    socket_.abandon();
    wake_.abandon();
  }

 private:
  enum class Step { Idle, Blocked, More, Failed };

  // This stream's part of one transfer, until the owner has acknowledged it.
  struct Share {
    std::shared_ptr<Transfer> transfer;
    int64_t asked = 0;  // bytes put on their way, or requested
    int64_t acknowledged = 0;
    uint64_t last_frame = 0;  // number in the outlet of the frame that closes it; 0 while it is open
    int64_t expected = 0;     // Data frames to come
  };
  // One Read frame whose Data has not come.
  struct Expected {
    Share* share;
    Piece piece;
  };

  void run();
  void leave(const std::function<void()>& left);
  Step pump();
  bool refill();
  void put_chunk();
  void close_share();
  [[nodiscard]] FrameHeader header_of(const Transfer& transfer, Op op) const;

  // These return false after deciding the endpoint's fate. read_input() stops when there is nothing to read, or after a
  // while, to give the outgoing direction its turn; `if_ended` says what an end of file means.
  bool read_input(const std::string& if_ended);
  bool handle(const FrameHeader& header);
  bool handle_data(const FrameHeader& header);
  bool handle_ack(const FrameHeader& header);
  void finish_data();
  bool lost(const std::string& why);
  bool broken(const std::string& why);
  bool end(Status status);

  const size_t index_;
  const uint64_t epoch_;
  TransferQueue& queue_;
  Fate& fate_;
  const std::function<void()> end_all_;
  Socket socket_;
  Wake wake_;
  std::thread thread_;

  // The thread's own.
  Inlet inlet_;
  Landing landing_;
  Expected landing_for_{};
  bool more_input_ = false;  // reading stopped though there may be more

  std::mutex mutex_;  // guards what follows
  bool dead_ = false;
  Outlet outlet_;
  Chunk chunk_;
  std::list<Share> shares_;
  Share* held_ = nullptr;  // the open one
  std::deque<Expected> expected_;
  int64_t expected_nbytes_ = 0;
};

}  // namespace wt::tcp
