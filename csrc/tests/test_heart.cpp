// The heart against real sockets: what it tells of peers that beat, stop, stall, end or talk nonsense.
#include "heart/heart.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "heart/beat.h"
#include "heart/pulse.h"

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                        \
    }                                                                      \
  } while (0)

using namespace wt;
using namespace wt::heart;

namespace {

constexpr int64_t kMs = 1'000'000;
// Generous, so that a loaded machine's pauses are not taken for silence.
constexpr int64_t kInterval = 20 * kMs;
constexpr int64_t kSilentAfter = 1'000 * kMs;
constexpr int64_t kNever = 60'000 * kMs;

struct Listener {
  std::shared_ptr<CompletionQueue> queue = [] {
    auto created = CompletionQueue::create();
    CHECK(created.ok());
    return created.value();
  }();
  std::vector<Event> events;

  std::unique_ptr<Heart> heart(int64_t silent_after = kSilentAfter, int64_t interval = kInterval) {
    auto created = Heart::create(queue, interval, silent_after);
    CHECK(created.ok());
    return std::move(created.value());
  }
  int count(uint64_t peer, Liveness liveness) const {
    int found = 0;
    for (const Event& event : events) {
      CHECK(event.kind == EventKind::Liveness);
      found += event.id == peer && event.code == static_cast<int32_t>(liveness);
    }
    return found;
  }
  void expect(uint64_t peer, Liveness liveness, int times = 1) {
    while (count(peer, liveness) < times) {
      pollfd entry{queue->fd(), POLLIN, 0};
      CHECK(poll(&entry, 1, 60'000) == 1);
      queue->drain(events);
    }
    CHECK(count(peer, liveness) == times);
  }
};

std::pair<int, int> connected() {
  int ends[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  return {ends[0], ends[1]};
}

void beat(int fd, uint64_t python_age_ns) {
  Beat one;
  one.python_age_ns = python_age_ns;
  CHECK(send(fd, &one, sizeof one, MSG_NOSIGNAL) == sizeof one);
}

Beat next_beat(int fd) {
  Beat one;
  CHECK(recv(fd, &one, sizeof one, MSG_WAITALL) == sizeof one);
  CHECK(one.magic == kBeatMagic);
  return one;
}

void pulse_tells_each_transition_once() {
  Pulse pulse(0);
  CHECK(!pulse.on_tick(100, 100));
  CHECK(pulse.on_tick(101, 100) == Liveness::Silent);
  CHECK(!pulse.on_tick(500, 100));
  auto news = pulse.on_beat({kBeatMagic, 1, 101}, 501, 100);
  CHECK(news.first == Liveness::Resumed && news.second == Liveness::Stalled);
  news = pulse.on_beat({kBeatMagic, 2, 200}, 502, 100);
  CHECK(!news.first && !news.second);
  CHECK(!pulse.on_tick(602, 100));
  news = pulse.on_beat({kBeatMagic, 3, 100}, 603, 100);
  CHECK(!news.first && news.second == Liveness::Unstalled);
  pulse.restart(1'000);
  CHECK(!pulse.on_tick(1'100, 100) && pulse.on_tick(1'101, 100) == Liveness::Silent);
  CHECK(pulse.last_rx_age_ns(1'101) == 101);
  // An age that does not fit a signed number is a large one, not a negative one.
  CHECK(pulse.on_beat({kBeatMagic, 4, UINT64_MAX}, 1'200, 100).second == Liveness::Stalled);
}

void beats_carry_the_python_age() {
  Listener listener;
  auto heart = listener.heart();
  auto [ours, theirs] = connected();
  CHECK(heart->add(1, ours).ok());
  uint64_t seq = next_beat(theirs).seq;
  CHECK(next_beat(theirs).seq == seq + 1);
  while (next_beat(theirs).python_age_ns < 100 * kMs) {
  }
  heart->touch();
  while (next_beat(theirs).python_age_ns > 100 * kMs) {
  }
  heart->close();
  char byte;
  while (recv(theirs, &byte, 1, 0) > 0) {
  }
  close(theirs);
}

void silence_and_return() {
  Listener listener;
  auto heart = listener.heart(100 * kMs);
  auto [ours, theirs] = connected();
  CHECK(heart->add(7, ours).ok());
  listener.expect(7, Liveness::Silent);
  CHECK(heart->stats(7)->last_rx_age_ns >= 100 * kMs);
  beat(theirs, 5);
  listener.expect(7, Liveness::Resumed);
  CHECK(heart->stats(7)->python_age_ns == 5);
  listener.expect(7, Liveness::Silent, 2);
  close(theirs);
  listener.expect(7, Liveness::Eof);
  CHECK(!heart->stats(7));
  CHECK(listener.count(7, Liveness::Exited) == 0);
}

void a_stalled_python_is_not_silent() {
  Listener listener;
  auto heart = listener.heart(kNever);
  auto [ours, theirs] = connected();
  CHECK(heart->add(7, ours).ok());
  beat(theirs, kNever + 1);
  beat(theirs, kNever + 2);
  listener.expect(7, Liveness::Stalled);
  // A beat in two parts is one beat.
  Beat one;
  const auto* bytes = reinterpret_cast<const char*>(&one);
  CHECK(send(theirs, bytes, 10, 0) == 10);
  next_beat(theirs);
  CHECK(send(theirs, bytes + 10, sizeof one - 10, 0) == sizeof one - 10);
  listener.expect(7, Liveness::Unstalled);
  CHECK(listener.count(7, Liveness::Silent) == 0);
  close(theirs);
}

void nonsense_ends_the_socket() {
  Listener listener;
  auto heart = listener.heart(kNever);
  auto [ours, theirs] = connected();
  CHECK(heart->add(7, ours).ok());
  std::vector<char> noise(1 << 16, 'x');
  CHECK(send(theirs, noise.data(), noise.size(), MSG_NOSIGNAL) > 0);
  listener.expect(7, Liveness::Eof);
  close(theirs);
}

void a_full_socket_skips_beats() {
  Listener listener;
  auto heart = listener.heart(kNever, kMs);
  auto [ours, theirs] = connected();
  int small = 1;
  CHECK(setsockopt(ours, SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
  auto [other, others_end] = connected();
  CHECK(heart->add(7, ours).ok() && heart->add(8, other).ok());
  for (int i = 0; i < 600; ++i) next_beat(others_end);
  // What was skipped is missing as a whole: the stream still consists of beats.
  uint64_t last = 0;
  uint64_t skipped = 0;
  while (skipped == 0) {
    uint64_t seq = next_beat(theirs).seq;
    CHECK(seq > last);
    skipped += last != 0 && seq > last + 1;
    last = seq;
  }
  next_beat(theirs);
  CHECK(listener.events.empty());
  close(theirs);
  close(others_end);
}

void exits_are_told_by_pidfd() {
  Listener listener;
  auto heart = listener.heart(kNever);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    pause();
    _exit(0);
  }
  int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
  CHECK(pidfd >= 0);
  CHECK(heart->watch_pid(3, pidfd).ok());
  CHECK(!heart->stats(3));
  kill(child, SIGKILL);
  listener.expect(3, Liveness::Exited);
  CHECK(waitpid(child, nullptr, 0) == child);
}

void removed_peers_are_no_news() {
  Listener listener;
  auto heart = listener.heart(kNever);
  auto [ours, theirs] = connected();
  auto [witness, witness_end] = connected();
  CHECK(heart->add(1, ours).ok() && heart->add(2, witness).ok());
  heart->remove(1);
  heart->remove(99);
  char byte;
  while (recv(theirs, &byte, 1, 0) > 0) {
  }
  close(theirs);
  close(witness_end);
  listener.expect(2, Liveness::Eof);
  CHECK(listener.count(1, Liveness::Eof) == 0);
  heart->close();
  heart->close();
  auto [late, late_end] = connected();
  CHECK(heart->add(1, late).code == ErrCode::CLOSED);
  CHECK(recv(late_end, &byte, 1, 0) == 0);
  close(late_end);
}

// A child that beats at us is stopped: it goes silent, and comes back. Once it runs again it does not blame us for its own
// absence, though it has heard nothing for as long.
void a_stopped_peer() {
  auto [ours, theirs] = connected();
  int verdict[2];
  CHECK(pipe(verdict) == 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    close(ours);
    Listener listener;
    auto heart = listener.heart(kSilentAfter);
    CHECK(heart->add(1, theirs).ok());
    listener.expect(1, Liveness::Eof);
    char told = static_cast<char>(listener.count(1, Liveness::Silent));
    CHECK(write(verdict[1], &told, 1) == 1);
    _exit(0);
  }
  close(theirs);
  Listener listener;
  auto heart = listener.heart(kSilentAfter);
  CHECK(heart->add(5, ours).ok());
  heart->touch();
  CHECK(kill(child, SIGSTOP) == 0);
  listener.expect(5, Liveness::Silent);
  CHECK(listener.count(5, Liveness::Stalled) == 0);
  CHECK(kill(child, SIGCONT) == 0);
  listener.expect(5, Liveness::Resumed);
  heart->remove(5);
  char told = 1;
  CHECK(read(verdict[0], &told, 1) == 1);
  CHECK(told == 0);
  CHECK(waitpid(child, nullptr, 0) == child);
}

void a_forked_child_owns_nothing() {
  Listener listener;
  auto heart = listener.heart(kNever);
  auto [ours, theirs] = connected();
  CHECK(heart->add(1, ours).ok());
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    heart->touch();
    heart->remove(1);
    heart->close();
    heart.reset();
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  uint64_t seq = next_beat(theirs).seq;
  CHECK(next_beat(theirs).seq > seq);
  close(theirs);
}

void intervals_are_checked() {
  Listener listener;
  for (auto [interval, silent] : {std::pair<int64_t, int64_t>{0, 1}, {-1, 1}, {5, 5}, {5, 4}}) {
    CHECK(Heart::create(listener.queue, interval, silent).status().code == ErrCode::INVALID);
  }
}

}  // namespace

int main() {
  pulse_tells_each_transition_once();
  intervals_are_checked();
  beats_carry_the_python_age();
  silence_and_return();
  a_stalled_python_is_not_silent();
  nonsense_ends_the_socket();
  a_full_socket_skips_beats();
  exits_are_told_by_pidfd();
  removed_peers_are_no_news();
  a_stopped_peer();
  a_forked_child_owns_nothing();
  return 0;
}
