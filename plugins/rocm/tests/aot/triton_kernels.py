"""Compile opdock's Triton kernels for AMD GPUs, without one, and look at the assembly.

``python triton_kernels.py FOLDER`` prints a table and writes it as ``triton.md`` and ``triton.json``. It ends with 1 if
a kernel does not build for a target or is not as it should be. It takes Triton, opdock and opdock-rocm.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

TARGETS = ("gfx90a", "gfx942", "gfx950")
WAVE = 64
FP8 = {"gfx90a": torch.float8_e4m3fn, "gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
"""The 8-bit float that each computes with, or would."""
CACHE = {"gfx942": "*fp8e4b8", "gfx950": "*fp8e4nv"}
"""The same, as Triton calls it, where attention reads it from a cache."""
CACHES = ("key_ptr", "value_ptr")
"""Parameters of attention, which may be tensors of more than 2 GiB."""
_NEAR = ["tt.pointer_range", 32]
"""What Triton adds on AMD for tensors of less: the kernel then loads by instructions for buffers."""
HERE = "opdock.nn.kernels.triton"
HIDDEN = 4096


@dataclass(frozen=True)
class Build:
    """One variant of a kernel.

    Args:
        name: for the table.
        module: of the function.
        function: what ``triton.jit`` decorates.
        types: of the parameters that are given; the others are None.
        constants: the ``tl.constexpr`` parameters.
        elements: of a block, which say how many warps it has; 0: ``warps`` says it.
        fp8: the parameter that 8-bit floats are written to.
        any_number: parameters that need not divide by 16.
        matrix: whether it multiplies matrices.
        cache: parameters that are caches of the chip's 8-bit float; it is built where there is one.
    """

    name: str
    module: str
    function: str
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    elements: int = HIDDEN
    fp8: str = ""
    any_number: tuple[str, ...] = ()
    matrix: bool = False
    warps: int = 0
    stages: int = 0
    cache: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """What it is built for."""
        return tuple(CACHE) if self.cache else TARGETS


@dataclass(frozen=True)
class Made:
    """What was made of one: registers of a thread, ``lds`` and ``code`` in bytes, counts of instructions.

    ``spills`` are vector registers that went to memory; ``kept`` are scalar ones, which went to lanes of vector ones.
    """

    target: str
    name: str
    vgprs: int
    sgprs: int
    lds: int
    code: int
    spills: int
    kept: int
    scratch: int
    wide_loads: int
    wide_stores: int
    matrix_instructions: int
    fp8_instructions: int


_NORM = {"x_ptr": "*bf16", "weight_ptr": "*bf16", "epsilon": "fp32", "hidden": "i32"}
_ROWS = {"x_outer": "i32"}
_ADDED = {"residual_ptr": "*bf16", "residual_outer": "i32", "sum_ptr": "*bf16", "sum_outer": "i32"}
_SCALED = {"out_outer": "i32", "scale_ptr": "*fp32"}
_TOKEN = {"out_outer": "i32", "scales_ptr": "*fp32"}
_GATE = {"x_ptr": "*bf16", "half": "i32"}
_ROTARY = {"q_ptr": "*bf16", "k_ptr": "*bf16", "positions_ptr": "*i64", "table_ptr": "*bf16"} | dict.fromkeys(
    (
        "table_rows", "table_stride", "pairs", "q_heads", "k_heads", "q_stride", "q_head_stride", "k_stride",
        "k_head_stride", "positions_stride", "q_blocks",
    ),
    "i32",
)  # fmt: skip
_GEMMA = _NORM | {"out_ptr": "*bf16"}
_ATTENTION = (
    dict.fromkeys(("table_ptr", "starts_ptr", "lens_ptr"), "*i32")
    | dict.fromkeys(("scale", "soft_cap"), "fp32")
    | dict.fromkeys(
        (
            "requests", "rows", "splits", "elsewhere", "table_stride", "out_stride", "out_head_stride", "query_stride",
            "query_head_stride", "key_block_stride", "key_slot_stride", "key_head_stride", "value_block_stride",
            "value_slot_stride", "value_head_stride",
        ),
        "i32",
    )
)  # fmt: skip


def builds() -> Iterator[Build]:
    """Yield what is compiled: every function that a provider, the attention backend or a replaced layer launches."""
    dense, rows = {"BLOCK": HIDDEN}, {"BLOCK": HIDDEN}
    norms = f"{HERE}.rows"
    yield Build("rms_norm", norms, "norm_dense", _NORM | {"out_ptr": "*bf16"}, dense)
    yield Build("fused_add_rms_norm", norms, "norm_dense", _NORM | {"residual_ptr": "*bf16"}, dense)
    out = {"out_ptr": "*bf16", "out_outer": "i32"}
    yield Build("rms_norm, strided", norms, "norm_rows", _NORM | _ROWS | out, rows | {"QUANT": 0})
    for quant, kind, types in ((1, "static", _SCALED), (2, "dynamic_per_token", _TOKEN)):
        fixed, given = rows | {"QUANT": quant}, _NORM | _ROWS | types
        yield Build(f"rms_norm_{kind}_fp8_quant", norms, "norm_rows", given, fixed, fp8="out_ptr")
        name = f"fused_add_rms_norm_{kind}_fp8_quant"
        yield Build(name, norms, "norm_rows", given | _ADDED, fixed, fp8="out_ptr")
    gated = f"{HERE}.gated"
    for act, name in enumerate(("silu_and_mul", "gelu_and_mul", "gelu_and_mul, tanh")):
        fixed = {"BLOCK": 1024, "ACT": act}
        yield Build(name, gated, "gate_dense", _GATE | {"out_ptr": "*bf16"}, fixed, 2048)
    for quant, kind, types in ((1, "static", _SCALED), (2, "dynamic_per_token", _TOKEN)):
        block = 1024 if quant == 1 else HIDDEN
        fixed = {"BLOCK": block, "ACT": 0, "QUANT": quant}
        name = f"silu_and_mul_{kind}_fp8_quant"
        yield Build(name, gated, "gate_rows", _GATE | _ROWS | types, fixed, 2 * block, fp8="out_ptr")
    quantise = f"{HERE}.quant"
    types = {"x_ptr": "*bf16", "scale_ptr": "*fp32", "count": "i32"}
    yield Build("static_scaled_fp8_quant", quantise, "quantise_block", types, {"BLOCK": 2048}, 2048, fp8="out_ptr")
    types = {"x_ptr": "*bf16", "scales_ptr": "*fp32", "hidden": "i32", "x_outer": "i32"}
    yield Build("dynamic_per_token_scaled_fp8_quant", quantise, "quantise_rows", types, dense, fp8="out_ptr")
    for neox in (True, False):
        fixed = {"HEADS": 16, "BLOCK": 64, "NEOX": neox}
        name = f"rotary_embedding, {'halves' if neox else 'pairs'}"
        yield Build(name, f"{HERE}.rotary", "rotate_token", _ROTARY, fixed, 2048)
    own = "opdock_rocm.gemma"
    yield Build("GemmaRMSNorm", own, "gemma_norm", _GEMMA, dense)
    yield Build("GemmaRMSNorm with a residual", own, "gemma_norm", _GEMMA | _summed(), dense)
    for head, dtype in ((64, "bf16"), (128, "bf16"), (256, "bf16"), (128, "fp32"), (256, "fp32")):
        yield from (attention(single=single, head=head, dtype=dtype) for single in (True, False))
    for head in (64, 128, 256):
        yield from (attention(single=single, head=head, quantised=True) for single in (True, False))


def _summed() -> dict[str, str]:
    return {"residual_ptr": "*bf16", "sum_ptr": "*bf16"}


def attention(*, single: bool, head: int = 128, dtype: str = "bf16", quantised: bool = False) -> Build:
    """Return attention over a paged cache, cut as the host cuts it for AMD: of decoded tokens, or of prompts."""
    from opdock.nn.attention.impl import AttentionSpec
    from opdock.nn.kernels.triton.attention_tuning import SMALL_MEMORY, tuning_for_prompts, tuning_for_single

    spec, itemsize = AttentionSpec(num_heads=32, num_kv_heads=8, head_size=head, scale=1.0), 4 if dtype == "fp32" else 2
    if single:
        tuning = tuning_for_single(spec, 1, 4096, 304, itemsize=itemsize, memory=SMALL_MEMORY)
    else:
        tuning = tuning_for_prompts(spec, itemsize=itemsize, memory=SMALL_MEMORY)
    types = _ATTENTION | dict.fromkeys(("out_ptr", "query_ptr", "key_ptr", "value_ptr"), f"*{dtype}")
    if single:
        types |= {"partial_ptr": "*fp32", "lse_ptr": "*fp32", "counter_ptr": "*i32"}
    if quantised:
        types |= {"key_scale_ptr": "*fp32", "value_scale_ptr": "*fp32"}
    constants: dict[str, Any] = {
        "GROUP": 4, "HEAD": head, "HEAD_PAD": head, "BLOCK_SIZE": 16, "BLOCK_M": tuning.block_m,
        "BLOCK_Q": 1 if single else tuning.block_m // 4, "TILE": tuning.tile, "SPLIT": single, "SPAN": 0,
        "SINGLE": single, "SKIP_SINGLE": not single, "WINDOW": 0, "SOFT_CAP": False, "ALIBI": False, "SINKS": False,
        "QUANTISED": quantised, "MERGE": single, "PRECISION": "ieee", "GROUP_PAD": 4,
        "CHUNK": max(2, min(16, 8192 // (4 * head))),
        "DEPENDENT": False,
    }  # fmt: skip
    name = f"attention, {'decoded tokens' if single else 'prompts'}, heads of {head}"
    name += ", float32" * (dtype == "fp32") + ", 8-bit cache" * quantised
    return Build(
        name, f"{HERE}.attention", "attend_paged", types, constants, 0,
        any_number=("requests", "rows", "splits"), matrix=True, warps=tuning.warps, stages=tuning.stages,
        cache=CACHES * quantised,
    )  # fmt: skip


def compile_for(build: Build, target: str) -> Any:
    """Compile for aligned pointers, and sizes that divide by 16, as those of models do."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from opdock.nn.kernels.triton import fp8
    from opdock.nn.kernels.triton.target import facts_of, warps_for

    kernel = getattr(importlib.import_module(build.module), build.function)
    facts, types, constants = facts_of("hip", target, WAVE), dict(build.types), dict(build.constants)
    types |= dict.fromkeys(build.cache, CACHE.get(target, ""))
    if build.fp8:
        made = fp8.constants(FP8[target], facts)
        types[build.fp8] = "*fp8e4nv" if made["HARD"] else "*u8"
        constants |= made
    elif "LIMIT" in kernel.arg_names:
        constants |= fp8.NO_FP8
    constants |= {name: None for name in kernel.arg_names if name not in types and name not in constants}
    known = {
        (i,): [["tt.divisibility", 16], *([_NEAR] if types[name].startswith("*") and name not in CACHES else [])]
        for i, name in enumerate(kernel.arg_names)
        if types.get(name, "fp32") != "fp32" and name not in build.any_number
    }
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=known)
    options = {"num_warps": build.warps or warps_for(build.elements, WAVE)}
    if build.stages:
        options["num_stages"] = build.stages
    return triton.compile(source, target=GPUTarget("hip", target, WAVE), options=options)


