#include "core/flight_ring.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstddef>

#include "bindings/convert.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

std::string_view view(const nb::bytes& text) {
  return {text.c_str(), text.size()};
}

std::shared_ptr<wt::FlightRing> open_ring(const std::string& path, uint64_t num_records,
                                          const nb::bytes& meta) {
  return wt::py::unwrap(wt::FlightRing::create(path, num_records, view(meta)));
}

// (offset, size) of every field, for the test that compares the layout with wtransport/recorder/format.py.
nb::dict flight_format() {
  nb::dict header, record, states, format;
#define FIELD(dict, type, name) dict[#name] = nb::make_tuple(offsetof(type, name), sizeof(type::name))
  FIELD(header, wt::FlightHeader, magic);
  FIELD(header, wt::FlightHeader, format_version);
  FIELD(header, wt::FlightHeader, header_nbytes);
  FIELD(header, wt::FlightHeader, record_nbytes);
  FIELD(header, wt::FlightHeader, pid);
  FIELD(header, wt::FlightHeader, num_records);
  FIELD(header, wt::FlightHeader, wall_open_ns);
  FIELD(header, wt::FlightHeader, mono_open_ns);
  FIELD(header, wt::FlightHeader, meta_nbytes);
  FIELD(header, wt::FlightHeader, next_seq);
  FIELD(header, wt::FlightHeader, num_dropped);
  FIELD(header, wt::FlightHeader, mono_closed_ns);
  FIELD(header, wt::FlightHeader, meta);
  FIELD(record, wt::FlightRecord, stamp);
  FIELD(record, wt::FlightRecord, t_start_ns);
  FIELD(record, wt::FlightRecord, version);
  FIELD(record, wt::FlightRecord, term);
  FIELD(record, wt::FlightRecord, nbytes_total);
  FIELD(record, wt::FlightRecord, publication);
  FIELD(record, wt::FlightRecord, rank);
  FIELD(record, wt::FlightRecord, thread_id);
  FIELD(record, wt::FlightRecord, op);
  FIELD(record, wt::FlightRecord, backend);
  FIELD(record, wt::FlightRecord, peer_nbytes);
  FIELD(record, wt::FlightRecord, detail_nbytes);
  FIELD(record, wt::FlightRecord, peer);
  FIELD(record, wt::FlightRecord, t_end_ns);
  FIELD(record, wt::FlightRecord, nbytes_done);
  FIELD(record, wt::FlightRecord, code);
  FIELD(record, wt::FlightRecord, state);
  FIELD(record, wt::FlightRecord, outcome_nbytes);
  FIELD(record, wt::FlightRecord, text);
#undef FIELD
  states["STARTED"] = static_cast<int>(wt::FlightState::Started);
  states["DONE"] = static_cast<int>(wt::FlightState::Done);
  states["FAILED"] = static_cast<int>(wt::FlightState::Failed);
  states["CANCELLED"] = static_cast<int>(wt::FlightState::Cancelled);
  format["version"] = wt::kFlightVersion;
  format["header_nbytes"] = sizeof(wt::FlightHeader);
  format["record_nbytes"] = sizeof(wt::FlightRecord);
  format["max_records"] = wt::kFlightMaxRecords;
  format["detail_nbytes"] = wt::FlightRecord::kDetailNbytes;
  format["no_version"] = wt::kFlightNoVersion;
  format["header"] = header;
  format["record"] = record;
  format["states"] = states;
  return format;
}

}  // namespace

void bind_flight_ring(nb::module_& m) {
  nb::class_<wt::FlightRing>(m, "FlightRing",
                             "A preallocated, mapped file of flight records (wtransport/recorder/format.py).")
      .def(nb::new_(&open_ring), "path"_a, "num_records"_a, "meta"_a)
      .def(
          "begin",
          [](wt::FlightRing& ring, uint16_t op, uint8_t backend, const nb::bytes& peer, int64_t version,
             uint64_t term, uint32_t publication, int32_t rank, uint64_t nbytes, const nb::bytes& detail,
             uint64_t t_start_ns) {
            return ring.begin({op, backend, view(peer), version, term, publication, rank, nbytes,
                               view(detail), t_start_ns});
          },
          "op"_a, "backend"_a, "peer"_a, "version"_a, "term"_a, "publication"_a, "rank"_a, "nbytes"_a,
          "detail"_a, "t_start_ns"_a = 0, "Record a start; returns the seq that end() takes.")
      .def(
          "end",
          [](wt::FlightRing& ring, uint64_t seq, uint8_t state, int32_t code, uint64_t nbytes_done,
             const nb::bytes& detail) {
            return ring.end(seq, static_cast<wt::FlightState>(state), code, nbytes_done, view(detail));
          },
          "seq"_a, "state"_a, "code"_a, "nbytes_done"_a, "detail"_a,
          "Record an end; False if it had ended before or its record was overwritten meanwhile.")
      .def("close", &wt::FlightRing::close, "Mark the file as closed in good order; idempotent.");
  m.def("flight_format", &flight_format, nb::sig("def flight_format() -> dict[str, object]"),
        "The layout of the ring's file as this module writes it.");
}
