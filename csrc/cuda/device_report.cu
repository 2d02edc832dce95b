#include <cuda_runtime_api.h>

#include "fastbudget/devices.h"

namespace fastbudget {

CudaReport report_cuda() {
  CudaReport report;
  report.compiled = true;
  report.architectures = FASTBUDGET_CUDA_ARCHITECTURES;
  cudaRuntimeGetVersion(&report.runtime_version);
  cudaDriverGetVersion(&report.driver_version);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    // 35 (driver missing or too old) and 100 (no device) are the ordinary answers of a machine without a GPU.
    report.problem = report.driver_version == 0 ? "no NVIDIA driver" : cudaGetErrorString(error);
    cudaGetLastError();
    return report;
  }
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) continue;
    CudaDevice device;
    device.name = properties.name;
    device.capability_major = properties.major;
    device.capability_minor = properties.minor;
    device.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    device.multiprocessors = properties.multiProcessorCount;
    report.devices.push_back(device);
  }
  return report;
}

}  // namespace fastbudget
