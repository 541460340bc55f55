// This device computes on the host, so its memory can be seen as a CPU tensor. Real hardware has no such thing: where
// `host` is used below, a vendor calls its own library.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

// The same memory as a CPU tensor, not copied; valid while `t` lives.
inline at::Tensor host(const at::Tensor& t) {
  return t.is_cpu() ? t : at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(at::kCPU));
}
