"""Capturing launches on a device once and replaying them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from opdock import context
from opdock.errors import UnsupportedError
from opdock.nn.attention import Attention


class Capture(Protocol):
    """Runs a function once, and returns what repeats its launches over the same memory, and what it returned."""

    def __call__(self, step: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        """Capture ``step``."""
        ...


def why_no_graphs(device: torch.device) -> str:
    """Return why steps cannot be captured on a device, "" if they can."""
    platform = context.platform()
    if not platform.support_static_graph_mode():
        return "The platform has no graphs of launches: support_static_graph_mode() says no."
    if device.type == "cpu" or not hasattr(torch.get_device_module(device), "CUDAGraph"):
        return f"torch captures no launches on {device.type!r}."
    return ""


def refuse_without_graphs(device: torch.device) -> None:
    """Raise UnsupportedError, with the reason, for a device on which steps cannot be captured."""
    reason = why_no_graphs(device)
    if reason:
        raise UnsupportedError(
            f"Decode steps cannot be captured on the device {str(device)!r}.",
            who=f"platform {context.platform().device_name}",
            why=reason,
            remedy="leave graphs out (--mode eager or --mode compiled).",
        )


def refuse_uncaptured(model: torch.nn.Module) -> None:
    """Raise UnsupportedError, with the layer's name, for a model whose backends cannot be captured.

    Args:
        model: with a paged cache bound.
    """
    from opdock.nn.moe import FusedMoE, moe_backends

    for path, module in model.named_modules():
        if isinstance(module, Attention) and module.backend is not None:
            kind, served_by, reason = "attention", module.served_by, module.backend.why_no_capture()
        elif isinstance(module, FusedMoE):
            kind, served_by = "MoE", module.served_by
            reason = moe_backends.get(served_by).why_no_capture()
        else:
            continue
        if reason:
            raise UnsupportedError(
                "Decode steps of this model cannot be captured.",
                who=[f"layer {module.prefix or path}", f"{kind} backend {served_by}"],
                why=reason,
                remedy="leave graphs out (--mode eager or --mode compiled), or ask for another backend.",
            )


class GraphCapture:
    """Captures with the graphs that torch has for a device; all share one pool of memory.

    Args:
        device: that ``why_no_graphs`` says nothing against.
    """

    def __init__(self, device: torch.device) -> None:
        """Capture nothing yet."""
        self._torch: Any = torch.get_device_module(device)
        self._pool: Any = None

    def __call__(self, step: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], torch.Tensor]:
        """Run ``step`` twice on a stream beside, for what compiles or allocates at its first call; then capture it."""
        stream = self._torch.Stream()
        stream.wait_stream(self._torch.current_stream())
        with self._torch.stream(stream):
            for _ in range(2):
                step()
        self._torch.current_stream().wait_stream(stream)
        graph = self._torch.CUDAGraph()
        self._pool = self._pool or self._torch.graph_pool_handle()
        with self._torch.graph(graph, pool=self._pool, stream=stream):
            made = step()
        return graph.replay, made
