#include "core/transfer_job.h"

#include <algorithm>

#include "core/copy.h"
#include "core/digest.h"

namespace wt {

TransferJob::TransferJob(Memory from, Memory to, std::vector<Stretch> stretches, bool with_digest, int64_t chunk_nbytes)
    : from_(std::move(from)),
      to_(std::move(to)),
      store_(!to_.empty()),
      with_digest_(with_digest),
      stretches_(std::move(stretches)) {
  int64_t room = 0;
  for (size_t i = 0; i < stretches_.size(); ++i) {
    const Stretch& stretch = stretches_[i];
    for (int64_t at = 0; at < stretch.nbytes;) {
      if (room <= 0) {
        cuts_.push_back({i, at});
        room = chunk_nbytes;
      }
      int64_t n = std::min(room, stretch.nbytes - at);
      if (n < stretch.nbytes - at) {
        // Cut inside a stretch only where a digest block begins: whole blocks are the fast path.
        const int64_t past = (stretch.position + at + n) % kDigestBlockNbytes;
        n += past == 0 ? 0 : std::min(kDigestBlockNbytes - past, stretch.nbytes - at - n);
      }
      at += n;
      room -= n;
    }
  }
}

void TransferJob::run(int64_t chunk, Work& work, Scratch& scratch) {
  const auto index = static_cast<size_t>(chunk);
  const Cut begin = cuts_[index];
  const Cut end = index + 1 < cuts_.size() ? cuts_[index + 1] : Cut{stretches_.size(), 0};
  int64_t moved = 0;
  for (size_t i = begin.stretch; i <= end.stretch && i < stretches_.size(); ++i) {
    const int64_t first = i == begin.stretch ? begin.offset : 0;
    const int64_t last = i == end.stretch ? end.offset : stretches_[i].nbytes;
    if (first == last) continue;
    if (!move(stretches_[i], first, last - first, work, scratch)) break;
    moved += last - first;
  }
  work.advance(moved);
}

bool TransferJob::move(const Stretch& stretch, int64_t offset, int64_t n, Work& work, Scratch& scratch) {
  uint64_t sum = 0;
  while (n > 0) {
    const int64_t from = stretch.from + offset;
    const int64_t to = stretch.to + offset;
    const int64_t position = stretch.position + offset;
    Memory::Run source = from_.run(from, n);
    Memory::Run target = store_ ? to_.run(to, source.nbytes) : Memory::Run{nullptr, source.nbytes};
    std::byte* buffer = nullptr;
    if (source.data == nullptr || (store_ && target.data == nullptr)) {
      buffer = scratch.buffer();
      if (buffer == nullptr) {
        work.fail({ErrCode::NO_MEMORY, "no memory for a gather buffer"});
        return false;
      }
      target.nbytes = std::min(target.nbytes, Scratch::kNbytes);
    }
    if (source.data == nullptr) {
      target.nbytes = from_.run(from, target.nbytes).nbytes;
      from_.gather(from, buffer, target.nbytes);
      source.data = buffer;
    }
    const auto size = static_cast<size_t>(target.nbytes);
    if (target.data != nullptr) {
      if (with_digest_) {
        sum += copy_digest(target.data, source.data, size, position);
      } else {
        copy_bytes(target.data, source.data, size);
      }
    } else if (!store_ || !with_digest_ || source.data == buffer) {
      if (with_digest_) sum += digest_bytes(source.data, size, position);
      if (store_) to_.scatter(to, source.data, target.nbytes);
    } else {
      // Through the buffer, so that the digest is that of the bytes stored even if the source changes meanwhile.
      sum += copy_digest(buffer, source.data, size, position);
      to_.scatter(to, buffer, target.nbytes);
    }
    offset += target.nbytes;
    n -= target.nbytes;
  }
  if (with_digest_) work.add_digest(stretch.tensor, sum);
  return true;
}

void TransferJob::release() {
  from_ = Memory();
  to_ = Memory();
}

}  // namespace wt
