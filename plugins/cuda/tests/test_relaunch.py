"""Kernels launched again past Triton's launcher do what they do through it."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs Triton")
tl = pytest.importorskip("triton.language", reason="needs Triton")
relaunch = pytest.importorskip("opdock.nn.kernels.triton.relaunch", reason="needs Triton")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and there is none"),
]


@triton.jit
def add_scaled(out_ptr, x_ptr, y_ptr, count, stride, scale, twice, BLOCK: tl.constexpr, SHIFT: tl.constexpr):  # noqa: ANN001, ANN201
    """Write out = (x + y) * scale + SHIFT, doubled with ``twice``; no y counts as 0."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(x_ptr + at * stride, mask=inside, other=0.0).to(tl.float32)
    if y_ptr is not None:
        x += tl.load(y_ptr + at, mask=inside, other=0.0).to(tl.float32)
    x = x * scale + SHIFT
    if twice:
        x = x * 2.0
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def negate(out_ptr, x_ptr, count, BLOCK: tl.constexpr):  # noqa: ANN001, ANN201
    """Write out = -x."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, -tl.load(x_ptr + at, mask=at < count, other=0.0), mask=at < count)


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with nothing kept."""
    monkeypatch.setattr(relaunch, "_seen", {})


def _run(out: torch.Tensor, x: torch.Tensor, y: Any, *numbers: Any, block: int = 64, shift: Any = 0) -> torch.Tensor:
    count = out.shape[0]
    constants = {"BLOCK": block, "SHIFT": shift}
    grid = (triton.cdiv(count, block),)
    index = torch.cuda.current_device()
    relaunch.launch(add_scaled, grid, (out, x, y, count, *numbers), index, {"num_warps": 4}, constants)
    return out


def _formula(
    out: torch.Tensor, x: torch.Tensor, y: Any, stride: int, scale: float, twice: bool, shift: Any
) -> torch.Tensor:
    found = x.double()[::stride][: out.shape[0]]
    if y is not None:
        found = found + y.double()[: out.shape[0]]
    return ((found * scale + shift) * (2 if twice else 1)).to(out.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_are_those_of_the_formula_whatever_came_before(dtype: torch.dtype) -> None:
    """Sizes 1 and of 16, pointers off their border, no second tensor, strides, floats and bools, in turns, twice."""
    x = torch.randint(-4, 5, (600,), device="cuda").to(dtype)
    y = torch.randint(-4, 5, (600,), device="cuda").to(dtype)
    buffer = torch.zeros(300, dtype=dtype, device="cuda")
    kinds = ((1, 2, 16, 100, 128), (0, 1), (0, 3), (True, False), (1, 2), (0.5, 2.0), (True, False))
    calls = random.Random(5).sample(list(itertools.product(*kinds)), 14)  # each compiles for a moment
    for _ in range(2):
        for number, (count, off_out, off_x, has_y, stride, scale, twice) in enumerate(calls):
            shift = (0, 2.5)[number % 2]
            out, given, other = buffer.zero_()[off_out : off_out + count], x[off_x:], y if has_y else None
            got = _run(out, given, other, stride, scale, twice, shift=shift)
            assert torch.equal(got, _formula(out, given, other, stride, scale, twice, shift)), (count, off_out, off_x)
            assert not buffer[off_out + count :].any()
    assert relaunch._seen


def test_the_second_launch_does_not_ask_triton() -> None:
    x, out = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    _run(out, x, None, 1, 3.0, False)
    assert len(relaunch._seen) == 1
    key, (_, constants, kernel) = next(iter(relaunch._seen.items()))
    assert kernel is add_scaled
    given: list[tuple[Any, ...]] = []
    relaunch._seen[key] = (lambda *args: given.append(args), constants, kernel)
    _run(out, x, None, 1, 4.0, False)  # floats are not specialised
    assert len(given) == 1
    assert given[0][:3] == (1, 1, 1)
    assert float(out[0]) == 3.0


def test_two_kernels_and_constants_in_turns() -> None:
    x = torch.arange(100, dtype=torch.float32, device="cuda")
    for number in range(12):
        out, other = torch.empty_like(x), torch.empty_like(x)
        block, shift = (32, 64, 128)[number % 3], (0, 0.0, False, 1, True, 1.0)[number % 6]
        _run(out, x, x, 1, 1.0, False, block=block, shift=shift)
        relaunch.launch(negate, (triton.cdiv(100, block),), (other, x, 100), 0, {"num_warps": 4}, {"BLOCK": block})
        assert torch.equal(out, 2 * x + float(shift))
        assert torch.equal(other, -x)


def test_the_order_of_constants_and_the_options_do_not_mix() -> None:
    x = torch.ones(64, device="cuda")
    for constants in ({"BLOCK": 64, "SHIFT": 32}, {"SHIFT": 64, "BLOCK": 32}, {"BLOCK": 32, "SHIFT": 64}) * 2:
        for warps in (1, 4):
            out = torch.zeros(64, device="cuda")
            args = (out, x, None, 64, 1, 1.0, False)
            relaunch.launch(add_scaled, (64 // constants["BLOCK"],), args, 0, {"num_warps": warps}, constants)
            assert float(out.min()) == float(out.max()) == 1.0 + constants["SHIFT"]


def test_other_streams_and_captured_graphs() -> None:
    x, out = torch.ones(4096, device="cuda"), torch.zeros(4096, device="cuda")
    _run(out, x, None, 1, 1.0, False)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x.fill_(5.0)
        _run(out, x, None, 1, 2.0, False)  # on another stream it would read the ones
    stream.synchronize()
    assert float(out.min()) == float(out.max()) == 10.0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _run(out, x, None, 1, 3.0, False)
    out.zero_()
    for value in (2.0, 7.0):
        x.fill_(value)
        graph.replay()
        assert float(out.min()) == float(out.max()) == 3.0 * value


def test_a_tensor_of_the_host_is_refused_as_triton_does() -> None:
    x, out = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    _run(out, x, None, 1, 1.0, False)
    with pytest.raises(ValueError, match="cannot be accessed from Triton"):
        _run(out, torch.ones(64), None, 1, 1.0, False)


def test_switched_off_or_listened_to_it_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, out = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    heard: list[str] = []

    def listen(metadata: Any) -> None:
        heard.append(metadata.get()["name"])

    triton.knobs.runtime.launch_enter_hook.add(listen)
    try:
        for _ in range(2):
            _run(out, x, None, 1, 1.0, False)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(listen)
    assert heard == ["add_scaled", "add_scaled"]
    monkeypatch.setattr(relaunch, "ENABLED", False)
    for _ in range(2):
        _run(out, x, None, 1, 2.0, False)
    assert not relaunch._seen
    assert float(out[0]) == 2.0
