"""The tensors that a checkpoint must hold whose linear layers are quantised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from opdock.errors import UnsupportedError
from opdock.nn.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from opdock.nn.models.checkpoint import Target
from opdock.nn.models.left_out import is_left_out
from opdock.nn.models.quant_config import PACKED_MODULES
from opdock.nn.quantization.config import QuantizationConfig
from opdock.nn.quantization.method import UnquantizedLinearMethod, resolve_linear_method
from opdock.nn.quantization.parameters import parts_in

LINEAR = (*PACKED_MODULES, "o_proj", "down_proj", "q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa")
"""The names of the decoders' linear layers; the last four are those of latent attention."""


def quantised_plan(
    plan: Mapping[str, Target], config: QuantizationConfig | None, dtype: torch.dtype
) -> dict[str, Target]:
    """Return the tensors that a checkpoint must hold when its linear layers are quantised.

    Each layer's method is asked which parameters it makes, so that methods of others work alike.

    Args:
        plan: for the unquantised model.
        config: how it is quantised; None returns the plan as it is.
        dtype: of the activations.
    """
    if config is None:
        return dict(plan)
    made: dict[str, Target] = {}
    for name, target in plan.items():
        fused, _, last = target.param.rpartition(".")
        module = name.rpartition(".")[0]
        if isinstance(target.shard, tuple):
            made |= _of_expert(name, target, plan, config)
            continue
        if fused.endswith(".kv_b_proj"):
            _require_plain(config, module)
        if last != "weight" or fused.rpartition(".")[2] not in LINEAR or len(target.shape) != 2:
            made[name] = target
            continue
        asked = _asked(config, module, fused)
        for parameter, shape in _parameters(config, asked, module, *target.shape, dtype).items():
            made[f"{module}.{parameter}"] = Target(f"{fused}.{parameter}", shape, target.shard)
    return made


def _asked(config: QuantizationConfig, module: str, layer: str) -> str:
    """Return the path that a configuration is asked about for a matrix: the fused layer's, where it knows that.

    It is asked the same when the layer is built, so that both have the same answer, and a layer of which only parts
    are quantised is refused before anything is allocated.
    """
    last = layer.rpartition(".")[2]
    return f"{module.rpartition('.')[0]}.{last}" if last in config.packed_modules_mapping else module


def _require_plain(config: QuantizationConfig, name: str) -> None:
    """Raise UnsupportedError if a checkpoint holds a matrix quantised that its layer takes only as it is."""
    method = resolve_linear_method(config, _probe(name), name)
    if not isinstance(method, UnquantizedLinearMethod) and not getattr(method, "online", False):
        raise UnsupportedError(
            f"Latent attention takes {name.rpartition('.')[2]} only as it is, and it is quantised.",
            who=f"layer {name}",
            why="A step of one token multiplies by parts of it.",
            remedy="use a checkpoint whose configuration leaves it out, or the unquantised one.",
        )


def _probe(prefix: str, outputs: int = 0, inputs: int = 0, dtype: torch.dtype | None = None) -> Any:
    """Return no layer, which nothing replaces and which counts nowhere, to ask a configuration with.

    Its class, and what it says of itself, are those of the layer at ``prefix``.
    """
    probe: Any = nn.Module.__new__(_CLASSES.get(prefix.rpartition(".")[2], ColumnParallelLinear))
    nn.Module.__init__(probe)
    probe.input_size, probe.output_size, probe.output_partition_sizes = inputs, outputs, [outputs]
    probe.params_dtype, probe.prefix = dtype, prefix
    probe.skip_bias_add, probe.return_bias = False, True
    return probe


_CLASSES: dict[str, type[LinearBase]] = {
    "qkv_proj": QKVParallelLinear,
    "gate_up_proj": MergedColumnParallelLinear,
    "o_proj": RowParallelLinear,
    "down_proj": RowParallelLinear,
    "q_a_proj": ReplicatedLinear,
    "kv_a_proj_with_mqa": ReplicatedLinear,
}


def _of_expert(name: str, target: Target, plan: Mapping[str, Target], config: QuantizationConfig) -> dict[str, Target]:
    """Return what a checkpoint holds of a matrix of an expert: its numbers, and scales if it is quantised."""
    from opdock.nn.moe.quantised import experts_parameters

    module, layer = name.rpartition(".")[0], target.param.rpartition(".")[0]
    expert = module.rpartition(".")[0]
    together = [f"{expert}.{m}" for m in _EXPERT if f"{expert}.{m}.weight" in plan]
    beside = experts_parameters(config, layer, module, target.shape[0], together if expert.endswith(".0") else ())
    found = {f"{module}.{n}": Target(f"{target.param}_scale", shape, target.shard) for n, shape in beside.items()}
    return {name: target, **found}


_EXPERT = ("gate_proj", "up_proj", "down_proj", "w1", "w3", "w2")
"""The names of an expert's matrices in checkpoints."""


def relevant_shapes(shapes: Mapping[str, tuple[int, ...]], plan: Mapping[str, Target]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's tensors as they are compared with the plan.

    Without tensors that say nothing new, such as the shape of a packed weight; and scales are the same numbers,
    whether they are stored with dimensions of one or without.
    """
    found = {}
    for name, shape in shapes.items():
        if name in plan:
            wanted = plan[name].shape
            same = name.endswith(_SCALES) and [n for n in shape if n != 1] == [n for n in wanted if n != 1]
            found[name] = wanted if same else shape
        elif not is_left_out(name, plan):
            found[name] = shape
    return found


_SCALES = ("scale", "scale_inv", "scales")


def _parameters(
    config: QuantizationConfig, prefix: str, matrix: str, outputs: int, inputs: int, dtype: torch.dtype
) -> dict[str, tuple[int, ...]]:
    """Return the parameters, and the shapes in a checkpoint, of one matrix, a part of the layer at ``prefix``."""
    probe = _probe(prefix, outputs, inputs, dtype)
    with torch.device("meta"):
        probe.quant_config, probe.quant_method = config, resolve_linear_method(config, probe, prefix)
        method = probe.quant_method
        if getattr(method, "prefix", None) == prefix:
            method.prefix = matrix  # messages are about the sizes of this one
        method.create_weights(probe, inputs, [outputs], inputs, outputs, dtype, weight_loader=lambda *_: None)
    found = {}
    for name, param in probe.named_parameters():
        whole = parts_in(param).per == 0
        found[name] = tuple(param.shape[1:] if whole else param.shape)
    return found
