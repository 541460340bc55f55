// CUDA's words for numbers and threads. On NVIDIA they are CUDA's headers, and nothing else is here. For AMD they are
// defined below under the same names, so that the kernels are written once: opdock-rocm compiles these files as HIP.
//
// Threads are joined in groups of 32, also where a wave has 64: a row's sum has the same order, and the same bits, on
// every chip, and the host need not know the width of a wave.
#pragma once

#ifndef __HIP__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#else

#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

#include <cstdint>

#include "fp8_bits.cuh"

#define __grid_constant__

namespace opdock {

// -- bfloat16: HIP's own is not in every release

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

__device__ __forceinline__ float __bfloat162float(__nv_bfloat16 v) { return __uint_as_float((uint32_t)v.bits << 16); }

// To the nearest, ties to even; NaN stays NaN.
__device__ __forceinline__ __nv_bfloat16 __float2bfloat16_rn(float v) {
  const uint32_t bits = __float_as_uint(v);
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
  return {(uint16_t)(v != v ? (bits >> 16) | 0x40u : nearest)};
}
__device__ __forceinline__ float2 __bfloat1622float2(__nv_bfloat162 p) {
  return make_float2(__bfloat162float(p.x), __bfloat162float(p.y));
}
__device__ __forceinline__ __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
// The product of two numbers of 8 bits is exact in float32: it is rounded once.
__device__ __forceinline__ __nv_bfloat162 __hmul2_rn(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __floats2bfloat162_rn(__bfloat162float(a.x) * __bfloat162float(b.x),
                               __bfloat162float(a.y) * __bfloat162float(b.y));
}
__device__ __forceinline__ __half2 __hmul2_rn(__half2 a, __half2 b) { return __hmul2(a, b); }

// -- 8-bit floats: those of the chip; without a negative zero, and of half the size, on gfx942

#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__)
constexpr bool kUnsignedZero = true;
#else
constexpr bool kUnsignedZero = false;
#endif
constexpr float kFp8Max = kUnsignedZero ? 224.0f : 448.0f;

struct __nv_fp8_e4m3 {
  uint8_t bits;
  __nv_fp8_e4m3() = default;
  explicit __device__ __forceinline__ __nv_fp8_e4m3(float v) : bits(fp8_bits<kUnsignedZero>(v)) {}
};
using __nv_fp8x2_storage_t = uint16_t;
enum { __NV_SATFINITE, __NV_E4M3 };

__device__ __forceinline__ uint16_t __nv_cvt_float2_to_fp8x2(float2 v, int, int) {
#if defined(__gfx942__) || defined(__gfx950__)
  // The instruction makes NaN of what is too large. Comparisons leave NaN alone.
  constexpr float most = kFp8Max;
  v.x = v.x > most ? most : v.x < -most ? -most : v.x;
  v.y = v.y > most ? most : v.y < -most ? -most : v.y;
  return (uint16_t)__builtin_amdgcn_cvt_pk_fp8_f32(v.x, v.y, 0, false);
#else
  return (uint16_t)(fp8_bits<kUnsignedZero>(v.x) | fp8_bits<kUnsignedZero>(v.y) << 8);
#endif
}

// -- memory: what is best for these caches was not measured, so loads and stores are plain ones

template <typename V> __device__ __forceinline__ V __ldcg(const V* from) { return *from; }
template <typename V> __device__ __forceinline__ void __stcg(V* to, const V& v) { *to = v; }
template <typename V> __device__ __forceinline__ void __stcs(V* to, const V& v) { *to = v; }

// -- threads

__device__ __forceinline__ float __shfl_xor_sync(unsigned, float v, int step) { return __shfl_xor(v, step, 32); }
__device__ __forceinline__ unsigned __reduce_max_sync(unsigned, unsigned v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v = max(v, (unsigned)__shfl_xor((int)v, step, 32));
  return v;
}

// The larger of each half, as unsigned numbers of 16 bits.
__device__ __forceinline__ uint32_t __vmaxu2(uint32_t a, uint32_t b) {
  return max(a & 0xffff0000u, b & 0xffff0000u) | max(a & 0xffffu, b & 0xffffu);
}

// -- the host's side

using cudaStream_t = hipStream_t;
constexpr auto cudaDevAttrMultiProcessorCount = hipDeviceAttributeMultiprocessorCount;
inline hipError_t cudaDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
  return hipDeviceGetAttribute(value, attribute, device);
}

}  // namespace opdock

#endif
