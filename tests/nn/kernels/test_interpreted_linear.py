"""The products with quantised weights, in Triton's interpreter and compiled without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opdock.nn.kernels import triton

INT4 = {"x_ptr": "*bf16", "w_ptr": "*i16", "scales_ptr": "*bf16", "out_ptr": "*bf16"}
PARTS = {"parts_ptr": "*fp32", "locks_ptr": "*i32"}
SCALED = {"x_scale_ptr": "*fp32", "w_scale_ptr": "*fp32", "out_ptr": "*bf16"}
SIZES = dict.fromkeys(("rows", "outputs", "inputs", "x_stride", "group"), "i32")
CUDA, HIP = ("cuda", 90, 32), ("hip", "gfx942", 64)


@pytest.mark.slow
def test_products_agree_with_float64_in_the_interpreter(interpret: Callable[[str], str]) -> None:
    """Values of every path."""
    assert " passed" in interpret("interpreted_linear.py")


def _build(kernel: Any, types: dict[str, str], constants: dict[str, Any], target: tuple[Any, ...]) -> Any:
    import triton as compiler
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    given = {name: types.get(name, "constexpr") for name in names}
    values = {(names.index(n),): constants.get(n) for n in names if given[n] == "constexpr"}
    even = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if given[n] != "constexpr" and n != "rows"}
    source = ASTSource(kernel, given, values, even)
    return compiler.compile(source, target=GPUTarget(*target), options={"num_warps": 4})


@pytest.mark.slow
@pytest.mark.usefixtures("needs_triton")
@pytest.mark.skipif(triton.interpreted(), reason="kernels that are interpreted are not compiled")
@pytest.mark.parametrize("target", [CUDA, HIP])
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_4_bit_product_builds(target: tuple[Any, ...], dtype: str, *, shifted: bool) -> None:
    """And on NVIDIA converts no integer: the codes become floats by two instructions for two of them."""
    from opdock.nn.kernels.triton.gemm_int4 import int4_linear

    types = {k: v.replace("bf16", dtype) for k, v in INT4.items()} | PARTS | SIZES
    types |= {"shifts_ptr": "*fp32"} if shifted else {}
    tiles = {"BLOCK_M": 16, "BLOCK_N": 64, "WORDS": 128, "STEP": 128, "OWN_SCALES": True, "EVEN": True, "SPLIT": 2}
    given = tiles | {"STAGES": 3, "ALIGN": 4, "FAST": target[0] == "cuda", "DEPENDENT": False}
    built = _build(int4_linear, types, given, target)
    if target[0] == "cuda":
        assert "wgmma.mma_async" in built.asm["ptx"]
        assert "lop3.b32" in built.asm["ptx"]
        assert "cvt.rn.f32.s" not in built.asm["ptx"]
    else:
        assert "v_mfma" in built.asm["amdgcn"]


@pytest.mark.slow
@pytest.mark.usefixtures("needs_triton")
@pytest.mark.skipif(triton.interpreted(), reason="kernels that are interpreted are not compiled")
def test_a_4_bit_product_that_is_started_early_copies_16_bytes_at_once_and_waits() -> None:
    """Only on NVIDIA: it asks for its first weights, waits for the kernel ahead, and then copies."""
    from opdock.nn.kernels.triton.gemm_int4 import int4_linear

    tiles = {"BLOCK_M": 16, "BLOCK_N": 64, "WORDS": 128, "STEP": 64, "OWN_SCALES": True, "EVEN": True, "SPLIT": 1}
    given = tiles | {"STAGES": 3, "ALIGN": 16, "FAST": True, "DEPENDENT": True}
    asm = _build(int4_linear, INT4 | PARTS | SIZES, given, CUDA).asm["ptx"]
    places = [asm.index(text) for text in ("prefetch.global.L2", "griddepcontrol.wait", "cp.async")]
    assert places == sorted(places)
    assert "griddepcontrol.launch_dependents" in asm


@pytest.mark.slow
@pytest.mark.usefixtures("needs_triton")
@pytest.mark.skipif(triton.interpreted(), reason="kernels that are interpreted are not compiled")
@pytest.mark.parametrize("target", [CUDA, HIP])
def test_the_4_bit_product_of_one_row_builds(target: tuple[Any, ...]) -> None:
    """And on NVIDIA loads 16 bytes at once and converts no integer."""
    from opdock.nn.kernels.triton.gemm_int4_row import int4_row

    tiles = {"BLOCK_N": 8, "CHUNKS": 8, "STEPS": 1, "WORDS": 128, "FAST": target[0] == "cuda", "DEPENDENT": False}
    built = _build(int4_row, INT4 | SIZES, tiles, target)
    if target[0] == "cuda":
        assert "ld.global.v4" in built.asm["ptx"]
        assert "cvt.rn.f32.s" not in built.asm["ptx"]


@pytest.mark.slow
@pytest.mark.usefixtures("needs_triton")
@pytest.mark.skipif(triton.interpreted(), reason="kernels that are interpreted are not compiled")
@pytest.mark.parametrize(("target", "dtype"), [(CUDA, "fp8e4nv"), (CUDA, "i8"), (HIP, "i8"), (HIP, "fp8e4b8")])
@pytest.mark.parametrize("blocked", [True, False])
def test_the_8_bit_product_builds(target: tuple[Any, ...], dtype: str, *, blocked: bool) -> None:
    """With the matrix instructions of the device."""
    from opdock.nn.kernels.triton.linear_scaled import scaled_linear

    if blocked and dtype == "i8":
        pytest.skip("int8 has no blocks")
    types = {"x_ptr": f"*{dtype}", "w_ptr": f"*{dtype}"} | SCALED | PARTS | SIZES
    flags = {"X_PER_ROW": True, "W_PER_ROW": True, "BLOCKED": blocked, "INTEGER": dtype == "i8", "EVEN": True}
    tiles = {
        "BLOCK_M": 16,
        "BLOCK_N": 64,
        "BLOCK_K": 128,
        "IMPRECISE": 128,
        "SPLIT": 2,
        "STAGES": 3,
        "DEPENDENT": False,
    }
    built = _build(scaled_linear, types, flags | tiles, target)
    assert ("wgmma.mma_async" in built.asm["ptx"]) if target[0] == "cuda" else ("v_mfma" in built.asm["amdgcn"])
