// Rows of up to 32 vectors: 2^shift threads for each, several rows in a block, also over two leading dimensions.
#pragma once

#include "vectors.cuh"

namespace opdock {

template <typename T, typename O, In IN, bool NORM, Out OUT>
__global__ void __launch_bounds__(128)
    short_row_kernel(const __grid_constant__ Given<IN, NORM, OUT, true> args, const int shift) {
  const int width = 1 << shift, lane = threadIdx.x & (width - 1), column = lane * 2 * kPairs<T>;
  const int row = (int)(((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> shift);
  const bool valid = row < args.rows, here = valid && column < args.hidden;  // every thread takes part in what is joined
  after_previous();
  Vec<T> a = zeros<T>(), b = zeros<T>(), weight = ones<T>();
  if (here) {
    const T* from = (const T*)args.x + args.x_rows.offset(row) + column;
    a = load_once(from);
    if constexpr (IN == In::Add) b = load_once((const T*)args.add.residual + args.add.residual_rows.offset(row) + column);
    if constexpr (IN != In::Plain && IN != In::Add) b = load_once(from + args.hidden);
    if constexpr (NORM) {
      if (args.norm.weight != nullptr) weight = load_often((const T*)args.norm.weight + column);
    }
  }
  float inverse_scale = 0.0f;
  if constexpr (OUT == Out::Static) inverse_scale = reciprocal(*args.out.scale);
  if constexpr (IN == In::Add) {
    if (here) store((T*)args.add.sum + args.add.sum_rows.offset(row) + column, sum_of(a, b));
  }
  if constexpr (NORM) {
    float2 squares = make_float2(0.0f, 0.0f);
    add_squares<T, IN>(squares, a, b);
    const float total = over_group<Sum>(squares.x + squares.y, width);
    a = normalised<T, IN>(a, b, rsqrtf(total * args.norm.inverse_hidden + args.norm.epsilon), weight);
  } else if constexpr (IN != In::Plain) {
    a = gated<T, IN>(a, b);
  }
  if constexpr (OUT == Out::Token) {
    Magnitude<T> largest;
    if (here) largest.join(a);
    const float scale = token_scale(over_group<Largest>(largest.value(), width), args.out.scale_ub);
    if (lane == 0 && valid) args.out.scales[row] = scale;
    inverse_scale = reciprocal(scale);
  }
  if (here) put((O*)args.y + args.y_rows.offset(row) + column, a, inverse_scale);
}

}  // namespace opdock
