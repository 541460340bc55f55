"""What the tests of compiled code share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from torch.fx.experimental.proxy_tensor import make_fx

if TYPE_CHECKING:
    from torch import fx

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler (g++), which is not here")


def traced(fn: Callable[..., Any], *args: Any, symbolic: bool = False) -> fx.GraphModule:
    """Return the graph of ``fn`` on fake tensors."""

    def call(*given: Any) -> Any:  # `fn` itself may have parameters with defaults
        return fn(*given)

    return make_fx(call, tracing_mode="symbolic" if symbolic else "fake")(*args)


def targets(graph: fx.Graph) -> list[str]:
    """Return the names of what a graph calls."""
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]
