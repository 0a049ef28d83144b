// Peers that send anything at all: the endpoint may break, the process and its memory may not.
#include <thread>

#include "tcp/frame.h"
#include "tests/tcp_pair.h"

using namespace wt;
using namespace wt::test;
using tcp::FrameHeader;
using tcp::Op;

namespace {

constexpr int64_t kSize = 1 << 16;

// Writes what it can and swallows what comes back, until the other end is done with us.
void feed(int fd, const std::vector<std::byte>& bytes) {
  size_t at = 0;
  std::byte sink[4096];
  while (at < bytes.size()) {
    pollfd entry{fd, POLLIN | POLLOUT, 0};
    CHECK(poll(&entry, 1, 60'000) == 1);
    if ((entry.revents & POLLIN) != 0 && recv(fd, sink, sizeof sink, MSG_DONTWAIT) == 0) return;
    ssize_t sent = send(fd, bytes.data() + at, std::min<size_t>(bytes.size() - at, 1 << 16), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return;
    if (sent > 0) at += static_cast<size_t>(sent);
  }
}

void append(std::vector<std::byte>& bytes, const FrameHeader& header) {
  const auto* from = reinterpret_cast<const std::byte*>(&header);
  bytes.insert(bytes.end(), from, from + sizeof header);
}

template <class T>
T odd(Random& random, std::initializer_list<T> usual) {
  switch (random() % 6) {
    case 0:
      return static_cast<T>(random());
    case 1:
      return static_cast<T>((1ULL << 63) - 1 + random() % 3);
    case 2:
      return static_cast<T>(~0ULL - random() % 80);
    default:
      return usual.begin()[random() % usual.size()];
  }
}

FrameHeader odd_frame(Random& random) {
  FrameHeader header;
  if (random() % 40 == 0) header.magic = static_cast<uint32_t>(random());
  header.op = odd<uint8_t>(random, {1, 1, 1, 2, 2, 3, 4, 5});
  header.flags = static_cast<uint8_t>(random());
  header.code = odd<uint16_t>(random, {0, 0, 4});
  header.epoch = odd<uint64_t>(random, {1, 1, 1, 2});
  header.key = odd<uint64_t>(random, {1, 1, 2, 3});
  header.generation = odd<uint64_t>(random, {7, 7, 8});
  header.work = odd<uint64_t>(random, {1, 2, 3});
  header.offset = odd<uint64_t>(random, {0, 1, kSize - 1, kSize, kSize + 1});
  header.nbytes = odd<uint64_t>(random, {0, 1, 100, 4096, kSize, kSize + 1, tcp::kMaxFramePayload, tcp::kMaxFramePayload + 1});
  header.position = odd<uint64_t>(random, {0, 1, 4096});
  header.tensor = odd<uint32_t>(random, {0, 1, 2});
  return header;
}

// Frames with odd fields, some with their payload, some without, so that the rest is read as frames of its own.
std::vector<std::byte> odd_stream(Random& random) {
  std::vector<std::byte> bytes;
  int64_t frames = 1 + below(random, 30);
  for (int64_t i = 0; i < frames; ++i) {
    FrameHeader header = odd_frame(random);
    append(bytes, header);
    if (header.op == 1 && header.nbytes <= kSize + 1 && random() % 10 != 0) bytes.resize(bytes.size() + header.nbytes);
  }
  if (random() % 2 == 0) bytes.resize(bytes.size() - static_cast<size_t>(below(random, 72)));
  return bytes;
}

// The granted bytes lie between guards, which must stand.
struct Guarded {
  Guarded() : bytes(3 * kSize, std::byte{0xA5}) {
    region = must(LocalRegion::create({{reinterpret_cast<uintptr_t>(bytes.data() + kSize), 1, {kSize}, {1}}}));
  }
  bool whole() const {
    auto intact = [](std::byte byte) { return byte == std::byte{0xA5}; };
    return std::all_of(bytes.begin(), bytes.begin() + kSize, intact) && std::all_of(bytes.end() - kSize, bytes.end(), intact);
  }
  std::vector<std::byte> bytes;
  std::shared_ptr<LocalRegion> region;
};

void any_bytes_to_a_receiver(int rounds) {
  Random random(21);
  auto engine = must(Engine::create(1));
  for (int round = 0; round < rounds; ++round) {
    auto [near, far] = connected();
    Guarded writable;
    Guarded readable;
    std::vector<std::byte> secret = readable.bytes;
    auto receiver = must(TcpReceiver::create(engine, {far}, 1));
    CHECK(receiver->grant(1, Memory(writable.region), 7, true, 2).ok());
    CHECK(receiver->grant(2, Memory(readable.region), 7, false, 2).ok());
    std::vector<std::byte> bytes;
    if (round % 4 == 0) {
      bytes.resize(static_cast<size_t>(below(random, 2'000)));
      for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    } else {
      bytes = odd_stream(random);
    }
    feed(near, bytes);
    close(near);
    wait_until(*engine, [&] { return !receiver->alive(); });
    receiver->close();
    CHECK(writable.whole() && readable.bytes == secret);
  }
}

void any_bytes_to_a_sender(int rounds) {
  Random random(22);
  auto engine = must(Engine::create(1));
  for (int round = 0; round < rounds; ++round) {
    auto [near, far] = connected();
    Guarded mine;
    auto sender = must(TcpSender::create(engine, {near}, 1));
    std::vector<std::shared_ptr<Work>> works;
    for (auto kind : {Transfer::Kind::Write, Transfer::Kind::Read, Transfer::Kind::Read}) {
      works.push_back(sender->submit(kind, Memory(mine.region), {1, 7}, {{0, 0, 0, kSize, 0, 0}}, 1, kFlagDigest));
    }
    std::vector<std::byte> bytes;
    for (int64_t i = below(random, 8); i >= 0; --i) {
      FrameHeader header = odd_frame(random);
      header.op = odd<uint8_t>(random, {4, 4, 5, 5});
      header.work = random() % 10 == 0 ? random() : works[random() % works.size()]->id();
      append(bytes, header);
      if (header.op == 4 && header.nbytes <= kSize + 1) bytes.resize(bytes.size() + header.nbytes);
    }
    feed(far, bytes);
    close(far);
    for (auto& work : works) wait(*engine, work);
    // Only a whole account of a whole work may settle it well.
    for (auto& work : works) CHECK(work->code() != ErrCode::OK || work->progress() == work->nbytes());
    sender.reset();
    CHECK(mine.whole());
  }
}

// An owner that acknowledges before it has been sent everything, or that acknowledges less than everything as well.
void false_acknowledgements() {
  for (uint64_t nbytes : {uint64_t{0}, uint64_t{64 << 20}, uint64_t{(64 << 20) - 1}}) {
    auto [near, far] = connected();
    auto engine = must(Engine::create(1));
    Buffer source(64 << 20);
    auto sender = must(TcpSender::create(engine, {near}, 1));
    auto work = sender->submit(Transfer::Kind::Write, source.memory(), {1, 7}, {{0, 0, 0, 64 << 20, 0, 0}}, 1, 0);
    FrameHeader ack;
    ack.op = static_cast<uint8_t>(Op::Ack);
    ack.flags = tcp::kFrameLast;
    ack.epoch = 1;
    ack.work = work->id();
    ack.nbytes = nbytes;
    std::vector<std::byte> bytes;
    append(bytes, ack);
    feed(far, bytes);
    CHECK(wait(*engine, work) == ErrCode::PROTOCOL);
    CHECK(sender->status().code == ErrCode::PROTOCOL);
    close(far);
  }
}

void requests_without_end_do_not_pile_up() {
  auto [near, far] = connected();
  auto engine = must(Engine::create(1));
  Guarded readable;
  auto receiver = must(TcpReceiver::create(engine, {far}, 1));
  CHECK(receiver->grant(2, Memory(readable.region), 7, false, 1).ok());
  FrameHeader read;
  read.op = static_cast<uint8_t>(Op::Read);
  read.epoch = 1;
  read.key = 2;
  read.generation = 7;
  read.nbytes = kSize;
  // Far more than the sockets hold; nothing of what comes back is read, until sending blocks for good.
  std::vector<std::byte> bytes;
  for (int i = 0; i < 1'000; ++i) append(bytes, read);
  size_t sent = 0;
  for (;;) {
    pollfd entry{near, POLLOUT, 0};
    if (poll(&entry, 1, 200) != 1) break;
    ssize_t moved = send(near, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (moved <= 0) break;
    sent += static_cast<size_t>(moved);
  }
  CHECK(receiver->alive() && sent > 0);
  receiver->abort();
  receiver.reset();
  close(near);
}

}  // namespace

int main() {
  any_bytes_to_a_receiver(600);
  any_bytes_to_a_sender(300);
  false_acknowledgements();
  requests_without_end_do_not_pile_up();
  return 0;
}
