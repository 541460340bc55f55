"""How the experts of a layer hold their matrices: as floats, or as 8-bit floats, loaded so or made after loading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from opdock.errors import UnsupportedError
from opdock.nn.quantization.method import QuantizeMethodBase, UnquantizedLinearMethod, resolve_linear_method
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


class StoredFp8Experts(QuantizeMethodBase):
    """The checkpoint holds 8-bit floats with a scale for each row, or for each matrix; rows of x are rounded too.

    Args:
        per: ``tensor``: a matrix has one scale, of any shape; ``channel``: each of its rows has one, (rows, 1).
    """

    rewrites_weights = False  # a second checkpoint is copied over the first

    def __init__(self, per: str) -> None:
        """Keep the fact."""
        self.per = per

    def create_weights(self, layer: nn.Module, *_: Any, **__: Any) -> None:
        """Make the parameters that a checkpoint fills."""
        made: FusedMoE = layer  # type: ignore[assignment]
        made.make_parameters(STORED, scaled=True)

    def apply(self, layer: nn.Module, *args: Any, **_: Any) -> torch.Tensor:
        """Return the layer's output."""
        return layer(*args)  # type: ignore[no-any-return]

    def scale_shape(self, rows: int) -> tuple[int, ...]:
        """Return the shape of the scales of a matrix in the checkpoint."""
        return () if self.per == "tensor" else (rows, 1)


def experts_method(
    config: QuantizationConfig | None, prefix: str, names: Sequence[str] = ()
) -> QuantizeMethodBase | None:
    """Return how the experts of a layer hold their matrices; None: as the checkpoint does.

    Args:
        config: how the checkpoint's layers are quantised.
        prefix: the layer's path in its model, for messages.
        names: paths in the checkpoint of an expert's matrices, which the configuration is asked about; none: those
            of ``prefix`` with the usual names.

    Raises: UnsupportedError, with the layer's name, for a method that is not known for experts, and where the
        matrices of an expert have different ones.
    """
    if config is None:
        return None
    if config.get_name() == "fp8" and getattr(config, "is_checkpoint_fp8_serialized", True) is False:
        return OnlineFp8Experts()
    names = names or [f"{prefix}.experts.0.{name}" for name in ("gate_proj", "up_proj", "down_proj")]
    kinds = {name: _kind(config, name) for name in names}
    first = kinds[names[0]]
    if len(set(kinds.values())) > 1:
        raise UnsupportedError(
            "The matrices of an expert are quantised in different ways.",
            who=f"layer {prefix}",
            why=[f"{name}: {kind or 'as it is'}" for name, kind in kinds.items()],
            remedy="quantise all matrices of the experts alike, or none.",
        )
    if first == "":
        return None
    if first in _STORED:
        return StoredFp8Experts(_STORED[first])
    raise UnsupportedError(
        f"Experts that are quantised with {config.get_name()!r}, {first}, are not loaded yet.",
        who=f"layer {prefix}",
        why="Experts can be loaded as floats, or as 8-bit floats with a scale for each matrix or row whose activations "
        "are quantised for each token.",
        remedy='use the unquantised checkpoint, with quantization="fp8" if it is to be small.',
    )


_STORED = {f"float8_e4m3fn with a scale per {per}, dynamic": per for per in ("tensor", "channel")}


def _kind(config: QuantizationConfig, name: str) -> str:
    """Return how a configuration has a matrix of an expert in words, "" if it stays as it is."""
    from opdock.nn.layers.linear import LinearBase
    from opdock.nn.quantization.scaled import ScaledLinearMethod

    probe: Any = nn.Module.__new__(LinearBase)  # no layer: nothing replaces it, and it counts nowhere
    nn.Module.__init__(probe)
    method = resolve_linear_method(config, probe, name)
    if isinstance(method, UnquantizedLinearMethod):
        return ""
    if type(method) is not ScaledLinearMethod or method.online:
        return type(method).__name__
    dtype = str(method.dtype).removeprefix("torch.")
    return f"{dtype} with a scale per {method.per}, {'static' if method.static else 'dynamic'}"


def experts_parameters(
    config: QuantizationConfig | None, prefix: str, name: str, rows: int, together: Sequence[str] = ()
) -> dict[str, tuple[int, ...]]:
    """Return what a checkpoint holds of one matrix beside ``weight``: name to shape.

    Args:
        config: how its layers are quantised.
        prefix: the layer's path in its model, for messages.
        name: path of the matrix in the checkpoint.
        rows: of the matrix.
        together: paths of matrices that must be held like it.

    Raises: as ``experts_method``.
    """
    method = experts_method(config, prefix, [name, *together])
    return {"weight_scale": method.scale_shape(rows)} if isinstance(method, StoredFp8Experts) else {}
