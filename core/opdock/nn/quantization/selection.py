"""Which kernel applies a quantised linear layer: a pure choice over a list, with a verdict for each."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from opdock import context, env, journal
from opdock.errors import ConfigError, RegistrationError, UnsupportedError, suggest
from opdock.nn.invariant import declares
from opdock.nn.quantization.kernels.base import LinearKernel
from opdock.nn.quantization.registry import PACKAGE
from opdock.nn.quantization.spec import KERNEL_TYPES, LinearSpec
from opdock.platforms.enums import PlatformEnum

_HERE = __name__.rpartition(".")[0] + ".kernels"
_NATIVE: dict[str, str] = {
    kind: f"{_HERE}.native:Native{'Int4' if kind == 'mp' else 'Scaled'}Linear" for kind in KERNEL_TYPES
}
_GPU: dict[str, list[str]] = {
    "fp8": [f"{_HERE}.scaled:TritonScaledLinear", f"{_HERE}.scaled:TorchScaledLinear"],
    "fp8_block": [f"{_HERE}.scaled:TritonScaledLinear"],
    "int8": [f"{_HERE}.scaled:TritonScaledLinear", f"{_HERE}.int8:IntMatmulLinear"],
    "mp": [f"{_HERE}.int4:TritonInt4Linear"],
}
_CPU: dict[str, list[str]] = {"int8": [f"{_HERE}.int8:IntMatmulLinear"]}
_BUILT_IN = {PlatformEnum.CUDA: _GPU, PlatformEnum.ROCM: _GPU, PlatformEnum.CPU: _CPU}
_added: dict[tuple[PlatformEnum, str], list[type[LinearKernel]]] = {}

logger = logging.getLogger("opdock")
_forced: ContextVar[str | None] = ContextVar("opdock.linear_backend", default=None)


@dataclass(frozen=True)
class Verdict:
    """What became of one kernel: ``reason`` is "" for the one that was chosen."""

    kernel: str
    chosen: bool
    reason: str


@contextlib.contextmanager
def linear_backend(name: str | None) -> Iterator[None]:
    """Force the kernel of that backend, for layers that are built inside; None leaves the choice free.

    A layer that it cannot serve is an error.
    """
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


def register_linear_kernel(
    kernel_class: type[LinearKernel], platform: PlatformEnum, kernel_type: str = "mp", *, first: bool = False
) -> None:
    """Add a kernel for a platform, out-of-tree ones included; the same class again changes nothing.

    Args:
        kernel_class: what is made for each layer.
        platform: where it may be chosen.
        kernel_type: ``mp``, ``int8``, ``fp8`` or ``fp8_block``.
        first: try it before the others; otherwise after them, but before the native one.

    Raises: RegistrationError for another type, or a class that is no concrete LinearKernel.
    """
    if kernel_type not in KERNEL_TYPES:
        raise RegistrationError(
            f"Unrecognized kernel type: {kernel_type}",
            who=repr(kernel_class),
            why="A type is a list of kernels that are tried for one kind of layer.",
            remedy=suggest(str(kernel_type), KERNEL_TYPES),
        )
    given: object = kernel_class
    if not (isinstance(given, type) and issubclass(given, LinearKernel)):
        raise RegistrationError(
            f"{kernel_class!r} is no LinearKernel.",
            who=f"{kernel_type} on {platform}",
            why="A layer makes an object of it and calls the methods of LinearKernel.",
            remedy="class MyKernel(LinearKernel): ...",
        )
    on: object = platform
    if not isinstance(on, PlatformEnum):
        raise RegistrationError(
            f"{on!r} is no PlatformEnum.",
            who=f"{kernel_class.__module__}.{kernel_class.__qualname__}",
            why="Kernels are listed by what a platform's class says in _enum.",
            remedy=f"use one of {', '.join(f'PlatformEnum.{member.name}' for member in PlatformEnum)}.",
        )
    lacking = sorted(getattr(kernel_class, "__abstractmethods__", ()))
    if lacking or not getattr(kernel_class, "backend", ""):
        raise RegistrationError(
            f"{kernel_class.__qualname__} lacks {', '.join(lacking) or 'a backend name'}.",
            who=f"{kernel_class.__module__}.{kernel_class.__qualname__}",
            why="A layer calls them; a user forces the kernel by its backend's name.",
            remedy="define it; see LinearKernel.",
        )
    listed = _added.setdefault((platform, kernel_type), [])
    if kernel_class in listed:
        return
    listed.insert(0 if first else len(listed), kernel_class)
    (_first.add if first else _first.discard)(kernel_class)
    name = f"{platform.name} {kernel_type} {kernel_class.__name__}"
    journal.record("linear kernel", name, lambda: listed.remove(kernel_class), site=journal.Site.here(beyond=PACKAGE))


_first: set[type[LinearKernel]] = set()


def possible_kernels(platform: PlatformEnum, kind: str) -> list[type[LinearKernel]]:
    """Return the kernels that a platform may choose from, in the order in which they are tried."""
    added = _added.get((platform, kind), [])
    built_in = [*_BUILT_IN.get(platform, {}).get(kind, []), _NATIVE[kind]]
    loaded = [_load(path) for path in built_in]
    before = [k for k in added if k in _first]
    return [*before, *loaded[:-1], *(k for k in added if k not in _first), loaded[-1]]


def _load(path: str) -> type[LinearKernel]:
    module, _, name = path.partition(":")
    found: type[LinearKernel] = getattr(import_module(module), name)
    return found


def judge(
    spec: LinearSpec,
    kernels: Sequence[type[LinearKernel]],
    *,
    capability: int | None,
    forced: str | None = None,
    disabled: Sequence[str] = (),
    invariant: bool = False,
) -> tuple[type[LinearKernel] | None, list[Verdict]]:
    """Return the first kernel that can serve a layer, and what became of each that was tried.

    Args:
        spec: the layer.
        kernels: in order of priority.
        capability: of the device, such as 90; None where the notion does not apply.
        forced: the only backend, or class name, that may be chosen.
        disabled: class names that may not be chosen.
        invariant: whether only kernels may be chosen that declare batch invariance.
    """
    verdicts = []
    for kernel in kernels:
        if forced is not None and forced not in (kernel.backend, kernel.__name__):
            reason = f"{forced!r} was asked for"
        elif kernel.__name__ in disabled:
            reason = f"disabled by {env.VLLM_DISABLED_KERNELS}"
        elif invariant and not declares(kernel):
            reason = f"{env.VLLM_BATCH_INVARIANT}=1, and it does not declare batch_invariant"
        else:
            supported, reason = _answer(kernel, "is_supported", capability, spec)
            if supported:
                able, reason = _answer(kernel, "can_implement", spec, spec)
                if able:
                    verdicts.append(Verdict(kernel.__name__, True, ""))
                    return kernel, verdicts
        verdicts.append(Verdict(kernel.__name__, False, reason))
    return None, verdicts


def _answer(kernel: type[LinearKernel], question: str, about: object, spec: LinearSpec) -> tuple[bool, str]:
    """Return what a kernel says to a question; RegistrationError naming kernel and layer if it is no (yes, why not)."""
    answer: object = getattr(kernel, question)(about)
    if isinstance(answer, tuple) and len(answer) == 2:
        return bool(answer[0]), str(answer[1])
    raise RegistrationError(
        f"{kernel.__qualname__}.{question} does not say yes or no with a reason.",
        who=[f"{kernel.__module__}.{kernel.__qualname__}", f"asked about the layer {spec.prefix!r}"],
        why=f"it returned {answer!r}",
        remedy='return (True, ""), or (False, "why not").',
    )


@lru_cache(maxsize=32)
def _warn_of_unknown(disabled: tuple[str, ...], platform: PlatformEnum) -> None:
    """Say once which names in the environment switch nothing off."""
    known = {kernel.__name__ for kind in KERNEL_TYPES for kernel in possible_kernels(platform, kind)}
    for name in disabled:
        if name not in known:
            logger.warning(
                "%s names %s, and no linear kernel of this platform is called so. %s",
                env.VLLM_DISABLED_KERNELS,
                name,
                suggest(name, known),
            )


def choose_linear_kernel(spec: LinearSpec) -> type[LinearKernel]:
    """Return the kernel for a layer on the current platform.

    Raises: ConfigError for a forced backend that does not exist; UnsupportedError naming the layer and why each
        kernel cannot serve it.
    """
    return explain_linear_kernel(spec)[0]


def kernel_of(method: object, spec: LinearSpec) -> LinearKernel:
    """Return the kernel object of a layer's method: the one that it has for such a layer, else a new one.

    A layer whose weights are loaded again keeps its kernel: tensors in use are laid out for it, and the backend
    that was forced when the layer was built may be forced no longer.

    Raises: as ``choose_linear_kernel``.
    """
    held = getattr(method, "kernel", None)
    return held if isinstance(held, LinearKernel) and held.spec == spec else choose_linear_kernel(spec)(spec)


def explain_linear_kernel(spec: LinearSpec) -> tuple[type[LinearKernel], list[Verdict]]:
    """Return the kernel for a layer on the current platform, and the verdicts; raises as ``choose_linear_kernel``."""
    platform = context.platform()
    found = platform.get_device_capability()
    kernels = possible_kernels(platform._enum, spec.kind)
    forced = _forced.get()
    names = {name for kernel in kernels for name in (kernel.backend, kernel.__name__)}
    if forced is not None and forced not in names:
        raise ConfigError(
            f"No linear kernel of type {spec.kind!r} is called {forced!r} on {platform.device_name}.",
            who=f"layer {spec.prefix!r}",
            why=f"{spec.describe()}; linear_backend({forced!r}) is in force",
            remedy=suggest(forced, {kernel.backend for kernel in kernels}),
        )
    disabled = env.disabled_kernels()
    if disabled:
        _warn_of_unknown(disabled, platform._enum)
    capability = None if found is None else found.to_int()
    invariant = env.batch_invariant()
    chosen, verdicts = judge(
        spec, kernels, capability=capability, forced=forced, disabled=disabled, invariant=invariant
    )
    if chosen is None:
        raise UnsupportedError(
            f"Failed to find a kernel that can implement the linear layer {spec.prefix!r}.",
            who=f"{spec.describe()} on {platform.device_name}",
            why=[f"{verdict.kernel}: {verdict.reason}" for verdict in verdicts],
            remedy="leave the backend free with linear_backend(None)."
            if forced
            else f"use another checkpoint{f', or unset {env.VLLM_BATCH_INVARIANT}' if invariant else ''}.",
        )
    return chosen, verdicts
