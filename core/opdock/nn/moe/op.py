"""The experts of a step as one node of compiled code: ``torch.ops.opdock.moe_experts``."""

from __future__ import annotations

from typing import NamedTuple

import torch

from opdock.errors import OpdockError
from opdock.nn.moe.backend import ExpertInputs, MoEBackend, MoEProblem, moe_backends, registration_of
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

    Raises: ExpertsError for a backend that returns another thing than a new dense tensor like the rows.
    """
    facts = _facts[number]
    backend = moe_backends.get(facts.backend)
    weights, ids = backend.route(facts.problem, logits, facts.routing, bias)
    given = ExpertInputs(x, w13, w2, weights, ids, expert_map, w13_scale, w2_scale)
    made: object = backend.apply(facts.problem, given)
    if not isinstance(made, torch.Tensor):
        raise _not_like_rows(facts, backend, x, made)
    if made.shape != x.shape or made.dtype != x.dtype or made is x or not made.is_contiguous():
        raise _not_like_rows(facts, backend, x, made)
    return made


class ExpertsError(OpdockError, RuntimeError):
    """A backend of experts returned what is not the layer's output; the message names both."""


def _not_like_rows(facts: Facts, backend: type[MoEBackend], x: torch.Tensor, made: object) -> ExpertsError:
    """Return the error for what compiled code would read as something else than it is."""

    def describe(tensor: object) -> str:
        if not isinstance(tensor, torch.Tensor):
            return type(tensor).__name__
        dense = "" if tensor.is_contiguous() else f", strides {tensor.stride()}"
        return f"{tuple(tensor.shape)}, {tensor.dtype}{dense}"

    cls = f"{backend.__module__}.{backend.__qualname__}"
    return ExpertsError(
        f"apply() of the MoE backend {facts.backend!r} returned no new tensor like the rows.",
        who=[f"layer {facts.routing.layer}", f"{cls}  {registration_of(facts.backend).where()}"],
        why=[f"rows:     {describe(x)}", f"returned: {'the rows themselves' if made is x else describe(made)}"],
        remedy="return a new dense tensor of the shape and dtype of given.x.",
    )


def _fake(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


direct_register_custom_op("moe_experts", moe_experts, fake_impl=_fake, dispatch_key="CompositeExplicitAutograd")
