#include "core/engine.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/convert.h"

namespace nb = nanobind;
using namespace nb::literals;
using wt::Engine;
using wt::Work;
using wt::py::AnyRegion;
using wt::py::SpanTable;

namespace {

using WorkPtr = std::shared_ptr<Work>;
using EventTuple = std::tuple<int32_t, uint64_t, int32_t, int64_t>;

// A process that leaves with works under way must not have its tensors freed beneath the copy threads: the interpreter runs
// finalizers while every object is still there.
nb::object make_engine(int copy_threads) {
  std::shared_ptr<Engine> engine = wt::py::unwrap(Engine::create(copy_threads));
  nb::object self = nb::cast(engine);
  nb::module_::import_("weakref").attr("finalize")(self, nb::cpp_function([engine] {
                                                     const nb::gil_scoped_release release;
                                                     engine->close();
                                                   }));
  return self;
}

std::vector<EventTuple> drain(const Engine& engine) {
  std::vector<wt::Event> events;
  engine.completions()->drain(events);
  std::vector<EventTuple> tuples;
  tuples.reserve(events.size());
  for (const wt::Event& event : events) tuples.emplace_back(static_cast<int32_t>(event.kind), event.id, event.code, event.value);
  return tuples;
}

WorkPtr copy(Engine& engine, const AnyRegion& src, const AnyRegion& dst, const SpanTable& table, size_t num_digests,
             uint32_t flags) {
  wt::Memory from = wt::py::memory_of(src);
  wt::Memory to = wt::py::memory_of(dst);
  const std::vector<wt::Span> spans = wt::py::spans_of(table);
  const nb::gil_scoped_release release;
  return engine.copy(std::move(from), std::move(to), spans, num_digests, flags);
}

WorkPtr copy_from(Engine& engine, const AnyRegion& src, const AnyRegion& dst, const SpanTable& table, size_t num_digests,
                  uint32_t flags) {
  wt::Memory from = wt::py::memory_of(src);
  wt::Memory to = wt::py::memory_of(dst);
  const std::vector<wt::Span> spans = wt::py::spans_of(table);
  const nb::gil_scoped_release release;
  return engine.copy_from(std::move(from), std::move(to), spans, num_digests, flags);
}

WorkPtr digest(Engine& engine, const AnyRegion& region, const SpanTable& table, size_t num_digests) {
  wt::Memory memory = wt::py::memory_of(region);
  const std::vector<wt::Span> spans = wt::py::spans_of(table);
  const nb::gil_scoped_release release;
  return engine.digest(std::move(memory), spans, num_digests, std::holds_alternative<std::shared_ptr<wt::LocalRegion>>(region));
}

WorkPtr populate(Engine& engine, const wt::SharedRegion& region) {
  std::shared_ptr<wt::Mapping> mapping = wt::py::mapping_of(region);
  const nb::gil_scoped_release release;
  return engine.populate(std::move(mapping));
}

}  // namespace

void bind_engine(nb::module_& m) {
  m.attr("DIGEST") = wt::kFlagDigest;

  nb::class_<Work>(m, "Work", "A submitted transfer; settles exactly once.")
      .def_prop_ro("id", &Work::id, "Number of the work in its engine; never reused.")
      .def_prop_ro("nbytes", &Work::nbytes, "Bytes that are to move.")
      .def("progress", &Work::progress, "Bytes done so far.")
      .def(
          "code", [](const Work& work) { return static_cast<int32_t>(work.code()); },
          "The error code it settled with; 0 while running and when done well.")
      .def("settled", &Work::settled)
      .def("detail", &Work::detail, "What went wrong, in words; empty while running and when done well.")
      .def("cancel", &Work::cancel, nb::call_guard<nb::gil_scoped_release>(),
           "Drop what has not started; the work settles (CANCELLED, if bytes are then missing) when what is in flight has.")
      .def(
          "digests", [](const Work& work) { return wt::py::array_of(work.digests()); },
          nb::sig("def digests(self) -> numpy.typing.NDArray[numpy.uint64]"),
          "uint64[num_digests]: per tensor, the digest of the bytes this side loaded, sent or received.");

  nb::class_<Engine>(m, "Engine", nb::is_weak_referenceable(),
                     "Copy threads, and the queue on which all native works report that they settled.")
      .def(nb::new_(&make_engine), "copy_threads"_a,
           "copy_threads: 1 to 256, else ValueError. OSError if there is no descriptor, MemoryError if there is no thread to be "
           "had.")
      .def(
          "fileno", [](const Engine& engine) { return engine.completions()->fd(); }, "An eventfd, readable while events wait.")
      .def("drain", &drain,
           "The waiting events, oldest first: (0, work id, error code, bytes done), (1, peer handle, LIVENESS_*, age in ns) and\n"
           "(2, endpoint id, error code, 0).")
      .def("copy", &copy, "src"_a, "dst"_a, "spans"_a, "num_digests"_a, "flags"_a,
           "Copy to mapped memory; src is the local side of the span table. Up to 256 KiB it is done, and settled without an "
           "event,\n"
           "on return. Both regions must live until the work settles.")
      .def("copy_from", &copy_from, "src"_a, "dst"_a, "spans"_a, "num_digests"_a, "flags"_a,
           "Copy from mapped memory; dst is the local side of the span table. Otherwise as copy().")
      .def("digest", &digest, "region"_a, "spans"_a, "num_digests"_a,
           "Digest memory where it lies: a LocalRegion by columns 0 and 1, a SharedRegion by column 2.")
      .def("populate", &populate, "region"_a, "Fault in every page of a region, so that the first copy runs at full speed.")
      .def("close", &Engine::close, nb::call_guard<nb::gil_scoped_release>(),
           "Cancel what is queued, wait for chunks that run, join the threads; later calls settle with CLOSED. Idempotent.");
}
