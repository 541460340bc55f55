"""The quantisation configuration of a checkpoint, read, and checked against the platform."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdock import context, journal
from opdock.errors import (
    CheckpointError,
    ConfigError,
    OpdockError,
    PlatformFailedError,
    UnsupportedError,
    suggest,
)
from opdock.nn.quantization.config import QuantizationConfig
from opdock.nn.quantization.registry import get_quantization_config, quantization_methods

if TYPE_CHECKING:
    import torch

PACKED_MODULES = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
"""The fused layers of the decoders, and their parts in checkpoints."""

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
    given: object = config
    if not isinstance(given, QuantizationConfig):
        raise ConfigError(
            f"{given!r} is no quantisation method.",
            who=f"{type(given).__module__}.{type(given).__qualname__}",
            why="A method is given by its name, or as a QuantizationConfig.",
            remedy=suggest(str(given), quantization_methods()),
        )
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
