// Choosing how the threads share the rows, and launching.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "any_rows.cuh"
#include "long_rows.cuh"
#include "short_rows.cuh"
#include "view.cuh"

namespace opdock {

inline cudaStream_t stream_of(const View& x) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

template <int N> using Number = std::integral_constant<int, N>;

// Bytes of one tensor from which on its place in the cache counts; less where results take the place of what they are made of.
// Measured on an H200, whose L2 cache has 60 MB.
#ifdef __HIP__
constexpr int64_t kFarBytes = INT64_MAX, kFarInPlace = INT64_MAX;  // not measured there
#else
constexpr int64_t kFarBytes = int64_t(1) << 26, kFarInPlace = int64_t(1) << 25;
#endif

inline int multiprocessors(int device) {
  static int known[64] = {};
  int& count = known[device & 63];
  if (count == 0) cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

#ifdef __HIP__

template <typename... P, typename... A>
void start(void (*kernel)(P...), dim3 grid, dim3 block, int, cudaStream_t stream, A&&... args) {
  hipLaunchKernelGGL(kernel, grid, block, 0, stream, static_cast<P>(std::forward<A>(args))...);
  STD_TORCH_CHECK(hipGetLastError() == hipSuccess, "a kernel could not be launched");
}

#else

inline bool can_start_early(int device) {
  static int known[64] = {};  // the compute capability's first number
  int& major = known[device & 63];
  if (major == 0) cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major >= 9;
}

// Launches with leave to start before the kernel before it has ended, where the chip can: the start then costs no time of
// its own. Every kernel of ours waits for the one before it with its first instruction (after_previous), so nothing is read
// or written too early. Measured on an H200: 0.3 microseconds for each launch in a graph.
template <typename... P, typename... A>
void start(void (*kernel)(P...), dim3 grid, dim3 block, int device, cudaStream_t stream, A&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid, config.blockDim = block, config.stream = stream;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early, config.numAttrs = can_start_early(device) ? 1 : 0;
  STD_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, std::forward<A>(args)...));
}

#endif

// Vectors that one thread of a row has, where something is joined over it. The number goes by the row's length alone: a
// row's bits are the same in every batch. Measured on an H200 at 2048 to 16384 elements of 16 bits.
template <In IN, bool NORM, Out OUT> int items_of(int vectors) {
  if (vectors > 2048) return 8;
  if (vectors > 1024) return 4;
  if (IN == In::Add && OUT == Out::Static) return vectors >= 512 ? 2 : 1;
  if (IN == In::Add) return vectors > 512 ? 4 : 1;
  if (NORM && OUT == Out::Token && vectors % 224 == 0) return 7;
  if (OUT != Out::Same) return vectors >= 256 ? 4 : vectors >= 64 ? 2 : 1;
  return vectors >= 768 ? 4 : vectors >= 128 ? 2 : 1;
}

