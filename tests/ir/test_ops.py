"""The native definitions against float64 formulas, over shapes, dtypes and layouts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from opdock import ir
from opdock.ir.ops._numerics import ShapeError

OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_and_mul", "gelu_and_mul_sparse", "rotary_embedding")
HALF = [torch.float16, torch.bfloat16]
DTYPES = [*HALF, torch.float32, torch.float64]
SIZES = [1, 46, 80, 257, 769, 1234, 3420, 3584]


def norm64(x: torch.Tensor, w: torch.Tensor | None, eps: float, size: int | None = None) -> torch.Tensor:
    """Return the formula of rms_norm in float64."""
    x = x.double()
    y = x / torch.sqrt(x[..., :size].pow(2).mean(-1, keepdim=True) + eps)
    return y if w is None else y * w.double()


def close(actual: torch.Tensor, exact: torch.Tensor, roundings: int = 2) -> None:
    """Assert that each number is within ``roundings`` roundings of its dtype, relative, of the exact one."""
    step = torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual.double(), exact, rtol=roundings * step, atol=roundings * step * 1e-2 + 1e-300)


@pytest.mark.parametrize(("hidden", "dtype"), list(itertools.product(SIZES, DTYPES)))
def test_b55_rms_norm_equals_the_formula_at_odd_sizes(hidden: int, dtype: torch.dtype) -> None:
    """Every hidden size; one rounding before the weight and one after it."""
    x, w = torch.randn(3, hidden, dtype=dtype), torch.randn(hidden, dtype=dtype)
    tolerance = 3 if dtype in HALF else 16  # a row of squares is summed in the dtype of the arithmetic
    close(ir.ops.rms_norm(x, w, 1e-6), norm64(x, w, 1e-6), tolerance)
    close(ir.ops.rms_norm(x, None, 1e-6), norm64(x, None, 1e-6), tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
def test_partial_variance_is_that_of_the_first_columns(dtype: torch.dtype) -> None:
    """The others are scaled by it all the same."""
    x = torch.randn(4, 64, dtype=dtype)
    close(ir.ops.rms_norm(x, None, 1e-6, 16), norm64(x, None, 1e-6, 16), 16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_add_returns_the_norm_of_the_unrounded_sum(dtype: torch.dtype) -> None:
    """And the sum, rounded once."""
    x, r, w = (torch.randn(5, 96, dtype=dtype) for _ in range(3))
    y, residual = ir.ops.fused_add_rms_norm(x, r, w[0], 1e-6)
    exact = x.double() + r.double()
    close(residual, exact, 1)
    close(y, norm64(exact, w[0], 1e-6), 16 if dtype not in HALF else 3)


@pytest.mark.parametrize("value", [300.0, 60000.0, 1e-4])
def test_b60_float16_extremes_are_computed_in_float32(value: float) -> None:
    """Squares overflow at 256 and vanish at 1e-4 in float16; a sum of two 60000 too."""
    x = torch.full((1, 64), value, dtype=torch.float16)
    torch.testing.assert_close(ir.ops.rms_norm(x, None, 1e-12).double(), norm64(x, None, 1e-12), rtol=2e-3, atol=0)
    y, _ = ir.ops.fused_add_rms_norm(x, x, None, 1e-12)
    torch.testing.assert_close(y.double(), norm64(x.double() * 2, None, 1e-12), rtol=2e-3, atol=0)


def test_b61_rounding_points_are_those_that_the_definition_states() -> None:
    """bfloat16: rounded to the weight's dtype before the product; the variance is that of the unrounded sum."""
    x, r, w = (torch.randn(64, 4096).bfloat16() for _ in range(3))
    w = w[0]
    total = x.float() + r.float()
    normed = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6)
    y, residual = ir.ops.fused_add_rms_norm(x, r, w, 1e-6)
    assert torch.equal(y, normed.bfloat16() * w) and torch.equal(residual, total.bfloat16())
    early = residual.float() * torch.rsqrt(residual.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    assert not torch.equal(y, early.bfloat16() * w)
    assert not torch.equal(y, (normed * w.float()).bfloat16())


def test_b61_float32_weight_keeps_the_product_in_float32() -> None:
    """Gemma's 1 + w loses nothing before the last rounding."""
    x, w = torch.randn(8, 256).bfloat16(), torch.randn(256)
    exact = norm64(x, 1 + w, 1e-6)
    close(ir.ops.rms_norm(x, 1 + w, 1e-6), exact, 1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gated_activations_equal_the_formula(dtype: torch.dtype, approximate: str) -> None:
    """Two roundings: the activation and the product."""
    x = torch.randn(7, 2 * 33, dtype=dtype)
    gate, up = x.double().chunk(2, -1)
    bound = 3 if dtype in HALF else 64
    close(ir.ops.silu_and_mul(x), gate / (1 + torch.exp(-gate)) * up, bound)
    exact = F.gelu(gate, approximate=approximate) * up
    torch.testing.assert_close(ir.ops.gelu_and_mul(x, approximate).double(), exact, **_wide(dtype))
    t = gate.mean(-1, keepdim=True) + 1.5 * gate.std(-1, keepdim=True, unbiased=False)
    sparse = F.gelu(F.relu(gate - t), approximate=approximate) * up
    torch.testing.assert_close(ir.ops.gelu_and_mul_sparse(x, 1.5, approximate).double(), sparse, **_wide(dtype))


def _wide(dtype: torch.dtype) -> dict[str, float]:
    # near a zero of GELU the relative error of its float32 erf is large: an absolute bound of some roundings
    return {"rtol": 8 * torch.finfo(dtype).eps, "atol": 32 * torch.finfo(dtype).eps}


def rotary64(x: torch.Tensor, positions: torch.Tensor, rot: int, neox: bool) -> torch.Tensor:
    """Rotate pair by pair, in float64."""
    out = x.double().clone()
    half = rot // 2
    for t, j in itertools.product(range(x.shape[0]), range(half)):
        a, b = (j, j + half) if neox else (2 * j, 2 * j + 1)
        angle = float(positions[t]) / 10000.0 ** (2 * j / rot)
        c, s = math.cos(angle), math.sin(angle)
        first, second = x[t, :, a].double(), x[t, :, b].double()
        out[t, :, a], out[t, :, b] = first * c - second * s, second * c + first * s
    return out


@pytest.mark.parametrize(("rot", "neox", "dtype"), list(itertools.product([16, 8], [True, False], DTYPES)))
def test_rotary_equals_the_formula(rot: int, neox: bool, dtype: torch.dtype) -> None:
    """Halves and pairs, whole and partial heads, any integer positions."""
    positions = torch.tensor([0, 5, 17, 3], dtype=torch.int32)
    angles = torch.outer(torch.arange(32.0).double(), 10000.0 ** -(torch.arange(0, rot, 2).double() / rot))
    cache = torch.cat((angles.cos(), angles.sin()), -1)
    cache = cache if dtype == torch.float64 else cache.float()
    q, k = torch.randn(4, 3, 16, dtype=dtype), torch.randn(4, 1, 16, dtype=dtype)
    flat = ir.ops.rotary_embedding(positions, q.flatten(1), k.flatten(1), 16, cache, neox)
    heads = ir.ops.rotary_embedding(positions, q, k, 16, cache, neox)
    for x, made, shaped in zip((q, k), flat, heads, strict=True):
        step = torch.finfo(dtype).eps
        exact = rotary64(x, positions, rot, neox)
        torch.testing.assert_close(shaped.double(), exact, rtol=step, atol=8 * max(step, 2**-23 * (dtype != DTYPES[3])))
        assert torch.equal(made, shaped.flatten(1)) and made.is_contiguous()
        assert torch.equal(shaped[..., rot:], x[..., rot:])


def test_b50_views_of_a_fused_qkv_are_taken_as_they_are() -> None:
    """Strided slices give what their copies give."""
    qkv = torch.randn(6, 3 * 32)
    q, k, _ = qkv.split(32, dim=-1)
    positions, _, _, _, cache, _ = ir.ops.rotary_embedding.generate_inputs(num_tokens=6, head_size=16)
    for a, b in zip(
        ir.ops.rotary_embedding(positions, q, k, 16, cache),
        ir.ops.rotary_embedding(positions, q.contiguous(), k.contiguous(), 16, cache),
        strict=True,
    ):
        assert torch.equal(a, b)
    heads = q.view(6, 2, 16)
    assert torch.equal(ir.ops.rms_norm(heads, None, 1e-6), ir.ops.rms_norm(heads.contiguous(), None, 1e-6))


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("tokens", [0, 1])
def test_b57_zero_rows_give_empty_results(name: str, tokens: int) -> None:
    """Of the right shape and dtype."""
    args = ir.registry[name].generate_inputs(num_tokens=tokens, dtype=torch.bfloat16)
    result = getattr(ir.ops, name)(*args)
    for made in result if isinstance(result, tuple) else (result,):
        assert made.shape[0] == tokens and made.dtype == torch.bfloat16


@pytest.mark.parametrize("name", OPS)
def test_inputs_are_untouched_and_results_do_not_alias_them(name: str) -> None:
    """The default overload is functional."""
    args = ir.registry[name].generate_inputs()
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    result = getattr(ir.ops, name)(*args)
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    for made in result if isinstance(result, tuple) else (result,):
        assert all(made.untyped_storage().data_ptr() != t.untyped_storage().data_ptr() for t in tensors)
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True) if isinstance(a, torch.Tensor))


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck_passes_on_both_overloads(name: str, dtype: torch.dtype) -> None:
    """Schema, fake kernel, AOT dispatch."""
    op = ir.registry[name]
    args = op.generate_inputs(dtype=dtype)
    torch.library.opcheck(op.torch_op, args)
    if op.allow_inplace:
        torch.library.opcheck(op.fn.maybe_inplace.overload, args)


