// What the kernels share: types, 16-byte access, reductions over the threads of a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace opdock {

// torch's CUDAExtension switches the implicit conversions off: these are explicit.
template <typename T> __device__ __forceinline__ float to_float(T v);
template <> __device__ __forceinline__ float to_float(float v) { return v; }
template <> __device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
template <> __device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float(float v) { return v; }
template <> __device__ __forceinline__ __half from_float(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float(float v) { return __float2bfloat16_rn(v); }
// Saturates to the largest number; NaN stays NaN.
template <> __device__ __forceinline__ __nv_fp8_e4m3 from_float(float v) { return __nv_fp8_e4m3(v); }

template <typename T> __device__ __forceinline__ float rounded(float v) { return to_float(from_float<T>(v)); }
template <> __device__ __forceinline__ float rounded<float>(float v) { return v; }

// Two numbers as they are stored, and the arithmetic that the hardware has for both at once.
template <typename T> struct Pair;

template <> struct Pair<float> {
  using type = float2;
  static __device__ __forceinline__ float2 wide(float2 p) { return p; }
  static __device__ __forceinline__ float2 narrow(float2 v) { return v; }
  static __device__ __forceinline__ float2 times(float2 a, float2 b) { return make_float2(a.x * b.x, a.y * b.y); }
};

template <> struct Pair<__nv_bfloat16> {
  using type = __nv_bfloat162;
  static __device__ __forceinline__ float2 wide(type p) { return __bfloat1622float2(p); }
  static __device__ __forceinline__ type narrow(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }
  static __device__ __forceinline__ type times(type a, type b) { return __hmul2_rn(a, b); }
};

template <> struct Pair<__half> {
  using type = __half2;
  static __device__ __forceinline__ float2 wide(type p) { return __half22float2(p); }
  static __device__ __forceinline__ type narrow(float2 v) { return __floats2half2_rn(v.x, v.y); }
  static __device__ __forceinline__ type times(type a, type b) { return __hmul2_rn(a, b); }
};

// 16 bytes of T, as pairs.
template <typename T> struct alignas(16) Vec { typename Pair<T>::type at[8 / sizeof(T)]; };

template <typename T> __device__ __forceinline__ Vec<T> zeros() {
  Vec<T> v;
  *reinterpret_cast<uint4*>(&v) = make_uint4(0, 0, 0, 0);
  return v;
}

// What is read once need not stay in the cache; what every row reads, such as a weight, should.
template <typename T> __device__ __forceinline__ Vec<T> load_once(const T* from) {
  Vec<T> v;
  *reinterpret_cast<uint4*>(&v) = __ldcg(reinterpret_cast<const uint4*>(from));
  return v;
}

template <typename T> __device__ __forceinline__ Vec<T> load_often(const T* from) {
  Vec<T> v;
  *reinterpret_cast<uint4*>(&v) = __ldg(reinterpret_cast<const uint4*>(from));
  return v;
}

template <typename T> __device__ __forceinline__ void store(T* to, const Vec<T>& v) {
  __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&v));
}

__device__ __forceinline__ __nv_fp8x2_storage_t fp8_pair(float2 v) {
  return __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
}

struct Sum {
  static __device__ __forceinline__ float join(float a, float b) { return a + b; }
};
// Of numbers that are not negative. As bits, NaN is larger than infinity: it is not lost, as fmaxf would lose it.
struct Largest {
  static __device__ __forceinline__ float join(float a, float b) {
    return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
  }
};

template <typename Join> __device__ __forceinline__ float over_warp(float v) {
  if constexpr (std::is_same_v<Join, Largest>) {
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(v)));
  } else {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v = Join::join(v, __shfl_xor_sync(~0u, v, step));
    return v;
  }
}

// The joined value of all threads of the block, in each of them. `shared` has 32 floats; a barrier must lie between two
// calls with the same ones.
template <typename Join> __device__ __forceinline__ float over_block(float v, float* shared) {
  v = over_warp<Join>(v);
  const int warps = blockDim.x / 32;
  if (warps == 1) return v;
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  // Every warp joins all of them: no second barrier to hand the result out.
  v = (threadIdx.x & 31) < warps ? shared[threadIdx.x & 31] : 0.0f;
  if constexpr (std::is_same_v<Join, Largest>) return over_warp<Join>(v);
  if (warps > 16) v = Join::join(v, __shfl_xor_sync(~0u, v, 16));
  if (warps > 8) v = Join::join(v, __shfl_xor_sync(~0u, v, 8));
  if (warps > 4) v = Join::join(v, __shfl_xor_sync(~0u, v, 4));
  if (warps > 2) v = Join::join(v, __shfl_xor_sync(~0u, v, 2));
  v = Join::join(v, __shfl_xor_sync(~0u, v, 1));
  return __shfl_sync(~0u, v, 0);
}

// The joined value of the `width` threads of a row: a power of two up to 32.
template <typename Join> __device__ __forceinline__ float over_group(float v, int width) {
  for (int step = width / 2; step > 0; step /= 2) v = Join::join(v, __shfl_xor_sync(~0u, v, step));
  return v;
}

}  // namespace opdock
