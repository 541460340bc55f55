"""The traced body of a provider: what a call of the op becomes in the graph."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._ops import HigherOrderOperator
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from opdock import ir
from opdock.compile import fakes
from opdock.compile.aliases import Aliases, nodes_in, storages_of
from opdock.compile.layouts import describe, storage_of
from opdock.compile.nodes import LoweringError, is_mutable, several

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack")
"""What ``meta`` says of where a node comes from."""

Decompositions = Mapping[Any, Callable[..., Any]]


class Body:
    """One provider traced for arguments of one kind; ``inline`` puts it in place of a call.

    Args:
        graph: its placeholders are the tensor and symbolic arguments, in order.
        module: holds what the graph's ``get_attr`` nodes name.
        mutates: whether a node writes anything; Inductor's passes take a graph for free of writes.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        """Take a traced module."""
        self.module, self.graph = module, module.graph
        self.inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        (self.results,) = self.graph.output_node().args
        self.mutates = any(is_mutable(n) for n in self.graph.nodes)

    def inline(self, node: fx.Node, args: Sequence[fx.Node]) -> None:
        """Put a copy of the body before ``node``, and its results in the place of ``node``'s, which is erased."""
        graph: fx.Graph = node.graph
        env: dict[fx.Node, fx.Node] = dict(zip(self.inputs, args, strict=True))
        bases: fakes.Bases = {}
        for mine, theirs in env.items():
            value, given = mine.meta.get("val"), theirs.meta.get("val")
            if isinstance(value, torch.Tensor) and isinstance(given, torch.Tensor):
                bases.setdefault(value.untyped_storage()._cdata, fakes.base_of(given))  # type: ignore[arg-type]
        for mine, promised in zip(several(self.results), several(node.meta["val"]), strict=True):
            if isinstance(mine, fx.Node):  # views of the result, further on, are in the promised value's storage
                bases.setdefault(mine.meta["val"].untyped_storage()._cdata, fakes.base_of(promised))
        kept: dict[str, Any] = {key: node.meta[key] for key in ORIGIN if key in node.meta}
        with graph.inserting_before(node):
            for each in self.graph.nodes:
                if each.op == "get_attr":
                    env[each] = self._carry(graph, each)
                elif each.op == "call_function":
                    env[each] = graph.node_copy(each, env.__getitem__)
                    env[each].meta = {**kept, "val": fakes.like(each.meta.get("val"), bases)}
        results: Any = fx.map_arg(self.results, env.__getitem__)
        if isinstance(results, fx.Node):
            node.replace_all_uses_with(results)
        else:
            for user in list(node.users):  # each one takes an item of the tuple
                user.replace_all_uses_with(results[user.args[1]])
                graph.erase_node(user)
        graph.erase_node(node)

    def _carry(self, graph: fx.Graph, attribute: fx.Node) -> fx.Node:
        """Move a constant or a subgraph into the module of the graph that the body is put into."""
        owner: Any = graph.owning_module
        value = getattr(self.module, str(attribute.target))
        name = next(n for i in range(10**6) if not hasattr(owner, n := f"_opdock_{attribute.target}_{i}"))
        if isinstance(value, torch.Tensor):
            owner.register_buffer(name, value)
        else:
            setattr(owner, name, value)
        made = graph.get_attr(name)
        made.meta = dict(attribute.meta)
        return made


def _is_branch(root: Any) -> bool:
    return isinstance(root, fx.Node) and root.op == "call_function"


def trace(
    impl: ir.IrOpImpl, arguments: Mapping[str, Any], mode: FakeTensorMode | None, decompositions: Decompositions
) -> Body:
    """Trace a provider with functional semantics.

    Args:
        impl: the provider.
        arguments: by name, fake tensors and symbols among them.
        mode: of the fake tensors.
        decompositions: of aten ops, as for ``make_fx``.

    Raises: LoweringError, naming op, provider and the line, if the provider fails on fake tensors, writes what it
        does not declare, or returns an input.
    """
    leaves, structure = pytree.tree_flatten(list(arguments.values()))
    places = [k for k, leaf in enumerate(leaves) if is_traced(leaf)]

    def body(*given: Any) -> Any:
        filled = list(leaves)
        for k, value in zip(places, given, strict=True):
            filled[k] = value
        return impl.func_impl_fn(*pytree.tree_unflatten(filled, structure))

    def traced(fn: Callable[..., Any], table: Decompositions) -> Body:
        # a tensor that the provider closes over is a constant of its body
        with torch.no_grad(), mode or nullcontext(), _allowing_real_tensors(mode):
            return Body(make_fx(fn, dict(table), tracing_mode="real")(*given))

    given = [leaves[k] for k in places]
    names = [n for n, value in arguments.items() for leaf in pytree.tree_leaves(value) if is_traced(leaf)]
    try:
        made = traced(body, {})  # as the provider is written: decompositions take no out=, and hide what writes
        _refuse_untruths(impl, names, made)
        if any(is_mutable(n) and getattr(n.target, "namespace", "") in ("aten", "prims") for n in made.graph.nodes):
            # Inductor takes few of aten's in-place and out= overloads here; as functions it fuses them all.
            made = _without_wrappers(traced(dispatch_functionalize(body), decompositions))
        elif decompositions:
            made = traced(body, decompositions)
    except LoweringError:
        raise
    except Exception as err:
        raise _failed(impl, err, arguments) from err
    return made


