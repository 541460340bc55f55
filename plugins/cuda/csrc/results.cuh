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

inline Tensor scales_of(const Tensor& x) { return like(x, ScalarType::Float, 1); }

}  // namespace opdock
