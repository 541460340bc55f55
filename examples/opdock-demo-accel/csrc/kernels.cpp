// The kernels, as torch ops of the library `demo_accel` under the device's dispatch key. Plain loops that honour strides
// and sum in float32 (float64 for float64); a vendor launches its own kernels where the loops are.
#include "host.h"

#include <ATen/Dispatch.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#define DISPATCH(dtype, name, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, name, __VA_ARGS__)

namespace {

using at::Tensor;

template <typename T>
using Sum = at::opmath_type<T>;

// One row in memory; its elements may lie apart.
template <typename T>
struct Row {
  T* data;
  int64_t step;
  T& operator[](int64_t i) const {
    return data[i * step];
  }
};

template <typename T>
Row<T> row(const Tensor& t, int64_t i) {
  return {static_cast<T*>(t.data_ptr()) + i * t.stride(0), t.stride(1)};
}

template <typename T>
Row<T> row(const Tensor& t, int64_t i, int64_t j, int64_t k) {
  return {static_cast<T*>(t.data_ptr()) + i * t.stride(0) + j * t.stride(1) + k * t.stride(2), t.stride(3)};
}

// The last dimension, and all before it as one. `view` refuses strides that only a copy could join.
Tensor as_rows(const Tensor& t, bool written) {
  const auto length = t.size(-1);
  const std::vector<int64_t> shape{length ? t.numel() / length : 0, length};
  return written ? t.view(shape) : t.reshape(shape);
}

void check_like(const Tensor& x, const Tensor& other, const char* name) {
  TORCH_CHECK(
      other.dtype() == x.dtype() && other.device() == x.device(),
      name, " is ", other.dtype(), " on ", other.device(), ", expected ", x.dtype(), " on ", x.device());
}

void check_norm(const Tensor& x, const std::optional<Tensor>& weight) {
  TORCH_CHECK(x.dim() > 0, "x has no dimension");
  if (weight) {
    check_like(x, *weight, "weight");
    TORCH_CHECK(weight->dim() == 1 && weight->size(0) == x.size(-1), "weight ", weight->sizes(), ", x ", x.sizes());
  }
}

// y = values / sqrt(mean(values^2) + epsilon), rounded to T, times weight. Rounds where opdock's definition does.
template <typename T>
void normalise(const std::vector<Sum<T>>& values, const std::optional<Tensor>& weight, double epsilon, Row<T> y) {
  Sum<T> squares = 0;
  for (const auto value : values) {
    squares += value * value;
  }
  const auto scale = 1 / std::sqrt(squares / static_cast<Sum<T>>(values.size()) + static_cast<Sum<T>>(epsilon));
  const auto w = weight ? Row<T>{static_cast<T*>(weight->data_ptr()), weight->stride(0)} : Row<T>{};
  for (size_t i = 0; i < values.size(); ++i) {
    const T rounded = static_cast<T>(values[i] * scale);
    y[i] = w.data ? static_cast<T>(static_cast<Sum<T>>(rounded) * static_cast<Sum<T>>(w[i])) : rounded;
  }
}

Tensor rms_norm(const Tensor& x, const std::optional<Tensor>& weight, double epsilon) {
  check_norm(x, weight);
  auto result = at::empty(x.sizes(), x.options());
  const auto in = as_rows(x, false), out = as_rows(result, true);
  DISPATCH(x.scalar_type(), "rms_norm", [&] {
    std::vector<Sum<scalar_t>> values(in.size(1));
    for (int64_t n = 0; n < in.size(0); ++n) {
      const auto from = row<scalar_t>(in, n);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = from[i];
      }
      normalise<scalar_t>(values, weight, epsilon, row<scalar_t>(out, n));
    }
  });
  return result;
}

// x becomes the norm of the sum, residual the sum.
void fused_add_rms_norm(Tensor& x, Tensor& residual, const std::optional<Tensor>& weight, double epsilon) {
  check_norm(x, weight);
  check_like(x, residual, "residual");
  TORCH_CHECK(x.sizes() == residual.sizes(), "residual ", residual.sizes(), ", x ", x.sizes());
  at::assert_no_internal_overlap(x);
  at::assert_no_internal_overlap(residual);
  at::assert_no_overlap(x, residual);
  const auto xs = as_rows(x, true), residuals = as_rows(residual, true);
  DISPATCH(x.scalar_type(), "fused_add_rms_norm", [&] {
    std::vector<Sum<scalar_t>> values(xs.size(1));
    for (int64_t n = 0; n < xs.size(0); ++n) {
      const auto y = row<scalar_t>(xs, n), sum = row<scalar_t>(residuals, n);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<Sum<scalar_t>>(y[i]) + static_cast<Sum<scalar_t>>(sum[i]);
        sum[i] = static_cast<scalar_t>(values[i]);
      }
      normalise<scalar_t>(values, weight, epsilon, y);
    }
  });
}

