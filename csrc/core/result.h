// How native code reports failure: a Status, or a Result that holds a value or a Status. Nothing on the data path throws.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace wt {

enum class ErrCode : int32_t {
#define WT_ERROR(name, value, text) name = value,
#include "core/error_codes.def"
#undef WT_ERROR
};

constexpr const char* error_text(ErrCode code) {
  switch (code) {
#define WT_ERROR(name, value, text) \
  case ErrCode::name:               \
    return text;
#include "core/error_codes.def"
#undef WT_ERROR
  }
  return "unknown error code";
}

struct [[nodiscard]] Status {
  ErrCode code = ErrCode::OK;
  std::string detail;
  int os_error = 0;  // errno of the call that failed, where it was one

  bool ok() const { return code == ErrCode::OK; }
};

// A Status of code IO (NO_MEMORY for ENOMEM) that says which call failed and why.
Status errno_status(const char* call, int error_number);

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status failure) : state_(std::in_place_index<1>, std::move(failure)) {}

  bool ok() const { return state_.index() == 0; }
  // Precondition of value(): ok(); of status(): !ok().
  T& value() { return *std::get_if<0>(&state_); }
  const Status& status() const { return *std::get_if<1>(&state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace wt
