"""Which providers are timed, and what is told of the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from opdock import ir
from opdock.testing.timing.clock import Call, CpuClock, Samples
from opdock.testing.timing.grid import Grid, default_grid
from opdock.testing.timing.result import Point, ProviderResult
from opdock.testing.timing.run import ROUNDS, measure, measure_copy, measure_point

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("taken_back")


class Counting:
    """A clock that runs each call once, says what it was told to say and keeps the order of the calls."""

    method = "counted"

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def samples(self, call: Call, seconds: float) -> Samples:
        self.calls.append(call)
        call()
        return Samples((1e-3,))


def silu(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def point(op: str, clock: Any = None) -> tuple[Point, dict[str, ProviderResult]]:
    found = measure_point(ir.registry[op], 3, 64, torch.float32, device=CPU, clock=clock or Counting(), seconds=0.01)
    return found, {p.provider: p for p in found.providers}


def test_a_right_provider_is_timed_in_turn_with_native() -> None:
    """Round robin: drift of the machine hits all alike."""
    ir.ops.silu_and_mul.register_impl("right")(silu)
    clock = Counting()
    found, told = point("silu_and_mul", clock)
    assert told["native"].time is not None and told["right"].time is not None and found.copy is not None
    assert told["right"].time.samples == ROUNDS
    in_a_round = len(set(map(id, clock.calls)))
    assert clock.calls == clock.calls[:in_a_round] * ROUNDS
    assert found.bytes == 4 * (3 * 128 + 3 * 64)


def test_what_declines_says_why_and_is_not_timed() -> None:
    """By its arguments, or because it cannot run here."""
    ir.ops.silu_and_mul.register_impl("wide", supports_args=lambda x: x.shape[-1] > 999 or "too narrow")(silu)
    ir.ops.silu_and_mul.register_impl("absent", supported="the library is missing")(silu)
    _, told = point("silu_and_mul")
    assert (told["wide"].status, told["wide"].reason, told["wide"].time) == ("declined", "too narrow", None)
    assert (told["absent"].status, told["absent"].reason) == ("declined", "the library is missing")


def test_a_provider_that_raises_is_reported_and_the_others_go_on() -> None:
    """In its code, in its predicate, and on a later call."""
    later = iter(range(100))

    @ir.ops.silu_and_mul.register_impl("raises")
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel image\nmore")

    @ir.ops.silu_and_mul.register_impl("tires")
    def tires(x: torch.Tensor) -> torch.Tensor:
        if next(later) > 2:
            raise ValueError("tired")
        return silu(x)

    def predicate(x: torch.Tensor) -> bool:
        raise KeyError("field")

    ir.ops.silu_and_mul.register_impl("odd", supports_args=predicate)(another_silu)
    _, told = point("silu_and_mul")
    assert (told["raises"].status, told["raises"].reason) == ("failed", "it raised RuntimeError: no kernel image")
    assert told["tires"].status == "failed" and "while it was timed: ValueError: tired" in told["tires"].reason
    assert told["odd"].status == "failed" and told["odd"].reason.startswith("supports_args raised KeyError")
    assert told["native"].status == "timed" and told["tires"].time is None


def another_silu(x: torch.Tensor) -> torch.Tensor:
    return silu(x)


def test_a_wrong_provider_is_reported_and_not_timed() -> None:
    """Wrong values, and a wrong shape."""

    @ir.ops.silu_and_mul.register_impl("values")
    def values(x: torch.Tensor) -> torch.Tensor:
        return silu(x) * 1.01

    @ir.ops.silu_and_mul.register_impl("shape")
    def shape(x: torch.Tensor) -> torch.Tensor:
        return silu(x)[:1]

    _, told = point("silu_and_mul")
    assert told["values"].status == told["shape"].status == "wrong"
    assert "Greatest absolute difference" in told["values"].reason
    assert told["shape"].reason == "shape (1, 64), native has (3, 64)"


def test_a_provider_that_writes_in_place_does_not_change_what_the_others_get() -> None:
    """Each has copies of its own; a second look finds it right again."""

    @ir.ops.fused_add_rms_norm.register_impl("in_place", inplace=True)
    def in_place(
        x: torch.Tensor,
        x_residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, residual = ir.native.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
        return x.copy_(out), x_residual.copy_(residual)

    found, told = point("fused_add_rms_norm")
    assert told["in_place"].status == "timed" and told["in_place"].inplace
    assert found.bytes == 4 * (4 * 3 * 64 + 64)


def test_an_op_without_inputs_or_with_a_refused_size_is_a_problem_in_words() -> None:
    """The run goes on."""
    without, one = ir.registry["all_reduce"], ir.registry["rms_norm"]
    grid = Grid((2,), (16,), torch.float32)
    first, second = measure([without, one], grid, device=CPU, clock=Counting())
    assert first.problem == "it has no input generator" and first.providers == ()
    assert (second.op, second.tokens, second.hidden, second.dtype) == ("rms_norm", 2, 16, "float32")


@pytest.mark.parametrize("op", sorted(ir.registry))
def test_native_can_be_timed_for_every_op_that_makes_inputs(op: str) -> None:
    """By the real clock of the CPU."""
    if not ir.registry[op].has_input_generator:
        pytest.skip(f"{op} makes no inputs")
    _, told = point(op, CpuClock())
    assert told["native"].time is not None and told["native"].time.median > 0


def test_a_copy_reads_and_writes_the_bytes_that_were_asked_for() -> None:
    """Half each."""
    moved, times = measure_copy(4096, device=CPU, clock=Counting())
    assert moved == 4096 and times.median == 1e-3


def test_the_grid_goes_over_all_sizes_and_leaves_repeats_out() -> None:
    """The CPU's own has fewer tokens than an accelerator's."""
    assert list(default_grid(CPU, torch.float32, tokens=[1, 1, 4], hidden=[8, 16])) == [
        (1, 8),
        (4, 8),
        (1, 16),
        (4, 16),
    ]
    assert max(default_grid(CPU, torch.float32).tokens) == 256
    assert max(default_grid(torch.device("meta"), torch.float32).tokens) == 4096
