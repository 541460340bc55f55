"""What the kernels do beside arithmetic: NaN, streams, graphs, far offsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cuda_exact as exact
import pytest
import torch
from cuda_placing import same_bits
from torch import Tensor

from opdock import ir
from opdock_cuda import ops
from opdock_cuda.ops import ArgumentError
from opdock_cuda.priorities import PROVIDED

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels")]
DEVICE = "cuda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
INF, NAN = float("inf"), float("nan")


def rows(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def one(value: float) -> Tensor:
    return torch.full((1,), value, device=DEVICE)


# -- NaN and infinities in what quantises


@pytest.mark.parametrize("hidden", [64, 67, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
def test_static_quantisation_saturates_infinities_and_keeps_nan(dtype: torch.dtype, hidden: int) -> None:
    x = rows(4, hidden, dtype=dtype)
    x[1, 3], x[1, 4], x[2, 5] = INF, -INF, NAN
    q = ops.static_fp8(x, one(0.01)).float()
    assert q[1, 3] == 448 and q[1, 4] == -448 and q[2, 5].isnan()
    assert int(q.isnan().sum()) == 1


@pytest.mark.parametrize("hidden", [64, 67, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_with_nan_is_nan_as_a_whole_whatever_the_bound(dtype: torch.dtype, hidden: int) -> None:
    x = rows(5, hidden, dtype=dtype)
    x[1, hidden - 1], x[3, 0] = NAN, -INF
    x[4] = 0
    for bound in (None, one(1.0)):
        q, scales = (t.float() for t in ops.token_fp8(x, bound))
        assert q[1].isnan().all() and scales[1].isnan()
        assert not q[[0, 2]].isnan().any() and not scales[[0, 2, 4]].isnan().any()
        assert scales[4, 0] == torch.tensor(exact.LEAST_SCALE, dtype=torch.float32) and (q[4] == 0).all()
        if bound is None:
            assert scales[3].isinf() and q[3, 0].isnan() and (q[3, 1:] == 0).all()
        else:
            assert scales[3] <= 1.0 / 448 + 1e-9 and q[3, 0] == -448


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("hidden", [64, 67])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [op for op in PROVIDED if op != "rotary_embedding"])
def test_infinities_and_nan_come_out_where_the_definition_has_them(op: str, dtype: torch.dtype, hidden: int) -> None:
    torch.manual_seed(1)
    made = ir.registry[op].generate_inputs(num_tokens=6, hidden_size=hidden, dtype=dtype, device=torch.device(DEVICE))
    args = list(ir.registry[op].apply_arg_defaults(made))
    for row, value in ((1, INF), (2, -INF), (3, NAN)):
        args[0][row, row] = value
    options = [args]
    if op == "gelu_and_mul":
        options = [[args[0], "none"], [args[0], "tanh"]]
    for given in options:
        assert ir.registry[op].impls["cuda"].supports_args(*given)
        mine, native = (ir.registry[op].impls[name].func_impl_fn(*given) for name in ("cuda", "native"))
        both = (mine, native) if isinstance(mine, tuple) else ((mine,), (native,))
        for a, b in zip(*both, strict=True):
            assert torch.equal(a.float().isnan(), b.float().isnan()), (op, given[1:])
            assert torch.equal(a.float().isinf(), b.float().isinf()), (op, given[1:])


# -- launches: streams, graphs, devices, offsets beyond 32 bits


def _calls() -> dict[str, Callable[[Tensor], Any]]:
    weight, table = rows(4096), rows(128, 128, dtype=torch.float32)
    positions = torch.arange(8, device=DEVICE)
    return {
        "rms_norm": lambda x: ops.rms_norm(x, weight),
        "fused_add_rms_norm_": lambda x: ops.fused_add_rms_norm_(x.clone(), x.clone(), weight),
        "silu_and_mul": ops.silu_and_mul,
        "token_fp8": ops.token_fp8,
        "rotary_embedding_": lambda x: ops.rotary_embedding_(positions, x.clone(), x.clone(), 128, table),
    }


def _bits(result: Any) -> list[Tensor]:
    return [t.clone() for t in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("name", ["rms_norm", "fused_add_rms_norm_", "silu_and_mul", "token_fp8", "rotary_embedding_"])
def test_a_kernel_runs_on_the_current_stream(name: str) -> None:
    call, x = _calls()[name], rows(8, 4096)
    want = _bits(call(x))
    stream, late = torch.cuda.Stream(), torch.empty_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # a kernel on another stream would read before the copy
        late.copy_(x)
        got = _bits(call(late))
    stream.synchronize()
    assert all(same_bits(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", ["rms_norm", "fused_add_rms_norm_", "silu_and_mul", "token_fp8", "rotary_embedding_"])
def test_a_kernel_is_captured_in_a_cuda_graph_and_replayed_with_new_data(name: str) -> None:
    call, x = _calls()[name], rows(8, 4096)
    call(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(x)
    x.copy_(rows(8, 4096))
    graph.replay()
    torch.cuda.synchronize()
    assert all(same_bits(a, b) for a, b in zip(_bits(result), _bits(call(x)), strict=True))


def test_a_kernel_runs_on_the_device_of_its_tensors() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x, weight = rows(8, 4096).to("cuda:1"), rows(4096).to("cuda:1")
    with torch.cuda.device(0):
        got = ops.rms_norm(x, weight)
    assert got.device == x.device
    assert torch.equal(got.cpu(), ops.rms_norm(x.to("cuda:0"), weight.to("cuda:0")).cpu())
    with pytest.raises(ArgumentError, match="weight is on cuda:0 and x on cuda:1"):
        ops.rms_norm(x, weight.to("cuda:0"))


def test_offsets_beyond_32_bits_are_reached() -> None:
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free GPU memory")
    far = 1 << 31
    buffer = torch.zeros(far + (1 << 20), dtype=torch.bfloat16, device=DEVICE)
    for hidden in (4096, 4097):  # the path of 16 bytes, and the one for any width
        x = buffer.as_strided((2, hidden), (far, 1)).copy_(rows(2, hidden))
        near, weight = x.clone(), rows(hidden)
        assert torch.equal(ops.rms_norm(x, weight), ops.rms_norm(near, weight))
        assert torch.equal(ops.token_fp8(x)[1], ops.token_fp8(near)[1])
        a, b = ops.fused_add_rms_norm_(near.clone(), near.clone(), weight)
        ops.fused_add_rms_norm_(x, near, weight)
        assert torch.equal(x, a) and torch.equal(near, b)
    x = buffer.as_strided((2, 4096), (far, 1)).copy_(rows(2, 4096))
    assert torch.equal(ops.silu_and_mul(x), ops.silu_and_mul(x.clone()))
    assert same_bits(ops.static_fp8(x, one(0.01)), ops.static_fp8(x.clone(), one(0.01)))
    query, key, table = x.clone(), x.clone(), rows(8, 128)
    positions = torch.arange(2, device=DEVICE)
    ops.rotary_embedding_(positions, query, key, 128, table)
    ops.rotary_embedding_(positions, x, key, 128, table)
    assert torch.equal(x, query)
    cache = buffer.as_strided((2, 4, 8, 128), (far, 1024, 128, 1))
    cache.zero_()
    keys = rows(2, 8, 128)
    ops.reshape_and_cache_(keys, keys, cache, torch.zeros(cache.shape, dtype=keys.dtype, device=DEVICE), positions + 3)
    assert torch.equal(cache[0, 3], keys[0]) and torch.equal(cache[1, 0], keys[1])
    del buffer, x, cache
    many = torch.zeros(far // 4096 + 3, 4096, dtype=torch.bfloat16, device=DEVICE)
    many[-3:] = rows(3, 4096)
    norm = ops.rms_norm(many, None, exact.EPSILON)[-3:]
    exact.Near("y", norm, exact.rms_norm(many[-3:], None), *exact.norm_tolerance(norm.dtype, None)).check("many rows")
    assert torch.equal(ops.silu_and_mul(many)[-3:], ops.silu_and_mul(many[-3:].clone()))


@pytest.mark.parametrize("rows_of_them", [65535, 65536, 70001])
def test_more_rows_than_one_dimension_of_a_grid(rows_of_them: int) -> None:
    for hidden in (8, 520, 65):
        x, what = rows(rows_of_them, 2 * hidden), f"{rows_of_them} x {hidden}"
        y, norm = ops.silu_and_mul(x), ops.rms_norm(x, None, exact.EPSILON)
        exact.Near("silu", y, exact.silu_and_mul(x), *exact.gated_tolerance(x.dtype)).check(what)
        exact.Near("norm", norm, exact.rms_norm(x, None), *exact.norm_tolerance(x.dtype, None)).check(what)


# -- promises to torch


@pytest.mark.parametrize(
    "op",
    [
        "rms_norm",
        "rms_norm_token_fp8",
        "silu_and_mul",
        "gelu_and_mul",
        "static_fp8",
        "token_fp8",
        "silu_and_mul_token_fp8",
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_bits_do_not_depend_on_the_batch_or_its_place(op: str, dtype: torch.dtype) -> None:
    for width in (64, 92, 4096, 14336, 32768, 65536):
        x = rows(1300, width, dtype=dtype)
        call = getattr(ops, op)
        rest = (one(0.02),) if op == "static_fp8" else ()
        whole = _bits(call(x, *rest))
        for part in (x[5:6], x[5:12], x[3:300], x[3:], x[5:6].clone()):
            first = 5 if part.shape[0] < 200 else 3
            for a, b in zip(_bits(call(part, *rest)), whole, strict=True):
                assert same_bits(a, b[first : first + part.shape[0]])


OPCHECK: dict[str, Callable[[], tuple[Any, ...]]] = {
    "rms_norm": lambda: (rows(4, 128), rows(128), 1e-5),
    "fused_add_rms_norm_": lambda: (rows(4, 128), rows(4, 128), rows(128), 1e-5),
    "rms_norm_static_fp8": lambda: (rows(4, 128), rows(128), one(0.01), 1e-5),
    "rms_norm_token_fp8": lambda: (rows(4, 128), None, 1e-5, one(1.0)),
    "add_rms_norm_static_fp8": lambda: (rows(4, 128), rows(4, 128), rows(128), one(0.01), 1e-5),
    "add_rms_norm_token_fp8": lambda: (rows(4, 128), rows(4, 128), rows(128), 1e-5, None),
    "silu_and_mul": lambda: (rows(4, 128),),
    "gelu_and_mul": lambda: (rows(4, 128), True),
    "silu_and_mul_static_fp8": lambda: (rows(4, 128), one(0.01)),
    "silu_and_mul_token_fp8": lambda: (rows(4, 2, 128), None),
    "static_fp8": lambda: (rows(4, 128)[:, :64], one(0.01)),
    "token_fp8": lambda: (rows(4, 128).view(2, 2, 128).transpose(0, 1), None),
    "rotary_embedding_": lambda: (torch.arange(4, device=DEVICE), rows(4, 128), rows(4, 64), 64, rows(8, 64), True),
    "reshape_and_cache_": lambda: (
        rows(4, 2, 64),
        rows(4, 2, 64),
        rows(2, 4, 2, 64),
        rows(2, 4, 2, 64),
        torch.arange(4, device=DEVICE),
    ),
    "rotary_and_cache_": lambda: (
        torch.arange(4, device=DEVICE),
        rows(4, 128),
        rows(4, 64),
        rows(4, 1, 64),
        rows(2, 4, 1, 64),
        rows(2, 4, 1, 64),
        torch.tensor([7, -1, 0, 3], device=DEVICE),
        64,
        rows(8, 64),
        one(1.0),
        one(1.0),
        True,
    ),
}


@pytest.mark.parametrize("name", OPCHECK)
def test_schema_and_fake_are_true(name: str) -> None:
    overload = getattr(torch.ops.opdock_cuda, name).default
    torch.library.opcheck(overload, OPCHECK[name](), test_utils=("test_schema", "test_faketensor"))


# -- wrong calls


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: ops.rms_norm(rows(4, 64), rows(64).cpu()), "weight is on cpu and x on cuda:0"),
        (lambda: ops.rms_norm(rows(4, 64), rows(64, dtype=torch.float32)), "beside x"),
        (lambda: ops.rms_norm(rows(4, 64), rows(63)), "is not one dense row"),
        (lambda: ops.rms_norm(rows(64, 4).t(), None), "not dense in its last dimension"),
        (lambda: ops.rms_norm(rows(4, 64).double(), None), "no kernel for x of torch.float64"),
        (lambda: ops.silu_and_mul(rows(4, 63)), "odd"),
        (lambda: ops.static_fp8(rows(4, 64), rows(1)), "scales are float32"),
        (lambda: ops.fused_add_rms_norm_(*[rows(4, 64)] * 2), "one tensor"),
        (lambda: ops.fused_add_rms_norm_((x := rows(4, 64)), x.view(4, 64)), "share memory"),
        (lambda: ops.rms_norm(rows(4, 64).requires_grad_()), "gradients"),
        (lambda: ops.rotary_embedding_(one(0.5), rows(1, 64), rows(1, 64), 64, rows(8, 64)), "int64 and int32"),
    ],
)
def test_a_wrong_call_is_a_clear_error_and_leaves_the_device_usable(call: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        call()
    torch.cuda.synchronize()
    assert torch.equal(ops.silu_and_mul(rows(0, 64)), rows(0, 32))


@pytest.mark.parametrize(
    "call",
    [
        lambda op: op.rms_norm(rows(4, 64), rows(63), 1e-5),
        lambda op: op.rms_norm(rows(64, 4).t(), None, 1e-5),
        lambda op: op.rms_norm(rows(4, 64).double(), None, 1e-5),
        lambda op: op.rms_norm(torch.ones(4, 64), None, 1e-5),
        lambda op: op.fused_add_rms_norm_(rows(4, 64), rows(4, 65), None, 1e-5),
        lambda op: op.rotary_embedding_(
            torch.arange(3, device=DEVICE), rows(4, 64), rows(4, 64), 64, rows(8, 64), True
        ),
    ],
)
def test_the_raw_ops_refuse_what_they_would_read_wrong(call: Callable[[Any], Any]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        call(torch.ops.opdock_cuda)
    torch.cuda.synchronize()
