#include "core/region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>

namespace wt {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int64_t kMaxNbytes = std::numeric_limits<int64_t>::max() - Mapping::kHeaderNbytes;

// Closes on every early return.
class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

int open_memfd() {
  constexpr unsigned kNoexecSeal = 8;  // MFD_NOEXEC_SEAL, which kernels before 6.3 refuse and hardened ones demand
  const int fd = ::memfd_create("wtransport", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoexecSeal);
  return fd >= 0 || errno != EINVAL ? fd : ::memfd_create("wtransport", MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

Result<std::shared_ptr<SharedRegion>> map(OwnedFd& fd, int64_t nbytes, bool writable, Mapping::Origin origin) {
  const auto total = static_cast<size_t>(nbytes + Mapping::kHeaderNbytes);
  void* base = ::mmap(nullptr, total, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return errno_status("mmap", errno);
  auto mapping = std::make_shared<Mapping>(fd.release(), static_cast<std::byte*>(base), nbytes, writable, origin);
  return std::make_shared<SharedRegion>(std::move(mapping));
}

}  // namespace

Result<std::shared_ptr<LocalRegion>> LocalRegion::create(const std::vector<BlockSpec>& specs) {
  auto region = std::make_shared<LocalRegion>();
  region->blocks_.reserve(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const BlockSpec& spec = specs[i];
    Result<StridedLayout> layout = StridedLayout::create(spec.itemsize, spec.shape, spec.strides);
    if (!layout.ok()) return Status{layout.status().code, "block " + std::to_string(i) + ": " + layout.status().detail};
    const int64_t nbytes = layout.value().nbytes();
    if (spec.address == 0 && nbytes != 0) return Status{ErrCode::INVALID, "block " + std::to_string(i) + ": null address"};
    region->overlapping_ = region->overlapping_ || layout.value().overlapping();
    region->blocks_.push_back({reinterpret_cast<std::byte*>(spec.address), std::move(layout.value()), region->nbytes_});
    if (__builtin_add_overflow(region->nbytes_, nbytes, &region->nbytes_))
      return Status{ErrCode::INVALID, "the blocks' total size overflows"};
  }
  return region;
}

const LocalRegion::Block& LocalRegion::block_at(int64_t offset) const {
  const auto after =
      std::upper_bound(blocks_.begin(), blocks_.end(), offset, [](int64_t at, const Block& block) { return at < block.start; });
  return *std::prev(after);
}

Mapping::~Mapping() {
  ::munmap(base_, static_cast<size_t>(nbytes_ + kHeaderNbytes));
  ::close(fd_);
}

Result<std::shared_ptr<SharedRegion>> SharedRegion::create(int64_t nbytes) {
  if (nbytes < 0 || nbytes > kMaxNbytes) return Status{ErrCode::INVALID, "bad size " + std::to_string(nbytes)};
  OwnedFd fd(open_memfd());
  if (fd.get() < 0) return errno_status("memfd_create", errno);
  if (::ftruncate(fd.get(), nbytes + Mapping::kHeaderNbytes) != 0) return errno_status("ftruncate", errno);
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) return errno_status("fcntl(F_ADD_SEALS)", errno);
  return map(fd, nbytes, true, Mapping::Origin::Created);
}

Result<std::shared_ptr<SharedRegion>> SharedRegion::attach(int fd, int64_t nbytes, bool writable) {
  if (nbytes < 0 || nbytes > kMaxNbytes) return Status{ErrCode::INVALID, "bad size " + std::to_string(nbytes)};
  OwnedFd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (own.get() < 0) return errno_status("fcntl(F_DUPFD_CLOEXEC)", errno);
  const int seals = ::fcntl(own.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals)
    return Status{ErrCode::INVALID, "the file is no memfd sealed against shrinking and growing"};
  // A hugetlb memfd can be sealed too, but its pages may be missing at the time of access.
  struct statfs system;
  if (::fstatfs(own.get(), &system) != 0) return errno_status("fstatfs", errno);
  if (system.f_type != TMPFS_MAGIC) return Status{ErrCode::INVALID, "the memfd does not consist of ordinary pages"};
  struct stat file;
  if (::fstat(own.get(), &file) != 0) return errno_status("fstat", errno);
  if (file.st_size != nbytes + Mapping::kHeaderNbytes)
    return Status{ErrCode::INVALID,
                  "the memfd has " + std::to_string(file.st_size) + " bytes, not header + " + std::to_string(nbytes)};
  return map(own, nbytes, writable, Mapping::Origin::Attached);
}

std::shared_ptr<Mapping> SharedRegion::mapping() const {
  const std::lock_guard lock(mutex_);
  return mapping_;
}

Status SharedRegion::punch() {
  const std::shared_ptr<Mapping> mapped = mapping();
  if (!mapped) return {ErrCode::CLOSED, "the region is closed"};
  if (!mapped->writable()) return {ErrCode::INVALID, "the region is mapped read-only"};
  // A reader that meets the zeros must find another generation afterwards.
  mapped->bump_generation();
  if (nbytes_ == 0) return {};
  if (::fallocate(mapped->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, Mapping::kHeaderNbytes, nbytes_) != 0)
    return errno_status("fallocate(PUNCH_HOLE)", errno);
  return {};
}

void SharedRegion::close() {
  std::shared_ptr<Mapping> last;  // unmaps outside the lock
  const std::lock_guard lock(mutex_);
  last.swap(mapping_);
}

}  // namespace wt
