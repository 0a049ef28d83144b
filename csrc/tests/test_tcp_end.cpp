// How endpoints end: close, abort, a peer that goes, cancelled works. Every work settles once, every thread comes home.
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "tests/tcp_pair.h"

using namespace wt;
using namespace wt::test;

namespace {

constexpr int64_t kSize = 2 << 20;

// Works that run at once write to slots of their own: two writes of the same bytes would be a race of the caller's making.
struct Bench : Pair {
  static constexpr int kSlots = 12;

  explicit Bench(int streams) : Pair(streams) {
    CHECK(receiver->grant(1, target.memory(), 5, true, 1).ok());
    CHECK(receiver->grant(2, readable.memory(), 5, false, 1).ok());
  }
  ~Bench() {
    if (receiver) {
      // The buffers go first, and a receiver may store until its grants are revoked.
      receiver->abort();
      receiver->close();
    }
    sender.reset();
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  std::shared_ptr<Work> submit(Transfer::Kind kind, int slot = 0) {
    bool write = kind == Transfer::Kind::Write;
    Buffer& local = write ? source : *landing[static_cast<size_t>(slot)];
    return sender->submit(kind, local.memory(), {write ? 1U : 2U, 5}, {{0, 0, write ? slot * kSize : 0, kSize, 0, 0}}, 1,
                          kFlagDigest);
  }

  Buffer source{kSize, 1};
  Buffer target{kSize * kSlots};
  Buffer readable{kSize, 2};
  std::vector<std::unique_ptr<Buffer>> landing = [] {
    std::vector<std::unique_ptr<Buffer>> buffers;
    for (int i = 0; i < kSlots; ++i) buffers.push_back(std::make_unique<Buffer>(kSize));
    return buffers;
  }();
};

int count(const std::vector<Event>& events, EventKind kind, uint64_t id) {
  int found = 0;
  for (const Event& event : events) found += event.kind == kind && event.id == id;
  return found;
}

void nap(Random& random, int64_t limit_us) { std::this_thread::sleep_for(std::chrono::microseconds(below(random, limit_us))); }

// Several threads submit, one of them cancels, somebody aborts: each work settles exactly once.
void abort_at_random_moments() {
  Random random(11);
  for (int round = 0; round < 40; ++round) {
    Bench bench(1 + round % 4);
    constexpr int kThreads = 3;
    constexpr int kWorks = 8;
    std::vector<std::shared_ptr<Work>> works(kThreads * kWorks);
    std::vector<std::unique_ptr<Buffer>> buffers;
    for (size_t i = 0; i < works.size(); ++i) buffers.push_back(std::make_unique<Buffer>(kSize / 8));
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = t * kWorks; i < (t + 1) * kWorks; ++i) {
          auto kind = i % 2 == 0 ? Transfer::Kind::Write : Transfer::Kind::Read;
          bool write = kind == Transfer::Kind::Write;
          std::vector<Span> spans{{0, 0, write ? i * kSize / 8 : 0, kSize / 8 >> (i % 8), 0, 0}};
          works[static_cast<size_t>(i)] =
              bench.sender->submit(kind, buffers[static_cast<size_t>(i)]->memory(), {write ? 1U : 2U, 5}, spans, 1, kFlagDigest);
          if (i % 5 == 0) works[static_cast<size_t>(i)]->cancel();
        }
      });
    }
    nap(random, 5'000);
    bool by_owner = round % 3 == 2;
    if (round % 3 == 0) bench.sender->abort();
    if (by_owner) bench.receiver->abort();
    for (auto& thread : threads) thread.join();
    if (round % 3 == 1) bench.sender->abort();
    std::vector<Event> events;
    wait_until(
        *bench.initiator, [&] { return std::all_of(works.begin(), works.end(), [](auto& work) { return work->settled(); }); },
        &events);
    bench.sender->close();
    bench.initiator->completions()->drain(events);
    for (auto& work : works) {
      int told = count(events, EventKind::WorkSettled, work->id());
      CHECK(told <= 1);
      ErrCode code = work->code();
      CHECK(code == ErrCode::OK || code == ErrCode::CANCELLED || code == (by_owner ? ErrCode::PEER_LOST : ErrCode::ABORTED));
      CHECK(code != ErrCode::OK || work->progress() == work->nbytes());
    }
    CHECK(count(events, EventKind::EndpointBroken, bench.sender->id()) <= (by_owner ? 1 : 0));
    CHECK(!bench.sender->alive());
  }
}

void submissions_after_the_end_are_refused() {
  Bench bench(2);
  bench.sender->abort();
  auto work = bench.submit(Transfer::Kind::Write);
  CHECK(wait(*bench.initiator, work) == ErrCode::ABORTED);
  bench.sender->close();
  CHECK(bench.submit(Transfer::Kind::Read)->code() == ErrCode::ABORTED);

  Bench closed(2);
  closed.sender->close();
  closed.sender->close();
  CHECK(closed.submit(Transfer::Kind::Write)->code() == ErrCode::CLOSED);
}

void close_drains() {
  for (int streams : {1, 2, 4}) {
    Bench bench(streams);
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < 12; ++i) works.push_back(bench.submit(i % 3 == 0 ? Transfer::Kind::Read : Transfer::Kind::Write, i));
    bench.sender->close();
    for (auto& work : works) CHECK(work->settled() && work->code() == ErrCode::OK);
    // The owner hears of an orderly end, not of a loss.
    std::vector<Event> events;
    wait_until(*bench.owner, [&] { return !bench.receiver->alive(); });
    CHECK(bench.receiver->status().code == ErrCode::CLOSED);
    bench.receiver->close();
  }
}

