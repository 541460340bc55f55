"""The measuring: each op at each size, all providers in turn, so that drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from opdock.ir import IrOp, IrOpImpl
from opdock.ir.predicate import refusal
from opdock.testing.timing.bandwidth import bytes_moved, copying
from opdock.testing.timing.clock import Call, Clock, Samples
from opdock.testing.timing.compare import difference
from opdock.testing.timing.grid import Grid
from opdock.testing.timing.result import DECLINED, FAILED, TIMED, WRONG, Point, ProviderResult, Times

ROUNDS = 5
_COPY = object()


def measure(
    ops: Sequence[IrOp], grid: Grid, *, device: torch.device, clock: Clock, seconds: float = 0.2
) -> Iterator[Point]:
    """Yield one point for each op and size, as they are measured.

    A provider that declines, raises or is wrong is told and not timed; nothing that a provider raises ends the run.

    Args:
        ops: in this order.
        grid: sizes and dtype.
        device: where the inputs are made.
        clock: of the device.
        seconds: for each provider at each point, about.
    """
    for op in ops:
        if not op.has_input_generator:
            yield Point(op.name, 0, 0, _name(grid.dtype), problem="it has no input generator")
            continue
        for tokens, hidden in grid:
            yield measure_point(op, tokens, hidden, grid.dtype, device=device, clock=clock, seconds=seconds)


def measure_point(
    op: IrOp,
    tokens: int,
    hidden: int,
    dtype: torch.dtype,
    *,
    device: torch.device,
    clock: Clock,
    seconds: float = 0.2,
) -> Point:
    """Return one point; see ``measure``."""
    size = op.name, tokens, hidden, _name(dtype)
    with torch.inference_mode():
        try:
            made = op.generate_inputs(num_tokens=tokens, hidden_size=hidden, dtype=dtype, device=device)
            args = op.apply_arg_defaults(made)
            expected = op.native(*_copies(args))
        except Exception as err:  # noqa: BLE001 - a generator refuses what its op does not take
            return Point(*size, problem=f"no inputs, or native refuses them: {_said(err)}")
        moved = bytes_moved(args, expected)
        verdicts = {name: _verdict(impl, args, expected) for name, impl in op.impls.items()}
        calls: dict[object, Call] = {
            name: _call(op.impls[name], args) for name, verdict in verdicts.items() if verdict.status == TIMED
        }
        del expected
        _, calls[_COPY] = copying(moved, device)
        taken, broken = _interleaved(calls, clock, seconds)
    providers = tuple(_with_times(v, taken.get(name), broken.get(name, "")) for name, v in verdicts.items())
    return Point(*size, moved, providers, Times.of(taken[_COPY].device) if _COPY in taken else None)


def _verdict(impl: IrOpImpl, args: Sequence[Any], expected: Any) -> ProviderResult:
    """Return whether the provider is to be timed: it takes the arguments, and its results are native's."""

    def told(status: str, reason: str) -> ProviderResult:
        owner = f"{impl.owner.distribution} {impl.owner.version}" if impl.owner else ""
        return ProviderResult(impl.provider, owner, status, reason, impl.inplace)

    if not impl.supported:
        return told(DECLINED, impl.reason)
    try:
        declined = refusal(impl.predicate, args, {})
    except Exception as err:  # noqa: BLE001 - a provider's code
        return told(FAILED, f"supports_args raised {_said(err)}")
    if declined:
        return told(DECLINED, declined)
    if impl.is_native:
        return told(TIMED, "")
    try:
        wrong = difference(impl.op, impl.provider, expected, impl.impl_fn(*_copies(args)))
    except Exception as err:  # noqa: BLE001 - a provider's code
        return told(FAILED, f"it raised {_said(err)}")
    return told(WRONG, wrong) if wrong else told(TIMED, "")


def _call(impl: IrOpImpl, args: Sequence[Any]) -> Call:
    """Return a call on copies of its own: an in-place provider goes on writing into them, and one that lies may."""
    fn, given = impl.impl_fn, _copies(args)
    return lambda: fn(*given)


def _interleaved(
    calls: dict[object, Call], clock: Clock, seconds: float
) -> tuple[dict[object, Samples], dict[object, str]]:
    """Return the samples of all calls, taken in rounds, and what became of those that raised."""
    taken: dict[object, Samples] = {}
    broken: dict[object, str] = {}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            if name in broken:
                continue
            try:
                more = clock.samples(call, seconds / ROUNDS)
            except Exception as err:  # noqa: BLE001 - a provider's code, here on its thousandth call
                broken[name] = f"it raised while it was timed: {_said(err)}"
                taken.pop(name, None)
                continue
            before = taken.get(name, Samples(()))
            taken[name] = Samples(before.device + more.device, before.host + more.host)
    return taken, broken


def _with_times(verdict: ProviderResult, samples: Samples | None, broken: str) -> ProviderResult:
    keep = verdict.provider, verdict.distribution
    if broken:
        return ProviderResult(*keep, FAILED, broken, verdict.inplace)
    if samples is None:
        return verdict
    host = Times.of(samples.host) if samples.host else None
    return ProviderResult(*keep, TIMED, "", verdict.inplace, Times.of(samples.device), host)


def measure_copy(size: int, *, device: torch.device, clock: Clock, seconds: float = 0.5) -> tuple[int, Times]:
    """Return the bytes that a copy reads and writes, near ``size``, and its time."""
    with torch.inference_mode():
        moved, call = copying(size, device)
        return moved, Times.of(clock.samples(call, seconds).device)


def _copies(args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)


def _said(err: Exception) -> str:
    first = str(err).strip().partition("\n")[0]
    return f"{type(err).__name__}: {first}" if first else type(err).__name__


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
