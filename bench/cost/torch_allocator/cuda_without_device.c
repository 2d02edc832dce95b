// As much of the CUDA runtime, driver and NVML as PyTorch's allocator calls, with no device behind it: it counts bytes
// and hands out addresses that nobody may read. STUB_CAPACITY_BYTES is the device's memory.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"
#include "cuda_runtime_api.h"

enum { kMaxSegments = 1 << 16 };
static const size_t kAlignment = 2 << 20;

static struct {
  uint64_t address;
  size_t bytes;
} segments[kMaxSegments];
static int num_segments = 0;
static size_t used = 0;
static uint64_t next_address = 1ull << 40;

static size_t capacity(void) {
  const char* text = getenv("STUB_CAPACITY_BYTES");
  return text ? strtoull(text, 0, 10) : 1ull << 50;
}

static uint64_t take_address(size_t bytes) {
  const uint64_t address = next_address;
  next_address += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return address;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (used + bytes > capacity()) return cudaErrorMemoryAllocation;
  if (num_segments == kMaxSegments) abort();
  used += bytes;
  segments[num_segments].address = take_address(bytes);
  segments[num_segments].bytes = bytes;
  *pointer = (void*)segments[num_segments++].address;
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  for (int i = 0; i < num_segments; ++i) {
    if (segments[i].address != (uint64_t)pointer) continue;
    used -= segments[i].bytes;
    segments[i] = segments[--num_segments];
    return cudaSuccess;
  }
  abort();
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = capacity();
  *free = *total - used;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* properties, int device) {
  memset(properties, 0, sizeof *properties);
  properties->totalGlobalMem = capacity();
  properties->major = 9;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
// Asked for when memory runs out.
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, void* processes) { return *count = 0; }
const char* cudaGetErrorName(cudaError_t error) { return "error"; }
const char* cudaGetErrorString(cudaError_t error) { return "error"; }

static CUresult reserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr hint,
                        unsigned long long flags) {
  return *address = take_address(bytes), CUDA_SUCCESS;
}
static CUresult create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                       unsigned long long flags) {
  if (used + bytes > capacity()) return CUDA_ERROR_OUT_OF_MEMORY;
  used += bytes;
  return *handle = bytes, CUDA_SUCCESS;
}
static CUresult release(CUmemGenericAllocationHandle handle) { return used -= handle, CUDA_SUCCESS; }
static CUresult granularity(size_t* bytes, const CUmemAllocationProp* properties, int option) {
  return *bytes = kAlignment, CUDA_SUCCESS;
}
static CUresult attribute(int* value, int name, int device) { return *value = 0, CUDA_SUCCESS; }
static CUresult device_get(int* device, int ordinal) { return *device = 0, CUDA_SUCCESS; }
static CUresult describe(CUresult error, const char** text) { return *text = "error", CUDA_SUCCESS; }
static CUresult nothing(void) { return CUDA_SUCCESS; }

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult* result) {
  static const struct {
    const char* symbol;
    void* function;
  } known[] = {
      {"cuMemAddressReserve", reserve},
      {"cuMemCreate", create},
      {"cuMemRelease", release},
      {"cuDeviceGetAttribute", attribute},
      {"cuDeviceGet", device_get},
      {"cuGetErrorString", describe},
      {"cuMemGetAllocationGranularity", granularity},
  };
  if (result) *result = cudaDriverEntryPointSuccess;
  *function = nothing;
  for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
    if (strcmp(symbol, known[i].symbol) == 0) *function = known[i].function;
  }
  return cudaSuccess;
}
