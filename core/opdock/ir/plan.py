"""Generated code: the public function of an op, and the if-chain that a priority becomes.

The public function is plain Python with the native signature, so that keywords and defaults cost nothing:

    def rms_norm(x, weight, epsilon, variance_size=None):
        if _dynamo():                  # a constant for Dynamo
            if _head.scoped.key is None: pass      # guards the compiled code on the priority in force
            return _op(x, weight, epsilon, variance_size)
        if type(x) is Tensor and not _modes() and not _overridden(x, weight) and _functorch() is None:
            return _plan(x, weight, epsilon, variance_size)
        return _slow(x, weight, epsilon, variance_size)

``_plan`` is a global of that one function: the provider itself where nothing needs a test, else a chain.
Storing it is the whole of a swap, and atomic. The four tests see every tracer and every tensor subclass.
"""

from __future__ import annotations

import linecache
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from opdock.ir.signature import defaults_of

if TYPE_CHECKING:
    import inspect

    from opdock.ir.impl import IrOpImpl

logger = logging.getLogger("opdock")

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

    def __init__(
        self,
        key: str,
        impls: Sequence[IrOpImpl] = (),
        call: Callable[..., Any] | None = None,
        inplace: Callable[..., Any] | None = None,
    ) -> None:
        """Hold the code of one priority."""
        self.key, self.impls, self.call, self.inplace = key, tuple(impls), call, inplace


def _head_of(signature: inspect.Signature) -> tuple[str, str, dict[str, Any]]:
    defaults = {f"_d_{n}": value for n, value in defaults_of(signature).items()}
    heads = [f"{n}=_d_{n}" if f"_d_{n}" in defaults else n for n in signature.parameters]
    return ", ".join(heads), ", ".join(signature.parameters), defaults


def _compile(lines: Sequence[str], name: str, label: str, env: dict[str, Any]) -> Callable[..., Any]:
    source = "\n".join(lines) + "\n"
    file = f"<opdock.{label}.{len(linecache.cache)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
    exec(compile(source, file, "exec"), env)  # noqa: S102 - built from parameter names alone
    made: Callable[..., Any] = env[name]
    return made


def public_function(
    name: str,
    signature: inspect.Signature,
    tensors: Sequence[str],
    overload: object,
    head: Plan,
    slow: Callable[..., Any],
) -> Callable[..., Any]:
    """Return the public function of an op; ``_plan`` is still to be stored in its globals."""
    heads, args, env = _head_of(signature)
    env.update(_TESTS, _head=head, _op=overload, _slow=slow)
    return _compile(
        [
            f"def {name}({heads}):",
            "    if _dynamo():",
            "        if _head.scoped.key is None: pass",
            f"        return _op({args})",
            f"    if (type({tensors[0]}) is Tensor and not _modes()",
            f"            and not _overridden({', '.join(tensors)}) and _functorch() is None):",
            f"        return _plan({args})",
            f"    return _slow({args})",
        ],
        name,
        name,
        env,
    )


def scoped_function(
    name: str, signature: inspect.Signature, kind: str, current: Callable[[], Plan]
) -> Callable[..., Any]:
    """Return what stands for ``_plan`` while any context has a scoped priority."""
    heads, args, env = _head_of(signature)
    env["_current"] = current
    return _compile([f"def scoped({heads}):", f"    return _current().{kind}({args})"], "scoped", f"{name}.scoped", env)


def chain(
    name: str,
    signature: inspect.Signature,
    impls: Sequence[IrOpImpl],
    activations: Sequence[str],
    *,
    clone: bool,
) -> Callable[..., Any]:
    """Return code that runs the first of ``impls`` whose predicate holds; the last one needs none."""
    heads, args, env = _head_of(signature)
    cloned = ", ".join(f"{n}.clone()" if n in activations else n for n in signature.parameters)
    lines = [f"def plan({heads}):"]
    for k, impl in enumerate(impls):
        given = cloned if clone and impl.inplace else args
        if len(impls) == 1 and given == args:
            return impl.impl_fn
        env[f"_i{k}"], env[f"_p{k}"] = impl.impl_fn, impl.predicate
        if k and impl.predicate is None and impl.provider == "native":
            env[f"_i{k}"] = _say_once(env, k, name, impl)
        test = f"_t = _p{k}({args})\n    if _t and type(_t) is not str: " if impl.predicate else ""
        lines.append(f"    {test}return _i{k}({given})")
    return _compile(lines, "plan", f"{name}.plan", env)


def _say_once(env: dict[str, Any], k: int, op: str, impl: IrOpImpl) -> Callable[..., Any]:
    """Return a function that says once that the op falls to native, then gives its place to the provider."""

    def first(*args: Any) -> Any:
        env[f"_i{k}"] = impl.impl_fn
        if "native" not in impl.op.said:
            impl.op.said.add("native")
            logger.info("Op %s falls to native for some arguments; `opdock explain %s` says why.", op, op)
        return impl.impl_fn(*args)

    return first
