// rms_norm and fused_add_rms_norm, alone and with fp8 quantisation.
#include "results.cuh"

namespace opdock {
namespace {

Tensor rms_norm(const Tensor& x, const std::optional<Tensor>& weight, double epsilon) {
  Tensor y = like(x);
  rows_op<In::Plain, true, Out::Same>(x, nullptr, nullptr, given(weight), y, nullptr, nullptr, nullptr, epsilon);
  return y;
}

void fused_add_rms_norm_(Tensor x, Tensor residual, const std::optional<Tensor>& weight, double epsilon) {
  rows_op<In::Add, true, Out::Same>(x, &residual, &residual, given(weight), x, nullptr, nullptr, nullptr, epsilon);
}

std::tuple<Tensor, Tensor> fused_add_rms_norm(const Tensor& x, const Tensor& residual,
                                              const std::optional<Tensor>& weight, double epsilon) {
  Tensor y = like(x), sum = like(x);
  rows_op<In::Add, true, Out::Same>(x, &residual, &sum, given(weight), y, nullptr, nullptr, nullptr, epsilon);
  return {y, sum};
}

Tensor rms_norm_static_fp8(const Tensor& x, const std::optional<Tensor>& weight, const Tensor& scale, double epsilon) {
  Tensor y = like(x, fp8_type(x));
  rows_op<In::Plain, true, Out::Static>(x, nullptr, nullptr, given(weight), y, nullptr, &scale, nullptr, epsilon);
  return y;
}

std::tuple<Tensor, Tensor> rms_norm_token_fp8(const Tensor& x, const std::optional<Tensor>& weight, double epsilon,
                                              const std::optional<Tensor>& bound) {
  Tensor y = like(x, fp8_type(x)), scales = scales_of(x);
  rows_op<In::Plain, true, Out::Token>(x, nullptr, nullptr, given(weight), y, &scales, nullptr, given(bound), epsilon);
  return {y, scales};
}

std::tuple<Tensor, Tensor> add_rms_norm_static_fp8(const Tensor& x, const Tensor& residual,
                                                   const std::optional<Tensor>& weight, const Tensor& scale,
                                                   double epsilon) {
  Tensor y = like(x, fp8_type(x)), sum = like(x);
  rows_op<In::Add, true, Out::Static>(x, &residual, &sum, given(weight), y, nullptr, &scale, nullptr, epsilon);
  return {y, sum};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_token_fp8(const Tensor& x, const Tensor& residual,
                                                          const std::optional<Tensor>& weight, double epsilon,
                                                          const std::optional<Tensor>& bound) {
  Tensor y = like(x, fp8_type(x)), sum = like(x), scales = scales_of(x);
  rows_op<In::Add, true, Out::Token>(x, &residual, &sum, given(weight), y, &scales, nullptr, given(bound), epsilon);
  return {y, scales, sum};
}

}  // namespace

// For direct.cu.
template RowsOp rows_op<In::Plain, true, Out::Same>;
template RowsOp rows_op<In::Add, true, Out::Same>;
template RowsOp rows_op<In::Plain, true, Out::Static>;
template RowsOp rows_op<In::Plain, true, Out::Token>;
template RowsOp rows_op<In::Add, true, Out::Static>;
template RowsOp rows_op<In::Add, true, Out::Token>;

}  // namespace opdock

STABLE_TORCH_LIBRARY_FRAGMENT(opdock_cuda, m) {
  m.def("rms_norm(Tensor x, Tensor? weight, float epsilon) -> Tensor");
  m.def("fused_add_rms_norm_(Tensor(a!) x, Tensor(b!) x_residual, Tensor? weight, float epsilon) -> ()");
  m.def("fused_add_rms_norm(Tensor x, Tensor x_residual, Tensor? weight, float epsilon) -> (Tensor, Tensor)");
  m.def("rms_norm_static_fp8(Tensor x, Tensor? weight, Tensor scale, float epsilon) -> Tensor");
  m.def("rms_norm_token_fp8(Tensor x, Tensor? weight, float epsilon, Tensor? scale_ub) -> (Tensor, Tensor)");
  m.def(
      "add_rms_norm_static_fp8(Tensor x, Tensor x_residual, Tensor? weight, Tensor scale, float epsilon) -> "
      "(Tensor, Tensor)");
  m.def(
      "add_rms_norm_token_fp8(Tensor x, Tensor x_residual, Tensor? weight, float epsilon, Tensor? scale_ub) -> "
      "(Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(opdock_cuda, CUDA, m) {
  m.impl("rms_norm", TORCH_BOX(&opdock::rms_norm));
  m.impl("fused_add_rms_norm_", TORCH_BOX(&opdock::fused_add_rms_norm_));
  m.impl("fused_add_rms_norm", TORCH_BOX(&opdock::fused_add_rms_norm));
  m.impl("rms_norm_static_fp8", TORCH_BOX(&opdock::rms_norm_static_fp8));
  m.impl("rms_norm_token_fp8", TORCH_BOX(&opdock::rms_norm_token_fp8));
  m.impl("add_rms_norm_static_fp8", TORCH_BOX(&opdock::add_rms_norm_static_fp8));
  m.impl("add_rms_norm_token_fp8", TORCH_BOX(&opdock::add_rms_norm_token_fp8));
}
