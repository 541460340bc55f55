"""What a backend of experts is, and the registry of them."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from opdock.errors import RegistrationError
from opdock.journal import Registration, Registry, Site
from opdock.nn.moe.routing import Routing, route

if TYPE_CHECKING:
    import torch

B = TypeVar("B", bound="type[MoEBackend]")


@dataclass(frozen=True)
class MoEProblem:
    """What a layer asks of a backend; all that a choice depends on.

    Args:
        device_type: of the layer's tensors, as torch names it.
        platform: kind of the platform: ``cpu``, ``cuda``, ``rocm``, ...
        capability: of the device, (major, minor), or None where it has none.
        dtype: of the rows.
        weight_dtype: of the experts' matrices; not ``dtype`` means: with a scale for each of their rows.
        num_experts: of the layer, on all ranks.
        local_experts: of them here.
        top_k: experts of a token.
        hidden_size: length of a row.
        intermediate_size: length of a row between the two matrices.
        activation: of the gate.
        expert_parallel: number of ranks that share the experts.
        batch_invariant: whether the bits of a row must not depend on the other rows.
    """

    device_type: str
    platform: str
    capability: tuple[int, int] | None
    dtype: torch.dtype
    weight_dtype: torch.dtype
    num_experts: int
    local_experts: int
    top_k: int
    hidden_size: int
    intermediate_size: int
    activation: str = "silu"
    expert_parallel: int = 1
    batch_invariant: bool = False

    @property
    def quantised(self) -> bool:
        """Whether the matrices are stored in another dtype than the rows."""
        return self.weight_dtype != self.dtype


class ExpertInputs(NamedTuple):
    """What a step gives a backend; ``opdock.nn.moe.native.fused_experts`` is the definition of what becomes of it.

    Attributes:
        x: (tokens, hidden), floating.
        w13: (local experts, 2 * intermediate, hidden), gate rows first; x's dtype, or 8-bit floats with scales.
        w2: (local experts, hidden, intermediate), likewise.
        weights: (tokens, top_k), floating.
        ids: (tokens, top_k) int32 or int64, numbers on all ranks; -1: no expert.
        expert_map: (all experts,) int32: local number or -1; None: all experts are here.
        w13_scale: (local experts, 2 * intermediate) float32, of each row of w13; each row of x is then quantised too.
        w2_scale: (local experts, hidden) float32, of each row of w2; intermediate rows are then quantised too.
    """

    x: torch.Tensor
    w13: torch.Tensor
    w2: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor
    expert_map: torch.Tensor | None = None
    w13_scale: torch.Tensor | None = None
    w2_scale: torch.Tensor | None = None


class MoEBackend(ABC):
    """A way to compute the experts of a step; register a subclass with ``register_moe_backend``.

    Attributes:
        name: as ``moe_backend`` says it.
        rank: backends of higher rank are tried first; those of other packages are before ours.
        batch_invariant: whether a row's bits depend on no other row when the problem asks for that.
    """

    name: ClassVar[str]
    rank: ClassVar[int] = 100
    batch_invariant: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def why_not(cls, problem: MoEProblem) -> str:
        """Return why the backend cannot serve the problem, "" if it can; it reads no tensor and has no memory."""

    @classmethod
    def why_no_capture(cls) -> str | None:
        """Return why steps with it cannot be captured in a graph of launches, or None."""
        return None

    @classmethod
    def route(
        cls, problem: MoEProblem, logits: torch.Tensor, routing: Routing, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights and ids of each token's experts; see ``opdock.nn.moe.routing.route``."""
        return route(logits, routing, bias)

    @classmethod
    @abstractmethod
    def apply(cls, problem: MoEProblem, given: ExpertInputs) -> torch.Tensor:
        """Return a new tensor with the weighted sum of the experts of each token, like x; mutate nothing."""


moe_backends: Registry[type[MoEBackend]] = Registry("MoE backend")


def register_moe_backend(name: str) -> Callable[[B], B]:
    """Return a decorator that registers a backend under ``name``.

    Raises: RegistrationError for a class that is none, or the name ``auto``; DuplicateError naming both places.
    """

    def decorate(cls: B) -> B:
        given: object = cls
        if not (isinstance(given, type) and issubclass(given, MoEBackend)):
            raise RegistrationError(f"{cls!r} is no MoE backend.", remedy="class Name(MoEBackend): ...")
        if name == "auto" or not name.isidentifier():
            raise RegistrationError(
                f"A MoE backend cannot be called {name!r}.", remedy="use another name, of letters, digits and _."
            )
        if cls.__abstractmethods__:
            raise RegistrationError(
                f"The MoE backend {name!r} defines no {', '.join(sorted(cls.__abstractmethods__))}.",
                remedy="define what MoEBackend leaves open.",
            )
        for method, least in (("why_not", 1), ("route", 4), ("apply", 2)):
            _require_taken(name, cls, method, least)
        moe_backends.register(name, cls, site=Site.here(beyond=__name__))
        cls.name = name
        return cls

    return decorate


def _require_taken(name: str, cls: type[MoEBackend], method: str, count: int) -> None:
    """Raise RegistrationError unless a method can be called with what a layer gives it."""
    try:
        inspect.signature(getattr(cls, method)).bind(*[None] * count)
    except TypeError as err:
        raise RegistrationError(
            f"{method}() of the MoE backend {name!r} cannot be called as layers call it: {err}.",
            why=[
                f"layers: {method}{inspect.signature(getattr(MoEBackend, method))}",
                f"it:     {method}{inspect.signature(getattr(cls, method))}",
            ],
            remedy="give it the parameters of MoEBackend's.",
        ) from err


def registration_of(name: str) -> Registration:
    """Return where and by whom a backend was registered."""
    return moe_backends.record_of(name)
