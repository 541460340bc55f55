// The arithmetic of a row on vectors of 16 bytes, and on single elements where a kernel takes those.
#pragma once

#include "rows.cuh"

namespace opdock {

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
#ifdef __HIP__
  const float scale = over_448(largest) * (448.0f / kFp8Max);  // exact: 1 or 2
#else
  const float scale = over_448(largest);
#endif
  constexpr float least = 1.0f / (kFp8Max * 512.0f);
  return scale < least ? least : scale;
}

// Element k of x, or of x + residual before it is rounded.
template <typename T, In IN> __device__ __forceinline__ float2 summed(const Vec<T>& a, const Vec<T>& b, int k) {
  const float2 v = Pair<T>::wide(a.at[k]);
  if constexpr (IN != In::Add) return v;
  const float2 r = Pair<T>::wide(b.at[k]);
  return make_float2(v.x + r.x, v.y + r.y);
}

template <typename T> __device__ __forceinline__ Vec<T> sum_of(const Vec<T>& a, const Vec<T>& b) {
  Vec<T> sum;
#pragma unroll
  for (int k = 0; k < kPairs<T>; ++k) sum.at[k] = Pair<T>::narrow(summed<T, In::Add>(a, b, k));
  return sum;
}

template <typename T, In IN>
__device__ __forceinline__ void add_squares(float2& total, const Vec<T>& a, const Vec<T>& b) {
#pragma unroll
  for (int k = 0; k < kPairs<T>; ++k) {
    const float2 v = summed<T, IN>(a, b, k);
    total.x += v.x * v.x;
    total.y += v.y * v.y;
  }
}

template <typename T, In IN>
__device__ __forceinline__ Vec<T> normalised(const Vec<T>& a, const Vec<T>& b, float inverse, const Vec<T>& weight) {
  Vec<T> y;
#pragma unroll
  for (int k = 0; k < kPairs<T>; ++k) {
    const float2 v = summed<T, IN>(a, b, k);
    y.at[k] = Pair<T>::times(Pair<T>::narrow(make_float2(v.x * inverse, v.y * inverse)), weight.at[k]);
  }
  return y;
}

template <typename T, In IN> __device__ __forceinline__ Vec<T> gated(const Vec<T>& gate, const Vec<T>& up) {
  using P = Pair<T>;
  Vec<T> y;
#pragma unroll
  for (int k = 0; k < kPairs<T>; ++k) {
    const float2 g = P::wide(gate.at[k]);
    y.at[k] = P::times(P::narrow(make_float2(activated<T, IN>(g.x), activated<T, IN>(g.y))), up.at[k]);
  }
  return y;
}

// The largest magnitude of many vectors. Numbers of 16 bits are compared as pairs of integers without their signs, which
// have the same order, NaN above infinity.
template <typename T> struct Magnitude {
  uint32_t bits = 0;
  __device__ __forceinline__ void join(const Vec<T>& v) {
#pragma unroll
    for (int k = 0; k < kPairs<T>; ++k) {
      bits = __vmaxu2(bits, *reinterpret_cast<const uint32_t*>(&v.at[k]) & 0x7fff7fffu);
    }
  }
  __device__ __forceinline__ float value() const {
    const uint16_t largest = max(bits & 0xffffu, bits >> 16);
    T t;
    memcpy(&t, &largest, 2);
    return to_float(t);
  }
};
template <> struct Magnitude<float> {
  float largest = 0.0f;
  __device__ __forceinline__ void join(const Vec<float>& v) {
#pragma unroll
    for (int k = 0; k < kPairs<float>; ++k) {
      largest = Largest::join(Largest::join(largest, fabsf(v.at[k].x)), fabsf(v.at[k].y));
    }
  }
  __device__ __forceinline__ float value() const { return largest; }
};

// Writes a vector of results: as it is, or as fp8.
template <typename T, typename O>
__device__ __forceinline__ void put(O* to, const Vec<T>& v, [[maybe_unused]] float inverse_scale) {
  if constexpr (std::is_same_v<T, O>) {
    store(to, v);
  } else {
    Packed<2 * kPairs<T>> q;
#pragma unroll
    for (int k = 0; k < kPairs<T>; ++k) {
      const float2 f = Pair<T>::wide(v.at[k]);
      q.at[k] = fp8_pair(make_float2(f.x * inverse_scale, f.y * inverse_scale));
    }
    store(to, q);
  }
}

}  // namespace opdock
