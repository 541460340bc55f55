"""Every kernel, compiled for the GPUs of both vendors without one: that it builds, and how it moves memory."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
import torch

from opdock.nn.kernels import triton as kernels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(kernels.why_not()), reason=f"needs Triton: {kernels.why_not()}"),
    pytest.mark.skipif(kernels.interpreted(), reason="kernels that are interpreted are not compiled"),
]

TARGETS = (
    ("cuda", 80, 32),
    ("cuda", 90, 32),
    ("cuda", 100, 32),
    ("hip", "gfx90a", 64),
    ("hip", "gfx942", 64),
    ("hip", "gfx950", 64),
)
HIDDEN = 4096
NORM = {"x_ptr": "*bf16", "weight_ptr": "*bf16", "epsilon": "fp32", "hidden": "i32", "x_outer": "i32"}
ADDED = {"residual_ptr": "*bf16", "residual_outer": "i32"}
GATE = {"x_ptr": "*bf16", "half": "i32", "x_outer": "i32", "out_outer": "i32"}
ROTARY = {"q_ptr": "*bf16", "k_ptr": "*bf16", "positions_ptr": "*i64", "table_ptr": "*bf16"} | dict.fromkeys(
    ("table_rows", "table_stride", "pairs", "q_heads", "k_heads", "q_stride", "q_head_stride", "k_stride"), "i32"
)


class Build(NamedTuple):
    """One variant: parameters and their types (the others are None), and the constants.

    ``fp8`` is the parameter that 8-bit floats are written to.
    """

    file: str
    kernel: str
    types: dict[str, str]
    constants: dict[str, Any]
    elements: int = HIDDEN
    fp8: str = ""


def _norm(quant: int, *, added: bool, types: dict[str, str]) -> Build:
    given = NORM | (ADDED if added else {}) | types
    return Build("rows", "norm_rows", given, {"BLOCK": HIDDEN, "QUANT": quant}, fp8="out_ptr" if quant else "")


SUM = {"sum_ptr": "*bf16", "sum_outer": "i32", "out_outer": "i32"}
BUILDS = {
    "rms_norm": Build("rows", "norm_dense", NORM | {"out_ptr": "*bf16"}, {"BLOCK": HIDDEN}),
    "rms_norm_strided": _norm(0, added=False, types={"out_ptr": "*bf16", "out_outer": "i32"}),
    "fused_add_rms_norm": Build("rows", "norm_dense", NORM | ADDED, {"BLOCK": HIDDEN}),
    "fused_add_rms_norm_strided": _norm(0, added=True, types={}),
    "rms_norm_static": _norm(1, added=False, types={"out_outer": "i32", "scale_ptr": "*fp32"}),
    "rms_norm_token": _norm(2, added=False, types={"out_outer": "i32", "scales_ptr": "*fp32"}),
    "fused_add_static": _norm(1, added=True, types=SUM | {"scale_ptr": "*fp32"}),
    "fused_add_token": _norm(2, added=True, types=SUM | {"scale_ptr": "*fp32", "scales_ptr": "*fp32"}),
    **{
        f"gate_dense_{act}": Build(
            "gated", "gate_dense", GATE | {"out_ptr": "*bf16"}, {"BLOCK": 1024, "ACT": act}, 2048
        )
        for act in (0, 1, 2)
    },
    **{
        f"gate_{act}": Build(
            "gated", "gate_rows", GATE | {"out_ptr": "*bf16"}, {"BLOCK": 1024, "ACT": act, "QUANT": 0}, 2048
        )
        for act in (0, 1, 2)
    },
    "gate_static": Build(
        "gated",
        "gate_rows",
        GATE | {"scale_ptr": "*fp32"},
        {"BLOCK": 1024, "ACT": 0, "QUANT": 1},
        2048,
        fp8="out_ptr",
    ),
    "gate_token": Build(
        "gated",
        "gate_rows",
        GATE | {"scales_ptr": "*fp32"},
        {"BLOCK": HIDDEN, "ACT": 0, "QUANT": 2},
        2 * HIDDEN,
        fp8="out_ptr",
    ),
    "static": Build(
        "quant",
        "quantise_block",
        {"x_ptr": "*bf16", "scale_ptr": "*fp32", "count": "i32"},
        {"BLOCK": 2048},
        2048,
        fp8="out_ptr",
    ),
    "token": Build(
        "quant",
        "quantise_rows",
        {"x_ptr": "*bf16", "scales_ptr": "*fp32", "hidden": "i32", "x_outer": "i32"},
        {"BLOCK": HIDDEN},
        fp8="out_ptr",
    ),
    **{
        f"rotary_{'neox' if neox else 'pairs'}": Build(
            "rotary",
            "rotate_token",
            ROTARY | dict.fromkeys(("k_head_stride", "positions_stride", "q_blocks"), "i32"),
            {"HEADS": 16, "BLOCK": 64, "NEOX": neox},
            2048,
        )
        for neox in (True, False)
    },
}


def _compile(build: Build, target: tuple[str, int | str, int], ones: tuple[str, ...] = ()) -> Any:
    """Compile for aligned pointers and sizes that divide by 16, as models have them; ``ones`` are 1.

    Triton makes a constant of a size that is 1.
    """
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from opdock.nn.kernels.triton import fp8
    from opdock.nn.kernels.triton.target import facts_of, warps_for

    kernel = getattr(importlib.import_module(f"opdock.nn.kernels.triton.{build.file}"), build.kernel)
    facts, types, constants = facts_of(*target), dict(build.types), dict(build.constants)
    if build.fp8:
        types[build.fp8] = "*fp8e4nv" if facts.converts_e4m3fn else "*u8"
        constants |= fp8.constants(torch.float8_e4m3fn, facts)
    elif "LIMIT" in kernel.arg_names:
        constants |= fp8.NO_FP8
    constants |= {n: None for n in kernel.arg_names if n not in types and n not in constants}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(kernel.arg_names)
        if types.get(n, "fp32") != "fp32" and n not in ones
    }
    constants |= {n: 1 for n in ones if n in kernel.arg_names}
    signature = {n: "constexpr" if n in ones else types.get(n, "constexpr") for n in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": warps_for(build.elements, target[2])}
    return triton.compile(source, target=GPUTarget(*target), options=options)


@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: str(t[1]))
def test_kernels_build_with_wide_loads_and_no_spills(name: str, target: tuple[str, int | str, int]) -> None:
    built = _compile(BUILDS[name], target)
    if target[0] == "cuda":
        code = built.asm["ptx"]
        assert "ld.global.v4.b32" in code
        assert not re.search(r"\b(ld|st)\.local|\.local\b", code)
    else:
        code = built.asm["amdgcn"]
        assert re.search(r"(global|buffer)_load_dwordx4", code)
        kept = re.findall(r"(?:private_segment_fixed_size|[sv]gpr_spill_count): +(\d+)", code)
        assert kept
        assert not any(map(int, kept))


@pytest.mark.parametrize("name", [n for n, b in BUILDS.items() if b.fp8])
def test_gpus_that_convert_to_fp8_use_their_instruction(name: str) -> None:
    assert "cvt.rn.satfinite.e4m3x2.f32" in _compile(BUILDS[name], ("cuda", 90, 32)).asm["ptx"]
    assert "e4m3x2" not in _compile(BUILDS[name], ("cuda", 80, 32)).asm["ptx"]


@pytest.mark.parametrize("name", BUILDS)
def test_sizes_of_one_build_too(name: str) -> None:
    build = BUILDS[name]
    sizes = tuple(n for n, kind in build.types.items() if kind == "i32")
    assert "ret;" in _compile(build, ("cuda", 90, 32), sizes).asm["ptx"]
