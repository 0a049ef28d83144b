#include <nanobind/nanobind.h>

#include "core/result.h"

namespace nb = nanobind;

void bind_region(nb::module_& m);
void bind_engine(nb::module_& m);
#ifdef WT_BIND_FLIGHT_RING
void bind_flight_ring(nb::module_& m);
#endif
#ifdef WT_BIND_TCP
void bind_tcp(nb::module_& m);
#endif
#ifdef WT_BIND_HEART
void bind_heart(nb::module_& m);
#endif

namespace {

nb::dict error_codes() {
  nb::dict codes;
#define WT_ERROR(name, value, text) codes[#name] = value;
#include "core/error_codes.def"
#undef WT_ERROR
  return codes;
}

nb::dict error_texts() {
  nb::dict texts;
#define WT_ERROR(name, value, text) texts[nb::int_(value)] = text;
#include "core/error_codes.def"
#undef WT_ERROR
  return texts;
}

}  // namespace

NB_MODULE(_native, m) {
  // What an exception's traceback, or a transport that was never closed, still holds when the interpreter ends is no leak of ours;
  // the warning would bury the user's own error.
  nb::set_leak_warnings(false);
  m.doc() = "Native core of wtransport: copies, digests, shared memory, completions.";
  m.def("error_codes", &error_codes, nb::sig("def error_codes() -> dict[str, int]"),
        "Name and value of every native error code.");
  m.def("error_texts", &error_texts, nb::sig("def error_texts() -> dict[int, str]"),
        "What each native error code means, by value.");
  bind_region(m);
  bind_engine(m);
#ifdef WT_BIND_FLIGHT_RING
  bind_flight_ring(m);
#endif
#ifdef WT_BIND_TCP
  bind_tcp(m);
#endif
#ifdef WT_BIND_HEART
  bind_heart(m);
#endif
}
