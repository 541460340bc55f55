"""The experts of a step as one node of compiled code: ``torch.ops.opdock.moe_experts``."""

from __future__ import annotations

import torch

from opdock.nn.moe.backend import MoEProblem, moe_backends
from opdock.registry.library import direct_register_custom_op

_problems: list[MoEProblem] = []  # a graph holds the number of a problem: the facts of a layer are no op's arguments


def number_of(problem: MoEProblem) -> int:
    """Return the number that stands for a problem in the op's calls, in this process."""
    if problem not in _problems:
        _problems.append(problem)
    return _problems.index(problem)


def moe_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    expert_map: torch.Tensor | None,
    w13_scale: torch.Tensor | None,
    w2_scale: torch.Tensor | None,
    backend: str,
    problem: int,
) -> torch.Tensor:
    """Run a backend; see ``MoEBackend.apply``."""
    found = moe_backends.get(backend)
    return found.apply(_problems[problem], x, w13, w2, weights, ids, expert_map, w13_scale, w2_scale)


def _fake(
    x: torch.Tensor,
    w13: torch.Tensor,  # noqa: ARG001
    w2: torch.Tensor,  # noqa: ARG001
    weights: torch.Tensor,  # noqa: ARG001
    ids: torch.Tensor,  # noqa: ARG001
    expert_map: torch.Tensor | None,  # noqa: ARG001
    w13_scale: torch.Tensor | None,  # noqa: ARG001
    w2_scale: torch.Tensor | None,  # noqa: ARG001
    backend: str,  # noqa: ARG001
    problem: int,  # noqa: ARG001
) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


direct_register_custom_op("moe_experts", moe_experts, fake_impl=_fake, dispatch_key="CompositeExplicitAutograd")
