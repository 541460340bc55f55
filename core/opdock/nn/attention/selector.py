"""Which attention backend a layer gets: a verdict with reasons for each."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opdock import context, env
from opdock.errors import UnknownNameError, UnsupportedError
from opdock.nn.attention import registry
from opdock.nn.attention.backend import AttentionBackend, AttentionSelectorConfig
from opdock.nn.attention.impl import AttentionSpec
from opdock.nn.attention.paged_cache import KV_CACHE_DTYPES

if TYPE_CHECKING:
    import torch

    from opdock.platforms.enums import DeviceCapability
    from opdock.platforms.interface import Platform

_log = logging.getLogger("opdock")
_ORDER = ("TRITON_ATTN", "SDPA", "NATIVE")
_forced: ContextVar[str | None] = ContextVar("opdock.attention_backend", default=None)


@contextlib.contextmanager
def attention_backend(name: str | None) -> Iterator[None]:
    """Force a backend for layers that ask for none and whose paged cache is made and bound inside; None leaves it free.

    A layer that it does not fit is an error when its cache is made.

    Raises: UnknownNameError naming the nearest; UnsupportedError, with the cause, for one that cannot be loaded.
    """
    if name is not None:
        resolve_backend(name)
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


@dataclass(frozen=True)
class BackendVerdict:
    """Why a backend was chosen or not: ``reasons`` is empty for one that fits."""

    name: str
    reasons: tuple[str, ...]


def choose_backend(
    candidates: Sequence[tuple[str, type[AttentionBackend] | BaseException]],
    config: AttentionSelectorConfig,
    *,
    device_type: str,
    capability: DeviceCapability | None,
) -> tuple[type[AttentionBackend] | None, list[BackendVerdict]]:
    """Return the first backend that fits, and a verdict for each; pure.

    Args:
        candidates: names in order, with the class, or with what its import raised.
        config: what is needed.
        device_type: of the tensors.
        capability: of the device.
    """
    chosen, verdicts = None, []
    for name, found in candidates:
        if isinstance(found, BaseException):
            reasons = [_in_words(found)]
        else:
            reasons = _reasons_of(found, config, capability, device_type)
            if not reasons and chosen is None:
                chosen = found
        verdicts.append(BackendVerdict(name, tuple(reasons)))
    return chosen, verdicts


def explain_backends(
    config: AttentionSelectorConfig, *, platform: Platform | None = None, device_type: str | None = None
) -> tuple[type[AttentionBackend] | None, list[BackendVerdict]]:
    """Return the host's choice for a configuration and a verdict for each registered backend; raises nothing."""
    platform = platform or context.platform()
    loaded = [(name, _load(name)) for name in _names()]
    return choose_backend(
        loaded,
        config,
        device_type=device_type or platform.device_type or "cpu",
        capability=platform.get_device_capability(),
    )


def resolve_backend(name: str, *, who: str = "") -> type[AttentionBackend]:
    """Return a registered backend's class.

    Raises: UnknownNameError naming the nearest; UnsupportedError, with the cause, for one that cannot be loaded.
    """
    try:
        return registry.backend_class(name, who=who)
    except UnknownNameError:
        raise
    except Exception as err:
        raise _broken(name, registry.where(name), err, [who] if who else []) from err


def select(
    config: AttentionSelectorConfig,
    *,
    backend: str | None = None,
    num_heads: int | None = None,
    platform: Platform | None = None,
    device_type: str | None = None,
    layer_name: str = "",
) -> type[AttentionBackend]:
    """Return the backend for a configuration: the one asked for, the platform's, or the host's first that fits.

    Nothing is cached: a backend that is registered or taken back counts at the next call.

    Raises: UnknownNameError; UnsupportedError with every reason if the one asked for does not fit, or none does.
    """
    platform = platform or context.platform()
    device = device_type or platform.device_type or "cpu"
    capability = platform.get_device_capability()
    who = [f"layer {layer_name}"] if layer_name else []
    own = device == (platform.device_type or device)  # a layer elsewhere than on the platform's device is the host's
    path = platform.get_attn_backend_cls(backend, config, num_heads) if own else ""
    if path:
        registry.check_path(path, platform.device_name)
        try:
            cls = registry.load_class("", path)
        except Exception as err:
            raise _broken("of the platform", path, err, [*who, f"platform {platform.device_name}"]) from err
        reasons = _reasons_of(cls, config, capability)
        if backend is not None and cls.get_name() != backend:
            reasons = [f"the platform gives {cls.get_name()} instead"]
        if reasons:
            raise _invalid(backend or cls.get_name(), config, reasons, who)
        return cls
    if backend is not None:
        cls = resolve_backend(backend, who="".join(who))
        _, (verdict,) = choose_backend([(backend, cls)], config, device_type=device, capability=capability)
        if verdict.reasons:
            raise _invalid(backend, config, list(verdict.reasons), who)
        return cls
    verdicts: list[BackendVerdict] = []
    for name in _names():  # those behind the first that fits are not imported
        chosen, found = choose_backend([(name, _load(name))], config, device_type=device, capability=capability)
        if chosen is not None:
            _log.debug("Using %s attention backend for %s.", name, layer_name or config)
            return chosen
        verdicts += found
    reasons_of = ", ".join(f"{v.name}: [{', '.join(v.reasons)}]" for v in verdicts)
    raise UnsupportedError(
        f"No valid attention backend found for {platform.device_name} with {config}. Reasons: {{{reasons_of}}}.",
        who=who,
        remedy="change what the first reason of one of them names.",
    )


