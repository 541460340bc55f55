"""One way to start a kernel: plainly on tensors, and as something that compiled code can hold."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from triton.runtime.interpreter import InterpretedFunction

from opdock.nn.kernels.triton import relaunch

_PLAIN = frozenset((Tensor, Parameter))
_NAMESPACE = "opdock_triton_interpreted"


def launch(
    kernel: Any, grid: tuple[int, ...], writes: Sequence[str], args: tuple[Any, ...], num_warps: int, **constants: Any
) -> None:
    """Run ``kernel`` on the device of its first argument, on the current stream.

    Plain tensors go to Triton's launcher, or past it where that has launched the like before. While compiled code is
    traced, the launch is recorded: as a Triton node, which Inductor inlines, or, where kernels are interpreted, as an
    opaque op.

    Args:
        kernel: what ``triton.jit`` returned.
        grid: numbers of programs, none of them 0.
        writes: names of the kernel's parameters that it writes.
        args: its parameters that are no constants, in order; the first is a tensor.
        num_warps: of each program.
        constants: its ``tl.constexpr`` parameters.
    """
    if torch.compiler.is_dynamo_compiling():  # Dynamo knows Triton's own syntax
        kernel[grid](*args, num_warps=num_warps, **constants)
        return
    first = args[0]
    if type(first) in _PLAIN and not torch._C._len_torch_dispatch_stack():
        index = first.get_device()
        if index < 0 or index == torch.cuda.current_device():
            relaunch.launch(kernel, grid, args, index, {"num_warps": num_warps}, constants)
            return
        with torch.cuda.device(index):  # Triton takes the current device, whatever the tensors'
            relaunch.launch(kernel, grid, args, index, {"num_warps": num_warps}, constants)
    elif isinstance(kernel, InterpretedFunction):
        _opaque(kernel, tuple(writes), tuple(constants))(*args, *constants.values(), grid)
    else:
        torch.library.wrap_triton(kernel)[grid](*args, num_warps=num_warps, **constants)


@functools.cache
def _opaque(kernel: Any, writes: tuple[str, ...], constants: tuple[str, ...]) -> Any:
    """Return a torch op that runs an interpreted kernel; compiled code cannot see into that."""
    parts, names = [], [n for n in kernel.arg_names if n not in constants]
    for number, name in enumerate(names):
        mark = f"(a{number}!)" if name in writes else ""
        parts.append(f"{'Tensor' if name.endswith('_ptr') else 'Scalar'}{mark}? {name}")
    parts += [f"Scalar {name}" for name in constants] + ["SymInt[] grid"]

    def run(*given: Any) -> None:
        *args, grid = given
        kernel[tuple(grid)](*args[: len(names)], **dict(zip(constants, args[len(names) :], strict=True)))

    label = "_".join((kernel.fn.__name__, *writes))
    library = torch.library.Library(_NAMESPACE, "FRAGMENT")
    library.define(f"{label}({', '.join(parts)}) -> ()")
    library.impl(label, run, "CPU")
    library._register_fake(label, lambda *_: None)
    _libraries.append(library)
    return getattr(getattr(torch.ops, _NAMESPACE), label).default


_libraries: list[torch.library.Library] = []  # an op lives as long as its library
