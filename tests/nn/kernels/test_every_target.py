"""Products, experts and the cache, compiled for three generations of NVIDIA GPUs without one.

What the tests beside this one compile for one of them, with more said about the code, is built for the others here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from opdock.nn.kernels import triton as kernels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(kernels.why_not()), reason=f"needs Triton: {kernels.why_not()}"),
    pytest.mark.skipif(kernels.interpreted(), reason="kernels that are interpreted are not compiled"),
    pytest.mark.parametrize("capability", [80, 90, 100]),
]
TESTS = Path(__file__).parents[1]


def _beside(path: str) -> ModuleType:
    """Return another test module, which says what its kernels are built with."""
    spec = importlib.util.spec_from_file_location(f"_beside_{Path(path).stem}", TESTS / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _code(built: Any) -> str:
    text: str = built.asm["ptx"]
    assert "ret;" in text and ".local" not in text
    return text


def test_products_with_4_bit_weights_build(capability: int) -> None:
    from opdock.nn.kernels.triton.gemm_int4 import int4_linear
    from opdock.nn.kernels.triton.gemm_int4_row import int4_row

    linear, target = _beside("kernels/test_interpreted_linear.py"), ("cuda", capability, 32)
    tiles = {"BLOCK_M": 16, "BLOCK_N": 64, "WORDS": 128, "STEP": 128, "OWN_SCALES": True, "EVEN": True, "SPLIT": 2}
    given = tiles | {"STAGES": 3, "ALIGN": 4, "FAST": True, "DEPENDENT": False}
    code = _code(linear._build(int4_linear, linear.INT4 | linear.PARTS | linear.SIZES, given, target))
    assert "mma" in code and "cvt.rn.f32.s" not in code
    row = {"BLOCK_N": 8, "CHUNKS": 8, "STEPS": 1, "WORDS": 128, "FAST": True, "DEPENDENT": False}
    assert "cvt.rn.f32.s" not in _code(linear._build(int4_row, linear.INT4 | linear.SIZES, row, target))


@pytest.mark.parametrize("dtype", ["i8", "fp8e4nv"])
def test_products_with_8_bit_weights_build(capability: int, dtype: str) -> None:
    from opdock.nn.kernels.triton.linear_scaled import scaled_linear

    if dtype == "fp8e4nv" and capability < 89:
        pytest.skip("no such products before compute capability 8.9")
    linear = _beside("kernels/test_interpreted_linear.py")
    types = {"x_ptr": f"*{dtype}", "w_ptr": f"*{dtype}"} | linear.SCALED | linear.PARTS | linear.SIZES
    flags = {"X_PER_ROW": True, "W_PER_ROW": True, "BLOCKED": False, "INTEGER": dtype == "i8", "EVEN": True}
    tiles = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "IMPRECISE": 128, "SPLIT": 2, "STAGES": 3}
    given = flags | tiles | {"DEPENDENT": False}
    assert "mma" in _code(linear._build(scaled_linear, types, given, ("cuda", capability, 32)))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_products_of_a_fixed_order_build(capability: int, dtype: str) -> None:
    fixed = _beside("kernels/test_gemm_invariant.py")
    code = _code(fixed._build(dtype, ("cuda", capability, 32), even=False, aligned=True))
    assert ("mma" in code) == (dtype == "bf16")


@pytest.mark.parametrize("gated", [True, False])
def test_experts_build(capability: int, *, gated: bool) -> None:
    from opdock.nn.kernels.triton.moe import tiles_for

    moe, target = _beside("moe/test_triton_moe.py"), ("cuda", capability, 32)
    for name in moe.SMALL if gated else ():
        _code(moe.compiled(moe.SMALL[name], target))
    for places in (8, 32768):
        tiles = tiles_for(places, 64, 2048, gated=gated, modern=capability >= 90)
        assert "mma" in _code(moe.compiled(moe.product(tiles, gated=gated), target))


def _compile(kernel: Any, types: dict[str, str], constants: dict[str, Any], capability: int) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    signature = {n: types.get(n, "i32" if n.islower() else "constexpr") for n in names}
    source = ASTSource(fn=kernel, signature=signature, constexprs={n: constants[n] for n in names if n.isupper()})
    return _code(triton.compile(source, target=GPUTarget("cuda", capability, 32)))


@pytest.mark.parametrize("quantised", [True, False])
def test_writing_into_the_cache_builds(capability: int, *, quantised: bool) -> None:
    import torch

    from opdock.nn.kernels.triton.attention_cache import store_token
    from opdock.nn.kernels.triton.fp8 import NO_FP8, constants
    from opdock.nn.kernels.triton.target import facts_of

    facts = constants(torch.float8_e4m3fn, facts_of("cuda", capability, 32)) if quantised else NO_FP8
    held = ("*fp8e4nv" if facts["HARD"] else "*u8") if quantised else "*bf16"
    types = {"key_ptr": "*bf16", "value_ptr": "*bf16", "slots_ptr": "*i64"}
    types |= {"key_cache_ptr": held, "value_cache_ptr": held, "key_scale_ptr": "*fp32", "value_scale_ptr": "*fp32"}
    given = {"HEADS": 8, "HEAD": 128, "BLOCK": 1024, "QUANTISED": quantised, **facts}
    _compile(store_token, types, given, capability)


def test_merging_the_splits_of_a_request_builds(capability: int) -> None:
    from opdock.nn.kernels.triton.attention import merge_rows

    types = {"out_ptr": "*bf16", "partial_ptr": "*fp32", "lse_ptr": "*fp32", "starts_ptr": "*i32", "lens_ptr": "*i32"}
    given = {"HEAD": 128, "HEAD_PAD": 128, "TILE": 16, "SPAN": 0, "WINDOW": 100, "CHUNK": 16}
    _compile(merge_rows, types, given, capability)
