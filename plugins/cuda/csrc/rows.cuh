// One kernel for every op that works on rows: what comes in, whether it is normalised, how it goes out.
//
//   in:    x;  x + residual, which is also written;  silu(gate) * up;  gelu(gate) * up
//   norm:  y = v * rsqrt(mean(v^2) + epsilon), rounded to the weight's type, times weight
//   out:   the input's type;  fp8 with one given scale;  fp8 with a scale for each row, which is written
//
// Each rounding of the definitions in opdock.ir.ops is done at the same place. Here: what a kernel is given. The kernels
// are in long_rows.cuh (a block or more for each row), short_rows.cuh (rows that share a block) and any_rows.cuh (any
// width and alignment); vectors.cuh has the arithmetic on 16 bytes that the first two share.
#pragma once

#include "common.cuh"

namespace opdock {

enum class In { Plain, Add, Silu, Gelu, GeluTanh };
enum class Out { Same, Static, Token };

#ifndef __HIP__
constexpr float kFp8Max = 448.0f;
#endif

// Rows are numbered over two leading dimensions of any strides (in elements); the last one is dense.
struct Rows {
  int64_t inner;  // size of the second
  int64_t outer_stride, inner_stride;
};

// What every op of rows is given; a kernel gets only the parts that it needs, for each byte of its parameters costs time
// at every launch.
struct Args {
  const void* x;
  void* y;
  int hidden;  // of y
  int rows;
  const void* weight;  // null: none
  float inverse_hidden, epsilon;
  const void* residual;  // In::Add: read, and written to `sum`
  void* sum;
  const float* scale;     // Out::Static
  const float* scale_ub;  // Out::Token; null: none
  float* scales;          // Out::Token
  Rows x_rows, y_rows, residual_rows, sum_rows;
};

struct None {};
struct NormPart {
  const void* weight;
  float inverse_hidden, epsilon;
};
struct StaticPart {
  const float* scale;
};
struct TokenPart {
  float* scales;
  const float* scale_ub;
};
template <bool TWO> struct Place {
  int64_t outer_stride;
  __device__ __forceinline__ int64_t offset(int row) const { return row * outer_stride; }
};
template <> struct Place<true> {
  int64_t outer_stride, inner_stride;
  int inner;
  __device__ __forceinline__ int64_t offset(int row) const {
    if (inner == 1) return row * outer_stride;
    const int first = row / inner;
    return first * outer_stride + (row - first * inner) * inner_stride;
  }
};
template <bool TWO> Place<TWO> place(const Rows& rows) {
  if constexpr (TWO) {
    return {rows.outer_stride, rows.inner_stride, (int)rows.inner};
  } else {
    return {rows.outer_stride};
  }
}
template <bool TWO> struct AddPart {
  const void* residual;
  void* sum;
  Place<TWO> residual_rows, sum_rows;
};

// TWO: rows over two dimensions.
template <In IN, bool NORM, Out OUT, bool TWO> struct Given {
  const void* x;
  void* y;
  int hidden, rows;
  Place<TWO> x_rows, y_rows;
  std::conditional_t<NORM, NormPart, None> norm;
  std::conditional_t<IN == In::Add, AddPart<TWO>, None> add;
  std::conditional_t<OUT == Out::Static, StaticPart, std::conditional_t<OUT == Out::Token, TokenPart, None>> out;

  explicit Given(const Args& args)
      : x(args.x), y(args.y), hidden(args.hidden), rows(args.rows), x_rows(place<TWO>(args.x_rows)),
        y_rows(place<TWO>(args.y_rows)) {
    if constexpr (NORM) norm = {args.weight, args.inverse_hidden, args.epsilon};
    if constexpr (IN == In::Add) {
      add = {args.residual, args.sum, place<TWO>(args.residual_rows), place<TWO>(args.sum_rows)};
    }
    if constexpr (OUT == Out::Static) out = {args.scale};
    if constexpr (OUT == Out::Token) out = {args.scales, args.scale_ub};
  }
};

}  // namespace opdock
