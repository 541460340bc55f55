"""Checkpoints whose linear layers are quantised: their configuration, and the tensors that they must hold."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from opdock import context, journal
from opdock.errors import (
    CheckpointError,
    ConfigError,
    OpdockError,
    PlatformFailedError,
    UnsupportedError,
    suggest,
)
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
from opdock.nn.quantization.config import QuantizationConfig
from opdock.nn.quantization.method import UnquantizedLinearMethod, resolve_linear_method
from opdock.nn.quantization.parameters import parts_in
from opdock.nn.quantization.registry import get_quantization_config, quantization_methods

PACKED_MODULES = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
"""The fused layers of the decoders, and their parts in checkpoints."""

LINEAR = (*PACKED_MODULES, "o_proj", "down_proj", "q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa")
"""The names of the decoders' linear layers; the last four are those of latent attention."""

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
        raise CheckpointError(
            "quantization_config is no JSON object.",
            who=source,
            why=f"quantization_config: {found!r}",
            remedy="download the checkpoint again; it is broken or of another kind.",
        )
    name = str(found.get("quant_method") or ("gptq" if "desc_act" in found else ""))
    try:
        for method in quantization_methods():
            taken = get_quantization_config(method).override_quantization_method(found, wanted, raw)
            if taken is not None:
                name = taken
                break
        if not name:
            raise CheckpointError(
                "The quantisation configuration names no quant_method.",
                why=f"it has {', '.join(map(repr, found))}",
                remedy=f'it needs a line such as "quant_method": "gptq". {suggest(name, quantization_methods())}',
            )
        config = made_by(get_quantization_config(name), found)
        config.maybe_update_config(str(folder))
        return ready(config)
    except OpdockError as err:
        kind = type(err) if isinstance(err, (ConfigError, UnsupportedError)) else CheckpointError
        why = err.why or [f"quant_method: {name}"]
        raise kind(err.what, who=[*err.who, source], why=why, remedy=err.remedy) from err


def made_by(method: type[QuantizationConfig], described: dict[str, Any]) -> QuantizationConfig:
    """Return what a method's ``from_config`` makes of a description.

    Raises: CheckpointError naming the class if it raises an error that is not opdock's own, which stays its cause.
    """
    try:
        made: object = method.from_config(described)
    except OpdockError:
        raise
    except Exception as err:
        raise CheckpointError(
            f"{method.__module__}.{method.__qualname__} does not read the quantisation configuration.",
            who=str(journal.Site.of(method.from_config)),
            why=[f"{type(err).__name__}: {err}", f"quantization_config: {described}"],
            remedy="download the checkpoint again, or let from_config of the class say what it needs.",
        ) from err
    if isinstance(made, QuantizationConfig):
        return made
    raise ConfigError(
        f"{method.__module__}.{method.__qualname__}.from_config makes no QuantizationConfig.",
        who=str(journal.Site.of(method.from_config)),
        why=f"it returned {made!r}",
        remedy="return cls(...).",
    )


def ready(config: QuantizationConfig) -> QuantizationConfig:
    """Tell a configuration the fused layers of the decoders, and check that the platform can run it.

    Raises: ConfigError if the platform does not support the method; UnsupportedError if its compute capability is
        too low.
    """
    if not hasattr(config, "packed_modules_mapping"):
        raise ConfigError(
            f"{type(config).__module__}.{type(config).__qualname__} has no packed_modules_mapping.",
            who=str(journal.Site.of(type(config).__init__)),
            why="Its __init__ does not call that of QuantizationConfig.",
            remedy="super().__init__() in it.",
        )
    for fused, parts in PACKED_MODULES.items():
        config.packed_modules_mapping.setdefault(fused, list(parts))
    platform = context.platform()
    platform.verify_quantization(config.get_name())
    found, least = platform.get_device_capability(), config.get_min_capability()
    if found is not None and found.to_int() < least:
        raise UnsupportedError(
            f"The quantization method {config.get_name()} is not supported for the current GPU.",
            who=f"{type(config).__module__}.{type(config).__qualname__} on {platform.device_name}",
            why=f"Minimum capability: {least}. Current capability: {found.to_int()}.",
            remedy="use an unquantised checkpoint, or another device.",
        )
    return config


def let_platform_register() -> None:
    """Call the platform's ``pre_register_and_update``, once for each platform, before a method is looked up.

    What it registers is taken back if it raises.

    Raises: PlatformFailedError naming the platform's class, with what the hook raised as its cause.
    """
    cls = type(context.platform())
    if cls in _registered:
        return
    try:
        with journal.transaction():
            cls.pre_register_and_update()
    except OpdockError:
        raise
    except Exception as err:
        raise PlatformFailedError(
            f"pre_register_and_update of the platform {cls.device_name!r} failed.",
            who=[f"{cls.__module__}.{cls.__qualname__}", str(journal.Site.of(cls.pre_register_and_update))],
            why=f"{type(err).__name__}: {err}",
            remedy="correct the hook; what it had registered is taken back. OPDOCK_PLATFORM=cpu runs without it.",
        ) from err
    _registered.add(cls)


_registered: weakref.WeakSet[type] = weakref.WeakSet()


def check_act_dtype(config: QuantizationConfig, dtype: torch.dtype) -> None:
    """Raise UnsupportedError unless activations may have ``dtype``."""
    known = config.get_supported_act_dtypes()
    if dtype not in known:
        names = [str(d).removeprefix("torch.") for d in known]
        raise UnsupportedError(
            f"{str(dtype).removeprefix('torch.')} is not supported for quantization method {config.get_name()}.",
            who=f"{type(config).__module__}.{type(config).__qualname__}",
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
