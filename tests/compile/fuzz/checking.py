"""Put a program through the passes and say what went wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuzz.oracle import Run, compare, run_compiled, run_definitions, wrong_fakes
from fuzz.program import Program, val
from opdock.errors import OpdockError

if TYPE_CHECKING:
    from torch import fx

SALTS = (0, 1)  # two sets of inputs: one may agree by luck


@dataclass
class Outcome:
    """What became of a program.

    Args:
        wrong: what the passes broke, "" if nothing; ``skipped`` if the program cannot run at all.
        clones: in the program, before lowering added its own.
        removed: by the passes.
        left: in the lowered graph.
        nodes: of the program.
        lowered: the graph after the passes, None if they raised.
    """

    wrong: str = ""
    skipped: bool = False
    clones: int = 0
    removed: int = 0
    left: int = 0
    nodes: int = 0
    lowered: fx.GraphModule | None = None


def check(program: Program, *, reinplace: bool = False) -> Outcome:
    """Return what the passes make of a program.

    A program with ``misuse`` has only to be refused. ``reinplace`` also runs what Inductor does after the passes,
    and counts only what that alone does not break.
    """
    import torch

    from opdock.compile import passes
    from opdock.compile.donation import check_donations

    clone = torch.ops.aten.clone.default
    module = program.module()
    outcome = Outcome(
        nodes=len(module.graph.nodes), clones=len(module.graph.find_nodes(op="call_function", target=clone))
    )
    try:
        check_donations(module.graph)
    except OpdockError as err:
        outcome.wrong = "" if program.misuse else f"refused though valid: {err}"
        return outcome
    if program.misuse:
        outcome.wrong = f"not refused: {program.misuse}"
        return outcome
    try:
        wanted = [run_definitions(program.module(), program.tensors(salt)) for salt in SALTS]
    except RuntimeError:  # aten refuses to write what it reads by another name
        outcome.skipped = True
        return outcome
    try:
        with program.chosen():
            report = passes.run(module.graph, decompositions={})
            module.graph.lint()
            module.recompile()
        outcome.removed, outcome.left, outcome.lowered = report.clones_removed, report.clones_left, module
        outcome.wrong = _judge(program, module, wanted, set(report.donated))
        if not outcome.wrong and reinplace:
            outcome.wrong = _after_inductor(program, module, wanted)
    except Exception as err:  # noqa: BLE001 - whatever a pass raises is a finding
        outcome.wrong = f"raises {type(err).__name__}: {err}"
    return outcome


def _judge(program: Program, module: fx.GraphModule, wanted: list[tuple[Run, list[int]]], donated: set[int]) -> str:
    left = [n.name for n in module.graph.nodes if getattr(n.target, "namespace", None) == "opdock_ir"]
    if left:
        return f"not lowered: {left}"
    for salt, (want, free) in zip(SALTS, wanted, strict=True):
        with _constants_kept(module):
            wrong = compare(want, run_compiled(module, program.tensors(salt)), free, donated=donated)
        if wrong:
            return wrong
    if wrong_fakes(program.module(), program.tensors()):  # torch itself is not exact everywhere
        return ""
    with _constants_kept(module):
        fakes = wrong_fakes(module, program.tensors())
    return f"fake values: {fakes}" if fakes else ""


@contextlib.contextmanager
def _constants_kept(module: fx.GraphModule) -> Iterator[None]:
    """Give a module back the constants that a program writes."""
    kept = {name: t.clone() for name, t in module.named_buffers()}
    yield
    for name, t in module.named_buffers():
        t.copy_(kept[name])


def _after_inductor(program: Program, module: fx.GraphModule, wanted: list[tuple[Run, list[int]]]) -> str:
    """Return what breaks when Inductor reinplaces what the passes made, though it gets the program alone right.

    A program with ``copy_`` is left out: Inductor takes every one for the write-back at the end of a graph, which is
    the only one that AOTAutograd makes.
    """
    if any(str(n.target) == "aten.copy_.default" for n in program.graph.nodes):
        return ""
    inputs = program.tensors(SALTS[0])
    alone = _verdict(lambda: run_definitions(_reinplaced(program.module()), inputs)[0], wanted[0])
    if alone:
        return ""
    ours = _verdict(lambda: run_compiled(_reinplaced(module), program.tensors(SALTS[0])), wanted[0])
    return f"after reinplacing: {ours}" if ours else ""


def _verdict(run: Callable[[], Run], wanted: tuple[Run, list[int]]) -> str:
    try:
        return compare(wanted[0], run(), wanted[1])
    except Exception as err:  # noqa: BLE001 - the same
        return f"raises {type(err).__name__}: {err}"


def _reinplaced(module: fx.GraphModule) -> fx.GraphModule:
    from torch._inductor.fx_passes import post_grad, reinplace
    from torch._inductor.fx_utils import FakeTensorUpdater
    from torch._inductor.virtualized import V

    mode = next(val(n).fake_mode for n in module.graph.nodes if n.op == "placeholder")
    made: Any = reinplace.reinplace_inplaceable_ops
    with V.set_fake_mode(mode):
        made(FakeTensorUpdater(module), module.graph)
        post_grad.decompose_auto_functionalized(module.graph)
    module.recompile()
    return module
