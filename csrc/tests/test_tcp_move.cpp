// Bytes, digests and ledgers of writes and reads over real sockets.
#include "tests/tcp_pair.h"

using namespace wt;
using namespace wt::test;

namespace {

constexpr size_t kDigests = 7;

int64_t sum(const std::vector<int64_t>& values) {
  int64_t total = 0;
  for (int64_t value : values) total += value;
  return total;
}

void moves(int streams, int64_t count, int64_t max_nbytes, bool shared) {
  Random random(static_cast<uint64_t>(streams * 100'000 + count));
  Table table(random, count, max_nbytes, kDigests);
  Buffer source(table.nbytes, 1);
  Buffer target(table.nbytes);
  Buffer back(table.nbytes);
  Pair pair(streams);
  std::shared_ptr<SharedRegion> region;
  Memory granted = target.memory();
  if (shared) {
    region = must(SharedRegion::create(table.nbytes));
    granted = Memory(region->mapping());
  }
  CHECK(pair.receiver->grant(9, granted, 4, true, kDigests).ok());

  auto work = pair.sender->submit(Transfer::Kind::Write, source.memory(), {9, 4}, table.spans, kDigests, kFlagDigest);
  CHECK(wait(*pair.initiator, work) == ErrCode::OK);
  CHECK(work->progress() == work->nbytes());
  if (shared) std::copy_n(region->mapping()->data(), table.nbytes, target.bytes.begin());
  CHECK(same(table, source, target));
  CHECK(work->digests() == table.digests(source, kDigests));
  auto ledger = pair.receiver->ledger(9);
  CHECK(ledger && ledger->digests == work->digests() && sum(ledger->nbytes) == work->nbytes());

  auto read = pair.sender->submit(Transfer::Kind::Read, back.memory(), {9, 4}, table.spans, kDigests, kFlagDigest);
  CHECK(wait(*pair.initiator, read) == ErrCode::OK);
  CHECK(read->progress() == read->nbytes());
  CHECK(same(table, source, back));
  CHECK(read->digests() == work->digests());
  // Reading stores nothing here.
  CHECK(pair.receiver->ledger(9)->nbytes == ledger->nbytes);
  CHECK(pair.receiver->reset_ledger(9) && sum(pair.receiver->ledger(9)->nbytes) == 0);
  CHECK(pair.receiver->refused() == 0);
  pair.sender->close();
  CHECK(!pair.sender->alive());
}

// A transposed matrix on both sides: gathered when sent, scattered when stored.
void moves_strided() {
  constexpr int64_t kRows = 700;
  constexpr int64_t kColumns = 900;
  std::vector<float> from(kRows * kColumns);
  std::vector<float> to(kRows * kColumns);
  std::vector<float> back(kRows * kColumns);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  auto transposed = [](std::vector<float>& cells) {
    return must(LocalRegion::create({{reinterpret_cast<uintptr_t>(cells.data()), 4, {kColumns, kRows}, {4, kColumns * 4}}}));
  };
  auto source = transposed(from);
  auto target = transposed(to);
  auto again = transposed(back);
  Pair pair(2);
  CHECK(pair.receiver->grant(1, Memory(target), 0, true, 1).ok());
  std::vector<Span> spans{{0, 3, 3, source->nbytes() - 7, 0, 3}};
  auto work = pair.sender->submit(Transfer::Kind::Write, Memory(source), {1, 0}, spans, 1, kFlagDigest);
  CHECK(wait(*pair.initiator, work) == ErrCode::OK);
  auto read = pair.sender->submit(Transfer::Kind::Read, Memory(again), {1, 0}, spans, 1, kFlagDigest);
  CHECK(wait(*pair.initiator, read) == ErrCode::OK);
  std::vector<std::byte> expected(static_cast<size_t>(source->nbytes()));
  std::vector<std::byte> stored(expected.size());
  Memory(source).gather(0, expected.data(), source->nbytes());
  Memory(target).gather(0, stored.data(), target->nbytes());
  CHECK(std::equal(expected.begin() + 3, expected.end() - 4, stored.begin() + 3));
  Memory(again).gather(0, stored.data(), target->nbytes());
  CHECK(std::equal(expected.begin() + 3, expected.end() - 4, stored.begin() + 3));
  uint64_t digest = digest_bytes(expected.data() + 3, expected.size() - 7, 3);
  CHECK(work->digests()[0] == digest && read->digests()[0] == digest && pair.receiver->ledger(1)->digests[0] == digest);
}

void empty_works_settle_at_once() {
  Pair pair(2);
  Buffer source(16, 1);
  CHECK(pair.receiver->grant(1, source.memory(), 0, true, 1).ok());
  for (const auto& spans : {std::vector<Span>{}, std::vector<Span>{{0, 4, 4, 0, 0, 0}, {0, 16, 16, 0, 0, 0}}}) {
    for (auto kind : {Transfer::Kind::Write, Transfer::Kind::Read}) {
      auto work = pair.sender->submit(kind, source.memory(), {1, 0}, spans, 1, kFlagDigest);
      CHECK(work->settled() && work->code() == ErrCode::OK && work->nbytes() == 0);
    }
  }
}

void without_digest() {
  Pair pair(1);
  Buffer source(1 << 20, 1);
  Buffer target(1 << 20);
  CHECK(pair.receiver->grant(1, target.memory(), 0, true, 0).ok());
  auto work = pair.sender->submit(Transfer::Kind::Write, source.memory(), {1, 0}, {{0, 0, 0, 1 << 20, 5, 0}}, 0, 0);
  CHECK(wait(*pair.initiator, work) == ErrCode::OK);
  CHECK(source.bytes == target.bytes && work->digests().empty() && pair.receiver->ledger(1)->digests.empty());
}

}  // namespace

int main() {
  for (int streams = 1; streams <= 4; ++streams) {
    for (int64_t count : {1, 31, 32, 33, 300}) moves(streams, count, 40'000, streams % 2 == 0);
    moves(streams, 10'000, 300, streams % 2 == 1);
    moves(streams, 3, 9 << 20, streams == 2);
  }
  moves_strided();
  empty_works_settle_at_once();
  without_digest();
  return 0;
}
