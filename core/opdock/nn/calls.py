"""Which IR ops and op classes a model calls on fake tensors, and what would serve each call."""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch.utils._python_dispatch import TorchDispatchMode

from opdock import context, ir
from opdock.errors import UnsupportedError
from opdock.explain.heatmap import CHOSEN, UNTOLD, HeatRow, row_of
from opdock.nn.report import describe
from opdock.registry import CustomOp, OpClass, choose_class, tables

if TYPE_CHECKING:
    from torch import nn


_PLAIN = ("forward", "forward_native", "native", "contiguous", "sdpa", "torch_grouped")
"""The methods, and the backends that layers choose, which are torch's own operations."""


@dataclass(frozen=True)
class Call:
    """One kind of call: an op and what serves it, and why."""

    level: Literal["ir", "layer"]
    op: str
    served_by: str
    method: str
    native: bool
    reason: str
    losers: tuple[str, ...] = ()
    distribution: str = ""


@dataclass
class Calls:
    """The calls of one step: how often each kind, the arguments of its first one, and all providers for those."""

    counts: Counter[Call] = field(default_factory=Counter)
    arguments: dict[Call, str] = field(default_factory=dict)
    rows: dict[Call, HeatRow] = field(default_factory=dict)


@contextlib.contextmanager
def recording_calls(model: nn.Module) -> Iterator[Calls]:
    """Record the calls of a model while the block runs; the block is inside a ``FakeTensorMode``.

    A CustomOp's vendor method that fails on fake tensors counts all the same: ``forward_native`` gives the shapes then.

    Raises: UnsupportedError, in the block, for a replaced layer or a predicate that fails on fake tensors.
    """
    recorder = _Recorder()
    layers = [m for m in model.modules() if isinstance(m, OpClass)]
    before = [m.__dict__.get("forward") for m in layers]
    try:
        for layer in layers:
            layer.__dict__["forward"] = recorder.around(layer, layer.forward)
        with recorder:
            yield recorder.calls
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                layer.__dict__.pop("forward", None)
            else:
                layer.__dict__["forward"] = forward


class _Recorder(TorchDispatchMode):
    """Sees every call of an IR op as the one node that it is under a dispatch mode."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = Calls()
        self._ops = _by_overload()
        self._inside: list[bool] = []  # for each layer being run, whether something in it was counted
        self._paused = False

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op = self._ops.get(func)
        if op is not None and not self._paused:
            self._saw(op, op.apply_arg_defaults(op.signature.bind(*args, **(kwargs or {})).args))
        return func(*args, **(kwargs or {}))

    def _saw(self, op: ir.IrOp, args: tuple[Any, ...]) -> None:
        row = row_of(op, args)
        chosen = next((c for c in row.cells if c.state == CHOSEN), None)
        if chosen is None:
            failed = next(c for c in row.cells if c.state == UNTOLD)
            raise UnsupportedError(
                f"It cannot be told what serves IR op {op.name!r}.",
                who=f"arguments: {row.arguments}",
                why=failed.reason,
                remedy="decide in supports_args by dtype, shape, strides and device alone.",
            )
        impl = op.impls[chosen.provider]
        losers = tuple(f"{c.provider}: {c.reason}" for c in row.cells if c is not chosen)
        if impl.is_native and not losers:
            losers = ("no other provider is registered",)
        owner = impl.owner.distribution if impl.owner else ""
        self._count(Call("ir", op.name, impl.provider, "", impl.is_native, chosen.reason, losers, owner), row)

    def _count(self, call: Call, row: HeatRow | None = None) -> None:
        self.calls.counts[call] += 1
        if row is not None:
            self.calls.arguments.setdefault(call, row.arguments)
            self.calls.rows.setdefault(call, row)
        if self._inside:
            self._inside[-1] = True

    def around(self, layer: OpClass, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``forward``, counted as a call of the layer unless something inside it is counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._paused:
                return forward(*args, **kwargs)
            self._inside.append(False)
            note = ""
            try:
                out = forward(*args, **kwargs)
            except UnsupportedError:
                raise
            except Exception as err:  # noqa: BLE001 - a vendor's method, on tensors that hold no data
                out = self._native_shapes(layer, err, args, kwargs)
                note = f"; it fails on fake tensors ({type(err).__name__}), shapes are forward_native's"
            finally:
                counted_inside = self._inside.pop()
            if note or not counted_inside:  # what failed may have done more than what was seen of it
                self._count(_layer_call(layer, note))
            elif self._inside:
                self._inside[-1] = True
            return out

        return counted

    def _native_shapes(self, layer: OpClass, err: Exception, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return what ``forward_native`` returns, in place of a method that fails on fake tensors."""
        _, cls, method = describe(layer)
        if isinstance(layer, CustomOp) and method != "forward_native":
            self._paused = True
            try:
                return layer.forward_native(*args, **kwargs)
            except Exception:  # noqa: BLE001, S110 - the error of its own method is the one to tell
                pass
            finally:
                self._paused = False
        raise UnsupportedError(
            f"{cls}.{method} fails on fake tensors, so what it calls cannot be found out without computing.",
            who=f"op class {getattr(layer, 'name', '')!r}",
            why=f"{type(err).__name__}: {str(err).partition(chr(10))[0]}",
            remedy="register a fake for each torch op that it calls: @torch.library.register_fake(...).",
        ) from err


def _by_overload() -> dict[object, ir.IrOp]:
    found: dict[object, ir.IrOp] = {}
    for op in ir.registry.values():
        found[op.torch_ops.default] = op
        if op.torch_ops.maybe_inplace is not None:
            found[op.torch_ops.maybe_inplace] = op
    return found


def _layer_call(layer: OpClass, note: str) -> Call:
    """Return the call of a layer in which nothing else is counted."""
    name, cls, method = describe(layer)
    target, owner = _replaced(type(layer))
    config, platform = context.get_current_config().compilation_config, context.platform()
    why = choose_class(target or type(layer), config, platform).reason
    changed = target is not None and _changes(type(layer), target, method)
    kernel = getattr(getattr(layer, "quant_method", None), "kernel", None)
    native = not changed and (method.lower() in _PLAIN or getattr(kernel, "backend", "") == "native")
    if native and target is None:
        why = why.replace("the in-tree class", "no package replaces it", 1)
    elif native:
        why = f"{cls} replaces it and leaves {method} as it is"
    return Call("layer", name, cls, method, native, why + note, (), "" if native else owner)


def _replaced(cls: type) -> tuple[type | None, str]:
    """Return the class that ``cls`` replaces, and the distribution that registered it."""
    for target, replacement, entry in tables.replacements():
        if replacement is cls:
            return target, entry.owner.distribution if entry.owner else ""
    return None, ""


def _changes(cls: type, target: type, method: str) -> bool:
    """Return whether a replacement changes what runs.

    A CustomOp is what its bound method is; a PluggableLayer may do the work in any method that its forward calls.
    """
    own = [c for c in cls.__mro__ if c not in target.__mro__]
    if issubclass(cls, CustomOp):
        return any(method in vars(c) for c in own)
    return any(inspect.isroutine(v) for c in own for v in vars(c).values())
