#include "core/engine.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"

using namespace wt;
using test::digest_reference;

namespace {

void await(const Engine& engine, const Work& work) {
  while (!work.settled()) {
    pollfd entry{engine.completions()->fd(), POLLIN, 0};
    CHECK(::poll(&entry, 1, 60000) == 1);
    std::vector<Event> events;
    engine.completions()->drain(events);
  }
}

struct Blocks {
  std::vector<std::vector<std::byte>> bytes;
  std::shared_ptr<LocalRegion> region;

  explicit Blocks(const std::vector<int64_t>& sizes, uint64_t seed = 1) {
    test::Noise noise(seed);
    std::vector<LocalRegion::BlockSpec> specs;
    for (const int64_t size : sizes) {
      bytes.emplace_back(static_cast<size_t>(size));
      noise.fill(bytes.back());
      specs.push_back({reinterpret_cast<uintptr_t>(bytes.back().data()), 1, {size}, {1}});
    }
    region = LocalRegion::create(specs).value();
  }
};

// Batches around the widths of masks: every span must have arrived when the work settles, whatever their number.
void batches_of_any_size() {
  auto engine = Engine::create(2).value();
  test::Noise noise(21);
  for (const int count : {0, 1, 31, 32, 33, 63, 64, 65, 300, 10000}) {
    for (const int64_t largest : {64, 40000}) {
      if (count == 10000 && largest > 64) continue;
      std::vector<int64_t> sizes;
      std::vector<Span> spans;
      int64_t dst = 0;
      for (int64_t i = 0; i < count; ++i) {
        sizes.push_back(noise.below(largest));
        spans.push_back({i, 0, dst, sizes.back(), i, 3 * i});
        dst += sizes.back();
      }
      Blocks source(sizes, 100 + static_cast<uint64_t>(count));
      auto target = SharedRegion::create(dst).value();
      const auto digests = static_cast<size_t>(count);
      auto work = engine->copy(Memory(source.region), Memory(target->mapping()), spans, digests, kFlagDigest);
      CHECK(work->nbytes() == dst);
      if (dst <= Engine::kInlineNbytes) CHECK(work->settled());
      await(*engine, *work);
      CHECK(work->code() == ErrCode::OK && work->progress() == dst);
      const std::vector<uint64_t> sums = work->digests();
      for (size_t i = 0; i < spans.size(); ++i) {
        const std::vector<std::byte>& block = source.bytes[i];
        CHECK(block.empty() || std::memcmp(target->mapping()->data() + spans[i].dst, block.data(), block.size()) == 0);
        CHECK(sums[i] == digest_reference(block.data(), block.size(), spans[i].position));
      }
      auto again = engine->digest(Memory(target->mapping()), spans, digests, false);
      await(*engine, *again);
      CHECK(again->digests() == sums);
    }
  }
}

void large_spans_in_chunks() {
  auto engine = Engine::create(2).value();
  const int64_t size = (37 << 20) + 4321;
  Blocks source({size, 1000});
  for (const int64_t shift : {0, 4, 1, 64}) {
    auto target = SharedRegion::create(size + 2000).value();
    const std::vector<Span> spans = {{0, 100, shift, size - 100, 1, 777}, {1, 0, size + 500, 1000, 0, 0}};
    auto work = engine->copy(Memory(source.region), Memory(target->mapping()), spans, 2, kFlagDigest);
    await(*engine, *work);
    CHECK(work->code() == ErrCode::OK && work->progress() == size + 900);
    const std::byte* stored = target->mapping()->data();
    CHECK(std::memcmp(stored + shift, source.bytes[0].data() + 100, static_cast<size_t>(size - 100)) == 0);
    CHECK(std::memcmp(stored + size + 500, source.bytes[1].data(), 1000) == 0);
    CHECK(stored[size + 499] == std::byte{0} && stored[size + 1500] == std::byte{0});
    CHECK(work->digests()[1] == digest_bytes(source.bytes[0].data() + 100, static_cast<size_t>(size - 100), 777));
    Blocks back({size, 1000}, 5);
    auto read = engine->copy_from(Memory(target->mapping()), Memory(back.region), spans, 2, kFlagDigest);
    await(*engine, *read);
    CHECK(read->digests() == work->digests());
    CHECK(std::memcmp(back.bytes[0].data() + 100, source.bytes[0].data() + 100, static_cast<size_t>(size - 100)) == 0);
    CHECK(back.bytes[1] == source.bytes[1]);
  }
}

// A transposed matrix on either side, large enough for the pool.
void strided_ends() {
  auto engine = Engine::create(2).value();
  constexpr int64_t kRows = 700, kCols = 1300, kNbytes = kRows * kCols * 2;
  std::vector<std::byte> cells(kNbytes), back(kNbytes);
  test::Noise(31).fill(cells);
  const auto transposed = [&](std::vector<std::byte>& memory) {
    return LocalRegion::create({{reinterpret_cast<uintptr_t>(memory.data()), 2, {kRows, kCols}, {2, kRows * 2}}}).value();
  };
  std::vector<std::byte> flat(kNbytes);
  transposed(cells)->block(0).layout.gather(cells.data(), 0, flat.data(), kNbytes);
  auto target = SharedRegion::create(kNbytes).value();
  const std::vector<Span> spans = {{0, 0, 0, kNbytes / 2 + 1, 0, 0},
                                   {0, kNbytes / 2 + 1, kNbytes / 2 + 1, kNbytes / 2 - 1, 0, kNbytes / 2 + 1}};
  for (const uint32_t flags : {kFlagDigest, uint32_t{0}}) {
    auto work = engine->copy(Memory(transposed(cells)), Memory(target->mapping()), spans, 1, flags);
    await(*engine, *work);
    CHECK(std::memcmp(target->mapping()->data(), flat.data(), kNbytes) == 0);
    auto read = engine->copy_from(Memory(target->mapping()), Memory(transposed(back)), spans, 1, flags);
    await(*engine, *read);
    CHECK(back == cells);
    if (flags == kFlagDigest)
      CHECK(work->digests()[0] == digest_reference(flat.data(), kNbytes, 0) && read->digests() == work->digests());
    auto both = engine->copy(Memory(transposed(cells)), Memory(transposed(back)), spans, 1, flags);
    await(*engine, *both);
    CHECK(back == cells);
    std::memset(back.data(), 0, kNbytes);
    auto again = engine->digest(Memory(transposed(cells)), spans, 1, true);
    await(*engine, *again);
    CHECK(again->digests()[0] == digest_reference(flat.data(), kNbytes, 0));
  }
}

void bounds_are_refused_before_a_byte_moves() {
  auto engine = Engine::create(1).value();
  Blocks source({1000, 500});
  auto target = SharedRegion::create(2000).value();
  constexpr int64_t kHuge = INT64_MAX;
  const Span good{0, 0, 0, 1000, 0, 0};
  const std::vector<Span> bad = {
      {2, 0, 0, 1, 0, 0},       {-1, 0, 0, 1, 0, 0}, {0, 1, 0, 1000, 0, 0}, {0, -1, 0, 1, 0, 0},    {1, 0, 0, 501, 0, 0},
      {0, 0, 1001, 1000, 0, 0}, {0, 0, -1, 1, 0, 0}, {0, 0, 0, -1, 0, 0},   {0, kHuge, 0, 1, 0, 0}, {0, 0, kHuge, 1, 0, 0},
      {0, 0, 0, kHuge, 0, 0},   {0, 0, 0, 1, 1, 0},  {0, 0, 0, 1, -1, 0},   {0, 0, 0, 1, 0, -1},    {0, 0, 0, 2, 0, kHuge - 1},
  };
  for (const Span& span : bad) {
    const std::vector<Span> spans = {good, span};
    auto write = engine->copy(Memory(source.region), Memory(target->mapping()), spans, 1, kFlagDigest);
    CHECK(write->settled() && write->code() == ErrCode::BOUNDS && write->detail().find("span 1") == 0 && write->progress() == 0);
    auto read = engine->copy_from(Memory(target->mapping()), Memory(source.region), spans, 1, kFlagDigest);
    CHECK(read->code() == ErrCode::BOUNDS);
    CHECK(target->mapping()->data()[0] == std::byte{0});
  }
  // Without a digest its columns do not matter.
  CHECK(engine->copy(Memory(source.region), Memory(target->mapping()), {{0, 0, 0, 1, 7, -5}}, 0, 0)->code() == ErrCode::OK);
  // An end that must not be written.
  const std::string path = "/proc/self/fd/" + std::to_string(target->mapping()->fd());
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  auto reader = SharedRegion::attach(fd, 2000, false).value();
  ::close(fd);
  CHECK(engine->copy(Memory(source.region), Memory(reader->mapping()), {good}, 1, 0)->code() == ErrCode::INVALID);
  CHECK(engine->copy_from(Memory(reader->mapping()), Memory(source.region), {good}, 1, 0)->code() == ErrCode::OK);
  std::byte cell[8];
  auto expanded = LocalRegion::create({{reinterpret_cast<uintptr_t>(cell), 8, {10}, {0}}}).value();
  CHECK(engine->copy_from(Memory(target->mapping()), Memory(expanded), {{0, 0, 0, 80, 0, 0}}, 1, 0)->code() == ErrCode::INVALID);
  CHECK(engine->copy(Memory(expanded), Memory(target->mapping()), {{0, 0, 0, 80, 0, 0}}, 1, 0)->code() == ErrCode::OK);
}

void pages_are_populated() {
  auto engine = Engine::create(2).value();
  auto region = SharedRegion::create((9 << 20) + 77).value();
  region->mapping()->data()[5000000] = std::byte{9};
  auto work = engine->populate(region->mapping());
  await(*engine, *work);
  CHECK(work->code() == ErrCode::OK && work->progress() == (9 << 20) + 77);
  CHECK(region->mapping()->data()[5000000] == std::byte{9});
  CHECK(engine->populate(SharedRegion::create(0).value()->mapping())->settled());
}

// Whoever attaches maps what is there, pages that its owner has not made yet, too; and can write it.
void attached_pages_are_populated() {
  auto engine = Engine::create(2).value();
  auto owner = SharedRegion::create(3 << 20).value();
  owner->mapping()->data()[1000] = std::byte{9};
  for (const bool writable : {false, true}) {
    auto attached = SharedRegion::attach(owner->mapping()->fd(), 3 << 20, writable).value();
    auto work = engine->populate(attached->mapping());
    await(*engine, *work);
    CHECK(work->code() == ErrCode::OK && work->progress() == 3 << 20);
    CHECK(attached->mapping()->data()[1000] == std::byte{9});
    if (writable) attached->mapping()->data()[2 << 20] = std::byte{7};
  }
  CHECK(owner->mapping()->data()[2 << 20] == std::byte{7});
}

void a_region_closed_under_a_work_stays_mapped() {
  auto engine = Engine::create(1).value();
  Blocks source({64 << 20});
  auto target = SharedRegion::create(64 << 20).value();
  auto work = engine->copy(Memory(source.region), Memory(target->mapping()), {{0, 0, 0, 64 << 20, 0, 0}}, 1, kFlagDigest);
  const int fd = target->mapping()->fd();
  target->close();
  await(*engine, *work);
  CHECK(work->code() == ErrCode::OK);
  CHECK(::fcntl(fd, F_GETFD) < 0);
}

// Many threads submit and cancel while the engine closes: every work settles, and no event is lost or doubled.
void closing_under_load() {
  for (int round = 0; round < 5; ++round) {
    auto engine = Engine::create(2).value();
    Blocks source({1 << 20});
    std::vector<std::vector<std::shared_ptr<Work>>> works(3);
    std::vector<std::thread> threads;
    std::atomic<int> submitted{0};
    for (auto& mine : works) {
      threads.emplace_back([&, into = &mine] {
        for (int i = 0; i < 300; ++i) {
          into->push_back(engine->digest(Memory(source.region), {{0, 0, 0, 1 << 20, 0, 0}}, 1, true));
          if (i % 3 == 0) into->back()->cancel();
          submitted.fetch_add(1);
          submitted.notify_one();
        }
      });
    }
    for (int seen = submitted.load(); seen < 100; seen = submitted.load()) submitted.wait(seen);
    engine->close();
    for (std::thread& thread : threads) thread.join();
    std::vector<Event> events;
    engine->completions()->drain(events);
    std::map<uint64_t, int> announced;
    for (const Event& event : events) ++announced[event.id];
    for (const auto& [id, times] : announced) CHECK(times == 1);
    for (const auto& mine : works) {
      for (const auto& work : mine) {
        CHECK(work->settled());
        CHECK(work->code() == ErrCode::OK || work->code() == ErrCode::CANCELLED || work->code() == ErrCode::CLOSED);
        CHECK((work->code() == ErrCode::OK) == (work->progress() == work->nbytes()));
        if (work->code() != ErrCode::CLOSED) CHECK(announced.count(work->id()) == 1);
      }
    }
    CHECK(engine->digest(Memory(source.region), {{0, 0, 0, 10, 0, 0}}, 1, true)->code() == ErrCode::CLOSED);
  }
}

void bad_arguments() {
  CHECK(Engine::create(0).status().code == ErrCode::INVALID);
  CHECK(Engine::create(257).status().code == ErrCode::INVALID);
}

}  // namespace

int main() {
  batches_of_any_size();
  large_spans_in_chunks();
  strided_ends();
  bounds_are_refused_before_a_byte_moves();
  pages_are_populated();
  attached_pages_are_populated();
  a_region_closed_under_a_work_stays_mapped();
  closing_under_load();
  bad_arguments();
  return 0;
}
