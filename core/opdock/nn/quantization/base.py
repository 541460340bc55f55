"""What the built-in methods share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from opdock.errors import ConfigError
from opdock.nn.quantization import fields
from opdock.nn.quantization.config import QuantizationConfig
from opdock.nn.quantization.fields import FLOATS
from opdock.nn.quantization.ignored import is_layer_ignored
from opdock.nn.quantization.method import LinearMethodBase, QuantizeMethodBase, UnquantizedLinearMethod

if TYPE_CHECKING:
    import torch
    from torch import nn


class LinearConfig(QuantizationConfig):
    """A method that quantises every linear layer in the same way, but for those that it lists.

    Args:
        ignored: names of layers that stay as they are; see ``is_layer_ignored``.
    """

    ignored_anywhere = False
    """Whether a name in the list may be any part of a layer's path."""

    def __init__(self, ignored: list[str] | None = None) -> None:
        """Keep the list."""
        super().__init__()
        self.ignored = fields.names({"ignored": list(ignored or ())}, "ignored")

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        """Return bfloat16, float16 and float32."""
        return list(FLOATS)

    @classmethod
    def get_min_capability(cls) -> int:
        """Return 75, the first whose kernels of torch and Triton run."""
        return 75

    @staticmethod
    def get_config_filenames() -> list[str]:
        """Return none: it stands in config.json."""
        return []

    def get_cache_scale_mapper(self) -> Mapping[str, str]:
        """Return where tools write the two scales of a layer's 8-bit cache, and where the attention layer has them."""
        return {
            f".self_attn.{stored}": f".self_attn.attn.{which}_scale"
            for which in ("k", "v")
            for stored in (f"{which}_scale", f"{which}_proj.{which}_scale", f"{which}_proj.output_scale")
        }

    def linear_method(self, prefix: str) -> LinearMethodBase:
        """Return the method of a layer that is not ignored."""
        raise NotImplementedError(f"{type(self).__name__}.linear_method")

    def listed_layers(self) -> list[str]:
        """Return the names in the configuration that layers are looked up by; none: all layers are alike."""
        return self.ignored

    def get_quant_method(self, layer: nn.Module, prefix: str) -> QuantizeMethodBase | None:
        """Return the method of a linear layer, None for any other."""
        from opdock.nn.layers.linear import LinearBase

        if not isinstance(layer, LinearBase):
            return None
        listed = [] if prefix else self.listed_layers()
        if listed:
            raise ConfigError(
                "A linear layer without a prefix cannot be found in the lists of a quantisation configuration.",
                who=[
                    f"{type(self).__module__}.{type(self).__qualname__}",
                    f"{type(layer).__name__} of {layer.input_size} inputs and {layer.output_size} outputs",
                ],
                why=f"it lists {', '.join(listed[:4])}{', ...' if len(listed) > 4 else ''}",
                remedy='give the layer its path in the model: prefix="model.layers.0.mlp.down_proj".',
            )
        if is_layer_ignored(prefix, self.ignored, self.packed_modules_mapping, anywhere=self.ignored_anywhere):
            return UnquantizedLinearMethod()
        return self.linear_method(prefix)
