// A stand-in for HIP's runtime, with which a host compiler makes the kernels run on the CPU: a block's threads are fibers
// that take turns at every barrier and exchange. All threads of a block must come to the same ones, as these kernels' do.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline unsigned max(unsigned a, unsigned b) { return std::max(a, b); }
template <typename To, typename From> To as_bits(From from) {
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline unsigned __float_as_uint(float v) { return as_bits<unsigned>(v); }
inline float __uint_as_float(unsigned v) { return as_bits<float>(v); }
inline float __int_as_float(int v) { return as_bits<float>(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float v) { return expf(v); }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
template <typename V> V __ldg(const V* from) { return *from; }

namespace on_cpu {
constexpr size_t kStack = 1 << 16;
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  dim3 index{0, 0, 0};
  bool done = false;
};
inline std::vector<Fiber> fibers;
inline ucontext_t scheduler;
inline size_t current;
inline std::function<void()> body;
inline float exchanged[1024];

inline void turn() { swapcontext(&fibers[current].context, &scheduler); }
inline void enter() {
  body();
  fibers[current].done = true;
  turn();
}
}  // namespace on_cpu

inline dim3 blockIdx{0, 0, 0}, blockDim, gridDim;
#define threadIdx (on_cpu::fibers[on_cpu::current].index)
inline void __syncthreads() { on_cpu::turn(); }
template <typename V> V __shfl_xor(V v, int step, int) {
  static_assert(sizeof(V) == 4);
  on_cpu::exchanged[on_cpu::current] = as_bits<float>(v);
  on_cpu::turn();
  const V found = as_bits<V>(on_cpu::exchanged[on_cpu::current ^ step]);
  on_cpu::turn();
  return found;
}

template <typename... P> void hipLaunchKernelGGL(void (*kernel)(P...), dim3 grid, dim3 block, int, void*, P... args) {
  using namespace on_cpu;
  blockDim = block, gridDim = grid;
  fibers.resize(block.x * block.y);
  for (auto& fiber : fibers) {
    if (!fiber.stack) fiber.stack.reset(new char[kStack]);
  }
  body = [&] { kernel(args...); };
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) {
      blockIdx = {x, y, 0};
      for (size_t i = 0; i < fibers.size(); ++i) {
        Fiber& fiber = fibers[i];
        fiber.done = false, fiber.index = {unsigned(i % block.x), unsigned(i / block.x), 0};
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = kStack;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, enter, 0);
      }
      for (bool left = true; left;) {
        left = false;
        for (current = 0; current < fibers.size(); ++current) {
          if (!fibers[current].done) swapcontext(&scheduler, &fibers[current].context);
          left = left || !fibers[current].done;
        }
      }
    }
  }
}

using hipStream_t = void*;
enum hipError_t { hipSuccess };
enum hipDeviceAttribute_t { hipDeviceAttributeMultiprocessorCount };
inline hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t, int) { return *value = 4, hipSuccess; }
inline hipError_t hipGetLastError() { return hipSuccess; }
struct hipDeviceProp_t { char gcnArchName[256]; };
#if defined(__gfx942__)
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* to, int) { return strcpy(to->gcnArchName, "gfx942"), hipSuccess; }
#define __builtin_amdgcn_cvt_pk_fp8_f32(a, b, old, word) \
  (opdock::fp8_bits<true>(a) | opdock::fp8_bits<true>(b) << 8)  // what the instruction is documented to do
#else
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* to, int) { return strcpy(to->gcnArchName, "gfx90a"), hipSuccess; }
#endif
