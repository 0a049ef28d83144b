// What the TCP tests share: connected loopback sockets, an endpoint's two sides, memory with a pattern, span tables.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "core/digest.h"
#include "core/engine.h"
#include "tcp/receiver.h"
#include "tcp/sender.h"

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                        \
    }                                                                      \
  } while (0)

namespace wt::test {

using tcp::TcpReceiver;
using tcp::TcpSender;
using tcp::Transfer;
using Random = std::mt19937_64;

inline int64_t below(Random& random, int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); }

inline std::pair<int, int> connected() {
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  CHECK(listen(listener, 1) == 0);
  socklen_t length = sizeof address;
  CHECK(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  int near = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(connect(near, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  int far = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  CHECK(far >= 0);
  close(listener);
  return {near, far};
}

template <class T>
T must(Result<T> result) {
  if (!result.ok()) std::fprintf(stderr, "%s\n", result.status().detail.c_str());
  CHECK(result.ok());
  return std::move(result.value());
}

// Blocks on the engine's eventfd until `done()`; fails after a minute without it.
template <class Done>
void wait_until(Engine& engine, Done done, std::vector<Event>* seen = nullptr) {
  for (;;) {
    std::vector<Event> events;
    engine.completions()->drain(events);
    if (seen != nullptr) seen->insert(seen->end(), events.begin(), events.end());
    if (done()) return;
    pollfd entry{engine.completions()->fd(), POLLIN, 0};
    CHECK(poll(&entry, 1, 60'000) == 1);
  }
}

inline ErrCode wait(Engine& engine, const std::shared_ptr<Work>& work) {
  wait_until(engine, [&] { return work->settled(); });
  return work->code();
}

// Each side has an engine of its own, as in two processes.
struct Pair {
  explicit Pair(int streams, uint64_t sender_epoch = 1, uint64_t receiver_epoch = 1) {
    std::vector<int> near;
    std::vector<int> far;
    for (int i = 0; i < streams; ++i) {
      auto [a, b] = connected();
      near.push_back(a);
      far.push_back(b);
    }
    receiver = must(TcpReceiver::create(owner, far, receiver_epoch));
    sender = must(TcpSender::create(initiator, near, sender_epoch));
  }

  std::shared_ptr<Engine> initiator = must(Engine::create(1));
  std::shared_ptr<Engine> owner = must(Engine::create(1));
  std::unique_ptr<TcpReceiver> receiver;
  std::unique_ptr<TcpSender> sender;
};

struct Buffer {
  explicit Buffer(int64_t nbytes, uint64_t seed = 0) : bytes(static_cast<size_t>(nbytes)) {
    Random random(seed);
    for (size_t at = 0; seed != 0 && at < bytes.size(); at += sizeof(uint64_t)) {
      uint64_t word = random();
      std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
    }
    region = must(LocalRegion::create({{reinterpret_cast<uintptr_t>(bytes.data()), 1, {nbytes}, {1}}}));
  }
  Memory memory() const { return Memory(region); }

  std::vector<std::byte> bytes;
  std::shared_ptr<LocalRegion> region;
};

// `count` spans of 0..max_nbytes bytes that cover disjoint parts of both sides; tensor = row % num_digests.
struct Table {
  Table(Random& random, int64_t count, int64_t max_nbytes, int64_t num_digests) {
    int64_t at = 0;
    for (int64_t i = 0; i < count; ++i) {
      int64_t n = below(random, max_nbytes + 1);
      spans.push_back({0, at, at, n, i % num_digests, at});
      at += n + below(random, 3);
    }
    nbytes = at + 1;
    // Sources and destinations in different orders.
    for (int64_t i = count - 1; i > 0; --i) {
      std::swap(spans[static_cast<size_t>(i)], spans[static_cast<size_t>(below(random, i + 1))]);
    }
  }
  std::vector<uint64_t> digests(const Buffer& buffer, size_t num_digests) const {
    std::vector<uint64_t> sums(num_digests);
    for (const Span& span : spans) {
      sums[static_cast<size_t>(span.tensor)] +=
          digest_bytes(buffer.bytes.data() + span.src, static_cast<size_t>(span.nbytes), span.position);
    }
    return sums;
  }
  std::vector<Span> spans;
  int64_t nbytes = 0;
};

inline bool same(const Table& table, const Buffer& a, const Buffer& b) {
  for (const Span& span : table.spans) {
    if (!std::equal(a.bytes.begin() + span.src, a.bytes.begin() + span.src + span.nbytes, b.bytes.begin() + span.dst))
      return false;
  }
  return true;
}

}  // namespace wt::test
