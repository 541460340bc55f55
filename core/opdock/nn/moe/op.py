"""The experts of a step as one node of compiled code: ``torch.ops.opdock.moe_experts``."""

from __future__ import annotations

from typing import NamedTuple

import torch

from opdock.nn.moe.backend import ExpertInputs, MoEProblem, moe_backends
from opdock.nn.moe.routing import Routing
from opdock.registry.library import direct_register_custom_op


class Facts(NamedTuple):
    """What a layer's calls have in common."""

    backend: str
    problem: MoEProblem
    routing: Routing


_facts: list[Facts] = []  # a graph holds the number of a layer's facts: they are no arguments of an op


def number_of(facts: Facts) -> int:
    """Return the number that stands for the facts of a layer in the op's calls, in this process."""
    if facts not in _facts:
        _facts.append(facts)
    return _facts.index(facts)


def moe_experts(
    x: torch.Tensor,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    w13: torch.Tensor,
    w2: torch.Tensor,
    expert_map: torch.Tensor | None,
    w13_scale: torch.Tensor | None,
    w2_scale: torch.Tensor | None,
    number: int,
) -> torch.Tensor:
    """Choose the experts of each token and compute them, by the backend of the facts of that number.

    See ``MoEBackend.route`` and ``ExpertInputs`` for the other parameters.
    """
    facts = _facts[number]
    backend = moe_backends.get(facts.backend)
    weights, ids = backend.route(facts.problem, logits, facts.routing, bias)
    given = ExpertInputs(x, w13, w2, weights, ids, expert_map, w13_scale, w2_scale)
    return backend.apply(facts.problem, given)


def _fake(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


direct_register_custom_op("moe_experts", moe_experts, fake_impl=_fake, dispatch_key="CompositeExplicitAutograd")
