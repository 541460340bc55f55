"""The Triton kernels of experts: their values in the interpreter, and their builds for GPUs that are not here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from opdock.nn.kernels import triton as kernels

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(kernels.why_not()), reason=f"needs Triton: {kernels.why_not()}"),
    pytest.mark.skipif(kernels.interpreted(), reason="kernels that are interpreted are not compiled"),
]


def test_values_in_the_interpreter_are_right() -> None:
    """The interpreter is chosen when a kernel is defined, so it needs a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    ended = subprocess.run(
        [*command, str(HERE / "interpreted_moe.py")],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout


CUDA, HIP = ("cuda", 90, 32), ("hip", "gfx942", 64)


class Build(NamedTuple):
    """One variant: parameters and their types (the others are None), and the constants."""

    file: str
    kernel: str
    types: dict[str, str]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 3


PLAN = {"ids_ptr": "*i32", "numel": "i32", "experts": "i32"}
TABLE = {"table_ptr": "*i32", "experts": "i32", "blocks": "i32"}
GEMM = {"out_ptr": "*bf16", "rows_ptr": "*i32", "table_ptr": "*i32"} | dict.fromkeys(
    ("n_size", "k_size", "blocks", "per_token"), "i32"
)
SMALL = {
    "plan_expert": Build(
        "moe_plan", "plan_expert", PLAN | TABLE | {"rows_ptr": "*i32"}, {"CHUNK": 1024, "BINS": 256, "BM": 16}
    ),
    "plan_expert_mapped": Build(
        "moe_plan",
        "plan_expert",
        PLAN | TABLE | {"rows_ptr": "*i32", "map_ptr": "*i32"},
        {"CHUNK": 128, "BINS": 512, "BM": 64},
    ),
    "count_chunk": Build("moe_plan", "count_chunk", PLAN | {"counts_ptr": "*i32"}, {"CHUNK": 1024, "BINS": 256}),
    "plan_table": Build(
        "moe_plan", "plan_table", TABLE | {"counts_ptr": "*i32", "cursor_ptr": "*i32"}, {"BINS": 256, "BM": 64}
    ),
    "scatter_chunk": Build(
        "moe_plan", "scatter_chunk", PLAN | {"cursor_ptr": "*i32", "rows_ptr": "*i32"}, {"CHUNK": 1024}
    ),
    "experts_of": Build("moe_plan", "experts_of", PLAN | {"map_ptr": "*i32", "table_ptr": "*i32"}, {"CHUNK": 128}),
    "sum_places": Build(
        "moe_gemm",
        "sum_places",
        {
            "part_ptr": "*bf16",
            "out_ptr": "*bf16",
            "ids_ptr": "*i32",
            "map_ptr": "*i32",
            "hidden": "i32",
            "per_token": "i32",
        },
        {"BLOCK": 1024},
    ),
    "route_token": Build(
        "moe_route",
        "route_token",
        {"logits_ptr": "*fp32", "weights_ptr": "*fp32", "ids_ptr": "*i32", "bias_ptr": "*fp32", "scaling": "fp32"}
        | dict.fromkeys(("experts", "top_k", "size"), "i32"),
        {
            "LANES": 256,
            "SLOTS": 8,
            "SIGMOID": True,
            "RENORMALIZE": True,
            "GROUPS": 8,
            "TOPK_GROUPS": 4,
            "GROUP_LANES": 8,
            "TOP2": True,
        },
        1,
    ),
}


def product(tiles: Any, *, gated: bool, kind: str = "bf16") -> Build:
    """Return a grouped product with the tiles that the library would take."""
    b = f"tensordesc<{kind}[{tiles.columns},{tiles.depth}]>" if tiles.tma else f"*{kind}"
    a = f"tensordesc<{kind}[{tiles.rows},{tiles.depth}]>" if tiles.tma and not gated else f"*{kind}"
    types = GEMM | {"a_ptr": a, "b_ptr": b} | ({} if gated else {"weights_ptr": "*fp32"})
    if kind != "bf16":
        types |= {"a_scale_ptr": "*fp32", "b_scale_ptr": "*fp32"}
    constants = {
        "BM": tiles.rows,
        "BN": tiles.columns,
        "BK": tiles.depth,
        "GROUP": tiles.group,
        "GATED": gated,
        "ACT": 0,
        "GATHER": gated,
        "SCATTER": not gated,
        "EVEN_N": True,
        "EVEN_K": True,
        "EXACT": False,
        "A_TMA": tiles.tma and not gated,
        "B_TMA": tiles.tma,
    }
    return Build("moe_gemm", "grouped_gemm", types, constants, tiles.warps, tiles.stages)


def compiled(build: Build, target: tuple[str, int | str, int]) -> Any:
    """Compile for aligned pointers and sizes that divide by 16, as models have them."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(f"opdock.nn.kernels.triton.{build.file}"), build.kernel)
    types, constants = build.types, dict(build.constants)
    constants |= {n: None for n in kernel.arg_names if n not in types and n not in constants}
    plain = ("numel", "experts", "blocks", "per_token", "top_k", "size", "scaling")
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(kernel.arg_names)
        if n in types and n not in plain and not types[n].startswith("tensordesc")
    }
    signature = {n: types.get(n, "constexpr") for n in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": build.warps, "num_stages": build.stages}
    return triton.compile(source, target=GPUTarget(*target), options=options)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("target", [CUDA, HIP], ids=lambda t: str(t[1]))
def test_plan_choice_and_sum_build_without_spills(name: str, target: tuple[str, int | str, int]) -> None:
    code = compiled(SMALL[name], target).asm
    assert ".local" not in code.get("ptx", "")
    assert "scratch_store" not in code.get("amdgcn", "")


@pytest.mark.parametrize("kind", ["bf16", "fp8e4nv"])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("places", [8, 1024, 4096, 32768])
def test_products_for_hopper_fit_its_memory_and_use_its_instructions(places: int, kind: str, *, gated: bool) -> None:
    from opdock.nn.kernels.triton.moe import tiles_for

    tiles = tiles_for(places, 64, 2048, gated=gated, modern=True)
    if kind != "bf16":
        tiles = tiles._replace(depth=2 * tiles.depth)
    built = compiled(product(tiles, gated=gated, kind=kind), CUDA)
    assert built.metadata.shared <= 227 * 1024
    assert "cp.async.bulk.tensor" in built.asm["ptx"]
    assert ("wgmma" if tiles.rows >= 64 else "mma.sync") in built.asm["ptx"]
    assert ".local" not in built.asm["ptx"]


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("places", [8, 32768])
def test_products_for_other_gpus_fit_64_kib_or_99_and_multiply_matrices(places: int, *, gated: bool) -> None:
    from opdock.nn.kernels.triton.moe import tiles_for

    tiles = tiles_for(places, 64, 2048, gated=gated, modern=False)
    amd = compiled(product(tiles, gated=gated)._replace(stages=2), HIP)
    assert "mfma" in amd.asm["amdgcn"]
    assert amd.metadata.shared <= 64 * 1024
    old = compiled(product(tiles, gated=gated), ("cuda", 86, 32))
    assert "mma.sync" in old.asm["ptx"]
    assert old.metadata.shared <= 99 * 1024
