#include "domains.h"
#include "fastbudget/scoring.h"

namespace py = pybind11;

namespace fastbudget::bindings {
namespace {

template <typename T>
T* address(std::uintptr_t value) {
  return reinterpret_cast<T*>(value);
}

LogitBlock block_of(std::uintptr_t logits, int type, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
                    std::int64_t first_column) {
  if (type < 0 || type > 2) throw py::value_error("type must be 0 (float32), 1 (bfloat16) or 2 (float64)");
  if (rows < 0 || columns < 0 || row_stride < columns) throw py::value_error("rows lie row_stride >= columns apart");
  return {address<void>(logits), static_cast<LogitType>(type), rows, columns, row_stride, first_column};
}

}  // namespace

void bind_scoring(py::module_& module) {
  module.def(
      "update_row_scores",
      [](std::uintptr_t logits, int type, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
         std::int64_t first_column, std::uintptr_t targets, std::uintptr_t scores, int threads) {
        const LogitBlock block = block_of(logits, type, rows, columns, row_stride, first_column);
        py::gil_scoped_release release;
        update_row_scores(block, address<const std::int64_t>(targets), address<RowScore>(scores), threads);
      },
      py::arg("logits"), py::arg("type"), py::arg("rows"), py::arg("columns"), py::arg("row_stride"),
      py::arg("first_column"), py::arg("targets"), py::arg("scores"), py::arg("threads") = 0,
      "Take a block of logits into float64 scores [rows, 5]: peak, sum, target, best_before, best_after. Addresses.");
  module.def(
      "logit_gradients",
      [](std::uintptr_t logits, int type, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
         std::int64_t first_column, std::uintptr_t targets, std::uintptr_t logsumexp, std::uintptr_t probability,
         std::uintptr_t target, double softcap, int threads) {
        const LogitBlock block = block_of(logits, type, rows, columns, row_stride, first_column);
        py::gil_scoped_release release;
        logit_gradients(block, address<const std::int64_t>(targets), address<const double>(logsumexp),
                        address<const double>(probability), address<const double>(target), softcap, threads);
      },
      py::arg("logits"), py::arg("type"), py::arg("rows"), py::arg("columns"), py::arg("row_stride"),
      py::arg("first_column"), py::arg("targets"), py::arg("logsumexp"), py::arg("probability"), py::arg("target"),
      py::arg("softcap") = 0.0, py::arg("threads") = 0,
      "Replace a block of logits by the gradient to them. Addresses.");
}

}  // namespace fastbudget::bindings
