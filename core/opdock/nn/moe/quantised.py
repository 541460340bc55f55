"""How the experts of a layer hold their matrices: as the checkpoint does, or as 8-bit floats made after loading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from opdock.errors import UnsupportedError
from opdock.nn.quantization.method import QuantizeMethodBase
from opdock.nn.quantization.rounding import quantise_weight

if TYPE_CHECKING:
    from opdock.nn.moe.fused_moe import FusedMoE
    from opdock.nn.quantization.config import QuantizationConfig

STORED = torch.float8_e4m3fn


class OnlineFp8Experts(QuantizeMethodBase):
    """The matrices are loaded as floats; then each of their rows becomes 8-bit floats with one scale."""

    def create_weights(self, layer: nn.Module, *_: Any, **__: Any) -> None:
        """Make the parameters that a checkpoint fills."""
        made: FusedMoE = layer  # type: ignore[assignment]
        made.make_parameters(made.problem.dtype)

    def apply(self, layer: nn.Module, *args: Any, **_: Any) -> torch.Tensor:
        """Return the layer's output."""
        return layer(*args)  # type: ignore[no-any-return]

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Put 8-bit floats and scales in the place of the floats, expert by expert."""
        for name in ("w13_weight", "w2_weight"):
            loaded = layer._parameters[name]
            if loaded is None or loaded.dtype == STORED:
                continue
            stored = torch.empty(loaded.shape, dtype=STORED, device=loaded.device)
            scales = torch.empty(loaded.shape[:2], dtype=torch.float32, device=loaded.device)
            for expert in range(loaded.shape[0]):
                q, scale = quantise_weight(loaded.data[expert], STORED, "channel")
                stored[expert].copy_(q)
                scales[expert].copy_(scale)
            layer.register_parameter(name, nn.Parameter(stored, requires_grad=False))
            layer.register_parameter(f"{name}_scale", nn.Parameter(scales, requires_grad=False))


def experts_method(config: QuantizationConfig | None, prefix: str) -> QuantizeMethodBase | None:
    """Return how the experts of a layer hold their matrices; None: as the checkpoint does.

    Raises: UnsupportedError, with the layer's name, for a method that is not known for experts.
    """
    if config is None:
        return None
    if config.get_name() == "fp8" and getattr(config, "is_checkpoint_fp8_serialized", True) is False:
        return OnlineFp8Experts()
    raise UnsupportedError(
        f"Experts that are quantised with {config.get_name()!r} are not loaded yet.",
        who=f"layer {prefix}",
        why="Experts can be loaded as floats and quantised to fp8 then.",
        remedy='use the unquantised checkpoint, with quantization="fp8" if it is to be small.',
    )
