#pragma once

#include <pybind11/pybind11.h>

#include "fastbudget/status.h"

namespace fastbudget::bindings {

inline void raise_unless_ok(const Status& status) {
  switch (status.code) {
    case StatusCode::kOk: return;
    case StatusCode::kOutOfRange: throw pybind11::index_error(status.message);
    case StatusCode::kInvalidArgument: throw pybind11::value_error(status.message);
    case StatusCode::kUnavailable: throw std::runtime_error(status.message);
  }
}

}  // namespace fastbudget::bindings