@contextlib.contextmanager
def _allowing_real_tensors(mode: FakeTensorMode | None) -> Iterator[None]:
    if mode is None:
        yield
        return
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = before


def is_traced(value: object) -> bool:
    """Return whether a value is an input of a body; others are constants in it."""
    return isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool)


def _without_wrappers(body: Body) -> Body:
    """Return the body with plain writes in place of the wrappers that functionalisation puts around opaque ops."""
    from torch._inductor.fx_passes.post_grad import decompose_auto_functionalized

    if any("auto_functionalized" in getattr(n.target, "__name__", "") for n in body.graph.nodes):
        decompose_auto_functionalized(body.graph)
        body.module.recompile()
        return Body(body.module)
    return body


def _refuse_untruths(impl: ir.IrOpImpl, names: Sequence[str], body: Body) -> None:
    """Refuse a body that writes into an input or returns one; an in-place provider got clones of its activations."""
    aliases = Aliases(body.graph)
    inputs = dict(zip(body.inputs, names, strict=True))
    results = nodes_in(body.results)
    for node in body.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise untrue(impl, "draws random numbers", f"{node.target}: compiled code would draw others.")
        if isinstance(node.target, HigherOrderOperator) and not is_mutable(node):
            continue  # what a branch does is not known, and is taken for harmless
        for root in aliases.of(aliases.writes.get(node, ())):
            if root in inputs:
                raise untrue(impl, f"writes {inputs[root]}, which it does not declare", f"{node.target} writes it.")
            if isinstance(root, tuple) and root[0] == "attr":
                raise untrue(impl, "writes a tensor that is no argument", f"{node.target} writes what it closes over.")
    given = {s: name for node, name in inputs.items() for s in storages_of(node)}
    direct = aliases.of(n for n in results if not any(_is_branch(r) for r in aliases.roots[n]))
    shared = [inputs[r] for r in direct if r in inputs]
    shared += [given[s] for n in results for s in storages_of(n) if s in given]
    for name in shared:
        raise untrue(impl, f"returns its input {name}, or a view of it", "Compiled code would hand out the input.")
    storages = [s for n in results if (s := storage_of(n.meta.get("val"))) is not None]
    if len(set(storages)) < len(storages):
        raise untrue(impl, "returns two results in one memory", "Whoever writes to one would change the other.")


def check_results(impl: ir.IrOpImpl, node: fx.Node, body: Body) -> None:
    """Refuse a provider whose results are laid out otherwise than the op's definition says.

    The code that follows was traced with the latter.

    Raises: LoweringError with both layouts.
    """
    made = [n.meta.get("val") if isinstance(n, fx.Node) else n for n in several(body.results)]
    promised = several(node.meta["val"])
    if len(made) != len(promised) or isinstance(body.results, fx.Node) != isinstance(node.meta["val"], torch.Tensor):
        raise untrue(
            impl,
            f"returns {len(made)} results in another way than the definition of op {impl.op.name}",
            [f"promised: {', '.join(map(describe, promised))}", f"returned: {', '.join(map(describe, made))}"],
        )
    for number, (want, got) in enumerate(zip(promised, made, strict=True)):
        if not agree(want, got):
            raise untrue(
                impl,
                f"returns another result {number} than the definition of op {impl.op.name} promises",
                [f"promised: {describe(want)}", f"returned: {describe(got)}"],
            )


def agree(want: Any, got: Any) -> bool:
    """Return whether one value may stand in the other's place: dtype, device, sizes, strides, offset."""
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        return type(want) is type(got)
    if want.dtype != got.dtype or want.device != got.device or want.dim() != got.dim():
        return False
    if not statically_known_true(want.storage_offset() == got.storage_offset()):
        return False
    sizes = zip(want.size(), got.size(), want.stride(), got.stride(), strict=True)
    empty = any(statically_known_true(n == 0) for n in want.size())
    return all(
        statically_known_true(a == b) and (empty or statically_known_true(a == 1) or statically_known_true(s == t))
        for a, b, s, t in sizes
    )


def untrue(impl: ir.IrOpImpl, what: str, why: str | Sequence[str]) -> LoweringError:
    """Return the error for a provider that does not keep a promise."""
    return LoweringError(
        f"Provider {impl.provider} of op {impl.op.name} {what}.",
        who=f"op {impl.op.name!r}, provider {impl.provider!r}  {impl.where()}",
        why=why,
        remedy="return new tensors of the sizes, strides and dtypes of the native definition; register the provider "
        "with inplace=True if it writes its activations; refuse other inputs in supports_args.",
    )


def _failed(impl: ir.IrOpImpl, err: Exception, arguments: Mapping[str, Any]) -> LoweringError:
    file = impl.site.file
    frames = [f for f in traceback.extract_tb(err.__traceback__) if f.filename == file]
    at = [f"at  {frames[-1].filename}:{frames[-1].lineno}  {frames[-1].line}"] if frames else []
    return LoweringError(
        f"Provider {impl.provider} of op {impl.op.name} cannot be traced: {type(err).__name__}.",
        who=[f"op {impl.op.name!r}, provider {impl.provider!r}  {impl.where()}", *at],
        why=[
            str(err).strip().partition("\n")[0],
            "arguments: " + ", ".join(f"{name}={describe(value)}" for name, value in arguments.items()),
        ],
        remedy="call kernels that read data or addresses through a torch op with a fake implementation "
        "(opdock.direct_register_custom_op), Triton kernels through torch.library.wrap_triton; or refuse such "
        "arguments in supports_args.",
    )
