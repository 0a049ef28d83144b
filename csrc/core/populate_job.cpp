#include "core/populate_job.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace wt {
namespace {

// From Linux 5.14 on; older C libraries do not name them.
constexpr int kMadvPopulateRead = 22;
constexpr int kMadvPopulateWrite = 23;

// For older kernels: one access per page that changes nothing.
void touch(std::byte* begin, const std::byte* end, bool writable) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (std::byte* at = begin; at < end; at += page) {
    auto& word = *reinterpret_cast<std::atomic<uint8_t>*>(at);
    if (writable) {
      word.fetch_or(0, std::memory_order_relaxed);
    } else {
      static_cast<void>(word.load(std::memory_order_relaxed));
    }
  }
}

}  // namespace

void PopulateJob::run(int64_t chunk, Work& work, Scratch&) {
  const int64_t first = chunk * kChunkNbytes;
  const int64_t size = std::min(kChunkNbytes, nbytes_ - first);
  std::byte* const begin = mapping_->data() + first;
  // The header may share the first page where pages are larger than it.
  const auto before = reinterpret_cast<uintptr_t>(begin) % static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  // Reading is enough to map pages that are there already, for writing too, and the kernel then maps many at a time (measured: 65 ms/GiB,
  // not 200). Pages that are not there yet are made for writing: a read leaves each to fault again.
  const bool making = mapping_->writable() && !mapping_->attached();
  int code;
  do {
    code = ::madvise(begin - before, static_cast<size_t>(size) + before, making ? kMadvPopulateWrite : kMadvPopulateRead);
  } while (code != 0 && (errno == EINTR || errno == EAGAIN));
  if (code != 0 && errno == EINVAL) {
    touch(begin, begin + size, mapping_->writable());
  } else if (code != 0) {
    work.fail(errno_status("madvise(MADV_POPULATE)", errno));
    return;
  }
  work.advance(size);
}

}  // namespace wt
