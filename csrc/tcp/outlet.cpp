#include "tcp/outlet.h"

#include <algorithm>
#include <utility>

#include "core/digest.h"

namespace wt::tcp {

void Outlet::add(Parcel parcel) {
  ++pushed_;
  queued_nbytes_ += parcel.left;
  parcels_.push_back(std::move(parcel));
}

void Outlet::push(const FrameHeader& header) { add({header, nullptr, nullptr, nullptr, 0, 0, 0}); }

void Outlet::push(const FrameHeader& header, const Memory& memory, int64_t offset, Work* work) {
  add({header, &memory, nullptr, work, offset, static_cast<int64_t>(header.nbytes), static_cast<int64_t>(header.position)});
}

void Outlet::push(const FrameHeader& header, std::shared_ptr<Grant> grant, int64_t offset) {
  add({header, nullptr, std::move(grant), nullptr, offset, static_cast<int64_t>(header.nbytes), 0});
}

std::byte* Outlet::scratch() {
  scratch_.resize(kBatch);
  return scratch_.data();
}

// Puts the next stretch of the parcel's payload into the batch. False: the batch has no room for it.
bool Outlet::load(Parcel& parcel, bool entered) {
  int64_t n = std::min(parcel.left, kBatch - batch_nbytes_);
  if (n == 0 || segments_.size() == kSegments) {
    return false;
  }
  std::byte* data = nullptr;
  bool in_region = false;
  const Memory* memory = parcel.memory;
  if (parcel.grant) {
    memory = entered ? &parcel.grant->memory() : nullptr;
  }
  if (memory == nullptr) {
    std::fill_n(scratch(), n, std::byte{0});
    data = scratch();
  } else {
    Memory::Run run = memory->run(parcel.offset, n);
    data = run.data;
    in_region = data != nullptr;
    if (in_region) {
      n = run.nbytes;
    } else {
      n = std::min(n, kBatch - scratch_used_);
      data = scratch() + scratch_used_;
      memory->gather(parcel.offset, data, n);
      scratch_used_ += n;
    }
    if (parcel.work != nullptr) {
      parcel.work->add_digest(parcel.header.tensor, digest_bytes(data, static_cast<size_t>(n), parcel.position));
    }
  }
  segments_.push_back({data, static_cast<size_t>(n)});
  in_region_.push_back(in_region);
  parcel.offset += n;
  parcel.position += n;
  parcel.left -= n;
  queued_nbytes_ -= n;
  batch_nbytes_ += n;
  return true;
}

void Outlet::prepare(bool entered) {
  segments_.clear();
  in_region_.clear();
  next_ = 0;
  num_headers_ = 0;
  batch_nbytes_ = 0;
  scratch_used_ = 0;
  batch_grant_ = parcels_.front().grant;
  // One batch never mixes grants: it is blanked as a whole.
  while (!parcels_.empty() && parcels_.front().grant == batch_grant_) {
    Parcel& parcel = parcels_.front();
    if (!parcel.announced) {
      if (num_headers_ == kHeaders || segments_.size() == kSegments) {
        return;
      }
      headers_[num_headers_] = parcel.header;
      segments_.push_back({&headers_[num_headers_++], sizeof(FrameHeader)});
      in_region_.push_back(false);
      parcel.announced = true;
    }
    while (parcel.left > 0) {
      if (!load(parcel, entered)) {
        return;
      }
    }
    ++batch_frames_;
    parcels_.pop_front();
  }
}

void Outlet::blank() {
  std::fill_n(scratch(), kBatch, std::byte{0});
  for (size_t i = next_; i < segments_.size(); ++i) {
    if (in_region_[i]) {
      segments_[i].iov_base = scratch();
      in_region_[i] = false;
    }
  }
}

void Outlet::advance(size_t nbytes) {
  while (nbytes > 0) {
    iovec& segment = segments_[next_];
    size_t part = std::min(nbytes, segment.iov_len);
    segment.iov_base = static_cast<std::byte*>(segment.iov_base) + part;
    segment.iov_len -= part;
    nbytes -= part;
    if (segment.iov_len == 0) {
      ++next_;
    }
  }
  if (next_ == segments_.size()) {
    sent_ += batch_frames_;
    batch_frames_ = 0;
    batch_grant_.reset();
  }
}

Outlet::Pumped Outlet::pump() {
  while (!idle()) {
    bool fresh = next_ == segments_.size();
    const std::shared_ptr<Grant> grant = fresh ? parcels_.front().grant : batch_grant_;
    bool entered = grant && grant->enter();
    if (fresh) {
      prepare(entered);
    } else if (grant && !entered) {
      blank();
    }
    spoiled_ |= grant && !(entered && grant->current());
    IoResult result = socket_.send({segments_.data() + next_, segments_.size() - next_});
    if (entered) {
      spoiled_ |= !grant->current();
      grant->leave();
    }
    if (result.kind == IoResult::Kind::Again) {
      return Pumped::Blocked;
    }
    if (result.kind != IoResult::Kind::Moved) {
      error_ = result.error;
      return Pumped::Failed;
    }
    advance(result.nbytes);
  }
  return Pumped::Idle;
}

bool Outlet::take_spoiled() { return std::exchange(spoiled_, false); }

void Outlet::clear() {
  parcels_.clear();
  segments_.clear();
  in_region_.clear();
  next_ = 0;
  queued_nbytes_ = 0;
  batch_grant_.reset();
}

}  // namespace wt::tcp
