#include "core/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/check.h"

using namespace wt;

namespace {

ErrCode attach_code(int fd, int64_t nbytes, bool writable = true) {
  Result<std::shared_ptr<SharedRegion>> region = SharedRegion::attach(fd, nbytes, writable);
  return region.ok() ? ErrCode::OK : region.status().code;
}

void two_mappings_share() {
  auto own = SharedRegion::create(10000).value();
  auto peer = SharedRegion::attach(own->mapping()->fd(), 10000, true).value();
  CHECK(own->mapping()->data() != peer->mapping()->data());
  std::memset(own->mapping()->data(), 7, 10000);
  CHECK(peer->mapping()->data()[9999] == std::byte{7});
  own->mapping()->set_generation(5);
  CHECK(peer->mapping()->generation() == 5);
  CHECK((::fcntl(own->mapping()->fd(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((::fcntl(peer->mapping()->fd(), F_GETFD) & FD_CLOEXEC) != 0);
}

void liars_are_refused() {
  auto own = SharedRegion::create(10000).value();
  const int fd = own->mapping()->fd();
  for (const int64_t nbytes : {0, 1, 9999, 10001, 20000, -1}) CHECK(attach_code(fd, nbytes) == ErrCode::INVALID);
  CHECK(attach_code(fd, INT64_MAX) == ErrCode::INVALID);
  CHECK(attach_code(-1, 100) == ErrCode::IO);
  const int loose = ::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(::ftruncate(loose, 4096 + 100) == 0);
  CHECK(attach_code(loose, 100) == ErrCode::INVALID);
  CHECK(::fcntl(loose, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  CHECK(attach_code(loose, 100) == ErrCode::INVALID);
  CHECK(::fcntl(loose, F_ADD_SEALS, F_SEAL_GROW) == 0);
  CHECK(attach_code(loose, 100) == ErrCode::OK);
  ::close(loose);
  const int pipe_like = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  CHECK(attach_code(pipe_like, 100) == ErrCode::INVALID);
  ::close(pipe_like);
  // The size cannot be changed under a mapping.
  CHECK(::ftruncate(fd, 0) != 0);
}

void read_only_reopened() {
  auto own = SharedRegion::create(5000).value();
  const std::string path = "/proc/self/fd/" + std::to_string(own->mapping()->fd());
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0);
  CHECK(attach_code(fd, 5000, true) == ErrCode::IO);
  auto reader = SharedRegion::attach(fd, 5000, false).value();
  ::close(fd);
  CHECK(!reader->mapping()->writable());
  CHECK(reader->punch().code == ErrCode::INVALID);
  std::memset(own->mapping()->data(), 3, 5000);
  CHECK(reader->mapping()->data()[4999] == std::byte{3});
}

void punching_gives_memory_back() {
  auto own = SharedRegion::create(1 << 20).value();
  auto peer = SharedRegion::attach(own->mapping()->fd(), 1 << 20, true).value();
  std::memset(own->mapping()->data(), 9, 1 << 20);
  own->mapping()->set_generation(41);
  CHECK(own->punch().ok());
  CHECK(peer->mapping()->generation() == 42);
  for (int64_t at = 0; at < 1 << 20; at += 4096) CHECK(peer->mapping()->data()[at] == std::byte{0});
  CHECK(SharedRegion::create(0).value()->punch().ok());
}

void a_mapping_outlives_the_close() {
  auto own = SharedRegion::create(4096).value();
  std::shared_ptr<Mapping> held = own->mapping();
  own->close();
  own->close();
  CHECK(own->mapping() == nullptr);
  CHECK(own->nbytes() == 4096);
  CHECK(own->punch().code == ErrCode::CLOSED);
  std::memset(held->data(), 1, 4096);
  const int fd = held->fd();
  CHECK(::fcntl(fd, F_GETFD) >= 0);
  held.reset();
  CHECK(::fcntl(fd, F_GETFD) < 0);
}

void sizes_out_of_reach() {
  CHECK(SharedRegion::create(-1).status().code == ErrCode::INVALID);
  CHECK(!SharedRegion::create(INT64_MAX - 4096).ok());
  CHECK(SharedRegion::create(1).ok());
}

}  // namespace

int main() {
  two_mappings_share();
  liars_are_refused();
  read_only_reopened();
  punching_gives_memory_back();
  a_mapping_outlives_the_close();
  sizes_out_of_reach();
  return 0;
}