def get_attn_backend(
    head_size: int,
    dtype: torch.dtype,
    kv_cache_dtype: str | None = None,
    use_mla: bool = False,  # noqa: FBT001, FBT002 - the signature that plugin authors know
    has_sink: bool = False,  # noqa: FBT001, FBT002
    use_sparse: bool = False,  # noqa: FBT001, FBT002
    use_mm_prefix: bool = False,  # noqa: FBT001, FBT002
    use_per_head_quant_scales: bool = False,  # noqa: FBT001, FBT002
    attn_type: str | None = None,
    num_heads: int | None = None,
    has_sliding_window: bool = False,  # noqa: FBT001, FBT002
    *,
    block_size: int | None = None,
    backend: str | None = None,
) -> type[AttentionBackend]:
    """Return the attention backend of the platform in force for these needs; see ``select``."""
    config = AttentionSelectorConfig(
        head_size,
        dtype,
        kv_cache_dtype,
        block_size,
        use_mla=use_mla,
        has_sink=has_sink,
        use_sparse=use_sparse,
        use_mm_prefix=use_mm_prefix,
        use_per_head_quant_scales=use_per_head_quant_scales,
        attn_type=attn_type or "decoder",
        has_sliding_window=has_sliding_window,
        use_batch_invariant=env.batch_invariant(),
    )
    return select(config, backend=backend, num_heads=num_heads)


def choose_for_layer(
    spec: AttentionSpec,
    *,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    block_size: int,
    backend: str | None,
    platform: Platform,
    device_type: str,
    layer_name: str,
) -> type[AttentionBackend]:
    """Return the backend of one layer with a cache of ``kv_dtype`` in blocks of ``block_size``."""
    config = AttentionSelectorConfig(
        spec.head_size,
        dtype,
        "auto" if kv_dtype == dtype else KV_CACHE_DTYPES.get(kv_dtype, str(kv_dtype)),
        block_size,
        has_sink=spec.has_sinks,
        has_sliding_window=spec.sliding_window is not None,
        use_batch_invariant=env.batch_invariant(),
        has_alibi=spec.has_alibi,
        has_soft_cap=spec.logits_soft_cap is not None,
    )
    return select(
        config,
        backend=_forced.get() if backend is None else backend,
        num_heads=spec.num_heads,
        platform=platform,
        device_type=device_type,
        layer_name=layer_name,
    )


def _names() -> list[str]:
    """Return the registered backends in the order in which they are tried."""
    first = [name for name in _ORDER if name in registry.backends]
    return [*first, *(name for name in registry.backends if name not in _ORDER)]


def _load(name: str) -> type[AttentionBackend] | BaseException:
    try:
        return registry.backend_class(name)
    except Exception as err:  # noqa: BLE001 - a package that is broken is no reason to do without the others
        return err


def _reasons_of(
    cls: type[AttentionBackend],
    config: AttentionSelectorConfig,
    capability: DeviceCapability | None,
    device_type: str | None = None,
) -> list[str]:
    """Return the reasons that a backend gives against itself; what it raises is one."""
    try:
        absent = None if device_type is None else cls.why_not_here(device_type)
        fits = cls.validate_configuration(config, capability)
        return list(dict.fromkeys([absent, *fits] if absent else fits))
    except Exception as err:  # noqa: BLE001 - likewise
        return [f"asked whether it fits, it raised {_in_words(err)}"]


def _in_words(err: BaseException) -> str:
    return f"{type(err).__name__}: {str(err).partition(chr(10))[0]}"


def _broken(name: str, path: str, err: Exception, who: list[str]) -> UnsupportedError:
    return UnsupportedError(
        f"The attention backend {name} cannot be loaded.",
        who=[*who, path],
        why=_in_words(err),
        remedy="mend or uninstall the package that it comes from, or ask for another backend.",
    )


def _invalid(backend: str, config: AttentionSelectorConfig, reasons: list[str], who: list[str]) -> UnsupportedError:
    return UnsupportedError(
        f"Selected backend {backend} is not valid for this configuration. Reason: {reasons}",
        who=[*who, str(config)],
        remedy="ask for no backend, and the first that fits is taken; or change what the reasons name.",
    )
