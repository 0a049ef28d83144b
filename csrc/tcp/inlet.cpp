#include "tcp/inlet.h"

#include <algorithm>
#include <cstring>

namespace wt::tcp {

Inlet::Inlet(const Socket& socket) : socket_(socket), stage_(kStage) {}

Inlet::Got Inlet::judge(const IoResult& result) {
  switch (result.kind) {
    case IoResult::Kind::Moved:
      return Got::Some;
    case IoResult::Kind::Again:
      return Got::Again;
    case IoResult::Kind::Eof:
      return Got::Ended;
    case IoResult::Kind::Error:
      break;
  }
  error_ = result.error;
  return Got::Failed;
}

Inlet::Got Inlet::header(FrameHeader& header) {
  if (end_ - begin_ < sizeof header) {
    if (begin_ > 0) {
      std::memmove(stage_.data(), stage_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    iovec segment{stage_.data() + end_, limit() - end_};
    IoResult result = socket_.receive({&segment, 1});
    Got got = judge(result);
    if (got != Got::Some) {
      return got;
    }
    end_ += result.nbytes;
    if (end_ < sizeof header) {
      return Got::Again;
    }
  }
  std::memcpy(&header, stage_.data() + begin_, sizeof header);
  begin_ += sizeof header;
  return Got::Some;
}

Inlet::Got Inlet::payload(std::byte* to, size_t n, bool last, size_t& moved) {
  if (begin_ < end_) {
    moved = std::min(n, end_ - begin_);
    std::memcpy(to, stage_.data() + begin_, moved);
    begin_ += moved;
    return Got::Some;
  }
  begin_ = end_ = 0;
  iovec segments[2] = {{to, n}, {stage_.data(), limit()}};
  IoResult result = socket_.receive({segments, last ? size_t{2} : size_t{1}});
  Got got = judge(result);
  if (got != Got::Some) {
    return got;
  }
  moved = std::min(n, result.nbytes);
  end_ = result.nbytes - moved;
  return Got::Some;
}

}  // namespace wt::tcp
