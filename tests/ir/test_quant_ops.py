"""The ops that quantise to 8-bit floats, against float64 computations and against their compositions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from opdock import ir
from opdock.ir.ops._fp8 import DtypeError
from opdock.ir.ops._numerics import ShapeError

SINGLE = ("static_scaled_fp8_quant", "dynamic_per_token_scaled_fp8_quant")
FUSED = tuple(
    f"{first}_{last}_fp8_quant"
    for first in ("rms_norm", "fused_add_rms_norm", "silu_and_mul")
    for last in ("static", "dynamic_per_token")
)
OPS = SINGLE + FUSED
FP8 = {  # bits of the mantissa, exponent of the least normal number, largest number to write
    torch.float8_e4m3fn: (3, -6, 448.0),
    torch.float8_e4m3fnuz: (3, -7, 224.0),
    torch.float8_e5m2: (2, -14, 57344.0),
    torch.float8_e5m2fnuz: (2, -15, 57344.0),
}
HALF = [torch.float16, torch.bfloat16]
DTYPES = [*HALF, torch.float32, torch.float64]


def exactly(y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float64 ``y`` clamped and rounded to the nearest number of ``dtype``, ties to even, still in float64."""
    bits, least, limit = FP8[dtype]
    y = torch.where(y > limit, limit, torch.where(y < -limit, -limit, y))
    exponent = torch.clamp(torch.frexp(y)[1] - 1, min=least)
    step = torch.ldexp(torch.ones_like(y), exponent - bits)
    return torch.round(y / step) * step


def bits(t: torch.Tensor) -> torch.Tensor:
    """Return the bytes; 8-bit floats can't be compared."""
    return t.contiguous().view(torch.uint8)


def same(a: Any, b: Any) -> bool:
    """Return whether two results, or tuples of them, have the same bits, shapes and dtypes."""
    a, b = (v if isinstance(v, tuple) else (v,) for v in (a, b))
    return all(x.dtype == y.dtype and torch.equal(bits(x), bits(y)) for x, y in zip(a, b, strict=True))


