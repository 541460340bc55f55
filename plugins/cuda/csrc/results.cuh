// New tensors for results.
#pragma once

#include <vector>

#include "launch.cuh"

namespace opdock {

inline const Tensor* given(const std::optional<Tensor>& t) { return t.has_value() ? &*t : nullptr; }

// Dense, of x's shape with another last size where one is given.
inline Tensor like(const Tensor& x, std::optional<ScalarType> type = std::nullopt, int64_t last = -1) {
  std::vector<int64_t> shape(x.dim());
  for (int64_t d = 0; d < x.dim(); ++d) shape[d] = x.size(d);
  if (last >= 0) shape.back() = last;
  return torch::stable::new_empty(x, shape, type);
}

// The chip's 8-bit float.
#ifdef __HIP__
inline ScalarType fp8_type(const Tensor& x) {
  static int known[64] = {};  // 0: not asked; 1: with a negative zero; 2: without
  int& kind = known[x.get_device_index() & 63];
  if (kind == 0) {
    hipDeviceProp_t properties;
    STD_TORCH_CHECK(hipGetDeviceProperties(&properties, x.get_device_index()) == hipSuccess, "the GPU does not answer");
    kind = strncmp(properties.gcnArchName, "gfx94", 5) == 0 ? 2 : 1;
  }
  return kind == 2 ? ScalarType::Float8_e4m3fnuz : ScalarType::Float8_e4m3fn;
}
#else
inline ScalarType fp8_type(const Tensor&) { return ScalarType::Float8_e4m3fn; }
#endif

inline Tensor scales_of(const Tensor& x) { return like(x, ScalarType::Float, 1); }

}  // namespace opdock
