"""The passes over a graph of AOTAutograd, in the order in which they run.

Check (``donation.check_donations``, on Dynamo's graph) → fuse → lower → remove clones → clean up → realize → Inductor.

Inductor's own passes run between the two halves of lowering: they take the graph for free of writes, and drop every
clone whose layout equals its source's. Bodies that write nothing go in before them, so that Inductor sees through
them; bodies that write go in after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from opdock.compile.body import Decompositions
from opdock.compile.cleanup import clean_up
from opdock.compile.clones import count_clones, remove_clones
from opdock.compile.donation import donated_inputs
from opdock.compile.fusion import Fusion, GraphFusion, fuse
from opdock.compile.fusions import BUILT_IN
from opdock.compile.lowering import Lowering, refuse_leftovers
from opdock.compile.realize import realize_before_writes
from opdock.compile.report import GraphReport

if TYPE_CHECKING:
    from torch import fx


class Passes:
    """The passes for one compilation.

    Args:
        fusions: in the order in which they are tried.
        decompositions: of aten ops in the bodies of providers.
    """

    def __init__(self, fusions: Sequence[Fusion | GraphFusion], decompositions: Decompositions) -> None:
        """Start with an empty report."""
        self.report = GraphReport()
        self._fusions, self._lowering = fusions, Lowering(decompositions, self.report)

    def before_inductor(self, graph: fx.Graph) -> None:
        """Fuse, and lower what writes nothing."""
        fuse(graph, self._fusions, self.report)
        self._donated = donated_inputs(graph)
        self._lowering.lower(graph, also_mutating=False)
        clean_up(graph)

    def after_inductor(self, graph: fx.Graph) -> None:
        """Lower the rest, remove clones, clean up, and have computed what opaque kernels would overwrite."""
        self._lowering.lower(graph, also_mutating=True)
        refuse_leftovers(graph)
        self.report.donated |= self._donated
        self.report.clones_removed += remove_clones(graph, self._donated)
        self.report.clones_left += count_clones(graph)
        clean_up(graph)
        realize_before_writes(graph)


def run(
    graph: fx.Graph,
    *,
    fusions: Sequence[Fusion | GraphFusion] = BUILT_IN,
    decompositions: Decompositions = {},  # noqa: B006
) -> GraphReport:
    """Run all passes on a graph, without Inductor's in between.

    Args:
        graph: of AOTAutograd or ``make_fx``, fake values in ``meta["val"]``; it is changed.
        fusions: in the order in which they are tried.
        decompositions: of aten ops in the bodies of providers; none keeps the bits of eager code.

    Returns: what was done.
    Raises: LoweringError.
    """
    passes = Passes(fusions, decompositions)
    passes.before_inductor(graph)
    passes.after_inductor(graph)
    return passes.report
