// A stand-in for HIP's float16, see hip_runtime.h.
#pragma once

#include "hip_runtime.h"

struct __half { _Float16 v; };
struct alignas(4) __half2 { __half x, y; };
inline float __half2float(__half v) { return (float)v.v; }
inline __half __float2half_rn(float v) { return {(_Float16)v}; }
inline float2 __half22float2(__half2 p) { return {__half2float(p.x), __half2float(p.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline __half2 __hmul2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) * __half2float(b.x), __half2float(a.y) * __half2float(b.y));
}
