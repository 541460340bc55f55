// silu_and_mul and gelu_and_mul, and fp8 quantisation alone and behind silu_and_mul.
#include "results.cuh"

namespace opdock {
namespace {

template <In IN> Tensor gated(const Tensor& x) {
  Tensor y = like(x, std::nullopt, x.size(x.dim() - 1) / 2);
  rows_op<IN, false, Out::Same>(x, nullptr, nullptr, nullptr, y, nullptr, nullptr, nullptr, 0.0);
  return y;
}

Tensor silu_and_mul(const Tensor& x) { return gated<In::Silu>(x); }

Tensor gelu_and_mul(const Tensor& x, bool tanh) { return tanh ? gated<In::GeluTanh>(x) : gated<In::Gelu>(x); }

Tensor silu_and_mul_static_fp8(const Tensor& x, const Tensor& scale) {
  Tensor y = like(x, fp8_type(x), x.size(x.dim() - 1) / 2);
  rows_op<In::Silu, false, Out::Static>(x, nullptr, nullptr, nullptr, y, nullptr, &scale, nullptr, 0.0);
  return y;
}

std::tuple<Tensor, Tensor> silu_and_mul_token_fp8(const Tensor& x, const std::optional<Tensor>& bound) {
  Tensor y = like(x, fp8_type(x), x.size(x.dim() - 1) / 2), scales = scales_of(x);
  rows_op<In::Silu, false, Out::Token>(x, nullptr, nullptr, nullptr, y, &scales, nullptr, given(bound), 0.0);
  return {y, scales};
}

Tensor static_fp8(const Tensor& x, const Tensor& scale) {
  Tensor y = like(x, fp8_type(x));
  rows_op<In::Plain, false, Out::Static>(x, nullptr, nullptr, nullptr, y, nullptr, &scale, nullptr, 0.0);
  return y;
}

std::tuple<Tensor, Tensor> token_fp8(const Tensor& x, const std::optional<Tensor>& bound) {
  Tensor y = like(x, fp8_type(x)), scales = scales_of(x);
  rows_op<In::Plain, false, Out::Token>(x, nullptr, nullptr, nullptr, y, &scales, nullptr, given(bound), 0.0);
  return {y, scales};
}

}  // namespace

// For direct.cu.
template RowsOp rows_op<In::Silu, false, Out::Same>;
template RowsOp rows_op<In::Gelu, false, Out::Same>;
template RowsOp rows_op<In::GeluTanh, false, Out::Same>;
template RowsOp rows_op<In::Silu, false, Out::Static>;
template RowsOp rows_op<In::Silu, false, Out::Token>;
template RowsOp rows_op<In::Plain, false, Out::Static>;
template RowsOp rows_op<In::Plain, false, Out::Token>;

}  // namespace opdock

STABLE_TORCH_LIBRARY_FRAGMENT(opdock_cuda, m) {
  m.def("silu_and_mul(Tensor x) -> Tensor");
  m.def("gelu_and_mul(Tensor x, bool tanh) -> Tensor");
  m.def("silu_and_mul_static_fp8(Tensor x, Tensor scale) -> Tensor");
  m.def("silu_and_mul_token_fp8(Tensor x, Tensor? scale_ub) -> (Tensor, Tensor)");
  m.def("static_fp8(Tensor x, Tensor scale) -> Tensor");
  m.def("token_fp8(Tensor x, Tensor? scale_ub) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(opdock_cuda, CUDA, m) {
  m.impl("silu_and_mul", TORCH_BOX(&opdock::silu_and_mul));
  m.impl("gelu_and_mul", TORCH_BOX(&opdock::gelu_and_mul));
  m.impl("silu_and_mul_static_fp8", TORCH_BOX(&opdock::silu_and_mul_static_fp8));
  m.impl("silu_and_mul_token_fp8", TORCH_BOX(&opdock::silu_and_mul_token_fp8));
  m.impl("static_fp8", TORCH_BOX(&opdock::static_fp8));
  m.impl("token_fp8", TORCH_BOX(&opdock::token_fp8));
}
