#include "core/thread.h"

#include <pthread.h>
#include <sched.h>

#include <csignal>
#include <system_error>

namespace wt {

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
      // Refused under some seccomp filters; the thread then runs at normal priority.
      const sched_param param{};
      if (priority == Priority::Batch) ::sched_setscheduler(0, SCHED_BATCH, &param);
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
