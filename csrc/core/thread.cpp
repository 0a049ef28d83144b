#include "core/thread.h"

#include <pthread.h>
#include <sched.h>

#include <csignal>
#include <cstdint>
#include <system_error>

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace wt {

namespace {

// A short time slice: since Linux 6.12 a normal thread that wakes waits at most for the rest of it, instead of the default of some
// milliseconds. Earlier kernels ignore the value.
constexpr uint64_t kBatchSliceNs = 100'000;

// struct sched_attr, first version (sched_setattr(2)); the C library has no declaration of it.
struct SchedAttr {
  uint32_t size = sizeof(SchedAttr);
  uint32_t policy = SCHED_BATCH;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = kBatchSliceNs;
  uint64_t deadline = 0;
  uint64_t period = 0;
};

// Refused under some seccomp filters; the thread then runs at normal priority.
void become_batch() {
#ifdef SYS_sched_setattr
  SchedAttr attr;
  if (::syscall(SYS_sched_setattr, 0, &attr, 0) == 0) return;
#endif
  const sched_param param{};
  ::sched_setscheduler(0, SCHED_BATCH, &param);
}

}  // namespace

Result<std::thread> start_thread(const char* name, Priority priority, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  Status failure;
  try {
    thread = std::thread([name, priority, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name);
      if (priority == Priority::Batch) become_batch();
      body();
    });
  } catch (const std::system_error& error) {
    failure = {ErrCode::NO_MEMORY, std::string("cannot start thread ") + name + ": " + error.what()};
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!failure.ok()) return failure;
  return thread;
}

}  // namespace wt
