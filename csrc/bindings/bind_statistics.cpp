#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>

#include "domains.h"
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
  BoundTest(const Doubles& weights, const Doubles& low, const Doubles& high, std::uint64_t seed,
            std::vector<double> bet_fractions, std::vector<double> bet_shares, double threshold, double margin_low,
            double margin_high)
      : order_(draw_order(weights.data(), weights.size(), seed)),
        test_({in_order(weights, order_), in_order(low, order_), in_order(high, order_)},
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

}  // namespace

void bind_statistics(py::module_& module) {
  py::class_<BoundTest>(module, "SequentialTest", py::module_local())
      .def(py::init<const Doubles&, const Doubles&, const Doubles&, std::uint64_t, std::vector<double>,
                    std::vector<double>, double, double, double>(),
           py::kw_only(), py::arg("weights"), py::arg("low"), py::arg("high"), py::arg("seed"),
           py::arg("bet_fractions"), py::arg("bet_shares"), py::arg("threshold"), py::arg("margin_low"),
           py::arg("margin_high"), "A sequential test of the total of units with weights and bounds, float64 [N] each.")
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
