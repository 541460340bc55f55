"""Launching a kernel again without what Triton works out at every launch.

``kernel[grid](...)`` binds the arguments, specialises on them, and looks the compiled kernel up by a text: most of
what a launch costs on the host. Here the compiled kernel is kept by a key that tells at least as much apart as Triton's
own: dtypes, the alignment of pointers and integers, integers that are 1, their widths, constants and options. What is
not looked at again is whether a global that the kernel uses has changed since it was compiled.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import Parameter
from triton.runtime.jit import JITFunction

try:
    from triton import knobs
    from triton.backends.compiler import BaseBackend
except ImportError:  # another version, whose kernels go the long way
    knobs = BaseBackend = None

ENABLED: bool = True
"""Whether any kernel is launched this way; with False all go through Triton's own launcher."""

MOST: Final = 4096
"""Compiled kernels that are kept; the keys of a program that needs more begin anew."""

_FITS = triton.__version__.startswith("3.6.") and hasattr(torch._C, "_cuda_getCurrentRawStream")
_CONSTANTS = frozenset((int, bool, float, str, type(None), tl.dtype))
_HookChain = getattr(knobs, "HookChain", None)

Again: TypeAlias = Callable[..., None]
"""Takes the three sizes of the grid, the device's index, and all arguments of the kernel in order, constants too."""

_seen: dict[tuple[Any, ...], tuple[Again, tuple[Any, ...], Any]] = {}


def allowed(kernel: Any) -> bool:
    """Return whether the kernel may be launched this way now: nobody listens to its launches."""
    if not ENABLED or not _FITS or type(kernel) is not JITFunction or kernel.pre_run_hooks:
        return False
    runtime = knobs.runtime
    return _silent(runtime.launch_enter_hook) and _silent(runtime.launch_exit_hook) and not runtime.debug


def _silent(hook: Any) -> bool:
    return hook is None or (type(hook) is _HookChain and not hook.calls)


def key_of(
    kernel: Any, device: int, args: tuple[Any, ...], options: Mapping[str, Any], constants: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """Return what decides which compiled kernel runs; None where an argument is of a kind not known here."""
    key: list[Any] = [id(kernel), device, len(args), *options.items(), *constants]  # its hash is one of its text
    for value in args:  # an entry's first part tells what kind it is, and so how many parts it has
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            key.append(value.dtype)
            key.append(not value.data_ptr() & 15)
        elif kind is int:
            if -0x8000_0000 <= value < 0x8000_0000:
                key.append(1 if value == 1 else 3 if value & 15 else 2)
            elif value < 1 << 63:
                key.append(5 if value & 15 else 4)
            else:
                key.append(7 if value & 15 else 6)
        elif value is None or kind is float or kind is bool:
            key.append(kind)
        else:
            return None
    for value in constants.values():
        kind = type(value)
        if kind not in _CONSTANTS:
            return None
        key.append(kind)  # 0, 0.0 and False are equal
        key.append(value)
    return tuple(key)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    args: tuple[Any, ...],
    device: int,
    options: Mapping[str, Any],
    constants: Mapping[str, Any],
) -> None:
    """Launch on the current stream of ``device``, which is the current device.

    Args:
        kernel: what ``triton.jit`` returned.
        grid: numbers of programs, one to three, none of them 0.
        args: the kernel's parameters that are no constants, in order.
        device: index of a GPU; below 0 the kernel is interpreted.
        options: of the compiler, as ``num_warps``.
        constants: the kernel's ``tl.constexpr`` parameters.
    """
    key = key_of(kernel, device, args, options, constants) if device >= 0 and allowed(kernel) else None
    if key is not None:
        found = _seen.get(key)
        if found is not None:
            x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
            found[0](x, y, z, device, *args, *found[1])
            return
    made = kernel[grid](*args, **options, **constants)
    if key is not None:
        again, behind = again_of(kernel, made, device), tail_of(kernel, len(args), constants)
        if again is not None and behind is not None:
            if len(_seen) >= MOST:
                _seen.clear()
            _seen[key] = again, behind, kernel  # held, so that its id stays its own


def tail_of(kernel: Any, args: int, constants: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return the constants in the order of the kernel's parameters behind the first ``args``; None for others."""
    names = kernel.arg_names[args:]
    if len(names) != len(constants) or any(name not in constants for name in names):
        return None
    return tuple(constants[name] for name in names)


def again_of(kernel: Any, made: Any, device: int) -> Again | None:
    """Return how to launch a compiled kernel again on the current stream; None where only Triton knows.

    Args:
        kernel: what ``triton.jit`` returned, and ``allowed``.
        made: what its launch returned.
        device: index of the GPU of that launch.
    """
    backend = kernel.device_caches[device][3] if made is not None else None
    if backend is None or not getattr(backend, "supports_native_tensor_specialization", False):
        return None  # it specialises on more than is known here
    for name in ("get_int_specialization", "get_tensor_specialization"):
        if getattr(type(backend), name) is not getattr(BaseBackend, name):
            return None
    stream_of = torch._C._cuda_getCurrentRawStream
    run, function, metadata = made.run, made.function, made.packed_metadata
    plain = getattr(run, "launch", None)
    if plain is not None and not run.global_scratch_size and not run.profile_scratch_size:
        cooperative, dependent = run.launch_cooperative_grid, run.launch_pdl

        def plainly(x: int, y: int, z: int, device: int, *args: Any) -> None:
            plain(
                x,
                y,
                z,
                stream_of(device),
                function,
                cooperative,
                dependent,
                None,
                None,
                metadata,
                None,
                None,
                None,
                *args,
            )

        return plainly

    def again(x: int, y: int, z: int, device: int, *args: Any) -> None:
        run(x, y, z, stream_of(device), function, metadata, None, None, None, *args)

    return again
