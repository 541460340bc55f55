// A block for each row, or several where nothing is joined over it: ITEMS vectors of 16 bytes for each thread.
//
// EXACT: the threads' vectors are the row's, without a rest. READ: how what comes in is read; twice, instead of being kept
// in registers.
#pragma once

#include "vectors.cuh"

namespace opdock {

enum class Read { Once, Kept, Twice };

// Whether a row can be cut into pieces: nothing is joined over it.
template <bool NORM, Out OUT> constexpr bool kPieces = !NORM && OUT != Out::Token;

// Threads of a block, at most, and blocks of a multiprocessor, at least, so that registers suffice for enough of them: 7
// vectors are for rows of up to 1,024.
constexpr int most_threads(int items) { return items == 7 ? 160 : 512; }
constexpr int least_blocks(int items) { return items == 7 ? 4 : 1; }

template <typename T, typename O, int ITEMS, In IN, bool NORM, Out OUT, bool EXACT, Read READ>
__global__ void __launch_bounds__(most_threads(ITEMS), least_blocks(ITEMS))
    long_row_kernel(const __grid_constant__ Given<IN, NORM, OUT, false> args) {
  constexpr bool kTwo = IN != In::Plain;
  constexpr int VEC = 2 * kPairs<T>, SECOND = kTwo ? ITEMS : 1;
  alignas(16) __shared__ float shared[2][32];
  const int row = blockIdx.x, step = blockDim.x * VEC;
  int start = threadIdx.x * VEC;
  if constexpr (kPieces<NORM, OUT>) start += blockIdx.y * ITEMS * step;
  constexpr bool kAgain = READ == Read::Twice;
  auto first = [](const T* at) { return READ == Read::Once ? load_once(at) : load<Stay::Long>(at); };
  auto here = [&](int i) { return EXACT || start + i * step < args.hidden; };
  after_previous();

  const T* from = (const T*)args.x + args.x_rows.offset(row) + start;
  const T* second = from + args.hidden;
  if constexpr (IN == In::Add) second = (const T*)args.add.residual + args.add.residual_rows.offset(row) + start;
  Vec<T> a[ITEMS], b[SECOND], weight[NORM ? ITEMS : 1];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if constexpr (!EXACT) a[i] = zeros<T>();
    if (here(i)) a[i] = first(from + i * step);
    if constexpr (kTwo) {
      if constexpr (!EXACT) b[i] = zeros<T>();
      if (here(i)) b[i] = first(second + i * step);
    }
  }
  if constexpr (NORM) {
    const T* weights = (const T*)args.norm.weight;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) weight[i] = ones<T>();
    if (weights != nullptr) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (here(i)) weight[i] = load_often(weights + start + i * step);
      }
    }
  }
  float inverse_scale = 0.0f;
  if constexpr (OUT == Out::Static) inverse_scale = reciprocal(*args.out.scale);

  // From here on `a` becomes what goes out. Sums are computed twice: registers are dearer than additions.
  if constexpr (NORM) {
    [[maybe_unused]] T* sum = nullptr;
    if constexpr (IN == In::Add) sum = (T*)args.add.sum + args.add.sum_rows.offset(row) + start;
    float2 squares = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      add_squares<T, IN>(squares, a[i], b[kTwo ? i : 0]);
      if constexpr (IN == In::Add && !kAgain && OUT == Out::Static) {
        if (here(i)) store_once(sum + i * step, sum_of(a[i], b[i]));
      } else if constexpr (IN == In::Add && !kAgain) {
        if (here(i)) store(sum + i * step, sum_of(a[i], b[i]));
      }
    }
    const float total = over_block<Sum>(squares.x + squares.y, shared[0]);
    const float inverse = rsqrtf(total * args.norm.inverse_hidden + args.norm.epsilon);
    if constexpr (kAgain) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (here(i)) a[i] = load<Stay::Short>(from + i * step);
        if constexpr (kTwo) {
          if (here(i)) b[i] = load<Stay::Short>(second + i * step);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if constexpr (IN == In::Add && kAgain) {
        if (here(i)) store(sum + i * step, sum_of(a[i], b[i]));
      }
      a[i] = normalised<T, IN>(a[i], b[kTwo ? i : 0], inverse, weight[i]);
    }
  } else if constexpr (kTwo) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) a[i] = gated<T, IN>(a[i], b[i]);
  }
  if constexpr (OUT == Out::Token) {
    Magnitude<T> largest;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (here(i)) largest.join(a[i]);
    }
    const float scale = token_scale(over_block<Largest>(largest.value(), shared[1]), args.out.scale_ub);
    if (threadIdx.x == 0) args.out.scales[row] = scale;
    inverse_scale = reciprocal(scale);
  }
  O* to = (O*)args.y + args.y_rows.offset(row) + start;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (here(i)) put(to + i * step, a[i], inverse_scale);
  }
}

}  // namespace opdock
