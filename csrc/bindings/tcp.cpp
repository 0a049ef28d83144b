#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "core/engine.h"
#include "tcp/receiver.h"
#include "tcp/sender.h"

namespace nb = nanobind;
using namespace nb::literals;
using wt::Engine;
using wt::Work;
using wt::py::AnyRegion;
using wt::py::SpanTable;
using wt::tcp::TcpReceiver;
using wt::tcp::TcpSender;
using wt::tcp::Transfer;

namespace {

std::shared_ptr<Work> submit(TcpSender& sender, Transfer::Kind kind, const AnyRegion& region, Transfer::Target target,
                             const SpanTable& table, size_t num_digests, uint32_t flags) {
  wt::Memory memory = wt::py::memory_of(region);
  std::vector<wt::Span> spans = wt::py::spans_of(table);
  const nb::gil_scoped_release release;
  return sender.submit(kind, std::move(memory), target, std::move(spans), num_digests, flags);
}

std::shared_ptr<Work> submit_write(TcpSender& sender, const AnyRegion& src, uint64_t key, uint64_t generation,
                                   const SpanTable& spans, size_t num_digests, uint32_t flags) {
  return submit(sender, Transfer::Kind::Write, src, {key, generation}, spans, num_digests, flags);
}

std::shared_ptr<Work> submit_read(TcpSender& sender, const AnyRegion& dst, uint64_t key, uint64_t generation,
                                  const SpanTable& spans, size_t num_digests, uint32_t flags) {
  return submit(sender, Transfer::Kind::Read, dst, {key, generation}, spans, num_digests, flags);
}

void put_grant(TcpReceiver& receiver, uint64_t key, const AnyRegion& region, uint64_t generation, bool writable,
               size_t num_digests) {
  wt::Memory memory = wt::py::memory_of(region);
  wt::Status status;
  {
    const nb::gil_scoped_release release;
    status = receiver.grant(key, std::move(memory), generation, writable, num_digests);
  }
  if (!status.ok()) wt::py::raise_status(status);
}

[[noreturn]] void raise_no_grant(uint64_t key) { throw nb::key_error(("no grant of key " + std::to_string(key)).c_str()); }

nb::tuple ledger_of(const TcpReceiver& receiver, uint64_t key) {
  const auto ledger = receiver.ledger(key);
  if (!ledger) raise_no_grant(key);
  return nb::make_tuple(wt::py::array_of(ledger->digests), wt::py::array_of(ledger->nbytes));
}

std::tuple<int32_t, std::string> status_of(const wt::Status& status) {
  return {static_cast<int32_t>(status.code), status.detail};
}

}  // namespace

void bind_tcp(nb::module_& m) {
  nb::class_<TcpSender>(m, "TcpSender", "The initiator's side of one TCP endpoint.")
      .def(nb::new_([](std::shared_ptr<Engine> engine, const std::vector<int>& fds, uint64_t epoch) {
             return wt::py::unwrap(TcpSender::create(std::move(engine), fds, epoch));
           }),
           "engine"_a, "fds"_a, "epoch"_a, "Takes ownership of connected stream sockets, whether or not it succeeds.")
      .def_prop_ro("id", &TcpSender::id, "Number in the engine; the event (2, id, error code, 0) says that the endpoint broke.")
      .def(
          "write", &submit_write, "src"_a, "key"_a, "generation"_a, "spans"_a, "num_digests"_a, "flags"_a,
          "Store local spans in what the peer granted under (key, generation). Settles OK once the owner has stored every byte.\n"
          "The caller keeps the memory until then.")
      .def("read", &submit_read, "dst"_a, "key"_a, "generation"_a, "spans"_a, "num_digests"_a, "flags"_a,
           "Fetch spans of what the peer granted; columns 0 and 1 say where they go. STALE if the grant ended before the last "
           "byte.")
      .def("alive", &TcpSender::alive)
      .def(
          "status", [](const TcpSender& sender) { return status_of(sender.status()); },
          "(error code, detail) of the endpoint's end; (0, '') while it is alive.")
      .def("abort", &TcpSender::abort, nb::call_guard<nb::gil_scoped_release>(),
           "Shut the sockets down; never waits. Works settle with ABORTED as soon as nothing touches their memory.")
      .def("close", &TcpSender::close, nb::call_guard<nb::gil_scoped_release>(),
           "Wait until every work has settled, then close. Idempotent; abort() from another thread ends the wait.");

  nb::class_<TcpReceiver>(m, "TcpReceiver", "The owner's side of one TCP endpoint.")
      .def(nb::new_([](std::shared_ptr<Engine> engine, const std::vector<int>& fds, uint64_t epoch) {
             return wt::py::unwrap(TcpReceiver::create(std::move(engine), fds, epoch));
           }),
           "engine"_a, "fds"_a, "epoch"_a, "Takes ownership of connected stream sockets, whether or not it succeeds.")
      .def_prop_ro("id", &TcpReceiver::id, "Number in the engine; the event (2, id, error code, 0) says that the endpoint broke.")
      .def(
          "grant", &put_grant, "key"_a, "region"_a, "generation"_a, "writable"_a, "num_digests"_a,
          "Let the peer write (if writable) and read a region. An older grant of the key is revoked. The grant is over once the\n"
          "generation word of a shared region moves. The caller keeps a LocalRegion's memory until revoke() or close() returned.")
      .def("revoke", &TcpReceiver::revoke, "key"_a, nb::call_guard<nb::gil_scoped_release>(),
           "When it returns nobody touches the region through this endpoint; later frames are refused with STALE and counted.")
      .def("ledger", &ledger_of, "key"_a,
           nb::sig("def ledger(self, key: int) -> tuple[numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.int64]]"),
           "(uint64 digests, int64 bytes stored) per tensor, since the grant or the last reset. KeyError without a grant.")
      .def(
          "reset_ledger",
          [](TcpReceiver& receiver, uint64_t key) {
            if (!receiver.reset_ledger(key)) raise_no_grant(key);
          },
          "key"_a, "Begin a new account. KeyError without a grant.")
      .def("refused", &TcpReceiver::refused, "Frames refused so far: older epochs and generations, unknown keys, out of bounds.")
      .def("alive", &TcpReceiver::alive)
      .def(
          "status", [](const TcpReceiver& receiver) { return status_of(receiver.status()); },
          "(error code, detail) of the endpoint's end; (0, '') while it is alive.")
      .def("abort", &TcpReceiver::abort, nb::call_guard<nb::gil_scoped_release>(), "Shut the sockets down; never waits.")
      .def("close", &TcpReceiver::close, nb::call_guard<nb::gil_scoped_release>(),
           "Wait until no frame is under way, then close and revoke every grant. Idempotent; abort() ends the wait.");
}
