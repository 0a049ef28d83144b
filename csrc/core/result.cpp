#include "core/result.h"

#include <cerrno>
#include <cstring>

namespace wt {

Status errno_status(const char* call, int error_number) {
  char buffer[128];
  const char* text = ::strerror_r(error_number, buffer, sizeof buffer);
  return {error_number == ENOMEM ? ErrCode::NO_MEMORY : ErrCode::IO,
          std::string(call) + ": " + text + " (errno " + std::to_string(error_number) + ")", error_number};
}

}  // namespace wt
