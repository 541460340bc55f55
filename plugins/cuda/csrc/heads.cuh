// What a launch has to know of the heads of a query or key.
#pragma once

#include "launch.cuh"
#include "rotary_kernels.cuh"

namespace opdock {

inline Heads heads_of(const View& t, int64_t head_size, const char* name) {
  STD_TORCH_CHECK(head_size > 0, "head_size must be positive");
  const bool three = t.dim() == 3;
  STD_TORCH_CHECK((three && t.size(2) == head_size) || (t.dim() == 2 && t.size(1) % head_size == 0), name,
                  " is not rows of whole heads");
  STD_TORCH_CHECK(t.stride(t.dim() - 1) == 1, name, " must be dense in its last dimension");
  const int count = (int)(three ? t.size(1) : t.size(1) / head_size);
  return {t.data_ptr(), count, t.stride(0), three ? t.stride(1) : head_size};
}

inline bool vectors_fit(const View& t, const Heads& heads, int64_t bytes) {
  const int64_t element = t.element_size();
  return aligned(t, bytes) && heads.token_stride * element % bytes == 0 && heads.head_stride * element % bytes == 0;
}

}  // namespace opdock
