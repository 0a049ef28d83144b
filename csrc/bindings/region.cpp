#include "core/region.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bindings/convert.h"

namespace nb = nanobind;
using namespace nb::literals;
using wt::LocalRegion;
using wt::Mapping;
using wt::SharedRegion;

namespace {

using BlockTuple = std::tuple<uintptr_t, int64_t, std::vector<int64_t>, std::vector<int64_t>>;

std::shared_ptr<LocalRegion> local_region(const std::vector<BlockTuple>& blocks) {
  std::vector<LocalRegion::BlockSpec> specs;
  specs.reserve(blocks.size());
  for (const auto& [address, itemsize, shape, strides] : blocks) specs.push_back({address, itemsize, shape, strides});
  return wt::py::unwrap(LocalRegion::create(specs));
}

std::shared_ptr<SharedRegion> create(int64_t nbytes) {
  wt::Result<std::shared_ptr<SharedRegion>> region = [&] {
    const nb::gil_scoped_release release;
    return SharedRegion::create(nbytes);
  }();
  return wt::py::unwrap(std::move(region));
}

std::shared_ptr<SharedRegion> attach(int fd, int64_t nbytes, bool writable) {
  wt::Result<std::shared_ptr<SharedRegion>> region = [&] {
    const nb::gil_scoped_release release;
    return SharedRegion::attach(fd, nbytes, writable);
  }();
  return wt::py::unwrap(std::move(region));
}

void set_generation(const SharedRegion& region, uint64_t value) {
  const std::shared_ptr<Mapping> mapping = wt::py::mapping_of(region);
  if (!mapping->writable()) throw nb::value_error("the region is mapped read-only");
  mapping->set_generation(value);
}

void punch(SharedRegion& region) {
  const wt::Status status = [&] {
    const nb::gil_scoped_release release;
    return region.punch();
  }();
  if (!status.ok()) wt::py::raise_status(status);
}

nb::object view(const SharedRegion& region) {
  const std::shared_ptr<Mapping> mapping = wt::py::mapping_of(region);
  const auto size = static_cast<size_t>(mapping->nbytes());
  const nb::capsule owner(new std::shared_ptr<Mapping>(mapping),
                          [](void* held) noexcept { delete static_cast<std::shared_ptr<Mapping>*>(held); });
  if (mapping->writable()) return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(mapping->data(), {size}, owner));
  return nb::cast(nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(mapping->data(), {size}, owner));
}

}  // namespace

void bind_region(nb::module_& m) {
  nb::class_<LocalRegion>(m, "LocalRegion",
                          "Private memory by reference, one block per tensor. Keeps nothing alive: its maker does.")
      .def(
          nb::new_(&local_region), "blocks"_a,
          "blocks: (address, item size in bytes, shape, strides in bytes) of each. ValueError for a negative stride or size, an\n"
          "item size outside 1..16, or more than 16 dimensions.")
      .def_prop_ro("nbytes", &LocalRegion::nbytes, "Bytes of all blocks, serialised one after another.")
      .def_prop_ro("num_blocks", &LocalRegion::num_blocks);

  nb::class_<SharedRegion>(
      m, "SharedRegion",
      "One sealed memfd: a header page with the generation, then the data. Mapped until closed (or collected)\n"
      "and no work and no view uses it any more.")
      .def_static("create", &create, "nbytes"_a, "New memory of zeros, mapped writable. MemoryError or OSError if there is none.")
      .def_static("attach", &attach, "fd"_a, "nbytes"_a, "writable"_a,
                  "Map a peer's region through a dup of fd. ValueError unless it is a memfd of ordinary pages, sealed against\n"
                  "shrinking and growing, of exactly nbytes of data; so reading it can never fault.")
      .def_prop_ro("nbytes", &SharedRegion::nbytes, "Bytes of data, without the header page.")
      .def_prop_ro(
          "address", [](const SharedRegion& region) { return reinterpret_cast<uintptr_t>(wt::py::mapping_of(region)->data()); },
          "Address of the first data byte; ValueError once closed.")
      .def_prop_ro(
          "writable", [](const SharedRegion& region) { return wt::py::mapping_of(region)->writable(); },
          "Whether this process mapped it writable; ValueError once closed.")
      .def_prop_rw(
          "generation", [](const SharedRegion& region) { return wt::py::mapping_of(region)->generation(); }, &set_generation,
          "The header's generation word (acquire and release); ValueError once closed, or on setting it read-only.")
      .def(
          "fileno", [](const SharedRegion& region) { return wt::py::mapping_of(region)->fd(); },
          "The memfd, which stays the region's; ValueError once closed.")
      .def("view", &view, nb::sig("def view(self) -> numpy.typing.NDArray[numpy.uint8]"),
           "The data as a byte array that shares memory and keeps it mapped; read-only where the mapping is.")
      .def("punch", &punch,
           "Move the generation on by one, then give all data pages back though others still map them: they read as zeros.")
      .def("close", &SharedRegion::close, nb::call_guard<nb::gil_scoped_release>(),
           "Let go of the mapping; it goes when the last running work and view over it do. Idempotent.");
}