Tensor silu_and_mul(const Tensor& x) {
  TORCH_CHECK(x.dim() > 0 && x.size(-1) % 2 == 0, "x ", x.sizes(), " has no two halves");
  auto shape = x.sizes().vec();
  const auto half = shape.back() /= 2;
  auto result = at::empty(shape, x.options());
  const auto in = as_rows(x, false), out = as_rows(result, true);
  DISPATCH(x.scalar_type(), "silu_and_mul", [&] {
    for (int64_t n = 0; n < in.size(0); ++n) {
      const auto from = row<scalar_t>(in, n), y = row<scalar_t>(out, n);
      for (int64_t i = 0; i < half; ++i) {
        const auto gate = static_cast<Sum<scalar_t>>(from[i]);
        const auto silu = static_cast<scalar_t>(gate / (1 + std::exp(-gate)));
        y[i] = static_cast<scalar_t>(static_cast<Sum<scalar_t>>(silu) * static_cast<Sum<scalar_t>>(from[half + i]));
      }
    }
  });
  return result;
}

// Causal: the last of the `new` queries sees all keys, the one before it all but the last, and so on.
// query (batch, heads, new, size); key, value (batch, kv_heads, all, size); returns (batch, new, heads, size).
Tensor attention(const Tensor& query, const Tensor& key, const Tensor& value, double scale) {
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && key.sizes() == value.sizes(), "query, key, value: four dimensions");
  const auto batch = query.size(0), heads = query.size(1), fresh = query.size(2), size = query.size(3);
  const auto kv_heads = key.size(1), past = key.size(2) - fresh;
  TORCH_CHECK(key.size(0) == batch && key.size(3) == size && past >= 0, "query ", query.sizes(), ", key ", key.sizes());
  TORCH_CHECK(kv_heads > 0 && heads % kv_heads == 0, heads, " heads cannot share ", kv_heads);
  check_like(query, key, "key");
  check_like(query, value, "value");
  auto result = at::empty({batch, fresh, heads, size}, query.options());
  DISPATCH(query.scalar_type(), "attention", [&] {
    using S = Sum<scalar_t>;
    std::vector<S> weights(key.size(2)), mixed(size);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        const auto kv = h / (heads / kv_heads);
        for (int64_t n = 0; n < fresh; ++n) {
          const auto q = row<scalar_t>(query, b, h, n);
          const auto seen = past + n + 1;
          auto most = -std::numeric_limits<S>::infinity();
          for (int64_t t = 0; t < seen; ++t) {
            const auto k = row<scalar_t>(key, b, kv, t);
            S dot = 0;
            for (int64_t i = 0; i < size; ++i) {
              dot += static_cast<S>(q[i]) * static_cast<S>(k[i]);
            }
            weights[t] = dot * static_cast<S>(scale);
            most = std::max(most, weights[t]);
          }
          S total = 0;
          std::fill(mixed.begin(), mixed.end(), S(0));
          for (int64_t t = 0; t < seen; ++t) {
            const auto v = row<scalar_t>(value, b, kv, t);
            const auto weight = std::exp(weights[t] - most);
            total += weight;
            for (int64_t i = 0; i < size; ++i) {
              mixed[i] += weight * static_cast<S>(v[i]);
            }
          }
          const auto out = row<scalar_t>(result, b, n, h);
          for (int64_t i = 0; i < size; ++i) {
            out[i] = static_cast<scalar_t>(mixed[i] / total);
          }
        }
      }
    }
  });
  return result;
}

// Matrix products belong to the vendor's BLAS. This one is the host's, on the device's own memory.
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  check_like(x, weight, "weight");
  auto shape = x.sizes().vec();
  shape.back() = weight.size(0);
  auto result = at::empty(shape, x.options());
  auto out = host(result);
  at::linear_out(out, host(x), host(weight), bias ? std::optional(host(*bias)) : std::nullopt);
  return result;
}

Tensor mm(const Tensor& a, const Tensor& b) {
  check_like(a, b, "the second matrix");
  auto result = at::empty({a.size(0), b.size(1)}, a.options());
  auto out = host(result);
  at::mm_out(out, host(a), host(b));
  return result;
}

} // namespace

TORCH_LIBRARY(demo_accel, m) {
  m.def("rms_norm(Tensor x, Tensor? weight, float epsilon) -> Tensor");
  m.def("fused_add_rms_norm(Tensor(a!) x, Tensor(b!) residual, Tensor? weight, float epsilon) -> ()");
  m.def("silu_and_mul(Tensor x) -> Tensor");
  m.def("attention(Tensor query, Tensor key, Tensor value, float scale) -> Tensor");
  m.def("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor");
}

TORCH_LIBRARY_IMPL(demo_accel, PrivateUse1, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("fused_add_rms_norm", &fused_add_rms_norm);
  m.impl("silu_and_mul", &silu_and_mul);
  m.impl("attention", &attention);
  m.impl("linear", &linear);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mm", &mm);
}
