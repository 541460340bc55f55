// The bits of an 8-bit float (e4m3), for chips without an instruction that makes them. Host compilers take it too.
#pragma once

#include <cstdint>
#include <cstring>

namespace opdock {

// To the nearest, ties to even; too large becomes the largest, infinity too; NaN stays NaN. UNSIGNED_ZERO: the format
// without a negative zero, whose numbers are half of the other's with the same bits, and are written up to 224: every
// number that the other has.
template <bool UNSIGNED_ZERO> __host__ __device__ __forceinline__ uint8_t fp8_bits(float v) {
  uint32_t bits;
  if (UNSIGNED_ZERO) v *= 2.0f;
  memcpy(&bits, &v, 4);
  const uint32_t sign = (bits >> 24) & 0x80u, size = bits & 0x7fffffffu;
  uint32_t code;
  if (size > 0x7f800000u) return UNSIGNED_ZERO ? 0x80u : (uint8_t)(sign | 0x7fu);
  if (size >= 0x43e00000u) {  // 448
    code = 0x7eu;
  } else if (size < 0x3c800000u) {  // 2^-6: below it a step is 2^-9, and adding 2^23 steps leaves nothing smaller
    float magnitude;
    memcpy(&magnitude, &size, 4);
    magnitude += 16384.0f;
    memcpy(&code, &magnitude, 4);
    code -= 0x46800000u;
  } else {  // 20 bits of the mantissa go, and the exponent's bias from 127 to 7
    code = ((size + 0x7ffffu + ((size >> 20) & 1)) >> 20) - (120u << 3);
  }
  return (uint8_t)(UNSIGNED_ZERO && code == 0 ? 0u : code | sign);
}

}  // namespace opdock
