"""Faults of kernels that people reported, by the ids of the project's list of them; test_grid.py has the sizes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cuda_spans as spans
import pytest
import torch
from cuda_canaries import MARGIN, Canaries
from cuda_placing import same_bits
from cuda_spans import Span
from cuda_table import ROW_OPS, STATIC_SCALE, RowOp, Values, faults
from torch import Tensor

from opdock import ir
from opdock_cuda import ops
from opdock_cuda.priorities import PROVIDED

DEVICE = "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PROVIDERS = ("cuda", "triton")
on_gpu = pytest.mark.gpu
ready = pytest.mark.usefixtures("kernels", "registered")


def provider(op: str, name: str) -> Any:
    impl = ir.registry[op].impls[name]
    if not impl.supported:
        pytest.skip(f"{name} is not supported here: {impl.reason}")
    return impl


def several(results: Any) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


# -- B47, namespaces


def test_b47_the_library_has_fragments_of_one_namespace_of_its_own() -> None:
    sources = sorted((Path(__file__).parents[1] / "csrc").glob("*.cu"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    assert re.findall(r"^(?:STABLE_)?TORCH_LIBRARY\((\w+),", text, re.MULTILINE) == []
    parts = re.findall(r"^(?:STABLE_)?TORCH_LIBRARY_(?:FRAGMENT|IMPL)\((\w+),", text, re.MULTILINE)
    assert parts and set(parts) == {"opdock_cuda"}


@on_gpu
@pytest.mark.usefixtures("kernels")
def test_b47_a_namespace_that_somebody_has_defined_keeps_no_kernel_away() -> None:
    code = (
        "import torch\nlib = torch.library.Library('opdock_cuda', 'DEF')\n"
        "from opdock_cuda import library\nassert library.why_not() == ''\n"
        "print(torch.ops.opdock_cuda.silu_and_mul(torch.zeros(2, 8, device='cuda')).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    assert done.stdout == f"{[[0.0] * 4] * 2}\n"
    assert not done.stderr


# -- B50, B54, B55: layout


@on_gpu
@ready
@pytest.mark.parametrize("name", PROVIDERS)
def test_b50_heads_of_a_fused_projection_are_normalised_and_turned_where_they_lie(name: str) -> None:
    torch.manual_seed(0)
    qkv = torch.randn(7, (8 + 2 + 2) * 64, device=DEVICE).bfloat16()
    before = qkv.clone()
    query, key, _ = qkv.split((512, 128, 128), dim=-1)
    weight = torch.randn(64, device=DEVICE).bfloat16()
    for part in (query, key):
        heads = part.unflatten(-1, (-1, 64))
        got = provider("rms_norm", name).impl_fn(heads, weight, spans.EPSILON)
        assert not (said := spans.wrong(got, spans.norm(heads.float(), heads.dtype, weight))), said
    positions, table = torch.arange(7, device=DEVICE), torch.randn(16, 64, device=DEVICE)
    cos, sin = table[positions].chunk(2, -1)
    provider("rotary_embedding", name).impl_fn(positions, query, key, 64, table, True)
    for first, last in ((0, 512), (512, 640)):
        was, now = (t[:, first:last].unflatten(-1, (-1, 64)) for t in (before, qkv))
        assert not (said := spans.wrong(now, spans.rotated(was, cos, sin, neox=True))), said
    assert same_bits(qkv[:, 640:], before[:, 640:])


@on_gpu
@ready
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROVIDERS)
def test_b54_each_argument_may_lie_at_an_odd_offset_on_its_own(name: str, dtype: torch.dtype) -> None:
    op = next(op for op in ROW_OPS if op.op == "fused_add_rms_norm")
    values = Values.random(op, 5, 256, dtype, DEVICE)
    assert values.residual is not None and values.weight is not None
    for offsets in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (3, 1, 0), (1, 3, 3)):
        shapes = (((5, 256), (256, 1)), ((5, 256), (256, 1)), ((256,), (1,)))
        held = [Canaries(dtype, (*s, MARGIN + o), DEVICE) for s, o in zip(shapes, offsets, strict=True)]
        given = [c.put(v) for c, v in zip(held, (values.x, values.residual, values.weight), strict=True)]
        got = several(provider(op.op, name).impl_fn(*given, spans.EPSILON))
        assert not (said := list(faults(values, 5, got, weighted=True, bound=None, provider=name))), (offsets, said)
        assert held[2].holds(values.weight) and all(c.end() for c in held), offsets


@on_gpu
@ready
@pytest.mark.parametrize("op", ROW_OPS, ids=lambda o: f"{o.op}-{o.kind}")
def test_b55_widths_that_no_vector_divides(op: RowOp) -> None:
    scale = torch.full((1,), STATIC_SCALE, device=DEVICE) if op.out == "static" else None
    for dtype in DTYPES:
        for hidden in (2, 257, 1234):
            values = Values.random(op, 9, hidden, dtype, DEVICE)
            residual = None if values.residual is None else values.residual.clone()
            got = several(
                provider(op.op, "cuda").impl_fn(*op.arguments(values.x.clone(), residual, values.weight, scale))
            )
            said = list(faults(values, 9, got, weighted=op.norm, bound=None, provider="cuda"))
            assert not said, (dtype, hidden, said)


# -- B56: another device than the current one


@on_gpu
@ready
@pytest.mark.parametrize("own_stream", [False, True])
@pytest.mark.parametrize("op", PROVIDED)
@pytest.mark.parametrize("name", PROVIDERS)
def test_b56_tensors_of_another_device_than_the_current_one(name: str, op: str, own_stream: bool) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    entry, impl = ir.registry[op], provider(op, name)
    torch.manual_seed(0)
    made = entry.apply_arg_defaults(entry.generate_inputs(num_tokens=33, hidden_size=256, device="cuda:0"))

    def on(device: str) -> list[Any]:
        return [a.to(device, copy=True) if isinstance(a, Tensor) else a for a in made]

    want = several(impl.impl_fn(*on("cuda:0")))
    given, side = on("cuda:1"), torch.cuda.Stream("cuda:1")
    side.wait_stream(torch.cuda.default_stream(torch.device("cuda:1")))
    before = torch.cuda.current_stream(1)
    if own_stream:
        torch.cuda.set_stream(side)  # makes its device the current one, too
    torch.cuda.set_device(0)
    try:
        got = several(impl.impl_fn(*given))
        assert torch.cuda.current_device() == 0
        torch.cuda.synchronize(1)
    finally:
        torch.cuda.set_stream(before)
        torch.cuda.set_device(0)
    assert all(t.device == torch.device("cuda:1") for t in got)
    assert all(same_bits(a.cpu(), b.cpu()) for a, b in zip(got, want, strict=True))


# -- B57: nothing to do


@on_gpu
@ready
@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("shape", [(0, 4096), (3, 0, 2520)])
@pytest.mark.parametrize("op", ROW_OPS, ids=lambda o: f"{o.op}-{o.kind}")
def test_b57_no_rows_are_no_launch_and_no_error_in_the_next_call(op: RowOp, shape: tuple[int, ...], name: str) -> None:
    x = torch.empty(shape, dtype=torch.bfloat16, device=DEVICE)
    weight = torch.ones(shape[-1], dtype=x.dtype, device=DEVICE)
    one = torch.ones(1, device=DEVICE)
    given = op.arguments(x, x.clone(), weight, None if op.out == "token" else one)
    got, native = (several(i.impl_fn(*given)) for i in (provider(op.op, name), ir.registry[op.op].impls["native"]))
    for mine, theirs in zip(got, native, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    torch.cuda.synchronize()
    assert torch.equal(ops.silu_and_mul(torch.zeros(2, 64, device=DEVICE)), torch.zeros(2, 32, device=DEVICE))


# -- B60, B61, B62: numbers


@on_gpu
@ready
@pytest.mark.parametrize("hidden", [64, 769, 4096])
@pytest.mark.parametrize("value", [300.0, 60000.0, 1e-4, -6e-8])
@pytest.mark.parametrize("name", PROVIDERS)
def test_b60_float16_is_squared_and_summed_in_float32(name: str, value: float, hidden: int) -> None:
    x = torch.full((3, hidden), value, dtype=torch.float16, device=DEVICE)
    y = provider("rms_norm", name).impl_fn(x, None, spans.EPSILON)
    assert not (said := spans.wrong(y, spans.norm(x.float(), x.dtype, None))), said
    total = x.float() + x.float()
    y, residual = provider("fused_add_rms_norm", name).impl_fn(x.clone(), x.clone(), None, spans.EPSILON)
    assert not (said := spans.wrong(y, spans.norm(total, x.dtype, None))), said
    assert torch.equal(residual, total.half())


@on_gpu
@ready
def test_b61_a_float32_weight_beside_16_bits_is_multiplied_in_float32() -> None:
    torch.manual_seed(0)
    x = torch.randn(33, 4096, device=DEVICE).bfloat16()
    weight = 1 + 0.01 * torch.randn(4096, device=DEVICE)
    entry = ir.registry["rms_norm"]
    with entry.set_priority(("cuda", "triton", "native")):
        assert entry.dispatch(x, weight, spans.EPSILON).provider != "cuda"
        got = entry(x, weight, spans.EPSILON)
    exact = spans.norm(x.float(), torch.float32, weight)
    assert not (said := spans.wrong(got, Span(exact.low.to(x.dtype), exact.high.to(x.dtype)))), said


@on_gpu
@ready
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROVIDERS)
@pytest.mark.parametrize("op", PROVIDED)
def test_b62_rows_have_the_same_bits_in_one_launch_and_in_chunks_of_255(op: str, name: str, dtype: torch.dtype) -> None:
    impl, entry, rows = provider(op, name), ir.registry[op], 4100
    for hidden in (64, 769, 4096) if name == "cuda" else (769, 4096):
        torch.manual_seed(hidden)
        made = entry.generate_inputs(num_tokens=rows, hidden_size=hidden, dtype=dtype, device=torch.device(DEVICE))
        args = entry.apply_arg_defaults(made)

        def run(first: int, last: int, args: tuple[Any, ...] = args) -> tuple[Tensor, ...]:
            part = [a[first:last].clone() if isinstance(a, Tensor) and a.shape[:1] == (rows,) else a for a in args]
            return tuple(t.clone() for t in several(impl.impl_fn(*part)))

        whole = run(0, rows)
        for first, last in (*((n, min(n + 255, rows)) for n in range(0, rows, 255)), (0, 1), (4099, 4100), (17, 1073)):
            for a, b in zip(run(first, last), whole, strict=True):
                assert same_bits(a, b[first:last]), (hidden, first, last)


# -- B64: slots


@on_gpu
@ready
@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
def test_b64_fewer_slots_than_keys_and_slots_that_are_none(integer: torch.dtype) -> None:
    torch.manual_seed(0)
    key = torch.randn(8, 2, 64, device=DEVICE).bfloat16()
    for wanted in ([0, -1, 5], [0, -1, 8], [8, 7, -8]):
        slots = torch.tensor(wanted, dtype=integer, device=DEVICE)
        held = [Canaries(key.dtype, ((2, 4, 2, 64), (512, 128, 64, 1), MARGIN), DEVICE) for _ in range(2)]
        empty = torch.zeros(8, 2, 64, dtype=key.dtype, device=DEVICE)
        ops.reshape_and_cache_(key, key + 1, *(c.put(empty) for c in held), slots)
        for cache, rows in zip(held, (key, key + 1), strict=True):
            want = empty.clone()
            for token, slot in enumerate(wanted):
                if 0 <= slot < 8:
                    want[slot] = rows[token]
            assert cache.holds(want) and cache.end(), wanted


# -- B67: the first call


@on_gpu
@ready
@pytest.mark.parametrize("name", PROVIDERS)
def test_b67_the_first_call_of_what_works_in_place_is_as_right_as_the_second(name: str) -> None:
    torch.manual_seed(0)
    x, residual, weight = (torch.randn(s, device=DEVICE).half() for s in ((5, 1555), (5, 1555), (1555,)))
    norm, turn = provider("fused_add_rms_norm", name), provider("rotary_embedding", name)
    first, second = (several(norm.impl_fn(x.clone(), residual.clone(), weight, spans.EPSILON)) for _ in range(2))
    assert all(same_bits(a, b) for a, b in zip(first, second, strict=True))
    span = spans.norm(x.float() + residual.float(), x.dtype, weight)
    assert not (said := spans.wrong(first[0], span)), said
    positions, table = torch.arange(5, device=DEVICE), torch.randn(9, 42, device=DEVICE)
    query = torch.randn(5, 3, 44, device=DEVICE).half()
    one, two = (turn.impl_fn(positions, query.clone(), query.clone(), 44, table, False) for _ in range(2))
    assert all(same_bits(a, b) for a, b in zip(one, two, strict=True))
    cos, sin = table[positions].chunk(2, -1)
    assert not (said := spans.wrong(one[0][..., :42], spans.rotated(query[..., :42], cos, sin, neox=False))), said
