"""Quantised linear layers: methods by name, a method for each layer, a kernel for each method and platform."""

from opdock.nn.quantization.config import QuantizationConfig
from opdock.nn.quantization.kernels.base import LinearKernel
from opdock.nn.quantization.method import (
    LinearMethodBase,
    QuantizeMethodBase,
    UnquantizedLinearMethod,
    method_has_implemented_embedding,
)
from opdock.nn.quantization.registry import (
    get_quantization_config,
    quantization_methods,
    register_quantization_config,
)
from opdock.nn.quantization.reloading import finish_loading, start_loading
from opdock.nn.quantization.selection import (
    choose_linear_kernel,
    explain_linear_kernel,
    linear_backend,
    register_linear_kernel,
)
from opdock.nn.quantization.spec import LinearSpec

__all__ = [
    "LinearKernel",
    "LinearMethodBase",
    "LinearSpec",
    "QuantizationConfig",
    "QuantizeMethodBase",
    "UnquantizedLinearMethod",
    "choose_linear_kernel",
    "explain_linear_kernel",
    "finish_loading",
    "get_quantization_config",
    "linear_backend",
    "method_has_implemented_embedding",
    "quantization_methods",
    "register_linear_kernel",
    "register_quantization_config",
    "start_loading",
]
