// The whole of opdock-cuda's operators, compiled as HIP over the stand-in: torch.ops.opdock_rocm.* on CPU tensors.
#include <torch/csrc/stable/library.h>

#include "results.cuh"
#include "rotary_kernels.cuh"

// The CPU has no streams, and no device to switch to.
extern "C" {
AOTITorchError aoti_torch_get_current_cuda_stream(int32_t, void** stream) { return *stream = nullptr, 0; }
AOTITorchError aoti_torch_create_device_guard(int32_t, DeviceGuardHandle* guard) { return *guard = nullptr, 0; }
AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle) { return 0; }
}

#define CUDA CPU
#define opdock_cuda opdock_rocm
STABLE_TORCH_LIBRARY(opdock_rocm, m) {}
#include "cache.cu"
#include "elementwise.cu"
#include "norms.cu"
#include "rotary.cu"
