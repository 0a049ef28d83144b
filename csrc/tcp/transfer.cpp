#include "tcp/transfer.h"

#include <algorithm>
#include <utility>

namespace wt::tcp {

Transfer::Transfer(Kind kind_, std::shared_ptr<Work> work_, Memory memory, Target target_, std::vector<Span> spans, bool digest_,
                   int64_t chunk_nbytes)
    : kind(kind_),
      work(std::move(work_)),
      target(target_),
      digest(digest_),
      memory_(std::move(memory)),
      spans_(std::move(spans)),
      chunk_nbytes_(chunk_nbytes) {
  skip_empty();
}

void Transfer::skip_empty() {
  while (next_span_ < spans_.size() && spans_[next_span_].nbytes == 0) {
    ++next_span_;
  }
}

int64_t Transfer::cut(std::vector<Piece>& pieces) {
  int64_t total = 0;
  while (!exhausted() && total < chunk_nbytes_ && pieces.size() < kFramesPerChunk) {
    const Span& span = spans_[next_span_];
    int64_t n = std::min(span.nbytes - next_offset_, chunk_nbytes_ - total);
    pieces.push_back({memory_.block_start(span.block) + span.src + next_offset_, span.dst + next_offset_, n,
                      span.position + next_offset_, static_cast<uint32_t>(span.tensor)});
    total += n;
    next_offset_ += n;
    if (next_offset_ == span.nbytes) {
      next_offset_ = 0;
      ++next_span_;
      skip_empty();
    }
  }
  return total;
}

}  // namespace wt::tcp
