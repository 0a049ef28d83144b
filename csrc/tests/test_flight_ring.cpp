#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "core/flight_ring.h"
#include "tests/check.h"

using namespace wt;

namespace {

struct Folder {
  std::string path;
  int num_files = 0;
  Folder() {
    char name[] = "/tmp/wt-ring-XXXXXX";
    CHECK(mkdtemp(name) != nullptr);
    path = name;
  }
  ~Folder() {
    for (int i = 0; i < num_files; ++i) unlink(file(i).c_str());
    rmdir(path.c_str());
  }
  std::string file(int i) const { return path + "/" + std::to_string(i) + ".ring"; }
  std::string next() { return file(num_files++); }
};

std::shared_ptr<FlightRing> make(const std::string& path, uint64_t num_records) {
  auto ring = FlightRing::create(path, num_records, "meta");
  CHECK(ring.ok());
  return ring.value();
}

struct Image {
  FlightHeader header;
  std::vector<FlightRecord> records;
};

Image load(const std::string& path) {
  Image image;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  CHECK(fd >= 0);
  CHECK(pread(fd, &image.header, sizeof image.header, 0) == sizeof image.header);
  image.records.resize(image.header.num_records);
  const auto nbytes = static_cast<ssize_t>(image.records.size() * sizeof(FlightRecord));
  CHECK(pread(fd, image.records.data(), nbytes, sizeof image.header) == nbytes);
  close(fd);
  return image;
}

uint64_t seq_of(const FlightRecord& record) {
  return (record.stamp >> 2) - 1;
}
FlightPhase phase_of(const FlightRecord& record) {
  return static_cast<FlightPhase>(record.stamp & 3);
}

void test_file() {
  Folder folder;
  const std::string path = folder.next();
  auto ring = make(path, 8);
  struct stat info;
  CHECK(stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK(info.st_size == 4096 + 8 * 256);
  CHECK(info.st_blocks * 512 >= info.st_size);
  CHECK(FlightRing::create(path, 8, "").status().code == ErrCode::IO);  // exists; stays as it is
  CHECK(FlightRing::create(folder.path + "/no/such", 8, "").status().code == ErrCode::IO);
  CHECK(FlightRing::create(folder.path + "/zero", 0, "").status().code == ErrCode::INVALID);
  CHECK(FlightRing::create(folder.path + "/huge", kFlightMaxRecords + 1, "").status().code ==
        ErrCode::INVALID);
  CHECK(FlightRing::create(folder.path + "/meta", 8, std::string(4000, 'x')).status().code ==
        ErrCode::INVALID);

  const uint64_t seq =
      ring->begin({.op = 3, .backend = 2, .peer = "gen-0", .version = 7, .nbytes = 100, .detail = "b 1/2"});
  Image image = load(path);
  CHECK(std::memcmp(image.header.magic, "WTRING\0\0", 8) == 0);
  CHECK(image.header.pid == static_cast<uint32_t>(getpid()));
  CHECK(image.header.mono_closed_ns == 0);
  CHECK(phase_of(image.records[0]) == FlightPhase::Started && seq_of(image.records[0]) == seq);
  CHECK(std::string(image.records[0].peer, image.records[0].peer_nbytes) == "gen-0");

  CHECK(ring->end(seq, FlightState::Failed, 5, 40, "the peer is gone"));
  CHECK(!ring->end(seq, FlightState::Done, 0, 100, ""));
  ring->close();
  ring->close();
  CHECK(ring->begin({.op = 1}) == kFlightNoSeq);
  CHECK(!ring->end(kFlightNoSeq, FlightState::Done, 0, 0, ""));
  image = load(path);
  const FlightRecord& record = image.records[0];
  CHECK(image.header.mono_closed_ns >= record.t_end_ns && record.t_end_ns >= record.t_start_ns);
  CHECK(phase_of(record) == FlightPhase::Ended && record.nbytes_done == 40 && record.code == 5);
  CHECK(std::string(record.text, record.detail_nbytes + size_t{record.outcome_nbytes}) ==
        "b 1/2the peer is gone");
}

void test_texts_are_cut_at_characters() {
  Folder folder;
  const std::string path = folder.next();
  auto ring = make(path, 1);
  std::string wide = "x";
  for (int i = 0; i < 200; ++i) wide += "\xC3\xA9";  // two bytes each, at odd offsets
  const uint64_t seq = ring->begin({.op = 1, .peer = wide, .detail = wide});
  CHECK(ring->end(seq, FlightState::Failed, 1, 0, wide));
  const FlightRecord record = load(path).records[0];
  CHECK(record.peer_nbytes == 39 && record.detail_nbytes == 47 && record.outcome_nbytes == 83);
}

void test_wrapped_record_is_not_confused() {
  Folder folder;
  const std::string path = folder.next();
  auto ring = make(path, 4);
  const uint64_t old = ring->begin({.op = 1, .version = 1});
  for (int i = 0; i < 4; ++i) ring->begin({.op = 2, .version = 2});
  CHECK(!ring->end(old, FlightState::Done, 0, 9, "old"));
  for (const FlightRecord& record : load(path).records) {
    CHECK(record.op == 2 && record.nbytes_done == 0 && phase_of(record) == FlightPhase::Started);
  }
}

// Each record says its own op in every field, so that a mixture of two writers shows.
void test_concurrent_writers() {
  Folder folder;
  const std::string path = folder.next();
  auto ring = make(path, 16);  // small: writers wrap round each other all the time
  constexpr int kThreads = 4, kRounds = 20000;
  std::atomic<uint64_t> num_ended{0};
  std::vector<std::thread> threads;
  for (int t = 1; t <= kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::string text(static_cast<size_t>(8 + t), static_cast<char>('a' + t));
      for (int i = 0; i < kRounds; ++i) {
        const uint64_t seq = ring->begin({.op = static_cast<uint16_t>(t),
                                          .peer = text,
                                          .version = t,
                                          .nbytes = static_cast<uint64_t>(t),
                                          .detail = text});
        if (ring->end(seq, FlightState::Done, t, static_cast<uint64_t>(t), text)) ++num_ended;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const Image image = load(path);
  CHECK(image.header.next_seq == uint64_t{kThreads} * kRounds);
  CHECK(num_ended > 0);
  std::map<uint64_t, int> seen;
  for (size_t slot = 0; slot < image.records.size(); ++slot) {
    const FlightRecord& record = image.records[slot];
    const auto t = record.op;
    CHECK(phase_of(record) == FlightPhase::Ended);
    CHECK(seq_of(record) % 16 == slot && ++seen[seq_of(record)] == 1);
    CHECK(record.version == t && record.nbytes_total == t && record.code == t && record.nbytes_done == t);
    CHECK(record.peer_nbytes == 8 + t && record.detail_nbytes == 8 + t && record.outcome_nbytes == 8 + t);
    for (int i = 0; i < 2 * (8 + t); ++i) CHECK(record.text[i] == 'a' + t);
  }
}

void test_killed_process_leaves_its_records() {
  Folder folder;
  const std::string path = folder.next();
  int pipe_fds[2];
  CHECK(pipe(pipe_fds) == 0);
  const pid_t child = fork();
  if (child == 0) {
    auto ring = make(path, 8);
    const uint64_t done = ring->begin({.op = 1, .version = 1});
    ring->end(done, FlightState::Done, 0, 5, "");
    ring->begin({.op = 2, .version = 2});
    char ready = 'r';
    if (write(pipe_fds[1], &ready, 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char ready;
  CHECK(read(pipe_fds[0], &ready, 1) == 1);
  CHECK(kill(child, SIGKILL) == 0);
  CHECK(waitpid(child, nullptr, 0) == child);
  const Image image = load(path);
  CHECK(image.header.mono_closed_ns == 0 && image.header.next_seq == 2);
  CHECK(phase_of(image.records[0]) == FlightPhase::Ended && image.records[0].nbytes_done == 5);
  CHECK(phase_of(image.records[1]) == FlightPhase::Started && image.records[1].op == 2);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

void test_child_does_not_close_its_parents_ring() {
  Folder folder;
  const std::string path = folder.next();
  auto ring = make(path, 8);
  const pid_t child = fork();
  if (child == 0) {
    ring->close();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(load(path).header.mono_closed_ns == 0);
  CHECK(ring->begin({.op = 1}) == 0);
}

void print_cost() {
  Folder folder;
  auto ring = make(folder.next(), 4096);
  constexpr int kRounds = 1'000'000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRounds; ++i) {
    ring->end(ring->begin({.op = 3, .peer = "generator-0", .version = i, .nbytes = 1 << 20}),
              FlightState::Done, 0, 1, "");
  }
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  std::printf("begin + end: %.0f ns\n", spent.count() / kRounds);
}

}  // namespace

int main() {
  test_file();
  test_texts_are_cut_at_characters();
  test_wrapped_record_is_not_confused();
  test_concurrent_writers();
  test_killed_process_leaves_its_records();
  test_child_does_not_close_its_parents_ring();
  print_cost();
  std::puts("ok");
  return 0;
}
