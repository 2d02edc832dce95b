#include <pybind11/numpy.h>

#include "domains.h"
#include "fastbudget/ranking.h"

namespace py = pybind11;

namespace fastbudget::bindings {
namespace {

using Numbers = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Flags = py::array_t<std::uint8_t, py::array::c_style | py::array::forcecast>;

template <typename Area>
double area_of(const Numbers& scores, const Flags& labels, int threads, Area area) {
  if (scores.ndim() != 1 || labels.ndim() != 1 || scores.size() != labels.size())
    throw py::value_error("scores and labels must be 1-D and of the same length");
  const double* score = scores.data();
  const std::uint8_t* label = labels.data();
  const std::int64_t n = scores.size();
  py::gil_scoped_release release;
  return area(score, label, n, threads);
}

}  // namespace

void bind_ranking(py::module_& module) {
  module.def(
      "roc_area",
      [](const Numbers& scores, const Flags& labels, int threads) {
        return area_of(scores, labels, threads, roc_area);
      },
      py::arg("scores"), py::arg("labels"), py::arg("threads") = 0,
      "Area under the ROC curve; ties count half; NaN unless both labels occur.");
  module.def(
      "average_precision",
      [](const Numbers& scores, const Flags& labels, int threads) {
        return area_of(scores, labels, threads, average_precision);
      },
      py::arg("scores"), py::arg("labels"), py::arg("threads") = 0, "Average precision; NaN without a positive.");
  module.def(
      "average_ranks",
      [](const Numbers& values) {
        if (values.ndim() != 1) throw py::value_error("values must be 1-D");
        py::array_t<double> ranks(values.size());
        const double* value = values.data();
        double* rank = ranks.mutable_data();
        const std::int64_t n = values.size();
        py::gil_scoped_release release;
        average_ranks(value, n, rank);
        return ranks;
      },
      py::arg("values"), "Ranks 1..n, float64 [n]; equal values share the mean of their ranks.");
}

}  // namespace fastbudget::bindings