template <typename T, typename O, In IN, bool NORM, Out OUT>
void launch(const Args& args, bool vectors, int device, cudaStream_t stream) {
  constexpr int VEC = 16 / sizeof(T);
  const int count = args.hidden / VEC;
  const unsigned rows = (unsigned)args.rows;
  const bool whole = vectors && args.hidden % VEC == 0;
  const bool flat = args.x_rows.inner == 1 && args.y_rows.inner == 1 && args.residual_rows.inner <= 1 &&
                    args.sum_rows.inner <= 1;
  if (whole && count <= 32) {
    int shift = 0;
    while (1 << shift < count) ++shift;
    const unsigned each = 128 >> shift;
    start(short_row_kernel<T, O, IN, NORM, OUT>, (rows + each - 1) / each, 128, device, stream,
          Given<IN, NORM, OUT, true>(args), shift);
    return;
  }
  if (!whole || count > 4096 || !flat) {
    start(any_row_kernel<T, O, IN, NORM, OUT>, rows, std::clamp((args.hidden + 31) / 32 * 32, 64, 512), device, stream,
          Given<IN, NORM, OUT, true>(args));
    return;
  }
  const Given<IN, NORM, OUT, false> given(args);
  if constexpr (kPieces<NORM, OUT>) {
    const int busy = multiprocessors(device);
    const int most = rows >= 8u * busy ? 512 : rows >= (unsigned)busy ? 256 : 128;
    const int items = most == 512 && (IN == In::Plain || count > 512) ? 2 : 1;
    const int block = std::min(((count + items - 1) / items + 31) / 32 * 32, most);
    const dim3 grid(rows, (count + block * items - 1) / (block * items));
    auto go = [&](auto n) {
      start(long_row_kernel<T, O, decltype(n)::value, IN, NORM, OUT, false, Read::Once>, grid, block, device, stream, given);
    };
    items == 2 ? go(Number<2>{}) : go(Number<1>{});
  } else {
    const int items = items_of<IN, NORM, OUT>(count);
    const int block = ((count + items - 1) / items + 31) / 32 * 32;
    const bool exact = block * items == count;
    constexpr Read kFar = !NORM ? Read::Once : OUT == Out::Same ? Read::Twice
                        : OUT == Out::Static && IN == In::Add ? Read::Kept : Read::Once;
    [[maybe_unused]] const bool far =
        (int64_t)args.rows * args.hidden * sizeof(T) >= (args.y == args.x ? kFarInPlace : kFarBytes);
    auto go = [&](auto n, auto all) {
      constexpr int ITEMS = decltype(n)::value;
      constexpr bool ALL = decltype(all)::value;
      if constexpr (kFar != Read::Once) {
        if (far) return start(long_row_kernel<T, O, ITEMS, IN, NORM, OUT, ALL, kFar>, rows, block, device, stream, given);
      }
      start(long_row_kernel<T, O, ITEMS, IN, NORM, OUT, ALL, Read::Once>, rows, block, device, stream, given);
    };
    if constexpr (NORM && OUT == Out::Token && IN != In::Add) {
      if (items == 7) return go(Number<7>{}, std::true_type{});
    }
    // What items_of never gives is not compiled.
    if constexpr (IN == In::Add || OUT == Out::Same) {
      if (items == 1 && exact) return go(Number<1>{}, std::true_type{});
    }
    if (items == 1) return go(Number<1>{}, std::false_type{});
    if (items == 8) return go(Number<8>{}, std::false_type{});
    if constexpr (IN != In::Add || OUT == Out::Static) {
      if (items == 2) return exact ? go(Number<2>{}, std::true_type{}) : go(Number<2>{}, std::false_type{});
    }
    return exact ? go(Number<4>{}, std::true_type{}) : go(Number<4>{}, std::false_type{});
  }
}

// -- what comes in

// The leading dimensions of a tensor as two, if its strides allow it; the last dimension must be dense.
inline Rows rows_of(const View& t, const char* name) {
  const int64_t last = t.dim() - 1;
  STD_TORCH_CHECK(last >= 0, name, " must have a dimension");
  if (t.numel() == 0) return Rows{1, 0, 0};
  STD_TORCH_CHECK(t.stride(last) == 1 || t.size(last) <= 1, name, " must be dense in its last dimension");
  Rows rows{1, 0, 0};
  int64_t size = 1, stride = 0;  // of the outer one, so far
  bool two = false;
  for (int64_t d = last - 1; d >= 0; --d) {
    if (t.size(d) == 1) continue;
    if (size == 1) {
      size = t.size(d), stride = t.stride(d);
    } else if (t.stride(d) == size * stride) {
      size *= t.size(d);
    } else {
      STD_TORCH_CHECK(!two, name, " has strides that are not those of two leading dimensions");
      two = true;
      rows.inner = size, rows.inner_stride = stride;
      size = t.size(d), stride = t.stride(d);
    }
  }
  rows.outer_stride = stride;
  return rows;
}

inline bool aligned(const View& t, const Rows& rows, int64_t bytes) {
  const int64_t element = t.element_size();
  auto whole = [&](int64_t stride) { return stride * element % bytes == 0; };
  return reinterpret_cast<uintptr_t>(t.data_ptr()) % bytes == 0 && whole(rows.outer_stride) && whole(rows.inner_stride);
}

inline bool aligned(const View& t, int64_t bytes) { return reinterpret_cast<uintptr_t>(t.data_ptr()) % bytes == 0; }

inline int64_t row_count(const View& t) {
  int64_t count = 1;
  for (int64_t d = 0; d < t.dim() - 1; ++d) count *= t.size(d);
  return count;
}