def within_a_step(q: torch.Tensor, exact: torch.Tensor) -> None:
    """Assert that each number is the rounded exact one, or for few of them a neighbour."""
    mantissa, least, _ = FP8[q.dtype]
    off = (q.double() - exact).abs()
    assert bool((off <= 2.0**-mantissa * exact.abs() + 2.0 ** (least - mantissa)).all())
    assert int((off != 0).sum()) <= max(2, q.numel() // 50)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fp8", FP8)
def test_static_quantisation_equals_the_formula(dtype: torch.dtype, fp8: torch.dtype) -> None:
    """With a power of two as scale nothing but q is rounded: every bit; else one step, and rarely."""
    x = torch.randn(7, 46, dtype=dtype) * torch.logspace(-6, 3, 46, base=2.0).to(dtype)
    q = ir.ops.static_scaled_fp8_quant(x, torch.tensor([0.25]), fp8)
    assert q.dtype == fp8 and torch.equal(q.double(), exactly(x.double() * 4, fp8))
    q = ir.ops.static_scaled_fp8_quant(x, torch.tensor(0.037), fp8)
    within_a_step(q, exactly(x.double() / torch.tensor(0.037).double(), fp8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fp8", FP8)
@pytest.mark.parametrize("bound", [None, 1.5])
def test_dynamic_quantisation_equals_the_formula(dtype: torch.dtype, fp8: torch.dtype, bound: float | None) -> None:
    """Scales are rounded once; q is that of the scales which are returned."""
    limit = FP8[fp8][2]
    x = torch.randn(9, 80, dtype=dtype)
    q, scales = ir.ops.dynamic_per_token_scaled_fp8_quant(x, None if bound is None else torch.tensor([bound]), fp8)
    largest = torch.tensor([[max(abs(float(v)) for v in row)] for row in x], dtype=torch.float64)
    largest = largest if bound is None else torch.where(largest > bound, bound, largest)
    assert scales.dtype == torch.float32 and scales.shape == (9, 1)
    torch.testing.assert_close(scales.double(), largest / limit, rtol=2**-23, atol=0)
    within_a_step(q, exactly(x.double() / scales.double(), fp8))
    assert bool((q.double().abs().amax(-1) == limit).all())


@pytest.mark.parametrize("fp8", FP8)
def test_both_ways_saturate_at_the_largest_number(fp8: torch.dtype) -> None:
    """Also infinities, and e5m2, which has infinities; 224 for float8_e4m3fnuz, which has 240."""
    limit = FP8[fp8][2]
    x = torch.tensor([[1e30, -1e30, 1.0, float("inf"), -float("inf")]])
    expected = torch.tensor([[limit, -limit, 1.0, limit, -limit]])
    assert torch.equal(ir.ops.static_scaled_fp8_quant(x, torch.ones(1), fp8).float(), expected)
    q, scales = ir.ops.dynamic_per_token_scaled_fp8_quant(x, torch.tensor([limit]), fp8)
    assert torch.equal(q.float(), expected) and scales.tolist() == [[1.0]]


def test_rows_of_zeros_have_the_least_scale() -> None:
    """1 / (512 max), not 0, whose reciprocal is infinite; smaller rows have it too."""
    x = torch.tensor([[0.0, 0.0], [1e-8, -1e-9]])
    q, scales = ir.ops.dynamic_per_token_scaled_fp8_quant(x)
    assert scales.tolist() == [[torch.tensor(1 / (448 * 512)).item()]] * 2
    assert torch.equal(q.float(), exactly(x.double() * 448 * 512, torch.float8_e4m3fn).float())


def test_nan_spoils_its_row_and_no_other() -> None:
    """Statically only itself; dynamically the row and its scale, whatever scale_ub."""
    nan = float("nan")
    x = torch.tensor([[1.0, nan, 2.0], [1.0, -2.0, 0.5]])
    assert ir.ops.static_scaled_fp8_quant(x, torch.ones(1)).float().isnan().tolist() == x.isnan().tolist()
    for bound in (None, torch.tensor([4.0])):
        q, scales = ir.ops.dynamic_per_token_scaled_fp8_quant(x, bound)
        assert q.float().isnan().all(-1).tolist() == scales[:, 0].isnan().tolist() == [True, False]
        alone = ir.ops.dynamic_per_token_scaled_fp8_quant(x[1:], bound)
        assert same((q[1:], scales[1:]), alone)


def test_infinity_without_a_bound_is_nan_among_zeros() -> None:
    """Its scale is infinite."""
    q, scales = ir.ops.dynamic_per_token_scaled_fp8_quant(torch.tensor([[float("inf"), 3.0]]))
    assert scales.tolist() == [[float("inf")]] and bool(q.float()[0, 0].isnan()) and q.float()[0, 1] == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fp8", FP8)
@pytest.mark.parametrize("shape", [(5, 64), (2, 3, 64), (0, 64), (3, 0, 64)])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("bound", [None, 0.75])
def test_fused_ops_have_the_bits_of_their_parts(
    dtype: torch.dtype, fp8: torch.dtype, shape: tuple[int, ...], weighted: bool, bound: float | None
) -> None:
    """Of the public functions, so that a pass may replace one by the other."""
    o = ir.ops
    x, r, scale = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype), torch.tensor([0.013])
    w = torch.randn(64, dtype=dtype) if weighted else None
    ub = None if bound is None else torch.tensor([bound])
    y = o.rms_norm(x, w, 1e-5)
    assert same(o.rms_norm_static_fp8_quant(x, w, scale, 1e-5, fp8), o.static_scaled_fp8_quant(y, scale, fp8))
    dynamic = o.dynamic_per_token_scaled_fp8_quant
    assert same(o.rms_norm_dynamic_per_token_fp8_quant(x, w, 1e-5, ub, fp8), dynamic(y, ub, fp8))
    y, res = o.fused_add_rms_norm(x, r, w, 1e-5)
    made: Any = o.fused_add_rms_norm_static_fp8_quant(x, r, w, scale, 1e-5, fp8)
    assert same(made, (o.static_scaled_fp8_quant(y, scale, fp8), res))
    made = o.fused_add_rms_norm_dynamic_per_token_fp8_quant(x, r, w, 1e-5, ub, fp8)
    assert same(made, (*dynamic(y, ub, fp8), res))
    y = o.silu_and_mul(x)
    assert same(o.silu_and_mul_static_fp8_quant(x, scale, fp8), o.static_scaled_fp8_quant(y, scale, fp8))
    assert same(o.silu_and_mul_dynamic_per_token_fp8_quant(x, ub, fp8), dynamic(y, ub, fp8))


def test_fused_ops_equal_their_formulas() -> None:
    """In float64, whose roundings are far below a step, written out."""
    x, r = torch.randn(6, 96).double(), torch.randn(6, 96).double()
    w, scale, fp8 = torch.randn(96).double(), torch.tensor([1 / 64]), torch.float8_e4m3fn
    total = x + r
    for q, y in (
        (ir.ops.rms_norm_static_fp8_quant(x, w, scale, 1e-6), x / (x.square().mean(-1, True) + 1e-6).sqrt() * w),
        (
            ir.ops.fused_add_rms_norm_static_fp8_quant(x, r, w, scale, 1e-6)[0],
            total / (total.square().mean(-1, True) + 1e-6).sqrt() * w,
        ),
        (ir.ops.silu_and_mul_static_fp8_quant(x, scale), x[:, :48] / (1 + torch.exp(-x[:, :48])) * x[:, 48:]),
    ):
        within_a_step(q, exactly(y * 64, fp8))


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck_passes(name: str, dtype: torch.dtype) -> None:
    """Schema, fake kernel, AOT dispatch; on generated inputs of every dtype, the default dtype too."""
    op = ir.registry[name]
    args = op.generate_inputs(dtype=dtype)
    torch.library.opcheck(op.torch_op, args)
    assert same(op.torch_op(*args[:-1]), op.fn(*args))


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("tokens", [0, 1, 300])
@pytest.mark.parametrize("fp8", FP8)
def test_results_are_new_dense_and_shaped_like_the_activation(name: str, tokens: int, fp8: torch.dtype) -> None:
    """q, the scales with one column, the residual; the inputs keep their bits."""
    op = ir.registry[name]
    args = op.generate_inputs(num_tokens=tokens, hidden_size=80, dtype=torch.bfloat16, fp8_dtype=fp8)
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    result = op.fn(*args)
    result = result if isinstance(result, tuple) else (result,)
    expected = [(fp8, 80)] + [(torch.float32, 1)] * ("dynamic" in name) + [(torch.bfloat16, 80)] * ("add" in name)
    assert [(t.dtype, t.shape[-1]) for t in result] == expected
    given = [a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)]
    for made in result:
        assert made.shape[0] == tokens and made.is_contiguous()
        assert not tokens or made.untyped_storage().data_ptr() not in given
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True) if isinstance(a, torch.Tensor))


