// Loopback rate of the TCP data plane against a plain loop of send() and recv() over as many sockets, in the same run and
// between the same two processes. Prints seconds per GiB, and raw time / our time (1.00 = as fast as the plain loop).
#include <sys/mman.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>

#include "tests/tcp_pair.h"

using namespace wt;
using namespace wt::test;

namespace {

constexpr int64_t kTotal = 1LL << 30;
constexpr int64_t kTensors = 300;
constexpr size_t kRawPiece = 1 << 20;
constexpr int kRounds = 7;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Memory of its own for each process, touched before the first round.
std::byte* allocate() {
  void* memory = mmap(nullptr, kTotal, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  CHECK(memory != MAP_FAILED);
  std::memset(memory, 1, kTotal);
  return static_cast<std::byte*>(memory);
}

// 4 KiB to 64 MiB, as the tensors of a model are; the last one takes what is left.
std::vector<Span> tensors() {
  std::vector<Span> spans;
  int64_t at = 0;
  for (int64_t i = 0; i < kTensors && at < kTotal; ++i) {
    int64_t n = std::min<int64_t>(int64_t{4096} << (i % 15), kTotal - at);
    if (i == kTensors - 1) n = kTotal - at;
    spans.push_back({0, at, at, n, i, 0});
    at += n;
  }
  return spans;
}

std::shared_ptr<LocalRegion> region(std::byte* memory) {
  return must(LocalRegion::create({{reinterpret_cast<uintptr_t>(memory), 1, {kTotal}, {1}}}));
}

struct Sockets {
  std::vector<int> raw_near, raw_far, near, far;
};

void raw_send(int fd, const std::byte* from, size_t n) {
  for (size_t at = 0; at < n;) {
    ssize_t moved = send(fd, from + at, std::min(n - at, kRawPiece), MSG_NOSIGNAL);
    CHECK(moved > 0);
    at += static_cast<size_t>(moved);
  }
  char done;
  CHECK(recv(fd, &done, 1, 0) == 1);
}

bool raw_receive(int fd, std::byte* to, size_t n) {
  for (size_t at = 0; at < n;) {
    ssize_t moved = recv(fd, to + at, std::min(n - at, kRawPiece), 0);
    if (moved <= 0) return false;
    at += static_cast<size_t>(moved);
  }
  return send(fd, "x", 1, MSG_NOSIGNAL) == 1;
}

void owner(const Sockets& sockets, size_t streams) {
  std::byte* memory = allocate();
  auto engine = must(Engine::create(1));
  auto receiver = must(TcpReceiver::create(engine, sockets.far, 1));
  CHECK(receiver->grant(1, Memory(region(memory)), 1, true, kTensors).ok());
  CHECK(send(sockets.raw_far[0], "r", 1, 0) == 1);
  std::vector<std::thread> threads;
  size_t part = static_cast<size_t>(kTotal) / streams;
  for (size_t i = 0; i < streams; ++i) {
    threads.emplace_back([&, i] {
      while (raw_receive(sockets.raw_far[i], memory + i * part, part)) {
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

double small_write_us(TcpSender& sender, Engine& engine, const Memory& memory) {
  std::vector<double> times;
  for (int i = 0; i < 2'000; ++i) {
    auto start = Clock::now();
    auto work = sender.submit(Transfer::Kind::Write, memory, {1, 1}, {{0, 0, 0, 4096, 0, 0}}, kTensors, kFlagDigest);
    CHECK(wait(engine, work) == ErrCode::OK);
    times.push_back(seconds_since(start) * 1e6);
  }
  return median(times);
}

}  // namespace

int main(int argc, char** argv) {
  size_t streams = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 2;
  CHECK(streams >= 1 && streams <= 16);
  Sockets sockets;
  for (size_t i = 0; i < streams; ++i) {
    auto [raw_near, raw_far] = connected();
    auto [near, far] = connected();
    sockets.raw_near.push_back(raw_near);
    sockets.raw_far.push_back(raw_far);
    sockets.near.push_back(near);
    sockets.far.push_back(far);
  }
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    for (int fd : sockets.raw_near) close(fd);
    for (int fd : sockets.near) close(fd);
    owner(sockets, streams);
    _exit(0);
  }
  for (int fd : sockets.raw_far) close(fd);
  for (int fd : sockets.far) close(fd);
  std::byte* memory = allocate();
  Memory local(region(memory));
  auto engine = must(Engine::create(1));
  auto sender = must(TcpSender::create(engine, sockets.near, 1));
  std::vector<Span> spans = tensors();
  char ready;
  CHECK(recv(sockets.raw_near[0], &ready, 1, 0) == 1);

  struct Case {
    const char* name;
    Transfer::Kind kind;
    uint32_t flags;
    std::vector<double> times;
    std::vector<double> ratios;
  };
  std::vector<Case> cases{{"write", Transfer::Kind::Write, 0, {}, {}},
                          {"write, digests on both sides", Transfer::Kind::Write, kFlagDigest, {}, {}},
                          {"read", Transfer::Kind::Read, 0, {}, {}},
                          {"read, digest here", Transfer::Kind::Read, kFlagDigest, {}, {}}};
  std::vector<double> raw_times;
  for (int round = 0; round < kRounds; ++round) {
    for (Case& each : cases) {
      auto start = Clock::now();
      std::vector<std::thread> threads;
      size_t part = static_cast<size_t>(kTotal) / streams;
      for (size_t i = 0; i < streams; ++i)
        threads.emplace_back([&, i] { raw_send(sockets.raw_near[i], memory + i * part, part); });
      for (auto& thread : threads) thread.join();
      double raw = seconds_since(start);
      start = Clock::now();
      auto work = sender->submit(each.kind, local, {1, 1}, spans, kTensors, each.flags);
      CHECK(wait(*engine, work) == ErrCode::OK);
      double ours = seconds_since(start);
      raw_times.push_back(raw);
      each.times.push_back(ours);
      each.ratios.push_back(raw / ours);
    }
  }
  std::printf("%zu streams, raw loop: %.3f s/GiB\n", streams, median(raw_times));
  for (const Case& each : cases) {
    std::printf("%-30s %.3f s/GiB, %.2f of raw\n", each.name, median(each.times), median(each.ratios));
  }
  std::printf("4 KiB write, to settled: %.1f us\n", small_write_us(*sender, *engine, local));
  sender->close();
  for (int fd : sockets.raw_near) close(fd);
  CHECK(waitpid(child, nullptr, 0) == child);
  return 0;
}