void owner_closes_first() {
  Bench bench(2);
  CHECK(wait(*bench.initiator, bench.submit(Transfer::Kind::Write)) == ErrCode::OK);
  bench.receiver->close();
  bench.receiver->close();
  std::vector<Event> events;
  wait_until(*bench.initiator, [&] { return count(events, EventKind::EndpointBroken, bench.sender->id()) == 1; }, &events);
  CHECK(bench.sender->status().code == ErrCode::CLOSED);
  CHECK(bench.submit(Transfer::Kind::Write)->code() == ErrCode::CLOSED);
  CHECK(bench.receiver->status().code == ErrCode::CLOSED);
}

// Nobody reads at the other end: works neither move nor settle until cancelled or aborted.
void a_peer_that_does_nothing() {
  auto [near, far] = connected();
  auto engine = must(Engine::create(1));
  auto sender = must(TcpSender::create(engine, {near}, 1));
  constexpr int64_t kLarge = 64 << 20;
  Buffer source(kLarge);
  std::vector<Span> spans{{0, 0, 0, kLarge, 0, 0}};
  auto first = sender->submit(Transfer::Kind::Write, source.memory(), {1, 1}, spans, 1, 0);
  auto waiting = sender->submit(Transfer::Kind::Write, source.memory(), {1, 1}, spans, 1, 0);
  waiting->cancel();
  CHECK(wait(*engine, waiting) == ErrCode::CANCELLED);
  // Once some of it is on its way it cannot settle any more.
  pollfd arrived{far, POLLIN, 0};
  CHECK(poll(&arrived, 1, 60'000) == 1);
  first->cancel();
  CHECK(!first->settled());
  std::thread closer([&] { sender->close(); });
  auto late = sender->submit(Transfer::Kind::Write, source.memory(), {1, 1}, spans, 1, 0);
  late->cancel();
  CHECK(wait(*engine, late) == ErrCode::CANCELLED || late->code() == ErrCode::CLOSED);
  sender->abort();
  closer.join();
  CHECK(first->settled() && first->code() == ErrCode::ABORTED);
  close(far);
}

void peer_reset_has_its_errno() {
  auto [near, far] = connected();
  auto engine = must(Engine::create(1));
  auto sender = must(TcpSender::create(engine, {near}, 1));
  Buffer source(64 << 20);
  auto work = sender->submit(Transfer::Kind::Write, source.memory(), {1, 1}, {{0, 0, 0, 64 << 20, 0, 0}}, 1, 0);
  linger now{1, 0};
  setsockopt(far, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(far);
  CHECK(wait(*engine, work) == ErrCode::PEER_LOST);
  CHECK(work->detail().find("errno") != std::string::npos);
  CHECK(sender->status().code == ErrCode::PEER_LOST);
}

void receiver_hears_of_a_lost_peer() {
  auto [near, far] = connected();
  auto engine = must(Engine::create(1));
  auto receiver = must(TcpReceiver::create(engine, {far}, 1));
  close(near);
  std::vector<Event> events;
  wait_until(*engine, [&] { return count(events, EventKind::EndpointBroken, receiver->id()) == 1; }, &events);
  CHECK(!receiver->alive() && receiver->status().code == ErrCode::PEER_LOST);
  Buffer target(16);
  CHECK(receiver->grant(1, target.memory(), 1, true, 1).code == ErrCode::PEER_LOST);
}

void cancelled_works_leave_the_endpoint_whole() {
  Random random(5);
  Bench bench(2);
  int cancelled = 0;
  for (int round = 0; round < 40; ++round) {
    auto work = bench.submit(round % 2 == 0 ? Transfer::Kind::Write : Transfer::Kind::Read);
    nap(random, 500);
    work->cancel();
    ErrCode code = wait(*bench.initiator, work);
    CHECK(code == ErrCode::OK || code == ErrCode::CANCELLED);
    CHECK((code == ErrCode::OK) == (work->progress() == work->nbytes()));
    cancelled += code == ErrCode::CANCELLED;
  }
  std::printf("works cancelled in time: %d of 40\n", cancelled);
  auto work = bench.submit(Transfer::Kind::Write);
  CHECK(wait(*bench.initiator, work) == ErrCode::OK);
}

void a_forked_child_owns_nothing() {
  Bench bench(2);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(!bench.sender->alive() && !bench.receiver->alive());
    CHECK(bench.submit(Transfer::Kind::Write)->code() == ErrCode::CLOSED);
    bench.sender->abort();
    bench.sender->close();
    bench.receiver->close();
    bench.sender.reset();
    bench.receiver.reset();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(wait(*bench.initiator, bench.submit(Transfer::Kind::Write)) == ErrCode::OK);
}

}  // namespace

int main() {
  abort_at_random_moments();
  submissions_after_the_end_are_refused();
  close_drains();
  owner_closes_first();
  a_peer_that_does_nothing();
  peer_reset_has_its_errno();
  receiver_hears_of_a_lost_peer();
  cancelled_works_leave_the_endpoint_whole();
  a_forked_child_owns_nothing();
  return 0;
}
