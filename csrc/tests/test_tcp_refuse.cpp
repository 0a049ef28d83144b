// What the owner refuses, how the initiator hears of it, and that the endpoint goes on.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/tcp_pair.h"

using namespace wt;
using namespace wt::test;

namespace {

constexpr int64_t kSize = 8 << 20;

struct Bench : Pair {
  explicit Bench(int streams, uint64_t sender_epoch = 1, uint64_t receiver_epoch = 1)
      : Pair(streams, sender_epoch, receiver_epoch) {}

  ErrCode write(uint64_t key, uint64_t generation, Span span) { return run(Transfer::Kind::Write, key, generation, span); }
  ErrCode read(uint64_t key, uint64_t generation, Span span) { return run(Transfer::Kind::Read, key, generation, span); }
  ErrCode run(Transfer::Kind kind, uint64_t key, uint64_t generation, Span span) {
    auto work = sender->submit(kind, source.memory(), {key, generation}, {span}, 2, kFlagDigest);
    ErrCode code = wait(*initiator, work);
    CHECK((code == ErrCode::OK) == work->detail().empty());
    return code;
  }

  Buffer source{kSize, 1};
  Buffer target{kSize};
};

constexpr Span kWhole{0, 0, 0, kSize, 0, 0};
constexpr Span kSmall{0, 0, 0, 4096, 0, 0};

void refuses() {
  for (int streams : {1, 3}) {
    Bench bench(streams);
    CHECK(bench.receiver->grant(1, bench.target.memory(), 5, true, 2).ok());
    CHECK(bench.receiver->grant(2, bench.target.memory(), 5, false, 2).ok());
    CHECK(bench.receiver->grant(3, bench.target.memory(), 5, true, 1).ok());
    for (const Span& span : {kWhole, kSmall}) {
      CHECK(bench.write(77, 5, span) == ErrCode::STALE);
      CHECK(bench.write(1, 4, span) == ErrCode::STALE);
      CHECK(bench.read(1, 6, span) == ErrCode::STALE);
      CHECK(bench.write(2, 5, span) == ErrCode::BOUNDS);
      Span beyond = span;
      beyond.dst = 1;
      beyond.src = 0;
      if (span.nbytes == kSize) {
        CHECK(bench.write(1, 5, beyond) == ErrCode::BOUNDS);
        CHECK(bench.read(1, 5, beyond) == ErrCode::BOUNDS);
      }
      beyond.dst = INT64_MAX - span.nbytes;
      CHECK(bench.write(1, 5, beyond) == ErrCode::BOUNDS);
      Span unknown_tensor = span;
      unknown_tensor.tensor = 1;
      CHECK(bench.write(3, 5, unknown_tensor) == ErrCode::BOUNDS);
    }
    CHECK(bench.receiver->refused() > 0);
    CHECK(bench.receiver->alive() && bench.sender->alive());
    CHECK(bench.read(2, 5, kWhole) == ErrCode::OK);
    CHECK(bench.write(1, 5, kWhole) == ErrCode::OK);
    CHECK(bench.target.bytes == bench.source.bytes);
  }
}

void refused_bytes_are_not_stored() {
  Bench bench(2);
  Buffer untouched(kSize);
  CHECK(bench.receiver->grant(1, bench.target.memory(), 5, true, 2).ok());
  CHECK(bench.write(1, 4, kWhole) == ErrCode::STALE);
  CHECK(bench.target.bytes == untouched.bytes);
  CHECK(bench.receiver->ledger(1)->nbytes == (std::vector<int64_t>{0, 0}));
}

void local_mistakes_never_leave() {
  Bench bench(1);
  CHECK(bench.receiver->grant(1, bench.target.memory(), 5, true, 2).ok());
  for (Span span : {Span{1, 0, 0, 1, 0, 0}, Span{0, -1, 0, 1, 0, 0}, Span{0, kSize, 0, 1, 0, 0}, Span{0, 0, -1, 1, 0, 0},
                    Span{0, 0, 0, 1, 2, 0}, Span{0, 0, 0, 1, 0, -1}, Span{0, 0, 0, -1, 0, 0}, Span{0, 0, INT64_MAX, 1, 0, 0}}) {
    auto work = bench.sender->submit(Transfer::Kind::Write, bench.source.memory(), {1, 5}, {span}, 2, kFlagDigest);
    CHECK(work->settled() && work->code() == ErrCode::BOUNDS && !work->detail().empty());
  }
  CHECK(bench.receiver->refused() == 0);
}

void other_epochs_are_fenced() {
  Bench bench(2, 1, 2);
  CHECK(bench.receiver->grant(1, bench.target.memory(), 5, true, 2).ok());
  CHECK(bench.write(1, 5, kSmall) == ErrCode::STALE);
  CHECK(bench.write(1, 5, kWhole) == ErrCode::STALE);
  CHECK(bench.read(1, 5, kWhole) == ErrCode::STALE);
  CHECK(bench.receiver->refused() >= 3);
  CHECK(bench.receiver->alive());
}

void a_moved_generation_word_ends_the_grant() {
  Bench bench(2);
  auto region = must(SharedRegion::create(kSize));
  region->mapping()->set_generation(5);
  CHECK(bench.receiver->grant(1, Memory(region->mapping()), 5, true, 2).ok());
  CHECK(bench.write(1, 5, kWhole) == ErrCode::OK);
  CHECK(bench.read(1, 5, kWhole) == ErrCode::OK);
  region->mapping()->set_generation(6);
  CHECK(bench.write(1, 5, kWhole) == ErrCode::STALE);
  CHECK(bench.read(1, 5, kWhole) == ErrCode::STALE);
  CHECK(bench.receiver->grant(1, Memory(region->mapping()), 6, true, 2).ok());
  CHECK(bench.write(1, 5, kSmall) == ErrCode::STALE);
  CHECK(bench.write(1, 6, kSmall) == ErrCode::OK);
}

// Revoked, or granted anew, while frames arrive: the memory stands still from the moment that revoke() returns, the work
// settles, and the endpoint goes on.
void revoke_under_way() {
  Random random(3);
  Bench bench(2);
  int stale = 0;
  for (int round = 0; round < 30; ++round) {
    bool write = round % 2 == 0;
    auto granted = std::make_unique<Buffer>(kSize, 2);
    uint64_t key = static_cast<uint64_t>(round) + 10;
    CHECK(bench.receiver->grant(key, granted->memory(), 1, true, 2).ok());
    Buffer mine(kSize, 1);
    auto work =
        bench.sender->submit(write ? Transfer::Kind::Write : Transfer::Kind::Read, mine.memory(), {key, 1}, {kWhole}, 2, 0);
    std::this_thread::sleep_for(std::chrono::microseconds(below(random, 4'000)));
    bench.receiver->revoke(key);
    std::vector<std::byte> then = granted->bytes;
    ErrCode code = wait(*bench.initiator, work);
    CHECK(code == ErrCode::OK || code == ErrCode::STALE);
    CHECK(granted->bytes == then);
    granted.reset();
    CHECK(!bench.receiver->ledger(key));
    stale += code == ErrCode::STALE;
  }
  std::printf("works that met a revocation: %d of 30\n", stale);
  CHECK(bench.receiver->grant(1, bench.target.memory(), 5, true, 2).ok());
  CHECK(bench.write(1, 5, kWhole) == ErrCode::OK);
}

// A reader never counts bytes of two generations as one read.
void reads_see_one_generation() {
  constexpr int64_t kCells = 2 << 20;
  Bench bench(2);
  auto region = must(SharedRegion::create(kCells));
  auto mapping = region->mapping();
  CHECK(bench.receiver->grant(1, Memory(mapping), 1, false, 1).ok());
  std::atomic<bool> stop{false};
  std::thread owner([&] {
    for (uint64_t generation = 1; !stop.load(); ++generation) {
      mapping->set_generation(generation);
      CHECK(bench.receiver->grant(1, Memory(mapping), 1, false, 1).ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  });
  int stale = 0;
  for (int round = 0; round < 100; ++round) {
    Buffer mine(kCells);
    auto work = bench.sender->submit(Transfer::Kind::Read, mine.memory(), {1, 1}, {{0, 0, 0, kCells, 0, 0}}, 1, 0);
    ErrCode code = wait(*bench.initiator, work);
    CHECK(code == ErrCode::OK || code == ErrCode::STALE);
    stale += code == ErrCode::STALE;
  }
  stop.store(true);
  owner.join();
  std::printf("reads that met a new generation: %d of 100\n", stale);
  CHECK(bench.sender->alive());
}

}  // namespace

int main() {
  refuses();
  refused_bytes_are_not_stored();
  local_mistakes_never_leave();
  other_epochs_are_fenced();
  a_moved_generation_word_ends_the_grant();
  revoke_under_way();
  reads_see_one_generation();
  return 0;
}
