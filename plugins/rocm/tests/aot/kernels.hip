// The kernels of opdock-cuda as HIP: its files, and one instance of each kernel that its launcher starts. There is no
// second source; what HIP needs under other names is in portable.cuh.
#define OPDOCK_KERNELS_ONLY
#include "any_rows.cuh"
#include "cache.cu"
#include "long_rows.cuh"
#include "rotary_kernels.cuh"
#include "short_rows.cuh"

namespace opdock {

#define LONG(T, O, ITEMS, IN, NORM, OUT, EXACT, READ)                                               \
  template __global__ void long_row_kernel<T, O, ITEMS, In::IN, NORM, Out::OUT, EXACT, Read::READ>( \
      const Given<In::IN, NORM, Out::OUT, false>);
#define OTHERS(T, O, IN, NORM, OUT)                                                                                    \
  template __global__ void short_row_kernel<T, O, In::IN, NORM, Out::OUT>(const Given<In::IN, NORM, Out::OUT, true>,   \
                                                                          const int);                                  \
  template __global__ void any_row_kernel<T, O, In::IN, NORM, Out::OUT>(const Given<In::IN, NORM, Out::OUT, true>);

// Rows that are joined: what items_of gives.
#define JOINED(T, O, IN, NORM, OUT)                                                                         \
  OTHERS(T, O, IN, NORM, OUT)                                                                               \
  LONG(T, O, 1, IN, NORM, OUT, false, Once) LONG(T, O, 4, IN, NORM, OUT, true, Once)                      \
  LONG(T, O, 4, IN, NORM, OUT, false, Once) LONG(T, O, 8, IN, NORM, OUT, false, Once)
#define TWICE(T, O, IN, NORM, OUT) \
  LONG(T, O, 4, IN, NORM, OUT, true, Twice) LONG(T, O, 8, IN, NORM, OUT, false, Twice)
#define KEPT(T, O, IN, NORM, OUT)                                                     \
  LONG(T, O, 2, IN, NORM, OUT, true, Once) LONG(T, O, 2, IN, NORM, OUT, true, Kept)    \
  LONG(T, O, 4, IN, NORM, OUT, true, Kept) LONG(T, O, 8, IN, NORM, OUT, false, Kept)
// Rows that are cut into pieces.
#define PIECES(T, O, IN, OUT) \
  OTHERS(T, O, IN, false, OUT) LONG(T, O, 1, IN, false, OUT, false, Once) LONG(T, O, 2, IN, false, OUT, false, Once)

#define ALL(T)                                                                                              \
  JOINED(T, T, Plain, true, Same) TWICE(T, T, Plain, true, Same) LONG(T, T, 2, Plain, true, Same, true, Once) \
  JOINED(T, T, Add, true, Same) TWICE(T, T, Add, true, Same)                                                \
  JOINED(T, __nv_fp8_e4m3, Plain, true, Static) JOINED(T, __nv_fp8_e4m3, Plain, true, Token)                \
  LONG(T, __nv_fp8_e4m3, 7, Plain, true, Token, true, Once)                                                \
  JOINED(T, __nv_fp8_e4m3, Add, true, Static) KEPT(T, __nv_fp8_e4m3, Add, true, Static)                    \
  JOINED(T, __nv_fp8_e4m3, Add, true, Token)                                                                \
  PIECES(T, T, Silu, Same) PIECES(T, T, Gelu, Same) PIECES(T, T, GeluTanh, Same)                            \
  PIECES(T, __nv_fp8_e4m3, Silu, Static) JOINED(T, __nv_fp8_e4m3, Silu, false, Token)                       \
  PIECES(T, __nv_fp8_e4m3, Plain, Static) JOINED(T, __nv_fp8_e4m3, Plain, false, Token)

ALL(float) ALL(__half) ALL(__nv_bfloat16)

#define ROTARY(T, C, NEOX)                                                                                             \
  template __global__ void rotary_kernel<T, C, NEOX, 1>(const void*, const bool, const Heads, const Heads, const C*,   \
                                                        const int64_t, const int64_t, const int);                      \
  template __global__ void rotary_kernel<T, C, NEOX, 2>(const void*, const bool, const Heads, const Heads, const C*,   \
                                                        const int64_t, const int64_t, const int);                      \
  template __global__ void any_rotary_kernel<T, C, NEOX>(const void*, const bool, const Heads, const Heads, const C*,  \
                                                         const int64_t, const int64_t, const int);
#define ROTARIES(T, C) ROTARY(T, C, true) ROTARY(T, C, false)
ROTARIES(float, float) ROTARIES(__half, __half) ROTARIES(__half, float)
ROTARIES(__nv_bfloat16, __nv_bfloat16) ROTARIES(__nv_bfloat16, float)

namespace {
#define CACHE(V)                                                                                                     \
  template __global__ void cache_kernel<V>(const V*, const V*, V*, V*, const void*, const bool, const int64_t,       \
                                           const int64_t, const int64_t, const int64_t, const int64_t, const int64_t, \
                                           const int);
CACHE(uint4) CACHE(uint32_t) CACHE(uint16_t) CACHE(uint8_t)
}  // namespace

}  // namespace opdock
