"""Products with quantised weights on a GPU: values against float64, captured, compiled, and in a whole layer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor

import opdock
from opdock.nn.kernels import triton
from opdock.nn.kernels.triton.linear_tuning import Tiles
from opdock.nn.layers import MergedColumnParallelLinear
from opdock.nn.quantization import finish_loading, get_quantization_config, linear_backend
from opdock.nn.quantization.kernels.int4 import words_of
from opdock.nn.quantization.rounding import quantise_int4

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("gpu"),
    pytest.mark.skipif(bool(triton.why_not()), reason=f"needs Triton: {triton.why_not()}"),
]
CALLS = "opdock.nn.kernels.triton.linear_calls"
ROWS = (0, 1, 8, 16, 33, 300)
STEP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.cuda.synchronize()


def _near(got: Tensor, exact: Tensor, *, steps: float = 2.0) -> None:
    """Compare with float64: the last rounding, and float32 sums relative to the largest result."""
    step = STEP[got.dtype]
    bound = steps * step * exact.abs() + 4 * step * exact.abs().mean() + 1e-30
    wrong = (got.double() - exact).abs() > bound
    assert not bool(wrong.any()), f"{int(wrong.sum())} of {wrong.numel()} differ"


def _int4(outputs: int, inputs: int, group: int, dtype: torch.dtype, *, zeros: bool) -> tuple[Any, ...]:
    weight = torch.randn(outputs, inputs, device="cuda")
    codes, scale, zero = quantise_int4(weight, group, zero_points=zeros)
    scale, words = scale.to(dtype), words_of(group, inputs)
    shift = None if zero is None else ((8.0 - zero.float()) * scale.float()).contiguous()
    z = 8.0 if zero is None else zero.t().double().repeat_interleave(group, 1)
    exact = (codes.double() - z) * scale.t().double().repeat_interleave(group, 1)
    return triton.pack_words(codes, words), scale, shift, words, exact


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("outputs", "inputs", "group"), [(1040, 2048, 128), (72, 640, 64), (48, 576, 576)])
@pytest.mark.parametrize("zeros", [True, False])
def test_int4_values(outputs: int, inputs: int, group: int, dtype: torch.dtype, *, zeros: bool) -> None:
    """Rows on both sides of every tile; outputs that tiles do not divide; scales for one code of a word and for all."""
    packed, scale, shift, words, exact = _int4(outputs, inputs, group, dtype, zeros=zeros)
    for rows in ROWS:
        x = torch.randn(rows, inputs, device="cuda").to(dtype)
        bias = torch.randn(outputs, device="cuda").to(dtype)
        got = triton.int4_linear(x, packed, scale, shift, bias, words)
        assert got.shape == (rows, outputs)
        if rows:
            steps = 2.0 if rows <= 64 else 8.0  # beyond, the weight is rounded too
            _near(got, x.double() @ exact.t() + bias.double(), steps=steps)


def test_int4_rows_may_lie_apart_and_one_row_has_the_bits_that_it_has_among_sixteen_where_that_is_asked_for() -> None:
    """The tiles for one row may be others."""
    packed, scale, shift, words, _ = _int4(512, 4096, 128, torch.bfloat16, zeros=False)
    wide = torch.randn(16, 8192, device="cuda").bfloat16()
    x = wide[:, :4096]
    for invariant in (False, True):
        together = triton.int4_linear(x, packed, scale, shift, None, words, invariant=invariant)
        dense = triton.int4_linear(x.contiguous(), packed, scale, shift, None, words, invariant=invariant)
        assert torch.equal(together, dense)
    for i in (0, 5, 15):
        alone = triton.int4_linear(x[i : i + 1], packed, scale, shift, None, words, invariant=True)
        assert torch.equal(together[i : i + 1], alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("zeros", [True, False])
@pytest.mark.parametrize("tiles", [Tiles(1, 8, 1024, 1, 1, 4, row=True), Tiles(1, 4, 512, 1, 1, 2, row=True)])
def test_int4_values_of_the_kernel_for_one_row(
    monkeypatch: pytest.MonkeyPatch, tiles: Tiles, dtype: torch.dtype, *, zeros: bool
) -> None:
    """Outputs that programs do not divide; inputs that steps do not divide; started early or not."""
    for outputs, inputs in ((1042, 4096), (37, 3584)):
        packed, scale, shift, words, exact = _int4(outputs, inputs, 128, dtype, zeros=zeros)
        x, bias = torch.randn(1, inputs, device="cuda").to(dtype), torch.randn(outputs, device="cuda").to(dtype)
        for early in (False, True):
            monkeypatch.setattr(f"{CALLS}.int4_tiles", lambda *_, e=early, **__: tiles._replace(dependent=e))
            _near(triton.int4_linear(x, packed, scale, shift, bias, words), x.double() @ exact.t() + bias.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("split", [1, 4])
@pytest.mark.parametrize(("step", "block_n", "warps"), [(32, 128, 4), (64, 64, 4), (64, 32, 2), (128, 128, 8)])
def test_int4_values_of_shorter_steps(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, split: int, step: int, block_n: int, warps: int
) -> None:
    """And of wide copies; the locks are zero again."""
    packed, scale, shift, words, exact = _int4(1040, 4096, 128, dtype, zeros=True)
    for rows in (3, 16, 40):
        tiles = Tiles(16 if rows <= 16 else 32, block_n, 0, split, 3, warps, step=step, wide=True)
        monkeypatch.setattr(f"{CALLS}.int4_tiles", lambda *_, t=tiles, **__: t)
        x = torch.randn(rows, 4096, device="cuda").to(dtype)
        _near(triton.int4_linear(x, packed, scale, shift, None, words), x.double() @ exact.t())
    assert not sys.modules[CALLS]._locks(x.device).any()


@pytest.mark.parametrize("rows", [1, 16])
def test_a_product_that_begins_early_waits_for_what_it_reads(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """A chain, each product of what the one ahead writes, has the bits of one that is started plainly; in a graph too.

    Between them run kernels of torch's, which know nothing of it.
    """
    packed, scale, _, words, _ = _int4(4096, 4096, 128, torch.bfloat16, zeros=False)
    weight = _eight(4096, 4096, torch.float8_e4m3fn)
    one = torch.full((1,), 1.0, device="cuda")
    few = Tiles(1, 8, 1024, 1, 1, 4, row=True) if rows == 1 else Tiles(16, 64, 0, 4, 4, 4, step=64, wide=True)

    def chain(x: Tensor, *, early: bool) -> Tensor:
        tiles = few._replace(dependent=early), Tiles(16, 64, 256, 2, 3, 4, dependent=early)
        monkeypatch.setattr(f"{CALLS}.int4_tiles", lambda *_, **__: tiles[0])
        monkeypatch.setattr(f"{CALLS}.scaled_tiles", lambda *_, **__: tiles[1])
        for i in range(12):
            x = triton.int4_linear(x, packed, scale, None, None, words)
            x = triton.int4_linear(x, packed, scale, None, None, words) * 2.0**-12
            if i % 3 == 0:
                eight = x.to(torch.float8_e4m3fn)
                x = triton.scaled_linear(eight, weight, one, one, None, torch.bfloat16) * 2.0**-6
        return x

    x = torch.randn(rows, 4096, device="cuda").bfloat16()
    found = [chain(x, early=False), chain(x, early=True)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain(x, early=True)
    for _ in range(5):
        graph.replay()
        found.append(captured.clone())
    assert bool(found[0].isfinite().all())
    assert all(torch.equal(other, found[0]) for other in found[1:])


def _eight(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    if dtype == torch.int8:
        return torch.randint(-127, 128, (rows, columns), device="cuda", dtype=torch.int8)
    return torch.randn(rows, columns, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize(("outputs", "inputs"), [(80, 208), (4096, 4096)])
@pytest.mark.parametrize("per_row", [True, False])
def test_scaled_values(outputs: int, inputs: int, dtype: torch.dtype, *, per_row: bool) -> None:
    """Scales of rows and outputs, or one in all."""
    weight, scale = _eight(outputs, inputs, dtype), torch.rand(outputs if per_row else 1, device="cuda") + 0.5
    bias = torch.randn(outputs, device="cuda").bfloat16()
    for rows in ROWS[1:]:
        x, x_scale = _eight(rows, inputs, dtype), torch.rand((rows, 1) if per_row else (1,), device="cuda") + 0.5
        exact = (x.double() @ weight.double().t()) * x_scale.double() * scale.double() + bias.double()
        _near(triton.scaled_linear(x, weight, x_scale, scale, bias, torch.bfloat16), exact, steps=3.0)


@pytest.mark.parametrize(("outputs", "inputs"), [(200, 320), (512, 4096)])
def test_block_scaled_values(outputs: int, inputs: int) -> None:
    """A last block may be smaller."""
    blocks = -(-inputs // 128)
    weight = _eight(outputs, inputs, torch.float8_e4m3fn)
    scale = torch.rand(-(-outputs // 128), blocks, device="cuda") + 0.5
    wide = scale.double().repeat_interleave(128, 0)[:outputs].repeat_interleave(128, 1)[:, :inputs]
    for rows in ROWS[1:]:
        x, x_scale = _eight(rows, inputs, torch.float8_e4m3fn), torch.rand(rows, blocks, device="cuda") + 0.5
        exact = (x.double() * x_scale.double().repeat_interleave(128, 1)[:, :inputs]) @ (weight.double() * wide).t()
        _near(triton.scaled_linear(x, weight, x_scale, scale, None, torch.bfloat16), exact)


def _layer(method: str, sizes: list[int], inputs: int, device: str, **facts: Any) -> Any:
    config = get_quantization_config(method).from_config(facts)
    with torch.device(device):
        layer = MergedColumnParallelLinear(
            inputs, sizes, bias=False, params_dtype=torch.bfloat16, quant_config=config, prefix="up", return_bias=False
        )
    return cast("Any", layer)


@pytest.mark.parametrize("method", ["fp8", "int8_w8a8"])
def test_a_layer_gives_what_it_gives_on_the_cpu(method: str) -> None:
    """From the same floats; eager, captured in a graph, and compiled."""
    inputs, parts = 512, [torch.randn(256, 512).bfloat16(), torch.randn(384, 512).bfloat16()]
    x = torch.randn(5, inputs).bfloat16()
    results = {}
    for device in ("cpu", "cuda"):
        with opdock.set_current_config(), linear_backend("native" if device == "cpu" else None):
            layer = _layer(method, [256, 384], inputs, device)
        for i, part in enumerate(parts):
            layer.weight_loader(layer.weight, part.to(device), i)
        finish_loading(layer)
        results[device] = layer(x.to(device)).cpu()
    # an input whose code falls on the other side: an eighth of x, at most 4.5, times a weight of at most 4.5
    torch.testing.assert_close(results["cuda"], results["cpu"], atol=0.125 * 4.5 * 4.5, rtol=0.02)
    apart = (results["cuda"].double() - results["cpu"].double()).norm() / results["cpu"].double().norm()
    assert apart < 0.01
    y = x.cuda()
    layer(y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(y)
    y.copy_(torch.randn(5, inputs))
    graph.replay()
    assert torch.equal(captured, layer(y))
    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True)(y)
    torch.testing.assert_close(compiled, layer(y), atol=0.5, rtol=0.02)


def test_the_kernel_of_each_type_is_chosen_and_says_why_others_are_not() -> None:
    """On this GPU."""
    from opdock.nn.quantization import LinearSpec, explain_linear_kernel

    with opdock.set_current_config():
        for kind, dtype, group in (("fp8", torch.float8_e4m3fn, 0), ("int8", torch.int8, 0), ("mp", torch.uint8, 128)):
            spec = LinearSpec(kind, 4096, 4096, torch.bfloat16, dtype, "token", "channel", group)  # type: ignore[arg-type]
            chosen, verdicts = explain_linear_kernel(spec)
            if torch.cuda.get_device_capability() >= (8, 9):
                assert chosen.backend == "triton"
            assert verdicts[-1].chosen
