// Choosing how the threads share the rows, and launching.
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>

#include "view.cuh"

namespace opdock {

inline cudaStream_t stream_of(const View& x) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(x.get_device_index(), &stream));
  return static_cast<cudaStream_t>(stream);
}

inline int multiprocessors(int device) {
  static int known[64] = {};
  int& count = known[device & 63];
  if (count == 0) cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// Vectors of 16 bytes that one thread of a row has. Where something is reduced over the row, the number does not depend on
// how many rows there are: a row's bits are the same in every batch.
// `joined`: something is reduced; `twice`: two things are; `add`: there are two inputs and two results.
inline int items_of(int64_t rows, int vectors, int device, bool joined, bool twice, bool add) {
  if (vectors > 2048) return 8;
  if (vectors > 1024) return 4;
  if (!joined) return rows >= 8 * multiprocessors(device) ? 2 : 1;
  if (add) return vectors >= 128 ? 2 : 1;
  return vectors >= (twice ? 256 : 768) ? 4 : vectors >= 128 ? 2 : 1;
}

template <typename T, typename O, In IN, bool NORM, Out OUT>
void launch(const Args& args, bool vectors, int device, cudaStream_t stream) {
  constexpr int VEC = 16 / sizeof(T);
  const int count = args.hidden / VEC;
  const unsigned rows = (unsigned)args.rows;
  const bool flat = args.x_rows.inner == 1 && args.y_rows.inner == 1 && args.residual_rows.inner <= 1 &&
                    args.sum_rows.inner <= 1;
  if (vectors && args.hidden % VEC == 0 && count <= 32) {
    int shift = 0;
    while (1 << shift < count) ++shift;
    const unsigned each = 128 >> shift;
    row_kernel<T, O, 1, IN, NORM, OUT, true><<<(rows + each - 1) / each, 128, 0, stream>>>(
        Given<IN, NORM, OUT, true>(args), shift);
  } else if (vectors && args.hidden % VEC == 0 && count <= 4096 && flat) {
    const int wanted = items_of(args.rows, count, device, !kPieces<NORM, OUT>, OUT == Out::Token, IN == In::Add);
    const int items = kPieces<NORM, OUT> ? std::min(wanted, 2) : wanted;
    const int all = ((count + items - 1) / items + 31) / 32 * 32;
    const int block = kPieces<NORM, OUT> ? std::min(all, 128) : all;
    const int pieces = kPieces<NORM, OUT> ? (count + block * items - 1) / (block * items) : 1;
    const dim3 grid(rows, pieces);
    const Given<IN, NORM, OUT, false> given(args);
    if (items == 1) {
      row_kernel<T, O, 1, IN, NORM, OUT, false><<<grid, block, 0, stream>>>(given, 0);
    } else if (items == 2) {
      row_kernel<T, O, 2, IN, NORM, OUT, false><<<grid, block, 0, stream>>>(given, 0);
    } else if constexpr (!kPieces<NORM, OUT>) {
      if (items == 4) {
        row_kernel<T, O, 4, IN, NORM, OUT, false><<<grid, block, 0, stream>>>(given, 0);
      } else {
        row_kernel<T, O, 8, IN, NORM, OUT, false><<<grid, block, 0, stream>>>(given, 0);
      }
    }
  } else {
    const int block = std::clamp((args.hidden + 31) / 32 * 32, 64, 512);
    any_row_kernel<T, O, IN, NORM, OUT><<<rows, block, 0, stream>>>(Given<IN, NORM, OUT, true>(args));
  }
  STD_CUDA_KERNEL_LAUNCH_CHECK();
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
