#include <pybind11/stl.h>

#include "domains.h"
#include "fastbudget/devices.h"
#include "fastbudget/threads.h"

namespace py = pybind11;

namespace fastbudget::bindings {

void bind_devices(py::module_& module) {
  module.def(
      "report_cuda",
      [] {
        const CudaReport report = report_cuda();
        py::list devices;
        for (const CudaDevice& device : report.devices) {
          py::dict entry;
          entry["name"] = device.name;
          entry["capability"] = py::make_tuple(device.capability_major, device.capability_minor);
          entry["memory_bytes"] = device.memory_bytes;
          entry["multiprocessors"] = device.multiprocessors;
          devices.append(entry);
        }
        py::dict result;
        result["compiled"] = report.compiled;
        result["runtime_version"] = report.runtime_version;
        result["driver_version"] = report.driver_version;
        result["architectures"] = report.architectures;
        result["problem"] = report.problem;
        result["devices"] = devices;
        return result;
      },
      "What the CUDA driver and runtime report; never fails.");
  module.def("default_threads", &default_threads, "Threads native code uses when none are asked for.");
}

}  // namespace fastbudget::bindings
