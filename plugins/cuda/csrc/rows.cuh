// One kernel for every op that works on rows: what comes in, whether it is normalised, how it goes out.
//
//   in:    x;  x + residual, which is also written;  silu(gate) * up;  gelu(gate) * up
//   norm:  y = v * rsqrt(mean(v^2) + epsilon), rounded to the weight's type, times weight
//   out:   the input's type;  fp8 with one given scale;  fp8 with a scale for each row, which is written
//
// Each rounding of the definitions in opdock.ir.ops is done here at the same place. A row is read once and kept in
// registers. The code is kept short: with few rows, fetching it is a good part of the time.
#pragma once

#include "common.cuh"

namespace opdock {

enum class In { Plain, Add, Silu, Gelu, GeluTanh };
enum class Out { Same, Static, Token };

constexpr float kFp8Max = 448.0f;

// Threads of a block, so that their registers suffice.
constexpr int max_block(int items) { return items == 1 ? 1024 : 512; }

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

// gate * sigmoid(gate) and the two forms of GELU; the fast forms are exact enough for results of 11 bits or fewer.
template <typename T, In IN> __device__ __forceinline__ float activated(float g) {
  constexpr bool kExact = std::is_same_v<T, float>;
  if constexpr (IN == In::Silu) {
    return kExact ? g / (1.0f + expf(-g)) : __fdividef(g, 1.0f + __expf(-g));
  } else if constexpr (IN == In::Gelu) {
    return 0.5f * g * (1.0f + erff(g * 0.70710678118654752f));
  } else {
    const float u = 2.0f * 0.79788456080286536f * (g + 0.044715f * g * g * g);
    return kExact ? 0.5f * g * (1.0f + tanhf(0.5f * u)) : __fdividef(g, 1.0f + __expf(-u));
  }
}

// Element by element, as the kernel for any row needs them: `a` is x or the gate, `b` the residual or up.
template <typename T, In IN> __device__ __forceinline__ float joined(float a, float b) {
  if constexpr (IN == In::Plain) return a;
  if constexpr (IN == In::Add) return a + b;
  if constexpr (IN != In::Plain && IN != In::Add) return rounded<T>(rounded<T>(activated<T, IN>(a)) * b);
}

template <typename T> __device__ __forceinline__ float normalised(float v, float inverse, bool weighted, float weight) {
  const float y = rounded<T>(v * inverse);
  return weighted ? rounded<T>(y * weight) : y;
}

// The scale of a row, from its largest element.
__device__ __forceinline__ float token_scale(float largest, const float* bound) {
  if (bound != nullptr && *bound < largest) largest = *bound;  // NaN is larger than nothing, and stays
  const float scale = largest / kFp8Max;
  constexpr float least = 1.0f / (kFp8Max * 512.0f);
  return scale < least ? least : scale;
}

// Whether a row can be cut into pieces: nothing is joined over it.
template <bool NORM, Out OUT> constexpr bool kPieces = !NORM && OUT != Out::Token;

// 16 bytes at once, ITEMS times for each thread. GROUPED: a row has 2^shift threads, up to 32, and ITEMS is 1: short rows,
// also over two dimensions. Else a row has gridDim.y blocks, one where something is joined over it.
template <typename T, typename O, int ITEMS, In IN, bool NORM, Out OUT, bool GROUPED>
__global__ void __launch_bounds__(max_block(ITEMS))
    row_kernel(const __grid_constant__ Given<IN, NORM, OUT, GROUPED> args, const int shift) {
  constexpr bool kTwo = IN != In::Plain;
  constexpr int VEC = 16 / sizeof(T), PAIRS = VEC / 2;
  using P = Pair<T>;
  __shared__ float shared[2][32];
  const int width = GROUPED ? 1 << shift : blockDim.x;
  const int lane = GROUPED ? threadIdx.x & (width - 1) : threadIdx.x;
  int row = blockIdx.x, start = lane;
  if constexpr (GROUPED) {
    row = (int)(((int64_t)blockIdx.x * blockDim.x + threadIdx.x) >> shift);
  } else if constexpr (kPieces<NORM, OUT>) {
    start += blockIdx.y * ITEMS * width;
  }
  const bool valid = !GROUPED || row < args.rows;
  bool weighted = false;
  if constexpr (NORM) weighted = args.norm.weight != nullptr;

  Vec<T> a[ITEMS], b[kTwo ? ITEMS : 1], weight[NORM ? ITEMS : 1];
  {
    const int r = valid ? row : 0;
    const T* from = (const T*)args.x + args.x_rows.offset(r);
    const T* second = from + args.hidden;
    if constexpr (IN == In::Add) {
      second = (const T*)args.add.residual + args.add.residual_rows.offset(r);
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int column = (start + i * width) * VEC;
      const bool here = column < args.hidden;
      a[i] = zeros<T>();
      if (here) a[i] = load_once(from + column);
      if constexpr (kTwo) {
        b[i] = zeros<T>();
        if (here) b[i] = load_once(second + column);
      }
      if constexpr (NORM) {
        weight[i] = zeros<T>();
        if (here && weighted) weight[i] = load_often((const T*)args.norm.weight + column);
      }
    }
  }
  float inverse_scale = 0.0f;
  if constexpr (OUT == Out::Static) inverse_scale = 1.0f / *args.out.scale;
  O* to = (O*)args.y + args.y_rows.offset(row);

  // From here on `a` holds what is normalised or goes out. Sums are computed twice: registers are dearer than additions.
  auto before_norm = [&](int i, int k) {
    float2 v = P::wide(a[i].at[k]);
    if constexpr (IN == In::Add) {
      const float2 r = P::wide(b[i].at[k]);
      v = make_float2(v.x + r.x, v.y + r.y);
    }
    return v;
  };
  if constexpr (NORM) {
    float2 squares = make_float2(0.0f, 0.0f);
    [[maybe_unused]] T* sum_to = nullptr;
    if constexpr (IN == In::Add) {
      sum_to = (T*)args.add.sum + args.add.sum_rows.offset(row);
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      [[maybe_unused]] Vec<T> sum;
#pragma unroll
      for (int k = 0; k < PAIRS; ++k) {
        const float2 v = before_norm(i, k);
        if constexpr (IN == In::Add) sum.at[k] = P::narrow(v);
        squares.x += v.x * v.x;
        squares.y += v.y * v.y;
      }
      if constexpr (IN == In::Add) {
        const int column = (start + i * width) * VEC;
        if (valid && column < args.hidden) store(sum_to + column, sum);
      }
    }
    const float own = squares.x + squares.y;
    const float total = GROUPED ? over_group<Sum>(own, width) : over_block<Sum>(own, shared[0]);
    const float inverse = rsqrtf(total * args.norm.inverse_hidden + args.norm.epsilon);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int k = 0; k < PAIRS; ++k) {
        const float2 v = before_norm(i, k);
        a[i].at[k] = P::narrow(make_float2(v.x * inverse, v.y * inverse));
        if (weighted) a[i].at[k] = P::times(a[i].at[k], weight[i].at[k]);
      }
    }
  } else if constexpr (kTwo) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int k = 0; k < PAIRS; ++k) {
        const float2 g = P::wide(a[i].at[k]);
        a[i].at[k] = P::times(P::narrow(make_float2(activated<T, IN>(g.x), activated<T, IN>(g.y))), b[i].at[k]);
      }
    }
  }
  if constexpr (OUT == Out::Token) {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if ((start + i * width) * VEC < args.hidden) {
#pragma unroll
        for (int k = 0; k < PAIRS; ++k) {
          const float2 v = P::wide(a[i].at[k]);
          largest = Largest::join(Largest::join(largest, fabsf(v.x)), fabsf(v.y));
        }
      }
    }
    largest = GROUPED ? over_group<Largest>(largest, width) : over_block<Largest>(largest, shared[1]);
    const float scale = token_scale(largest, args.out.scale_ub);
    if (lane == 0 && valid) args.out.scales[row] = scale;
    inverse_scale = 1.0f / scale;
  }
  if (!valid) return;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int column = (start + i * width) * VEC;
    if (column < args.hidden) {
      if constexpr (OUT == Out::Same) {
        store(to + column, a[i]);
      } else {
        struct alignas(VEC) Bytes { __nv_fp8x2_storage_t at[PAIRS]; } q;
#pragma unroll
        for (int k = 0; k < PAIRS; ++k) {
          const float2 v = P::wide(a[i].at[k]);
          q.at[k] = fp8_pair(make_float2(v.x * inverse_scale, v.y * inverse_scale));
        }
        *reinterpret_cast<Bytes*>(to + column) = q;
      }
    }
  }
}

// Any width and any alignment, element by element; a row is read again for each pass over it.
template <typename T, typename O, In IN, bool NORM, Out OUT>
__global__ void any_row_kernel(const __grid_constant__ Given<IN, NORM, OUT, true> args) {
  __shared__ float shared[2][32];
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
  if constexpr (OUT == Out::Static) inverse_scale = 1.0f / *args.out.scale;
  if constexpr (OUT == Out::Token) {
    float largest = 0.0f;
    for (int c = threadIdx.x; c < args.hidden; c += blockDim.x) largest = Largest::join(largest, fabsf(result(c)));
    const float scale = token_scale(over_block<Largest>(largest, shared[1]), args.out.scale_ub);
    if (threadIdx.x == 0) args.out.scales[row] = scale;
    inverse_scale = 1.0f / scale;
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