def read(build: Build, target: str, code: str, lds: int) -> Made:
    """Return what the assembly of one kernel says."""

    def number(name: str) -> int:
        found = re.search(rf"^ *\.{name}: +(\d+)", code, re.MULTILINE)
        if found is None:
            raise SystemExit(f"{build.name} for {target}: no {name} in the assembly")
        return int(found[1])

    length = re.search(r"; codeLenInByte = (\d+)", code)
    return Made(
        target=target,
        name=build.name,
        vgprs=number("vgpr_count"),
        sgprs=number("sgpr_count"),
        lds=lds,
        code=int(length[1]) if length else 0,
        spills=number("vgpr_spill_count"),
        kept=number("sgpr_spill_count"),
        scratch=number("private_segment_fixed_size"),
        wide_loads=len(re.findall(r"\b(?:global|buffer)_load_dwordx4\b", code)),
        wide_stores=len(re.findall(r"\b(?:global|buffer)_store_dwordx[24]\b", code)),
        matrix_instructions=len(re.findall(r"\bv_mfma_", code)),
        fp8_instructions=len(re.findall(r"\bv_cvt_\w*fp8\w*", code)),
    )


def fault(build: Build, made: Made) -> str:
    """Return what is wrong with a kernel, "" if it is as it should be."""
    if made.spills or made.scratch:
        return f"{made.spills} registers are spilled, {made.scratch} bytes of scratch"
    if not made.wide_loads:
        return "no load of 16 bytes"
    if not made.wide_stores and not build.fp8 and not build.matrix:
        return "no store of 8 or 16 bytes"
    if build.matrix != bool(made.matrix_instructions):
        return f"{made.matrix_instructions} matrix instructions"
    if made.lds > 65536:
        return f"{made.lds} bytes of shared memory"
    if build.fp8 and made.target == "gfx950" and not made.fp8_instructions:
        return "no instruction that converts to 8-bit floats"
    return ""


