// Each domain registers its functions on the module.
#pragma once

#include <pybind11/pybind11.h>

namespace fastbudget::bindings {

void bind_allocator(pybind11::module_& module);
void bind_counting(pybind11::module_& module);
void bind_devices(pybind11::module_& module);
void bind_ranking(pybind11::module_& module);
void bind_scoring(pybind11::module_& module);
void bind_statistics(pybind11::module_& module);
void bind_text(pybind11::module_& module);
void bind_tokens(pybind11::module_& module);

}  // namespace fastbudget::bindings
