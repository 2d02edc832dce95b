#include "fastbudget/devices.h"

#ifndef FASTBUDGET_WITH_CUDA
namespace fastbudget {

CudaReport report_cuda() {
  CudaReport report;
  report.problem = "this build has no CUDA: nvcc was not found when it was compiled";
  return report;
}

}  // namespace fastbudget
#endif
