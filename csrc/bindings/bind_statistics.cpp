#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>

#include "domains.h"
#include "fastbudget/resampling.h"
#include "fastbudget/sequential_test.h"

namespace py = pybind11;

namespace fastbudget::bindings {
namespace {

using Doubles = py::array_t<double, py::array::c_style | py::array::forcecast>;

std::vector<double> in_order(const Doubles& values, const std::vector<std::int64_t>& order) {
  std::vector<double> sorted(order.size());
  const double* data = values.data();
  for (std::size_t i = 0; i < order.size(); ++i) sorted[i] = data[order[i]];
  return sorted;
}

class BoundTest {
 public:
  BoundTest(const Doubles& weights, const Doubles& low, const Doubles& high, const Doubles& expected,
            std::uint64_t seed, std::vector<double> bet_fractions, std::vector<double> bet_shares, double threshold,
            double margin_low, double margin_high)
      : order_(draw_order(weights.data(), weights.size(), seed)),
        test_({in_order(weights, order_), in_order(low, order_), in_order(high, order_), in_order(expected, order_)},
              {std::move(bet_fractions), std::move(bet_shares)}, threshold, margin_low, margin_high) {}

  py::array_t<std::int64_t> order() const {
    py::array_t<std::int64_t> array(static_cast<py::ssize_t>(order_.size()));
    if (!order_.empty()) std::memcpy(array.mutable_data(), order_.data(), order_.size() * sizeof(std::int64_t));
    return array;
  }

  void consume(const Doubles& values) {
    if (test_.consumed() + values.size() > static_cast<std::int64_t>(order_.size())) {
      throw py::value_error("more values than units");
    }
    test_.consume(values.data(), values.size());
  }

  SequentialTest& test() { return test_; }

 private:
  std::vector<std::int64_t> order_;
  SequentialTest test_;
};

using Integers = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

Rows rows_of(const Doubles& values, const Integers& starts) {
  if (values.ndim() != 2) throw py::value_error("rows must be 2-D");
  const Rows rows{values.data(), values.shape(0), values.shape(1), starts.data(), starts.size() - 1};
  if (rows.count >= std::int64_t{1} << 31) throw py::value_error("at most 2^31 - 1 rows can be resampled");
  const bool whole = rows.strata >= 1 && rows.starts[0] == 0 && rows.starts[rows.strata] == rows.count;
  if (!whole || !std::is_sorted(rows.starts, rows.starts + rows.strata + 1)) {
    throw py::value_error("starts must rise from 0 to the number of rows");
  }
  return rows;
}

// Calls one of the resampling functions into a new array [resamples, width].
template <typename T, typename Function>
py::array_t<T> resampled(const Rows& rows, std::int64_t width, Function* function, std::int64_t first,
                         std::int64_t resamples, std::uint64_t seed, int threads) {
  if (resamples < 0 || first < 0) throw py::value_error("first and resamples must not be negative");
  py::array_t<T> out({resamples, width});
  T* data = out.mutable_data();
  py::gil_scoped_release release;
  function(rows, first, resamples, seed, threads, data);
  return out;
}

}  // namespace

void bind_statistics(py::module_& module) {
  module.def(
      "bootstrap_sums",
      [](const Doubles& values, const Integers& starts, std::int64_t first, std::int64_t resamples, std::uint64_t seed,
         int threads) {
        const Rows rows = rows_of(values, starts);
        return resampled<double>(rows, rows.columns, bootstrap_sums, first, resamples, seed, threads);
      },
      py::arg("values"), py::arg("starts"), py::arg("first"), py::arg("resamples"), py::arg("seed"),
      py::arg("threads") = 0, "Column sums [resamples, C] of rows [n, C] drawn with replacement within strata.");

  module.def(
      "bootstrap_indices",
      [](const Doubles& values, const Integers& starts, std::int64_t first, std::int64_t resamples, std::uint64_t seed,
         int threads) {
        const Rows rows = rows_of(values, starts);
        return resampled<std::int64_t>(rows, rows.count, bootstrap_indices, first, resamples, seed, threads);
      },
      py::arg("values"), py::arg("starts"), py::arg("first"), py::arg("resamples"), py::arg("seed"),
      py::arg("threads") = 0, "The rows that bootstrap_sums adds up: int64 [resamples, n].");

  module.def(
      "picked_sums",
      [](const Doubles& values, std::int64_t first, std::int64_t rounds, std::uint64_t seed, int threads) {
        Integers starts(2);
        starts.mutable_at(0) = 0;
        starts.mutable_at(1) = values.shape(0);
        const Rows rows = rows_of(values, starts);
        return resampled<double>(rows, rows.columns, picked_sums, first, rounds, seed, threads);
      },
      py::arg("values"), py::arg("first"), py::arg("rounds"), py::arg("seed"), py::arg("threads") = 0,
      "Column sums [rounds, C] over the rows of [n, C] that a fair coin picks.");

  py::class_<BoundTest>(module, "SequentialTest", py::module_local())
      .def(py::init<const Doubles&, const Doubles&, const Doubles&, const Doubles&, std::uint64_t, std::vector<double>,
                    std::vector<double>, double, double, double>(),
           py::kw_only(), py::arg("weights"), py::arg("low"), py::arg("high"), py::arg("expected"), py::arg("seed"),
           py::arg("bet_fractions"), py::arg("bet_shares"), py::arg("threshold"), py::arg("margin_low"),
           py::arg("margin_high"),
           "A sequential test of the total of units with weights, bounds and guesses, float64 [N] each.")
      .def("order", &BoundTest::order, "The draw order of the units; int64 [N].")
      .def("consume", &BoundTest::consume, py::arg("values"), "Takes the values of the next units in draw order.")
      .def("lower_bound", [](BoundTest& self) { return self.test().bound(SequentialTest::Side::kAbove); })
      .def("upper_bound", [](BoundTest& self) { return self.test().bound(SequentialTest::Side::kBelow); })
      .def_property_readonly("consumed", [](BoundTest& self) { return self.test().consumed(); })
      .def_property_readonly("total", [](BoundTest& self) { return self.test().total(); })
      .def_property_readonly("least_total", [](BoundTest& self) { return self.test().least_total(); })
      .def_property_readonly("greatest_total", [](BoundTest& self) { return self.test().greatest_total(); })
      .def_property_readonly("wealth_above", [](BoundTest& self) { return self.test().wealth_above(); })
      .def_property_readonly("wealth_below", [](BoundTest& self) { return self.test().wealth_below(); })
      .def_property_readonly("decision", [](BoundTest& self) { return self.test().decision(); })
      .def_property_readonly("decided_after", [](BoundTest& self) { return self.test().decided_after(); });
}

}  // namespace fastbudget::bindings
