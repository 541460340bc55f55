"""The product of fixed order, in Triton's interpreter and compiled without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from opdock.nn.kernels import triton

TARGETS = [("cuda", 80, 32), ("cuda", 90, 32), ("hip", "gfx942", 64)]
_MATRIX = {80: "mma.sync", 90: "wgmma.mma_async", "gfx942": "v_mfma"}


@pytest.mark.slow
def test_values_agree_with_float64_and_rows_with_themselves(interpret: Callable[[str], str]) -> None:
    """In the interpreter, for every dtype."""
    assert " passed" in interpret("interpreted_invariant.py")


def _build(dtype: str, target: tuple[Any, ...], *, even: bool, aligned: bool) -> Any:
    import triton as compiler
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from opdock.nn.kernels.triton.gemm_invariant import NARROW, WIDE, fixed_linear

    tile, names = WIDE if dtype == "fp32" else NARROW, fixed_linear.arg_names
    types = dict.fromkeys(("x_ptr", "w_ptr", "bias_ptr", "out_ptr"), f"*{dtype}")
    types |= dict.fromkeys(("rows", "outputs", "inputs"), "i32")
    sizes = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k, "STAGES": tile.stages}
    constants = {(names.index(n),): v for n, v in {"EVEN": even, "WIDEN": False, **sizes}.items()}
    signature = {n: types.get(n, "constexpr") for n in names}
    known = [i for i, n in enumerate(names) if aligned and n in types and n != "rows"]
    facts = {(i,): [["tt.divisibility", 16]] for i in known}
    source = ASTSource(fixed_linear, signature, constants, facts)
    return compiler.compile(source, target=GPUTarget(*target), options={"num_warps": tile.num_warps})


@pytest.mark.slow
@pytest.mark.usefixtures("needs_triton")
@pytest.mark.skipif(triton.interpreted(), reason="kernels that are interpreted are not compiled")
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: str(t[1]))
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("even", [True, False])
def test_it_builds_with_matrix_instructions_and_no_tf32(dtype: str, target: tuple[Any, ...], *, even: bool) -> None:
    """16 bits by the device's matrix units; float32 by its own products, nothing rounded before."""
    built = _build(dtype, target, even=even, aligned=True)
    code = built.asm["ptx" if target[0] == "cuda" else "amdgcn"]
    if dtype != "fp32":
        assert _MATRIX[target[1]] in code
    elif target[0] == "cuda":
        assert "fma.rn.f32" in code and "wgmma" not in code and "mma.sync" not in code and "tf32" not in code
    if target[0] == "cuda":
        assert not re.search(r"\b(ld|st)\.local|\.local\b", code)


@pytest.mark.usefixtures("needs_triton")
@pytest.mark.skipif(triton.interpreted(), reason="kernels that are interpreted are not compiled")
def test_the_number_of_rows_is_no_constant_of_the_machine_code() -> None:
    """Not even where it is 1 or a multiple of 16: one code serves all."""
    from opdock.nn.kernels.triton.gemm_invariant import fixed_linear

    (rows,) = (p for p in fixed_linear.params if p.name == "rows")
    assert rows.do_not_specialize and not rows.is_constexpr
