"""Generated code: the public function of an op, and the if-chain that a priority becomes.

The public function is plain Python with the native signature, so that keywords and defaults cost nothing:

    def rms_norm(x, weight, epsilon, variance_size=None):
        if _dynamo():                  # a constant for Dynamo
            for head in _heads:        # guards the compiled code on the priorities in force
                if head.scoped.key is None: pass
            return _op(x, weight, epsilon, variance_size)
        if type(x) is Tensor and not _modes() and not _overridden(x, weight) and _functorch() is None:
            return _plan(x, weight, epsilon, variance_size)
        return _slow(x, weight, epsilon, variance_size)

``_plan`` is a global of that one function: the provider itself where nothing needs a test, else a chain of
tests. Storing it is the whole of a swap, and atomic. The four tests see every tracer and tensor subclass.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opdock.ir.signature import defaults_of

if TYPE_CHECKING:
    import inspect

    from opdock.ir.impl import IrOpImpl

Code = Callable[..., Any]

_TESTS: Mapping[str, Any] = {
    "Tensor": torch.Tensor,
    "_dynamo": torch.compiler.is_dynamo_compiling,
    "_modes": torch._C._len_torch_dispatch_stack,  # make_fx, FakeTensorMode, dispatch modes
    "_overridden": torch._C._has_torch_function_variadic,  # fx.Proxy, subclasses, function modes
    "_functorch": torch._C._functorch.peek_interpreter_stack,  # vmap, grad, functionalize
}


class Plan:
    """A priority turned into code: ``call`` is functional, ``inplace`` may write the activations.

    Each op has a subclass with ``scoped = property(ContextVar.get)``: the plan scoped in this context or, when
    there is none, the object itself. Dynamo can guard on a property whose getter is a C function, so
    ``head.scoped.key`` in the traced branch follows the default and the scope alike.
    """

    scoped: Plan

    def __init__(self, key: str, impls: Sequence[IrOpImpl], call: Code | None, inplace: Code | None) -> None:
        """Hold the code of one priority; ``key`` differs where the code may."""
        self.key, self.impls, self.call, self.inplace = key, tuple(impls), call, inplace


class Layout:
    """How the parameters of one op are written in generated code."""

    def __init__(self, name: str, signature: inspect.Signature) -> None:
        """Read the native signature."""
        self.name, self.parameters = name, tuple(signature.parameters)
        self.defaults = {f"_od_{n}": value for n, value in defaults_of(signature).items()}
        self.head = ", ".join(f"{n}=_od_{n}" if f"_od_{n}" in self.defaults else n for n in self.parameters)
        self.args = ", ".join(self.parameters)

    def cloned(self, activations: Sequence[str]) -> str:
        """Return the arguments with every activation cloned; one may be None."""
        return ", ".join(f"{n} if {n} is None else {n}.clone()" if n in activations else n for n in self.parameters)


def _make(name: str, lines: Sequence[str], label: str, env: dict[str, Any]) -> Code:
    source = "\n".join(lines) + "\n"
    file = f"<opdock.ir.{label} {_serial()}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
    exec(compile(source, file, "exec"), env)  # noqa: S102 - built from names of parameters alone
    made: Code = env[name]
    return made


_count = iter(range(1 << 62))


def _serial() -> int:
    return next(_count)


def public_function(layout: Layout, tensors: Mapping[str, bool], overload: object, head: Plan, slow: Code) -> Code:
    """Return the public function of an op; ``_plan`` is still to be stored in its globals.

    Args:
        layout: of the op.
        tensors: its tensor parameters, each with whether it holds a list.
        overload: the torch op that traced code calls.
        head: what the compiled code is guarded on.
        slow: takes the call where a test fails.
    """
    args = layout.args
    first = next((n for n, is_list in tensors.items() if not is_list), None)
    looked_at = ", ".join(f"*({n} or ())" if is_list else n for n, is_list in tensors.items())
    direct = f"type({first}) is Tensor and " if first else ""
    return _make(
        layout.name,
        [
            f"def {layout.name}({layout.head}):",
            "    if _dynamo():",
            "        for _od_head in _heads:",
            "            if _od_head.scoped.key is None: pass",  # it has to be used, or no guard is installed
            f"        return _op({args})",
            f"    if {direct}not _modes() and not _overridden({looked_at}) and _functorch() is None:",
            f"        return _plan({args})",
            f"    return _slow({args})",
        ],
        layout.name,
        {**_TESTS, **layout.defaults, "_op": overload, "_heads": (head,), "_slow": slow},
    )


def scoped_function(layout: Layout, kind: str, get: Code, default: Plan) -> Code:
    """Return what stands for ``_plan`` while some context has a scoped priority: it asks which plan is meant.

    ``_default`` in its globals is the plan of the contexts that have none.
    """
    lines = [f"def scoped({layout.head}):", f"    return _get(_default).{kind}({layout.args})"]
    return _make("scoped", lines, f"{layout.name} in a scope", {**layout.defaults, "_get": get, "_default": default})


def functional(layout: Layout, fn: Code, activations: Sequence[str]) -> Code:
    """Return ``fn`` called on clones of its activations."""
    lines = [f"def functional({layout.head}):", f"    return _run({layout.cloned(activations)})"]
    return _make("functional", lines, f"{layout.name} on clones", {**layout.defaults, "_run": fn})


def chain(
    layout: Layout, impls: Sequence[IrOpImpl], *, clone: bool, on_last: Callable[[tuple[Any, ...]], object] | None
) -> Code:
    """Return code that runs the first of ``impls`` that takes the arguments; the last one takes any.

    Args:
        layout: of the op.
        impls: what a priority is filtered to.
        clone: keep functional semantics around in-place implementations.
        on_last: called once, with the first arguments that come to the last one; None: nothing is to be said.
    """
    *tested, ending = impls
    run_last = ending.keeping_fn if clone else ending.impl_fn
    if not tested and on_last is None:
        return run_last
    env: dict[str, Any] = {**layout.defaults, "_yes": is_yes, "_last": run_last}
    lines = [f"def plan({layout.head}):"]
    for k, impl in enumerate(tested):
        given = layout.cloned(impl.op.activations) if clone and impl.inplace and not impl.functional else layout.args
        env[f"_run{k}"], env[f"_test{k}"] = (clone and impl.functional) or impl.impl_fn, impl.predicate
        lines += [
            f"    _od_said = _test{k}({layout.args})",
            "    if _od_said is True or (_od_said is not False and _yes(_od_said)):",
            f"        return _run{k}({given})",
        ]
    made = _make("plan", [*lines, f"    return _last({layout.args})"], f"{layout.name} by priority", env)
    if on_last is not None:

        def first_last(*args: Any) -> Any:
            env["_last"] = run_last
            on_last(args)
            return run_last(*args)

        env["_last"] = first_last
    return made


def is_yes(said: object) -> bool:
    """Return whether a predicate said yes: a string is a no and its reason, anything else its truth."""
    return not isinstance(said, str) and bool(said)
