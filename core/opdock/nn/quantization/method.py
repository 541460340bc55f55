"""How a layer holds its weight and applies it."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from opdock.errors import ConfigError, OrderError
from opdock.nn.layers.matmul import linear

if TYPE_CHECKING:
    from opdock.nn.quantization.config import QuantizationConfig


class QuantizeMethodBase(ABC):
    """The weights of one layer: made, made ready, applied.

    Attributes:
        requires_device_loading: whether weights are made ready on the device that runs the model.
        uses_meta_device: whether weights are made on the meta device first.
        supports_pre_processed_weights: whether a checkpoint may hold weights that are ready already.
        rewrites_weights: whether ``process_weights_after_loading`` replaces what ``create_weights`` made. If so,
            reloading makes the parameters anew and writes the result into the tensors that are in use.
    """

    requires_device_loading: bool = True
    uses_meta_device: bool = False
    supports_pre_processed_weights: bool = False
    rewrites_weights: bool = True

    @abstractmethod
    def create_weights(self, layer: nn.Module, *args: Any, **extra_weight_attrs: Any) -> None:
        """Set the parameters that a checkpoint fills as attributes of ``layer``, uninitialised."""

    @abstractmethod
    def apply(self, layer: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the layer's output."""

    def embedding(self, layer: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return rows of the weight, for a method that a vocabulary embedding can use."""
        raise NotImplementedError(f"{type(self).__name__} has no embedding")

    def tie_weights(self, layer: nn.Module, embed_tokens: nn.Module) -> nn.Module:
        """Share ``embed_tokens``' weight with ``layer`` and return ``layer``."""
        layer.weight = embed_tokens.weight
        return layer

    def process_weights_after_loading(self, layer: nn.Module) -> None:  # noqa: B027 - optional
        """Make loaded weights ready to be applied: called once after each loading."""

    def dequantize_weight(self, layer: nn.Module) -> torch.Tensor:
        """Return the weight as floats, (outputs, inputs)."""
        raise NotImplementedError(f"{type(self).__name__} has no dequantize_weight")


class LinearMethodBase(QuantizeMethodBase):
    """The weights of a linear layer."""

    @abstractmethod
    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Set the parameters that a checkpoint fills as attributes of ``layer``, uninitialised.

        Args:
            layer: a LinearBase.
            input_size_per_partition: length of a row of x on this rank.
            output_partition_sizes: outputs of each joined matrix on this rank.
            input_size: length of a row of x over all ranks.
            output_size: outputs over all ranks.
            params_dtype: that of the activations, and of an unquantised weight.
            extra_weight_attrs: become attributes of the parameters; ``weight_loader`` fills them.

        Where the outputs are not a parameter's first dimension, or are packed, it says so: see
        ``opdock.nn.quantization.parameters.parts_in``.
        """

    @abstractmethod
    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x @ weight.T + bias, (..., outputs), in the dtype of x (..., inputs)."""


class UnquantizedLinearMethod(LinearMethodBase):
    """The weight as it is, in the dtype of the activations."""

    rewrites_weights = False

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Set ``weight``, (outputs, inputs)."""
        made = torch.empty(sum(output_partition_sizes), input_size_per_partition, dtype=params_dtype)
        layer.weight = nn.Parameter(made, requires_grad=False)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return x @ weight.T + bias."""
        return linear(x, layer._parameters["weight"], bias)  # type: ignore[arg-type]

    def dequantize_weight(self, layer: nn.Module) -> torch.Tensor:
        """Return the weight."""
        return layer.weight  # type: ignore[return-value]


def method_has_implemented_embedding(method_class: type[QuantizeMethodBase]) -> bool:
    """Return whether the class overrides ``embedding``."""
    return method_class.embedding is not QuantizeMethodBase.embedding


def resolve_linear_method(quant_config: QuantizationConfig | None, layer: nn.Module, prefix: str) -> LinearMethodBase:
    """Return the method of a linear layer.

    Raises: ConfigError naming the layer if the configuration has none for it.
    """
    if quant_config is None:
        return UnquantizedLinearMethod()
    from opdock.nn.quantization.config import QuantizationConfig

    given: object = quant_config
    if not isinstance(given, QuantizationConfig):
        raise ConfigError(
            f"quant_config of the linear layer {prefix!r} is no QuantizationConfig.",
            who=f"layer {prefix}",
            why=f"it is {given!r}",
            remedy="get_quantization_config(name).from_config({...}) makes one of a method's name.",
        )
    method = quant_config.get_quant_method(layer, prefix)
    if not method:
        raise ConfigError(
            f"The quantisation method {quant_config.get_name()!r} has nothing for the linear layer {prefix!r}.",
            who=f"{type(quant_config).__module__}.{type(quant_config).__qualname__}",
            why="All linear layers should support quant method.",
            remedy="let get_quant_method return UnquantizedLinearMethod() for layers that stay as they are.",
        )
    made: object = method
    if not isinstance(made, QuantizeMethodBase):
        raise ConfigError(
            f"The method {quant_config.get_name()!r} gives the linear layer {prefix!r} no LinearMethodBase.",
            who=f"{type(quant_config).__module__}.{type(quant_config).__qualname__}",
            why=f"get_quant_method returned {made!r}",
            remedy="return an object of a class that derives from LinearMethodBase.",
        )
    return method  # type: ignore[return-value]


def wait_for_weights(method: QuantizeMethodBase, prefix: str) -> None:
    """Let ``method.apply`` raise an OrderError until ``weights_are_ready``; nothing is asked in calls after that."""
    method.apply = functools.partial(_not_ready, prefix)  # type: ignore[method-assign]


def weights_are_ready(method: QuantizeMethodBase) -> None:
    """Let ``method.apply`` be that of its class again."""
    method.__dict__.pop("apply", None)


def _not_ready(prefix: str, *_: object, **__: object) -> torch.Tensor:
    raise OrderError(
        f"The weights of the quantised layer {prefix!r} are not ready.",
        who=f"layer {prefix}",
        why="They were not loaded, not made ready after loading, or what was loaded was refused.",
        remedy="load them, and call opdock.nn.quantization.finish_loading(model) before the first call.",
    )


WeightLoader = Callable[..., None]
