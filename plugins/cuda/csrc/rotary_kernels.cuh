// rotary_embedding in place: the kernels.
#pragma once

#include "common.cuh"

namespace opdock {

struct Heads {
  void* data;
  int count;
  int64_t token_stride, head_stride;  // in elements
};

template <typename C, int N> struct alignas(sizeof(C) * N) Few { C at[N]; };

__device__ __forceinline__ int64_t position_of(const void* positions, bool wide, int64_t token) {
  return wide ? ((const int64_t*)positions)[token] : ((const int32_t*)positions)[token];
}

// The cosines, and behind half a row the sines, of pairs of one position; a position that the cache has not gives NaN, a
// fault that shows.
template <typename C, int N> struct Angles {
  Few<C, N> cosines, sines;
  __device__ __forceinline__ Angles(const C* cache, int64_t stride, int64_t rows, int64_t position, int half, int pair) {
    const bool known = position >= 0 && position < rows;
    const C* at = cache + (known ? position : 0) * stride + pair;
    cosines = *reinterpret_cast<const Few<C, N>*>(at);
    sines = *reinterpret_cast<const Few<C, N>*>(at + half);
    if (!known) {
#pragma unroll
      for (int k = 0; k < N; ++k) cosines.at[k] = from_float<C>(__int_as_float(0x7fffffff));
    }
  }
  // A pair turned by angle k. Each rounding is written out, so that every kernel gives the same bits.
  __device__ __forceinline__ float2 turned(int k, float a, float b) const {
    const float c = to_float(cosines.at[k]), s = to_float(sines.at[k]);
    return make_float2(__fmaf_rn(a, c, -__fmul_rn(b, s)), __fmaf_rn(b, c, __fmul_rn(a, s)));
  }
};

// Vectors of pairs, turned: (one, two) for NEOX, else the pairs in `one`.
template <typename T, bool NEOX, typename A> __device__ __forceinline__ void turn(Vec<T>& one, Vec<T>& two, const A& angle) {
  using P = Pair<T>;
#pragma unroll
  for (int k = 0; k < kPairs<T>; ++k) {
    const float2 a = P::wide(one.at[k]);
    if constexpr (NEOX) {
      const float2 b = P::wide(two.at[k]);
      const float2 even = angle.turned(2 * k, a.x, b.x), odd = angle.turned(2 * k + 1, a.y, b.y);
      one.at[k] = P::narrow(make_float2(even.x, odd.x));
      two.at[k] = P::narrow(make_float2(even.y, odd.y));
    } else {
      one.at[k] = P::narrow(angle.turned(k, a.x, a.y));
    }
  }
}

// Where one head of one token lies.
template <typename T> __device__ __forceinline__ T* head_of(const Heads& query, const Heads& key, int64_t token, int head) {
  const bool is_query = head < query.count;
  const int64_t strides = token * (is_query ? query.token_stride : key.token_stride) +
                          (is_query ? head : head - query.count) * (is_query ? query.head_stride : key.head_stride);
  return (T*)(is_query ? query.data : key.data) + strides;
}

// 16 bytes at once. The pairs of one head are (j, j + half) for NEOX, (2 j, 2 j + 1) otherwise. A thread has the same
// pairs of every blockDim.y-th head of one token, ROUNDS of them. The position is asked for first, because the angles wait
// for it; heads are read while it is on its way.
template <typename T, typename C, bool NEOX, int ROUNDS>
__global__ void __launch_bounds__(ROUNDS == 1 ? 640 : 1024)
    rotary_kernel(const void* positions, const bool wide_positions, const __grid_constant__ Heads query,
                  const __grid_constant__ Heads key, const C* cache, const int64_t cache_stride,
                  const int64_t cache_rows, const int half) {
  constexpr int VEC = 2 * kPairs<T>, N = NEOX ? VEC : VEC / 2;
  const int pair = threadIdx.x * N;
  const int64_t token = blockIdx.x;
  after_previous();
  const int64_t position = position_of(positions, wide_positions, token);
  T* at[ROUNDS];
  Vec<T> one[ROUNDS], two[ROUNDS];
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    const int head = threadIdx.y + r * blockDim.y;
    at[r] = nullptr;
    if (head >= query.count + key.count) continue;
    at[r] = head_of<T>(query, key, token, head) + (NEOX ? pair : 2 * pair);
    one[r] = load<Stay::Replaced>(at[r]);
    if constexpr (NEOX) two[r] = load<Stay::Replaced>(at[r] + half);
  }
  const Angles<C, N> angle(cache, cache_stride, cache_rows, position, half, pair);
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    if (at[r] == nullptr) continue;
    turn<T, NEOX>(one[r], two[r], angle);
    store_once(at[r], one[r]);
    if constexpr (NEOX) store_once(at[r] + half, two[r]);
  }
}

// Any alignment: a thread has one pair of one head at a time.
template <typename T, typename C, bool NEOX>
__global__ void any_rotary_kernel(const void* positions, const bool wide_positions, const Heads query, const Heads key,
                                  const C* cache, const int64_t cache_stride, const int64_t cache_rows,
                                  const int half) {
  const int64_t token = blockIdx.x;
  after_previous();
  const int64_t position = position_of(positions, wide_positions, token);
  for (int i = threadIdx.x; i < half * (query.count + key.count); i += blockDim.x) {
    const int head = i / half, pair = i - head * half;
    T* at = head_of<T>(query, key, token, head);
    const Angles<C, 1> angle(cache, cache_stride, cache_rows, position, half, pair);
    T& first = at[NEOX ? pair : 2 * pair];
    T& second = at[NEOX ? pair + half : 2 * pair + 1];
    const float2 turned = angle.turned(0, to_float(first), to_float(second));
    first = from_float<T>(turned.x), second = from_float<T>(turned.y);
  }
}

}  // namespace opdock
