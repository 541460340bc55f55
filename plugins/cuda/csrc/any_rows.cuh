// Rows of any width and any alignment.
#pragma once

#include "vectors.cuh"

namespace opdock {

// Any width and any alignment, element by element; a row is read again for each pass over it.
template <typename T, typename O, In IN, bool NORM, Out OUT>
__global__ void any_row_kernel(const __grid_constant__ Given<IN, NORM, OUT, true> args) {
  alignas(16) __shared__ float shared[2][32];
  after_previous();
  const T* weight = nullptr;
  if constexpr (NORM) weight = (const T*)args.norm.weight;
  const int row = blockIdx.x;
  const T* x = (const T*)args.x + args.x_rows.offset(row);
  const T* second = x + args.hidden;
  if constexpr (IN == In::Add) {
    second = (const T*)args.add.residual + args.add.residual_rows.offset(row);
  }
  auto value = [&](int c) { return joined<T, IN>(to_float(x[c]), IN == In::Plain ? 0.0f : to_float(second[c])); };
  float inverse = 0.0f;
  if constexpr (NORM) {
    float squares = 0.0f;
    for (int c = threadIdx.x; c < args.hidden; c += blockDim.x) {
      const float v = value(c);
      squares += v * v;
    }
    inverse = rsqrtf(over_block<Sum>(squares, shared[0]) * args.norm.inverse_hidden + args.norm.epsilon);
  }
  auto result = [&](int c) {
    const float v = value(c);
    return NORM ? normalised<T>(v, inverse, weight != nullptr, weight != nullptr ? to_float(weight[c]) : 0.0f) : v;
  };
  float inverse_scale = 0.0f;
  if constexpr (OUT == Out::Static) inverse_scale = reciprocal(*args.out.scale);
  if constexpr (OUT == Out::Token) {
    float largest = 0.0f;
    for (int c = threadIdx.x; c < args.hidden; c += blockDim.x) largest = Largest::join(largest, fabsf(result(c)));
    const float scale = token_scale(over_block<Largest>(largest, shared[1]), args.out.scale_ub);
    if (threadIdx.x == 0) args.out.scales[row] = scale;
    inverse_scale = reciprocal(scale);
  }
  O* y = (O*)args.y + args.y_rows.offset(row);
  [[maybe_unused]] T* sum = nullptr;
  if constexpr (IN == In::Add) {
    sum = (T*)args.add.sum + args.add.sum_rows.offset(row);
  }
  for (int c = threadIdx.x; c < args.hidden; c += blockDim.x) {
    const float v = result(c);
    const float s = IN == In::Add ? value(c) : 0.0f;  // before y or the sum take the place of what it is made of
    if constexpr (IN == In::Add) sum[c] = from_float<T>(s);
    y[c] = from_float<O>(OUT == Out::Same ? v : v * inverse_scale);
  }
}

}  // namespace opdock