def table(found: list[Made]) -> str:
    """Return the table of all kernels, a column for each target."""
    lines = [f"| kernel | {' | '.join(TARGETS)} |", "| --- " * (len(TARGETS) + 1) + "|"]
    for name in dict.fromkeys(made.name for made in found):
        each = {made.target: made for made in found if made.name == name}
        cells = (_cell(each.get(target)) for target in TARGETS)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(made: Made | None) -> str:
    return "-" if made is None else f"{made.vgprs}, {made.sgprs}, {made.lds:,}, {made.code:,}"


def build_all(target: str) -> dict[str, list[Any]]:
    """Build and check all for one target; return what was made, and what is wrong."""
    made, wrong = [], []
    for build in builds():
        if target in build.targets:
            kernel = compile_for(build, target)
            made.append(read(build, target, kernel.asm["amdgcn"], kernel.metadata.shared))
            if reason := fault(build, made[-1]):
                wrong.append(f"{target}, {build.name}: {reason}")
    return {"made": [asdict(one) for one in made], "wrong": wrong}


def main(folder: Path) -> int:
    """Build and check all of it, print and write the table, and return the exit status.

    Each target has a process of its own: Triton 3.6 keeps the conversions of 8-bit floats of the first one.
    """
    import triton

    folder.mkdir(parents=True, exist_ok=True)
    files = {target: folder / f"triton-{target}.json" for target in TARGETS}
    with tempfile.TemporaryDirectory() as cache:  # nothing that another process made
        environ = {**os.environ, "TRITON_CACHE_DIR": cache}
        commands = [[sys.executable, __file__, str(path), target] for target, path in files.items()]
        running = [subprocess.Popen(command, env=environ) for command in commands]
        ended = [process.wait() for process in running]
    if any(ended):
        return 1
    each = [json.loads(path.read_text(encoding="utf-8")) for path in files.values()]
    found = [Made(**one) for told in each for one in told["made"]]
    wrong = [text for told in each for text in told["wrong"]]
    order = {build.name: i for i, build in enumerate(builds())}
    head = f"bfloat16, rows of {HIDDEN}, Triton {triton.__version__}: "
    rows = table(sorted(found, key=lambda made: order[made.name]))
    text = f"{head}VGPRs and SGPRs of a thread, bytes of LDS of a block, bytes of code.\n\n{rows}\n"
    (folder / "triton.md").write_text(text, encoding="utf-8")
    (folder / "triton.json").write_text(json.dumps([asdict(made) for made in found], indent=1), encoding="utf-8")
    print(text)
    kept = [f"{m.target}, {m.name}: {m.kept} scalar registers lie in vector ones" for m in found if m.kept]
    print(*kept, f"{len(found)} kernels, {len(wrong)} wrong", *wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        Path(sys.argv[1]).write_text(json.dumps(build_all(sys.argv[2])), encoding="utf-8")
    else:
        raise SystemExit(main(Path(sys.argv[1])))