@pytest.mark.parametrize("name", [n for n in OPS if ir.registry[n].impls["native"].batch_invariant])
def test_b62_natives_that_declare_batch_invariance_have_it(name: str) -> None:
    """A row's bits are the same alone and in a batch."""
    args = ir.registry[name].generate_inputs(num_tokens=300, hidden_size=256)
    whole = getattr(ir.ops, name)(*args)
    rows = args[0].shape[0]
    for i in (0, 1, 255, 299):
        part = [a[i : i + 1] if isinstance(a, torch.Tensor) and a.shape[0] == rows else a for a in args]
        one = getattr(ir.ops, name)(*part)
        for w, o in zip(*(r if isinstance(r, tuple) else (r,) for r in (whole, one)), strict=True):
            assert torch.equal(w[i : i + 1], o)


BAD: list[tuple[str, tuple[Any, ...]]] = [
    ("silu_and_mul", (torch.ones(2, 3),)),
    ("gelu_and_mul", (torch.ones(2, 3),)),
    ("rms_norm", (torch.ones(2, 4), torch.ones(3), 1e-6)),
    ("rms_norm", (torch.ones(2, 4), None, 1e-6, 5)),
    ("fused_add_rms_norm", (torch.ones(2, 4), torch.ones(1, 4), None, 1e-6)),
    ("rotary_embedding", (torch.zeros(2).long(), torch.ones(2, 8), torch.ones(2, 8), 4, torch.ones(9, 6))),
    ("rotary_embedding", (torch.zeros(3).long(), torch.ones(2, 8), torch.ones(2, 8), 4, torch.ones(9, 4))),
]


