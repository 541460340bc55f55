// rotary_embedding in place, and the rotated keys and the values into their slots of a paged cache: the kernels.
#pragma once

#include "rotary_kernels.cuh"

namespace opdock {

// A cache of keys or values: the rows of a block lie side by side.
struct Cached {
  void* data;
  int64_t block_stride;  // in elements
  const float* scale;    // what an 8-bit cache holds its numbers over
};

struct Slots {
  const void* at;
  bool wide;
  int64_t block_size, capacity;
};

// The row of a slot. Nothing for one below 0, which is padding, and for one that is not in the cache.
template <typename O>
__device__ __forceinline__ O* row_of(const Cached& cache, const Slots& slots, int64_t slot, int64_t width) {
  if (slot < 0 || slot >= slots.capacity) return nullptr;
  const int64_t block = slot / slots.block_size;
  return (O*)cache.data + block * cache.block_stride + (slot - block * slots.block_size) * width;
}

// 16 bytes of T as a cache holds them.
template <typename O, typename T> __device__ __forceinline__ void keep(O* to, const Vec<T>& v, float scale) {
  if constexpr (std::is_same_v<O, T>) {
    store(to, v);
  } else {
    Packed<2 * kPairs<T>> q;
#pragma unroll
    for (int k = 0; k < kPairs<T>; ++k) {
      const float2 wide = Pair<T>::wide(v.at[k]);
      q.at[k] = fp8_pair(make_float2(wide.x / scale, wide.y / scale));
    }
    store(to, q);
  }
}

template <typename O, typename T> __device__ __forceinline__ void keep(O* to, T v, float scale) {
  if constexpr (std::is_same_v<O, T>) {
    *to = v;
  } else {
    *to = from_float<O>(to_float(v) / scale);
  }
}

template <typename O, typename T> __device__ __forceinline__ float scale_of(const Cached& cache) {
  if constexpr (std::is_same_v<O, T>) {
    return 1.0f;
  } else {
    return *cache.scale;
  }
}

// 16 bytes at once: see rotary_kernel. What is only copied, the values and the columns of keys that are not rotated, is
// shared out among all threads of the token; the first of it is read before the angles are there.
template <typename T, typename C, typename O, bool NEOX, int ROUNDS>
__global__ void __launch_bounds__(ROUNDS == 1 ? 640 : 1024)
    rotary_cache_kernel(const void* positions, const bool wide_positions, const __grid_constant__ Heads query,
                        const __grid_constant__ Heads key, const __grid_constant__ Heads value, const C* cache,
                        const int64_t cache_stride, const int64_t cache_rows, const int half, const int head_size,
                        const __grid_constant__ Cached keys, const __grid_constant__ Cached values,
                        const __grid_constant__ Slots slots) {
  constexpr int VEC = 2 * kPairs<T>, N = NEOX ? VEC : VEC / 2;
  const int pair = threadIdx.x * N;
  const int64_t token = blockIdx.x, width = (int64_t)key.count * head_size;
  after_previous();
  const int64_t position = position_of(positions, wide_positions, token);
  const int64_t slot = position_of(slots.at, slots.wide, token);
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
  const int linear = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
  const int each = head_size / VEC, all = value.count * each;
  auto value_at = [&](int i) {
    const int head = i / each;
    return (const T*)value.data + token * value.token_stride + head * value.head_stride + (i - head * each) * VEC;
  };
  Vec<T> copied = zeros<T>();
  if (linear < all) copied = load_once(value_at(linear));
  O* key_row = row_of<O>(keys, slots, slot, width);
  const float key_scale = scale_of<O, T>(keys);
  const Angles<C, N> angle(cache, cache_stride, cache_rows, position, half, pair);
#pragma unroll
  for (int r = 0; r < ROUNDS; ++r) {
    if (at[r] == nullptr) continue;
    turn<T, NEOX>(one[r], two[r], angle);
    store_once(at[r], one[r]);
    if constexpr (NEOX) store_once(at[r] + half, two[r]);
    const int head = threadIdx.y + r * blockDim.y - query.count;
    if (key_row == nullptr || head < 0) continue;
    O* to = key_row + (int64_t)head * head_size + (NEOX ? pair : 2 * pair);
    keep(to, one[r], key_scale);
    if constexpr (NEOX) keep(to + half, two[r], key_scale);
  }
  if (key_row == nullptr) return;
  const int rest = (head_size - 2 * half) / VEC;
  for (int i = linear; i < key.count * rest; i += threads) {
    const int head = i / rest, column = 2 * half + (i - head * rest) * VEC;
    const T* from = (const T*)key.data + token * key.token_stride + head * key.head_stride + column;
    keep(key_row + (int64_t)head * head_size + column, load_once(from), key_scale);
  }
  O* value_row = row_of<O>(values, slots, slot, width);
  const float value_scale = scale_of<O, T>(values);
  for (int i = linear; i < all; i += threads) {
    if (i != linear) copied = load_once(value_at(i));
    keep(value_row + (int64_t)i * VEC, copied, value_scale);
  }
}

// Any alignment: a thread has one pair of one head at a time, then one element.
template <typename T, typename C, typename O, bool NEOX>
__global__ void any_rotary_cache_kernel(const void* positions, const bool wide_positions, const Heads query,
                                        const Heads key, const Heads value, const C* cache, const int64_t cache_stride,
                                        const int64_t cache_rows, const int half, const int head_size,
                                        const Cached keys, const Cached values, const Slots slots) {
  const int64_t token = blockIdx.x, width = (int64_t)key.count * head_size;
  after_previous();
  const int64_t position = position_of(positions, wide_positions, token);
  O* key_row = row_of<O>(keys, slots, position_of(slots.at, slots.wide, token), width);
  O* value_row = row_of<O>(values, slots, position_of(slots.at, slots.wide, token), width);
  const float key_scale = scale_of<O, T>(keys), value_scale = scale_of<O, T>(values);
  for (int i = threadIdx.x; i < half * (query.count + key.count); i += blockDim.x) {
    const int head = i / half, pair = i - head * half;
    const int near = NEOX ? pair : 2 * pair, far = NEOX ? pair + half : 2 * pair + 1;
    T* at = head_of<T>(query, key, token, head);
    const Angles<C, 1> angle(cache, cache_stride, cache_rows, position, half, pair);
    const float2 turned = angle.turned(0, to_float(at[near]), to_float(at[far]));
    const T first = from_float<T>(turned.x), second = from_float<T>(turned.y);
    at[near] = first, at[far] = second;
    if (key_row == nullptr || head < query.count) continue;
    O* to = key_row + (int64_t)(head - query.count) * head_size;
    keep(to + near, first, key_scale);
    keep(to + far, second, key_scale);
  }
  if (key_row == nullptr) return;
  for (int i = threadIdx.x; i < (int)width; i += blockDim.x) {
    const int head = i / head_size, column = i - head * head_size;
    if (column >= 2 * half) {
      keep(key_row + i, ((const T*)key.data)[token * key.token_stride + head * key.head_stride + column], key_scale);
    }
    keep(value_row + i, ((const T*)value.data)[token * value.token_stride + head * value.head_stride + column],
         value_scale);
  }
}

}  // namespace opdock
