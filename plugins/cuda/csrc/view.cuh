// What a launch has to know of a tensor. Both ways to a kernel make one: torch's dispatcher from its handle, direct.cu
// from a Python object.
#pragma once

#include <torch/csrc/stable/macros.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include "rows.cuh"

namespace opdock {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Sizes and strides, in elements, belong to the tensor: a view lives no longer than that, and is used at once.
class View {
 public:
  View() = default;
  View(void* data, const int64_t* sizes, const int64_t* strides, int64_t dims, ScalarType type, int bytes, int device)
      : data_(data), sizes_(sizes), strides_(strides), dims_(dims), type_(type), bytes_(bytes), device_(device) {}
  explicit View(const Tensor& t)
      : View(t.data_ptr(), t.sizes().data(), t.strides().data(), t.dim(), t.scalar_type(), (int)t.element_size(),
             t.get_device_index()) {}

  void* data_ptr() const { return data_; }
  int64_t dim() const { return dims_; }
  int64_t size(int64_t d) const { return sizes_[d]; }
  int64_t stride(int64_t d) const { return strides_[d]; }
  int64_t last() const { return sizes_[dims_ - 1]; }
  ScalarType scalar_type() const { return type_; }
  int64_t element_size() const { return bytes_; }
  int get_device_index() const { return device_; }

  int64_t numel() const {
    int64_t count = 1;
    for (int64_t d = 0; d < dims_; ++d) count *= sizes_[d];
    return count;
  }

 private:
  void* data_ = nullptr;
  const int64_t* sizes_ = nullptr;
  const int64_t* strides_ = nullptr;
  int64_t dims_ = 0;
  ScalarType type_ = ScalarType::Undefined;
  int bytes_ = 0, device_ = -1;
};

// Everything that the ops of rows have in common, on the current device: checks, and the launch on its current stream.
// `sum` may be `residual`, and `y` may be `x`: then in place. Defined in launch.cuh; norms.cu and elementwise.cu have
// the instances.
template <In IN, bool NORM, Out OUT>
void rows_op(const View& x, const View* residual, const View* sum, const View* weight, const View& y,
             const View* scales, const View* scale, const View* scale_ub, double epsilon);
using RowsOp = void(const View&, const View*, const View*, const View*, const View&, const View*, const View*,
                    const View*, double);

// In rotary.cu: rotary_embedding, on the current device and its current stream.
void rotary(const View& positions, const View& query, const View& key, int64_t head_size, const View& cache,
            bool is_neox);

}  // namespace opdock
