// What the kernels share: types, 16-byte access, reductions over the threads of a row.
#pragma once

#include "portable.cuh"

#include <cstdint>
#include <cstring>
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

template <typename T> constexpr int kPairs = 8 / (int)sizeof(T);

// 16 bytes of T, as pairs.
template <typename T> struct alignas(16) Vec { typename Pair<T>::type at[8 / sizeof(T)]; };

template <typename T> __device__ __forceinline__ Vec<T> ones() {
  Vec<T> v;
#pragma unroll
  for (int k = 0; k < 8 / (int)sizeof(T); ++k) v.at[k] = Pair<T>::narrow(make_float2(1.0f, 1.0f));
  return v;
}

template <typename T> __device__ __forceinline__ Vec<T> zeros() {
  Vec<T> v;
  *reinterpret_cast<uint4*>(&v) = make_uint4(0, 0, 0, 0);
  return v;
}

// A kernel that was launched with leave to start early (see launch.cuh) waits here for the one before it, and gives the next
// one that leave. Nothing may be read or written before.
__device__ __forceinline__ void after_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// What is read once need not stay in the cache; what every row reads, such as a weight, should.
template <typename T> __device__ __forceinline__ Vec<T> load_once(const T* from) {
  Vec<T> v;
  *reinterpret_cast<uint4*>(&v) = __ldcg(reinterpret_cast<const uint4*>(from));
  return v;
}

// Hints of how long what is read should stay in the L2 cache. They decide where results displace what is still to be read.
// Measured on an H200 with 16,384 rows of 4,096: what is read twice stays the first time and may go the second, 128 against
// 134 microseconds for fused_add_rms_norm in place; what is read once stays while a narrower result is written, 109 against
// 114 with fp8; what is replaced by its result goes at once, 82.3 against 84.2 for rotary_embedding.
enum class Stay { Long, Short, Replaced };

template <Stay STAY, typename T> __device__ __forceinline__ Vec<T> load(const T* from) {
#if __CUDA_ARCH__ >= 800
  uint64_t policy;
  if constexpr (STAY == Stay::Long) {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  }
  uint4 u;
  if constexpr (STAY == Stay::Replaced) {
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(u.x), "=r"(u.y), "=r"(u.z), "=r"(u.w)
                 : "l"(from), "l"(policy)
                 : "memory");
  } else {
    asm volatile("ld.global.L1::evict_last.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(u.x), "=r"(u.y), "=r"(u.z), "=r"(u.w)
                 : "l"(from), "l"(policy)
                 : "memory");
  }
  Vec<T> v;
  *reinterpret_cast<uint4*>(&v) = u;
  return v;
#else
  return load_once(from);
#endif
}

template <typename T> __device__ __forceinline__ Vec<T> load_often(const T* from) {
  Vec<T> v;
  *reinterpret_cast<uint4*>(&v) = __ldg(reinterpret_cast<const uint4*>(from));
  return v;
}

template <typename T> __device__ __forceinline__ void store(T* to, const Vec<T>& v) {
  __stcg(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&v));
}

// Better where a result takes the place of what it is made of.
template <typename T> __device__ __forceinline__ void store_once(T* to, const Vec<T>& v) {
  __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&v));
}

// COUNT numbers of fp8.
template <int COUNT> struct alignas(COUNT) Packed { __nv_fp8x2_storage_t at[COUNT / 2]; };

template <typename O, int COUNT> __device__ __forceinline__ void store(O* to, const Packed<COUNT>& q) {
  if constexpr (COUNT == 8) {
    __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&q));
  } else {
    __stcs(reinterpret_cast<uint32_t*>(to), *reinterpret_cast<const uint32_t*>(&q));
  }
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

// The joined value of all threads of the block, up to 1024, in each of them: every thread reads what the warps found, 16
// bytes at once, and joins it in an order that the number of warps alone decides. `shared` has 32 floats; a barrier must
// lie between two calls with the same ones.
template <typename Join> __device__ __forceinline__ float over_block(float v, float* shared) {
  v = over_warp<Join>(v);
  const int warps = blockDim.x / 32;
  if (warps == 1) return v;
  if (threadIdx.x < 32 && threadIdx.x >= warps) shared[threadIdx.x] = 0.0f;
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  const float4* parts = reinterpret_cast<const float4*>(shared);
  auto four = [&](int i) {
    const float4 p = parts[i];
    return Join::join(Join::join(p.x, p.y), Join::join(p.z, p.w));
  };
  v = four(0);
  if (warps > 4) v = Join::join(v, four(1));
  if (warps > 8) v = Join::join(v, Join::join(four(2), four(3)));
  if (warps > 16) v = Join::join(v, Join::join(Join::join(four(4), four(5)), Join::join(four(6), four(7))));
  return v;
}

// The joined value of the `width` threads of a row: a power of two up to 32.
template <typename Join> __device__ __forceinline__ float over_group(float v, int width) {
  for (int step = width / 2; step > 0; step /= 2) v = Join::join(v, __shfl_xor_sync(~0u, v, step));
  return v;
}

// v / 448, correctly rounded for what does not underflow: a product, and one step of correction. Compared with the
// division for every float from 1e-30 on.
__device__ __forceinline__ float over_448(float v) {
  constexpr float inverse = 1.0f / 448.0f;
  const float q = v * inverse;
  return q < 3e38f ? fmaf(fmaf(-448.0f, q, v), inverse, q) : q;  // infinity and NaN stay
}

// 1 / s, correctly rounded, without the branches that the division has for results that underflow. Compared with it for
// every positive float.
__device__ __forceinline__ float reciprocal(float s) {
#ifdef __HIP__
  return 1.0f / s;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(s));
  return s < 8e37f && s > 1.2e-38f ? fmaf(y, fmaf(-s, y, 1.0f), y) : 1.0f / s;
#endif
}

}  // namespace opdock