@pytest.mark.parametrize(("name", "args"), BAD)
def test_shapes_that_do_not_fit_are_one_clear_error(name: str, args: tuple[Any, ...]) -> None:
    """Naming the op and the shapes."""
    with pytest.raises(ShapeError, match=name):
        getattr(ir.ops, name)(*args)


def turned(x: torch.Tensor, positions: torch.Tensor, cache: torch.Tensor, neox: bool) -> torch.Tensor:
    """Return the rotation of (tokens, heads, size) in float64, pair by pair."""
    out, half = x.double().clone(), cache.shape[-1] // 2
    for j in range(half):
        a, b = (j, j + half) if neox else (2 * j, 2 * j + 1)
        cos, sin = (cache[positions.long(), column].double()[:, None] for column in (j, j + half))
        out[..., a] = x[..., a].double() * cos - x[..., b].double() * sin
        out[..., b] = x[..., b].double() * cos + x[..., a].double() * sin
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("size", "rot"), [(8, 8), (8, 4), (46, 46), (46, 20), (9, 8), (2, 2)])
def test_rotary_rounds_once_with_any_cache(dtype: torch.dtype, neox: bool, size: int, rot: int) -> None:
    """Also with a cache in 16 bits, whose products are taken in float32; the rest passes bit for bit."""
    positions = torch.tensor([3, 0, 7, 7])
    q, k = torch.randn(4, 3, size, dtype=dtype), torch.randn(4, 1, size, dtype=dtype)
    for cache in (torch.randn(9, rot).to(dtype), torch.randn(9, rot)):
        made = ir.ops.rotary_embedding(positions, q.flatten(1), k, size, cache, neox)
        for x, out in ((q, made[0].view(4, 3, size)), (k, made[1])):
            exact = turned(x, positions, cache, neox)
            wide = torch.float64 if torch.float64 in (dtype, cache.dtype) else torch.float32
            step = max(torch.finfo(dtype).eps, 4 * torch.finfo(wide).eps)
            torch.testing.assert_close(out.double(), exact, rtol=step, atol=4 * torch.finfo(wide).eps * 8)
            assert out.dtype == dtype and out.is_contiguous() and torch.equal(out[..., rot:], x[..., rot:])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_positions_may_have_any_integer_type(dtype: torch.dtype) -> None:
    """They are indices."""
    positions, q, k, size, cache, neox = ir.ops.rotary_embedding.generate_inputs()
    expected = ir.ops.rotary_embedding(positions, q, k, size, cache, neox)
    for a, b in zip(ir.ops.rotary_embedding(positions.to(dtype), q, k, size, cache, neox), expected, strict=True):
        assert torch.equal(a, b)


