"""What was done to a graph, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from opdock.ir import Verdict

SCHEMA = "opdock.compiled/1"


@dataclass(frozen=True)
class NodeChoice:
    """Which provider one call of an IR op became.

    Args:
        op: name of the op.
        node: name of the node in the graph: ``rms_norm``, ``rms_norm_1``, ...
        provider: what was put in its place.
        arguments: dtype, sizes and strides of its arguments.
        donates: whether it was a call of ``maybe_inplace``.
        made_by: the fusion that made the call, or "".
        user: the line of the model that it comes from, as far as the tracer kept it.
        verdicts: one for every registered provider.
    """

    op: str
    node: str
    provider: str
    arguments: str
    donates: bool
    made_by: str
    user: str
    verdicts: tuple[Verdict, ...]


@dataclass
class GraphReport:
    """What the passes did to one graph; ``to_dict`` has a stable schema.

    Args:
        choices: one for every call of an IR op, in order.
        fused: how often each fusion was applied, by name.
        declined: why a fusion was not applied where its pattern is, by name; the last reason.
        bodies: how many provider bodies were traced; calls of one kind share one.
        donated: numbers of the graph's inputs that the program gives away.
        clones_removed: clones that were removed.
        clones_left: clones that are left.
        cached: whether the code came from Inductor's cache: the choices are those before any fusion then.
    """

    choices: list[NodeChoice] = field(default_factory=list)
    fused: dict[str, int] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)
    bodies: int = 0
    donated: set[int] = field(default_factory=set)
    clones_removed: int = 0
    clones_left: int = 0
    cached: bool = False

    @property
    def selected_impls(self) -> Mapping[str, Mapping[str, str]]:
        """The provider by op name and node name."""
        found: dict[str, dict[str, str]] = {}
        for choice in self.choices:
            found.setdefault(choice.op, {})[choice.node] = choice.provider
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {"schema": SCHEMA, **asdict(self), "donated": sorted(self.donated)}
