// What the bindings share: Python arguments to native ones, and the one converter from Status to an exception.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/variant.h>

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "core/memory.h"
#include "core/result.h"
#include "core/spans.h"

namespace wt::py {

namespace nb = nanobind;

using AnyRegion = std::variant<std::shared_ptr<LocalRegion>, std::shared_ptr<SharedRegion>>;
using SpanTable = nb::ndarray<nb::ro>;

// INVALID: ValueError, NO_MEMORY: MemoryError, CLOSED: ValueError (as for a closed file), everything else: OSError.
[[noreturn]] void raise_status(const Status& status);

template <class T>
T unwrap(Result<T> result) {
  if (!result.ok()) raise_status(result.status());
  return std::move(result.value());
}

// Pins the region's memory. ValueError if the region is closed.
Memory memory_of(const AnyRegion& region);
std::shared_ptr<Mapping> mapping_of(const SharedRegion& region);

// TypeError unless int64 in CPU memory; ValueError unless [n, 6] and C-contiguous.
std::vector<Span> spans_of(const SpanTable& table);

// A new numpy array that owns a copy of `values`.
nb::ndarray<nb::numpy, uint64_t, nb::ndim<1>> array_of(const std::vector<uint64_t>& values);
nb::ndarray<nb::numpy, int64_t, nb::ndim<1>> array_of(const std::vector<int64_t>& values);

}  // namespace wt::py