def test_b50_in_place_rotation_reaches_the_fused_qkv() -> None:
    """What an in-place provider writes into the views is in their base; the definition leaves it alone."""

    def provider(
        positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, head_size: int, cos_sin_cache: torch.Tensor,
        is_neox: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        q, k = ir.native.rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox)
        return query.copy_(q), key.copy_(k)

    op = ir.ops.rotary_embedding
    op.register_impl("in_place", inplace=True)(provider)
    positions, _, _, _, cache, _ = op.generate_inputs(num_tokens=6, head_size=16)
    for name, written in (("native", False), ("in_place", True)):
        qkv = torch.randn(6, 96)
        before = qkv.clone()
        q, k, v = qkv.split(32, dim=-1)
        expected = op(positions, q.clone(), k.clone(), 16, cache)
        with op.set_priority([name]):
            made = op(positions, q, k, 16, cache)
            assert torch.equal(qkv, before) and torch.equal(made[0], expected[0])
            op.maybe_inplace(positions, q, k, 16, cache)
        after = torch.cat((*expected, v), dim=-1) if written else before
        assert torch.equal(qkv, after)


@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (0, 0, 64)])
def test_b57_rows_may_be_missing_in_any_leading_dimension(shape: tuple[int, ...]) -> None:
    """An idle rank and an expert without tokens."""
    x, w = torch.empty(shape, dtype=torch.bfloat16), torch.ones(64)
    assert ir.ops.rms_norm(x, w, 1e-6).shape == shape
    assert [r.shape for r in ir.ops.fused_add_rms_norm(x, x, w, 1e-6)] == [shape, shape]
    assert ir.ops.silu_and_mul(x).shape == ir.ops.gelu_and_mul_sparse(x, 1.0).shape == (*shape[:-1], 32)


def test_b61_one_plus_weight_of_gemma_needs_float32() -> None:
    """In bfloat16 the sum loses the weight: 1 + 0.003 is 1."""
    x, w = torch.randn(4, 256, dtype=torch.bfloat16), torch.full((256,), 0.003, dtype=torch.bfloat16)
    exact = norm64(x, 1 + w.double(), 1e-6)
    wide = (ir.ops.rms_norm(x, 1 + w.float(), 1e-6).double() - exact).abs().max()
    narrow = (ir.ops.rms_norm(x, 1 + w, 1e-6).double() - exact).abs().max()
    assert wide < narrow
    close(ir.ops.rms_norm(x, 1 + w.float(), 1e-6), exact, 1)


@pytest.mark.parametrize("name", OPS)
def test_float32_inputs_are_not_copied_to_be_widened(name: str) -> None:
    """``.to`` the dtype that is there is free; nothing else than the arithmetic runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    args = ir.registry[name].generate_inputs()
    with Log():
        getattr(ir.native, name)(*args)
    assert not any(word in call for call in seen for word in ("_to_copy", "clone", "copy_", "contiguous"))


def test_inputs_are_generated_on_any_device_without_data() -> None:
    """Meta included, in every dtype, at every size; a report needs no memory."""
    for op in ir.registry.values():
        if not op.has_input_generator:  # a collective needs a group
            continue
        for hidden in (1, 46, 769, 4096):
            args = op.generate_inputs(num_tokens=2, hidden_size=hidden, dtype=torch.float16, device="meta")
            result = op.fn(*args)
            for made in result if isinstance(result, tuple) else (result,):
                assert made.device.type == "meta" and made.shape[0] == 2
                assert made.dtype == torch.float16 or "fp8_quant" in op.name


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul", "gelu_and_mul_sparse", "rms_norm"])
def test_definitions_without_the_property_do_not_claim_batch_invariance(name: str) -> None:
    """Torch's kernels for a single row or a thread's last elements differ in the last bit."""
    assert not ir.registry[name].impls["native"].batch_invariant
