"""Checkpoints whose linear layers are quantised: their configuration, and the tensors that they must hold."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from opdock import context, journal
from opdock.errors import CheckpointError, OpdockError, UnsupportedError
from opdock.nn.layers.linear import LinearBase
from opdock.nn.models.checkpoint import Target
from opdock.nn.quantization.config import QuantizationConfig
from opdock.nn.quantization.method import UnquantizedLinearMethod, resolve_linear_method
from opdock.nn.quantization.parameters import Parts
from opdock.nn.quantization.registry import get_quantization_config, quantization_methods

PACKED_MODULES = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
"""The fused layers of the decoders, and their parts in checkpoints."""

LINEAR = (*PACKED_MODULES, "o_proj", "down_proj", "q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa")
"""The names of the decoders' linear layers; the last four are those of latent attention."""

_PACKED = ("weight_packed",)
_SAYS_NOTHING = ("weight_shape", "weight_zero_point", "input_zero_point")

STORED = ("F8_E4M3", "I8", "U8", "I32", "I64")
"""The kinds of tensors that only quantised checkpoints hold."""


def read_quant_config(raw: Mapping[str, Any], folder: Path, wanted: str | None = None) -> QuantizationConfig | None:
    """Return the configuration of a quantised checkpoint, None if it is not quantised.

    Args:
        raw: its config.json.
        folder: where older tools wrote a file of their own.
        wanted: the method that the caller asked for, or None.

    Raises: CheckpointError for an unknown method or a broken configuration; UnsupportedError for one that cannot be
        loaded. Both name the folder.
    """
    found = raw.get("quantization_config") or raw.get("compression_config") or _beside(folder)
    if found is None:
        return None
    let_platform_register()
    source = str(folder / "config.json")
    if not isinstance(found, dict):
        raise CheckpointError("quantization_config is no JSON object.", who=source)
    name = str(found.get("quant_method") or ("gptq" if "desc_act" in found else ""))
    try:
        for method in quantization_methods():
            taken = get_quantization_config(method).override_quantization_method(found, wanted, raw)
            if taken is not None:
                name = taken
                break
        config = get_quantization_config(name).from_config(found)
    except OpdockError as err:
        kind = UnsupportedError if isinstance(err, UnsupportedError) else CheckpointError
        what = err.what
        raise kind(what, who=[*err.who, source], why=err.why, remedy=err.remedy) from err
    return ready(config)


def ready(config: QuantizationConfig) -> QuantizationConfig:
    """Tell a configuration the fused layers of the decoders, and check that the platform can run it.

    Raises: ConfigError if the platform does not support the method; UnsupportedError if its compute capability is
        too low.
    """
    for fused, parts in PACKED_MODULES.items():
        config.packed_modules_mapping.setdefault(fused, list(parts))
    platform = context.platform()
    platform.verify_quantization(config.get_name())
    found, least = platform.get_device_capability(), config.get_min_capability()
    if found is not None and found.to_int() < least:
        raise UnsupportedError(
            f"The quantization method {config.get_name()} is not supported for the current GPU.",
            why=f"Minimum capability: {least}. Current capability: {found.to_int()}.",
            remedy="use an unquantised checkpoint, or another device.",
        )
    return config


def let_platform_register() -> None:
    """Call the platform's ``pre_register_and_update``, once for each platform, before a method is looked up.

    What it registers is taken back if it raises.
    """
    cls = type(context.platform())
    if cls in _registered:
        return
    with journal.transaction():
        cls.pre_register_and_update()
    _registered.add(cls)


_registered: weakref.WeakSet[type] = weakref.WeakSet()


def check_act_dtype(config: QuantizationConfig, dtype: torch.dtype) -> None:
    """Raise UnsupportedError unless activations may have ``dtype``."""
    known = config.get_supported_act_dtypes()
    if dtype not in known:
        names = [str(d).removeprefix("torch.") for d in known]
        raise UnsupportedError(
            f"{str(dtype).removeprefix('torch.')} is not supported for quantization method {config.get_name()}.",
            why=f"Supported dtypes: {', '.join(names)}",
            remedy=f"use dtype {names[0]}.",
        )


def _beside(folder: Path) -> dict[str, Any] | None:
    from opdock.nn.models.loader_hf import read_json

    for method in quantization_methods():
        for name in get_quantization_config(method).get_config_filenames():
            if (folder / name).is_file():
                return {"quant_method": method, **read_json(folder / name)}
    return None


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
        for parameter, shape in _parameters(config, module, *target.shape, dtype).items():
            made[f"{module}.{parameter}"] = Target(f"{fused}.{parameter}", shape, target.shard)
    return made


def _require_plain(config: QuantizationConfig, name: str) -> None:
    """Raise UnsupportedError if a checkpoint holds a matrix quantised that its layer takes only as it is."""
    method = resolve_linear_method(config, _probe(), name)
    if not isinstance(method, UnquantizedLinearMethod) and not getattr(method, "online", False):
        raise UnsupportedError(
            f"Latent attention takes {name.rpartition('.')[2]} only as it is, and it is quantised.",
            who=f"layer {name}",
            why="A step of one token multiplies by parts of it.",
            remedy="use a checkpoint whose configuration leaves it out, or the unquantised one.",
        )


def _probe() -> Any:
    """Return no layer, which nothing replaces and which counts nowhere, to ask a configuration with."""
    probe: Any = nn.Module.__new__(LinearBase)
    nn.Module.__init__(probe)
    return probe


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

    Without tensors that say nothing new, such as the shape of a packed weight; and one number is one number,
    whether it is stored with a dimension or without.
    """
    found = {}
    for name, shape in shapes.items():
        module, _, last = name.rpartition(".")
        if name in plan:
            found[name] = () if shape == (1,) and plan[name].shape == () else shape
        elif last not in _SAYS_NOTHING or not any(f"{module}.{weight}" in plan for weight in ("weight", *_PACKED)):
            found[name] = shape
    return found


def _parameters(
    config: QuantizationConfig, prefix: str, outputs: int, inputs: int, dtype: torch.dtype
) -> dict[str, tuple[int, ...]]:
    """Return the parameters, and the shapes in a checkpoint, of one matrix."""
    probe = _probe()
    with torch.device("meta"):
        method = resolve_linear_method(config, probe, prefix)
        method.create_weights(probe, inputs, [outputs], inputs, outputs, dtype, weight_loader=lambda *_: None)
    found = {}
    for name, param in probe.named_parameters():
        whole = getattr(param, "parts", Parts()).per == 0
        found[name] = tuple(param.shape[1:] if whole else param.shape)
    return found