@pytest.mark.parametrize("name", OPS)
def test_the_number_of_tokens_stays_a_symbol(name: str) -> None:
    """No guard is made on it, and every first dimension of the results is it."""
    op, shapes, args = ir.registry[name], ShapeEnv(), []
    mode = FakeTensorMode(shape_env=shapes)
    for a in op.generate_inputs(num_tokens=12, dtype=torch.bfloat16):
        if isinstance(a, torch.Tensor):
            sizes = [DimDynamic.STATIC] if a.ndim == 1 else [DimDynamic.DYNAMIC, DimDynamic.STATIC]
            context: Any = StatelessSymbolicContext(dynamic_sizes=sizes)
            args.append(mode.from_tensor(a, symbolic_context=context))
        else:
            args.append(a)
    if "add" in name:  # two activations have two symbols: that they are equal is all that may be learnt
        assert args[0].shape[0] == args[1].shape[0]
    before = len(shapes.guards)
    result = op.fn(*args)
    assert len(shapes.guards) == before
    for made in result if isinstance(result, tuple) else (result,):
        assert isinstance(made.shape[0], torch.SymInt) and isinstance(made.shape[-1], int)


@pytest.mark.parametrize("layout", ["transposed", "slice", "expanded"])
def test_any_strides_give_dense_results_that_the_fake_ones_resemble(layout: str) -> None:
    """Q and the scales are contiguous whatever the activation is."""
    x = {
        "transposed": torch.randn(2, 16, 8).transpose(1, 2),
        "slice": torch.randn(8, 48)[:, 16:32],
        "expanded": torch.randn(1, 16).expand(8, 16),
    }[layout]
    for name in SINGLE:
        args = (x, torch.ones(1)) if name.startswith("static") else (x,)
        real = ir.registry[name].fn(*args)
        assert same(real, ir.registry[name].fn(x.contiguous(), *args[1:]))
        with FakeTensorMode() as mode:
            fake = ir.registry[name].fn(*(mode.from_tensor(a) for a in args))
        for r, f in zip(*(v if isinstance(v, tuple) else (v,) for v in (real, fake)), strict=True):
            assert r.is_contiguous() and r.stride() == f.stride()


