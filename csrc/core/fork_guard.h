// Tells a forked child from the process that made an object: the child has none of its threads and must neither wait nor lock.
#pragma once

#include <unistd.h>

namespace wt {

class ForkGuard {
 public:
  bool in_child() const { return ::getpid() != pid_; }

 private:
  pid_t pid_ = ::getpid();
};

}  // namespace wt
