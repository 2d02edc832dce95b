#include "domains.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "fastbudget's native code. Takes arrays and numbers; knows nothing of torch.";
  fastbudget::bindings::bind_allocator(module);
  fastbudget::bindings::bind_counting(module);
  fastbudget::bindings::bind_devices(module);
  fastbudget::bindings::bind_ranking(module);
  fastbudget::bindings::bind_scoring(module);
  fastbudget::bindings::bind_statistics(module);
  fastbudget::bindings::bind_text(module);
  fastbudget::bindings::bind_tokens(module);
}