@pytest.mark.parametrize("name", SINGLE)
def test_quantisation_alone_is_batch_invariant_as_declared(name: str) -> None:
    """A row's bits are the same alone and in a batch; the fused ops do not claim it."""
    op = ir.registry[name]
    assert op.impls["native"].batch_invariant
    assert not any(ir.registry[n].impls["native"].batch_invariant for n in FUSED)
    x, *rest = op.generate_inputs(num_tokens=300, hidden_size=257)
    whole = op.fn(x, *rest)
    for i in (0, 1, 255, 299):
        one = op.fn(x[i : i + 1], *rest)
        parts = tuple(v[i : i + 1] for v in whole) if isinstance(whole, tuple) else whole[i : i + 1]
        assert same(one, parts)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("fp8", FP8)
def test_tolerance_of_eight_bits_is_one_step(name: str, fp8: torch.dtype) -> None:
    """A neighbour is within it, and two steps at 1 are not."""
    allowed = ir.registry[name].get_tolerance(fp8)
    numbers = torch.arange(256, dtype=torch.uint8).view(fp8).double()
    numbers = numbers[numbers.isfinite()].unique()
    a, b = numbers[:-1], numbers[1:]
    for expected, other in ((a, b), (b, a)):
        assert bool(((expected - other).abs() <= allowed["atol"] + allowed["rtol"] * expected.abs()).all())
    assert 2 * 2.0 ** -FP8[fp8][0] > allowed["atol"] + allowed["rtol"]


ONE, X = torch.ones(1), torch.ones(2, 4)
BAD: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    ("static_scaled_fp8_quant", (X, torch.ones(2, 1)), ShapeError, "not one number"),
    ("static_scaled_fp8_quant", (X, torch.ones(0)), ShapeError, "not one number"),
    ("static_scaled_fp8_quant", (X, ONE.half()), DtypeError, "float32"),
    ("static_scaled_fp8_quant", (X, ONE, torch.float16), DtypeError, "no 8-bit float"),
    ("static_scaled_fp8_quant", (X, ONE, torch.float8_e8m0fnu), DtypeError, "no 8-bit float"),
    ("dynamic_per_token_scaled_fp8_quant", (X, ONE.repeat(2)), ShapeError, "scale_ub"),
    ("dynamic_per_token_scaled_fp8_quant", (X, ONE.double()), DtypeError, "scale_ub"),
    ("dynamic_per_token_scaled_fp8_quant", (torch.ones(2, 0),), ShapeError, "hidden > 0"),
    ("dynamic_per_token_scaled_fp8_quant", (torch.ones(()),), ShapeError, "hidden > 0"),
    ("dynamic_per_token_scaled_fp8_quant", (X, None, torch.int8), DtypeError, "no 8-bit float"),
    ("rms_norm_static_fp8_quant", (X, torch.ones(3), ONE, 1e-6), ShapeError, "weight"),
    ("rms_norm_static_fp8_quant", (X, None, ONE.repeat(3), 1e-6), ShapeError, "not one number"),
    ("rms_norm_dynamic_per_token_fp8_quant", (X, torch.ones(3), 1e-6), ShapeError, "weight"),
    ("rms_norm_dynamic_per_token_fp8_quant", (X, None, 1e-6, None, torch.float16), DtypeError, "no 8-bit float"),
    ("fused_add_rms_norm_static_fp8_quant", (X, X[:1], None, ONE, 1e-6), ShapeError, "differ"),
    ("fused_add_rms_norm_dynamic_per_token_fp8_quant", (X, X[:1], None, 1e-6), ShapeError, "differ"),
    ("silu_and_mul_static_fp8_quant", (X[:, :3], ONE), ShapeError, "even"),
    ("silu_and_mul_dynamic_per_token_fp8_quant", (X[:, :3],), ShapeError, "even"),
]


@pytest.mark.parametrize(("name", "args", "error", "said"), BAD)
def test_what_does_not_fit_is_one_clear_error(
    name: str, args: tuple[Any, ...], error: type[Exception], said: str
) -> None:
    """It says what was given and what to give; on fake tensors as well."""
    op = ir.registry[name]
    with pytest.raises(error, match=said) as caught:
        op.fn(*args)
    assert "\nRemedy: " in str(caught.value)
    with FakeTensorMode() as mode, pytest.raises(error, match=said):
        op.fn(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args))
