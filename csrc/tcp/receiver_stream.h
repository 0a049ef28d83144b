// One socket of the owner's side and the thread that serves it: stores what is written, sends what is read, answers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "core/result.h"
#include "tcp/fate.h"
#include "tcp/grant.h"
#include "tcp/inlet.h"
#include "tcp/landing.h"
#include "tcp/outlet.h"
#include "tcp/socket.h"

namespace wt::tcp {

class ReceiverStream {
 public:
  ReceiverStream(size_t index, int fd, uint64_t epoch, GrantTable& grants, std::atomic<uint64_t>& refused, Fate& fate,
                 std::function<void()> end_all);

  // Once the endpoint closes, the thread ends at the next moment at which nothing of a frame is under way, after saying
  // goodbye.
  Status start();
  void wake() { wake_.ring(); }
  void shutdown();
  void join();
  void close() { socket_.close(); }
  // For a forked child: gives the descriptors back and is then never used again.
  void abandon() {
    socket_.abandon();
    wake_.abandon();
  }

 private:
  enum class Step { Some, Again, Failed };

  // The work whose frames arrive now: an initiator finishes one on a stream before it begins the next there.
  struct Share {
    uint64_t work = 0;
    uint64_t epoch = 0;
    bool open = false;
    int64_t done = 0;          // bytes stored, or served
    int64_t acknowledged = 0;  // of them
    int64_t acknowledged_at_ns = 0;
    ErrCode code = ErrCode::OK;
    bool owes_answer = false;  // its last frame is in
  };

  void run();
  void say_bye();
  // Whether the next frame may be taken: what is to be sent is bounded, and answers keep their order.
  [[nodiscard]] bool takes_input() const;
  Step take_input();
  Step take_payload();
  Step handle(const FrameHeader& header);
  Step handle_write(const FrameHeader& header);
  void handle_read(const FrameHeader& header);
  Step judge(Inlet::Got got);
  void finish_write();
  void note_progress();

  void begin(const FrameHeader& header);
  ErrCode find_grant(const FrameHeader& header);
  void refuse(ErrCode code);
  void answer();
  void push_ack(bool last);

  Step lost(const std::string& why);
  Step broken(const std::string& why);
  Step end(Status status);

  const size_t index_;
  const uint64_t epoch_;
  GrantTable& grants_;
  std::atomic<uint64_t>& refused_;
  Fate& fate_;
  const std::function<void()> end_all_;
  Socket socket_;
  Wake wake_;
  std::thread thread_;

  // The thread's own.
  Inlet inlet_;
  Outlet outlet_;
  Landing landing_;
  FrameHeader frame_;  // the Write in hand
  std::shared_ptr<Grant> grant_;
  Share share_;
  bool urgent_ = false;  // an acknowledgement is to go out before more is read
};

}  // namespace wt::tcp
