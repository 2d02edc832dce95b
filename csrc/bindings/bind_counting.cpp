#include <pybind11/numpy.h>

#include <cstring>

#include "domains.h"
#include "fastbudget/counting.h"
#include "raise_status.h"

namespace py = pybind11;

namespace fastbudget::bindings {
namespace {

Labels labels_of(const py::array& array, const char* name) {
  if (array.ndim() != 1)
    throw py::value_error(std::string(name) + " must be 1-D, got " + std::to_string(array.ndim()) + "-D");
  const auto stride_bytes = array.strides(0);
  const auto size = array.itemsize();
  LabelType type;
  // isinstance compares byte order too, so a big-endian array is refused here instead of being misread.
  if (py::isinstance<py::array_t<std::uint8_t>>(array)) {
    type = LabelType::kUint8;
  } else if (py::isinstance<py::array_t<std::int32_t>>(array)) {
    type = LabelType::kInt32;
  } else if (py::isinstance<py::array_t<std::int64_t>>(array)) {
    type = LabelType::kInt64;
  } else {
    throw py::type_error(std::string(name) + " must be uint8, int32 or int64");
  }
  if (stride_bytes % size != 0 || reinterpret_cast<std::uintptr_t>(array.data()) % size != 0) {
    throw py::value_error(std::string(name) + " must be aligned to its element size");
  }
  return {array.data(), type, stride_bytes / size};
}

std::int64_t same_length(const py::array& predicted, const py::array& reference) {
  if (predicted.shape(0) != reference.shape(0)) {
    throw py::value_error("predictions and references must have the same length, got " +
                          std::to_string(predicted.shape(0)) + " and " + std::to_string(reference.shape(0)));
  }
  return predicted.shape(0);
}

py::array_t<std::int64_t> to_array(const std::vector<std::int64_t>& values) {
  py::array_t<std::int64_t> array(static_cast<py::ssize_t>(values.size()));
  if (!values.empty()) std::memcpy(array.mutable_data(), values.data(), values.size() * sizeof(std::int64_t));
  return array;
}

}  // namespace

void bind_counting(py::module_& module) {
  module.def(
      "count_classes",
      [](const py::array& predictions, const py::array& references, std::int64_t num_classes, int threads) {
        const Labels p = labels_of(predictions, "predictions"), r = labels_of(references, "references");
        const std::int64_t n = same_length(predictions, references);
        ClassCounts counts;
        Status status;
        {
          py::gil_scoped_release release;
          status = count_classes(p, r, n, num_classes, threads, &counts);
        }
        raise_unless_ok(status);
        return py::make_tuple(to_array(counts.both), to_array(counts.predicted), to_array(counts.reference));
      },
      py::arg("predictions"), py::arg("references"), py::arg("num_classes") = 0, py::arg("threads") = 0,
      "Per class: pairs that agree on it, its predictions, its references; int64 [C] each. num_classes=0 finds C.");

  module.def(
      "add_confusion",
      [](const py::array& predictions, const py::array& references, py::array_t<std::int64_t> confusion, int threads) {
        const Labels p = labels_of(predictions, "predictions"), r = labels_of(references, "references");
        const std::int64_t n = same_length(predictions, references);
        if (confusion.ndim() != 2 || confusion.shape(0) != confusion.shape(1) ||
            !(confusion.flags() & py::array::c_style)) {
          throw py::value_error("confusion must be a contiguous square int64 matrix");
        }
        std::int64_t* cells = confusion.mutable_data();
        const std::int64_t classes = confusion.shape(0);
        Status status;
        {
          py::gil_scoped_release release;
          status = add_confusion(p, r, n, classes, threads, cells);
        }
        raise_unless_ok(status);
      },
      // noconvert: a converted copy would be counted into and thrown away.
      py::arg("predictions"), py::arg("references"), py::arg("confusion").noconvert(), py::arg("threads") = 0,
      "Adds pairs to confusion int64 [C, C] in place: row = reference, column = prediction.");

  module.def(
      "label_range",
      [](const py::array& labels, int threads) {
        const Labels view = labels_of(labels, "labels");
        const std::int64_t n = labels.shape(0);
        if (n == 0) throw py::value_error("labels must not be empty");
        std::int64_t smallest, largest;
        {
          py::gil_scoped_release release;
          label_range(view, n, threads, &smallest, &largest);
        }
        return py::make_tuple(smallest, largest);
      },
      py::arg("labels"), py::arg("threads") = 0, "The smallest and largest label.");
}

}  // namespace fastbudget::bindings