template <In IN, bool NORM, Out OUT> void run(const Args& args, ScalarType type, bool vectors, const View& on) {
  if (args.rows == 0 || args.hidden == 0) return;
  const int device = on.get_device_index();
  const cudaStream_t stream = stream_of(on);
  auto launch_for = [&](auto zero) {
    using T = decltype(zero);
    using O = std::conditional_t<OUT == Out::Same, T, __nv_fp8_e4m3>;
    launch<T, O, IN, NORM, OUT>(args, vectors, device, stream);
  };
  if (type == ScalarType::BFloat16) {
    launch_for(__nv_bfloat16{});
  } else if (type == ScalarType::Half) {
    launch_for(__half{});
  } else {
    STD_TORCH_CHECK(type == ScalarType::Float, "only float32, float16 and bfloat16");
    launch_for(0.0f);
  }
}

template <In IN, bool NORM, Out OUT>
void rows_op(const View& x, const View* residual, const View* sum, const View* weight, const View& y,
             const View* scales, const View* scale, const View* scale_ub, double epsilon) {
  Args args{};
  const int64_t rows = row_count(x);
  for (const View* other : {residual, sum, weight, &y, scales, scale, scale_ub}) {
    STD_TORCH_CHECK(other == nullptr || other->get_device_index() == x.get_device_index(), "tensors on several devices");
  }
  STD_TORCH_CHECK(rows < (int64_t(1) << 31), "more rows than a launch has");
  args.rows = (int)rows;
  const int64_t width = x.size(x.dim() - 1);
  args.hidden = (int)(IN == In::Plain || IN == In::Add ? width : width / 2);
  args.epsilon = (float)epsilon, args.inverse_hidden = 1.0f / (float)args.hidden;
  const ScalarType type = x.scalar_type();
  args.x = x.data_ptr(), args.y = y.data_ptr();
  args.x_rows = rows_of(x, "x"), args.y_rows = rows_of(y, "y");
  bool vectors = aligned(x, args.x_rows, 16) && aligned(y, args.y_rows, 16 / x.element_size() * y.element_size());
  if constexpr (IN != In::Plain && IN != In::Add) vectors = vectors && args.hidden * x.element_size() % 16 == 0;
  if (IN == In::Add) {
    STD_TORCH_CHECK(residual->scalar_type() == type && residual->numel() == x.numel(), "x_residual differs from x");
    args.residual = residual->data_ptr(), args.sum = sum->data_ptr();
    args.residual_rows = rows_of(*residual, "x_residual"), args.sum_rows = rows_of(*sum, "sum");
    vectors = vectors && aligned(*residual, args.residual_rows, 16) && aligned(*sum, args.sum_rows, 16);
  }
  if (weight != nullptr) {
    STD_TORCH_CHECK(weight->scalar_type() == type && weight->numel() == args.hidden && weight->stride(0) == 1,
                    "weight differs from x in dtype or length, or is not dense");
    args.weight = weight->data_ptr();
    vectors = vectors && aligned(*weight, 16);
  }
  if (scales != nullptr) args.scales = (float*)scales->data_ptr();
  if (scale != nullptr) args.scale = (const float*)scale->data_ptr();
  if (scale_ub != nullptr) args.scale_ub = (const float*)scale_ub->data_ptr();
  run<IN, NORM, OUT>(args, type, vectors, x);
}

// The same on tensors, and on the device that they are on.
template <In IN, bool NORM, Out OUT>
void rows_op(const Tensor& x, const Tensor* residual, const Tensor* sum, const Tensor* weight, const Tensor& y,
             const Tensor* scales, const Tensor* scale, const Tensor* scale_ub, double epsilon) {
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  const Tensor* given[] = {residual, sum, weight, scales, scale, scale_ub};
  View views[6];
  const View* at[6];
  for (int i = 0; i < 6; ++i) {
    if (given[i] != nullptr) views[i] = View(*given[i]);
    at[i] = given[i] == nullptr ? nullptr : &views[i];
  }
  rows_op<IN, NORM, OUT>(View(x), at[0], at[1], at[2], View(y), at[3], at[4], at[5], epsilon);
}

}  // namespace opdock
