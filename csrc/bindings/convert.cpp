#include "bindings/convert.h"

#include <cstring>
#include <string>

namespace wt::py {
namespace {

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> owned_array(const std::vector<T>& values) {
  auto copy = std::make_unique<std::vector<T>>(values);
  T* const data = copy->data();
  const nb::capsule owner(copy.release(), [](void* memory) noexcept { delete static_cast<std::vector<T>*>(memory); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {values.size()}, owner);
}

}  // namespace

void raise_status(const Status& status) {
  const std::string text = status.detail.empty() ? error_text(status.code) : status.detail;
  switch (status.code) {
    case ErrCode::INVALID:
    case ErrCode::CLOSED:
      throw nb::value_error(text.c_str());
    case ErrCode::NO_MEMORY:
      PyErr_SetString(PyExc_MemoryError, text.c_str());
      throw nb::python_error();
    default:
      if (status.os_error == 0) {
        PyErr_SetString(PyExc_OSError, text.c_str());
      } else if (PyObject* const error = PyObject_CallFunction(PyExc_OSError, "is", status.os_error, text.c_str())) {
        // With its number, so that Python can tell a limit of the system from a fault.
        PyErr_SetObject(PyExceptionInstance_Class(error), error);
        Py_DECREF(error);
      }
      throw nb::python_error();
  }
}

std::shared_ptr<Mapping> mapping_of(const SharedRegion& region) {
  std::shared_ptr<Mapping> mapping = region.mapping();
  if (!mapping) raise_status({ErrCode::CLOSED, "the region is closed"});
  return mapping;
}

Memory memory_of(const AnyRegion& region) {
  if (const auto* local = std::get_if<std::shared_ptr<LocalRegion>>(&region)) return Memory(*local);
  return Memory(mapping_of(*std::get<std::shared_ptr<SharedRegion>>(region)));
}

std::vector<Span> spans_of(const SpanTable& table) {
  if (table.dtype() != nb::dtype<int64_t>() || table.device_type() != nb::device::cpu::value)
    throw nb::type_error("the span table must be an int64 array in CPU memory");
  if (table.ndim() != 2 || table.shape(1) != 6) throw nb::value_error("the span table must have shape [n, 6]");
  const size_t rows = table.shape(0);
  if (rows != 0 && (table.stride(1) != 1 || (rows > 1 && table.stride(0) != 6)))
    throw nb::value_error("the span table must be C-contiguous");
  std::vector<Span> spans(rows);
  if (rows != 0) std::memcpy(spans.data(), table.data(), rows * sizeof(Span));
  return spans;
}

nb::ndarray<nb::numpy, uint64_t, nb::ndim<1>> array_of(const std::vector<uint64_t>& values) { return owned_array(values); }
nb::ndarray<nb::numpy, int64_t, nb::ndim<1>> array_of(const std::vector<int64_t>& values) { return owned_array(values); }

}  // namespace wt::py
