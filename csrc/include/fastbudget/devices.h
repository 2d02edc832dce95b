// What the CUDA driver and runtime report. C++17: also read by .cu files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastbudget {

struct CudaDevice {
  std::string name;
  int capability_major = 0, capability_minor = 0;
  std::int64_t memory_bytes = 0;
  int multiprocessors = 0;
};

struct CudaReport {
  bool compiled = false;    // built with nvcc
  int runtime_version = 0;  // of the runtime linked in: 13000 for 13.0; 0 without CUDA
  int driver_version = 0;   // the newest CUDA version the driver serves; 0 without a driver
  std::string architectures;
  std::string problem;  // why there are no devices; empty when there are some
  std::vector<CudaDevice> devices;
};

// Never fails and never creates a CUDA context.
CudaReport report_cuda();

}  // namespace fastbudget
