"""``torch.compile(model, backend="opdock")``: Inductor, with the IR ops lowered to the chosen providers.

torch finds the two backends by their entry points in the group ``torch_dynamo_backends``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import fx

from opdock.compile.available import say_eager, why_not_inductor, why_switched_off
from opdock.compile.donation import check_donations, keep_copies
from opdock.compile.key import cache_key
from opdock.compile.lowering import planned
from opdock.compile.nodes import calls_in
from opdock.compile.passes import Passes
from opdock.compile.report import GraphReport
from opdock.compile.switches import fusions_in_force
from opdock.errors import OpdockError

Compiled = Callable[..., Any]
if why_switched_off():  # torch looks the backend up, and then never calls it
    say_eager(why_switched_off())

_observers: ContextVar[tuple[list[GraphReport], ...]] = ContextVar("opdock.compile.observers", default=())


def opdock(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compile a graph of Dynamo's; torch calls this.

    Where Inductor cannot compile, the graph runs as it is, op by op, and the log says so once.

    Args:
        gm: the graph; IR ops in it are calls of ``torch.ops.opdock_ir``.
        example_inputs: its inputs.
        mode: as of ``torch.compile``: ``reduce-overhead``, ``max-autotune``, ...
        options: of Inductor; and ``fusions``, a list of switches ``all``, ``none``, ``+name``, ``-name``.

    Raises: DonationError for a use after ``maybe_inplace``; LoweringError for a provider that does not keep its
        promises; ConfigError for an unknown fusion.
    """
    given = dict(options or {})
    fusions = fusions_in_force(given.pop("fusions", None))
    _check(gm)
    reason = why_not_inductor(example_inputs)
    if reason:
        say_eager(reason)
        return gm.forward
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    passes = Passes(fusions, select_decomp_table())
    key = cache_key(_graphs(gm), fusions)
    patches = {**_of_mode(mode), **given}
    for name, run in (
        ("post_grad_custom_pre_pass", passes.before_inductor),
        ("post_grad_custom_post_pass", passes.after_inductor),
    ):
        patches[name] = _pass(run, key, patches.get(name, getattr(torch._inductor.config, name)))
    try:
        compiled: Any = compile_fx(gm, list(example_inputs), config_patches=patches)
    except torch._inductor.exc.InductorError as err:
        if isinstance(err.inner_exception, OpdockError):
            raise err.inner_exception from None  # Dynamo says whose error it is, and shows this one
        raise
    if not passes.report.choices and any(calls_in(gm.graph)):
        passes.report = planned(gm.graph)  # Inductor's cache had the code
    tell(passes.report)
    return compiled  # type: ignore[no-any-return]


def opdock_eager(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **_: Any
) -> Compiled:
    """Run all passes, then the graph node by node: to see what they do, without Inductor's part.

    Args: as of ``opdock``; ``options`` has ``fusions`` alone.
    """
    from torch._dynamo.backends.common import aot_autograd

    fusions = fusions_in_force(dict(options or {}).get("fusions"))
    _check(gm)
    passes = Passes(fusions, {})

    def compile_graph(traced: fx.GraphModule, _: Sequence[Any]) -> Compiled:
        passes.before_inductor(traced.graph)
        passes.after_inductor(traced.graph)
        traced.recompile()
        tell(passes.report)
        return traced.forward

    made: Compiled = aot_autograd(fw_compiler=compile_graph, keep_inference_input_mutations=True)(gm, example_inputs)
    return made


def _check(gm: fx.GraphModule) -> None:
    for graph in _graphs(gm):
        if graph is not gm.graph:
            # Whoever calls this part of the program may use its inputs again: nothing is given away here.
            for call in list(calls_in(graph)):
                call.node.target = call.op.torch_ops.default
        check_donations(graph)
        keep_copies(graph)


def _graphs(gm: fx.GraphModule) -> list[fx.Graph]:
    return [m.graph for m in gm.modules() if isinstance(m, fx.GraphModule)]


def _of_mode(mode: str | None) -> dict[str, Any]:
    from torch._inductor import list_mode_options

    return list_mode_options(mode) if mode else {}


def _pass(run: Callable[[fx.Graph], None], key: str, theirs: Any) -> Any:
    """Return a pass for Inductor that runs the user's own pass, if there is one, and then ours."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    before = theirs if isinstance(theirs, tuple | list) else [theirs] if theirs is not None else []

    class Pass(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            for each in before:
                each(graph)
            run(graph)

        def uuid(self) -> Any:
            others = [each.uuid() if isinstance(each, CustomGraphPass) else None for each in before]
            return None if None in others else (key, *others)

    return Pass()


# -- telling


@contextlib.contextmanager
def observing() -> Iterator[list[GraphReport]]:
    """Collect the reports of the graphs that are compiled in this context while the block runs.

    A graph that Inductor's cache has is not compiled again: its report tells what was chosen, as it stands in the
    cache's key, but not what was fused or removed.
    """
    reports: list[GraphReport] = []
    token = _observers.set((*_observers.get(), reports))
    try:
        yield reports
    finally:
        _observers.reset(token)


def tell(report: GraphReport) -> None:
    """Give a report to who observes in this context, and to the packages that have the hook."""
    for reports in _observers.get():
        reports.append(report)
    from opdock.platforms import current, hooks

    manager = current.hook_manager()
    if manager is not None:
        hooks.ask_all(manager, "graph_lowered", report=report)
