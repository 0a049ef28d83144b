#include "heart/heart.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <string>
#include <tuple>

#include "bindings/convert.h"
#include "core/engine.h"
#include "heart/beat.h"

namespace nb = nanobind;
using namespace nb::literals;
using wt::Engine;
using wt::heart::Heart;
using wt::heart::Liveness;

namespace {

std::unique_ptr<Heart> make(const std::shared_ptr<Engine>& engine, double interval_s, double silent_after_s) {
  // Also keeps what is no number, and what a nanosecond clock cannot hold, out of the conversion.
  constexpr double kMaxSeconds = 1e9;
  const bool sane = interval_s > 0 && silent_after_s > 0 && interval_s < kMaxSeconds && silent_after_s < kMaxSeconds;
  const auto interval_ns = sane ? static_cast<int64_t>(interval_s * 1e9) : 0;
  const auto silent_after_ns = sane ? static_cast<int64_t>(silent_after_s * 1e9) : 0;
  return wt::py::unwrap(Heart::create(engine->completions(), interval_ns, silent_after_ns));
}

void check(const wt::Status& status) {
  if (!status.ok()) wt::py::raise_status(status);
}

}  // namespace

void bind_heart(nb::module_& m) {
  m.attr("LIVENESS_SILENT") = static_cast<int>(Liveness::Silent);
  m.attr("LIVENESS_RESUMED") = static_cast<int>(Liveness::Resumed);
  m.attr("LIVENESS_EOF") = static_cast<int>(Liveness::Eof);
  m.attr("LIVENESS_EXITED") = static_cast<int>(Liveness::Exited);
  m.attr("LIVENESS_STALLED") = static_cast<int>(Liveness::Stalled);
  m.attr("LIVENESS_UNSTALLED") = static_cast<int>(Liveness::Unstalled);

  nb::class_<Heart>(m, "Heart", "A native thread that beats whatever Python does, and watches the beats of peers.")
      .def(nb::new_(&make), "engine"_a, "interval_s"_a, "silent_after_s"_a,
           "Events (1, peer, LIVENESS_*, age in ns) go to the engine. ValueError unless 0 < interval_s < silent_after_s.")
      .def(
          "add", [](Heart& heart, uint64_t peer, int fd) { check(heart.add(peer, fd)); }, "peer"_a, "fd"_a,
          "Beat to, and expect beats from, a connected stream socket, which belongs to the heart from now on.")
      .def(
          "watch_pid", [](Heart& heart, uint64_t peer, int pidfd) { check(heart.watch_pid(peer, pidfd)); }, "peer"_a, "pidfd"_a,
          "Report LIVENESS_EXITED when the process of a pidfd ends; the pidfd belongs to the heart from now on.")
      .def("remove", &Heart::remove, "peer"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Close what is held for the peer; no event about it is queued after this returns.")
      .def("touch", &Heart::touch, "Python made progress.")
      .def(
          "stats",
          [](const Heart& heart, uint64_t peer) {
            const auto stats = heart.stats(peer);
            if (!stats) throw nb::key_error(("no beats are expected of peer " + std::to_string(peer)).c_str());
            return std::make_tuple(stats->last_rx_age_ns, stats->python_age_ns);
          },
          "peer"_a, "(age of the last beat, Python age it carried), in ns. KeyError for a peer without a socket.")
      .def("close", &Heart::close, nb::call_guard<nb::gil_scoped_release>(),
           "Join the thread, close every descriptor. Idempotent.");
}
