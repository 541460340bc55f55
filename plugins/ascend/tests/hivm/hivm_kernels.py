"""Lower opdock's Triton kernels for Ascend, as far as it goes without CANN: to HIVM, scheduled, with memory planned.

``python hivm_kernels.py FOLDER`` prints a table and writes it as JSON; it ends with 1 if a kernel fails, or if one that
is larger than the vector core's memory passes. It takes triton-ascend (a ``triton`` of its own) and ascendnpu-ir; the
last step, from HIVM to machine code, is CANN's ``hivmc``, which is not here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TARGETS = ("Ascend910B3", "Ascend910_9382")
"""An Atlas A2 and an Atlas A3."""
DTYPES = ("fp16", "bf16", "fp32")
UNIFIED_BUFFER = 192 * 1024
"""Bytes of memory of a vector core of these targets."""
LAST_STEP = "Cannot find hivmc under $PATH"
TOO_LARGE = "overflow"
_ITEM = {"i1": 1, "i8": 1, "i16": 2, "f16": 2, "bf16": 2, "i32": 4, "f32": 4, "i64": 8}
_CAST = re.compile(r"pointer_cast\(%c(\d+)_i64[^)]*\)[^:]*: memref<((?:\d+x)*)(\w+)[,>]")


@dataclass(frozen=True)
class Kernel:
    """A kernel with its arguments: ``pointers`` and ``numbers`` by name, and what is fixed when it is compiled."""

    name: str
    function: str
    pointers: tuple[str, ...]
    numbers: Mapping[str, str]
    constants: Mapping[str, Any]
    fits: bool = True


@dataclass(frozen=True)
class Lowered:
    """What became of one kernel for one target and dtype: sizes in bytes, counts of instructions."""

    kernel: str
    target: str
    dtype: str
    seconds: float
    hivm_bytes: int = 0
    unified_buffer: int = 0
    synchronisations: int = 0
    vector_calls: int = 0
    loads: int = 0
    stores: int = 0
    error: str = ""


_ROPE = ("q_ptr", "k_ptr", "table_ptr")
_ROPE_NUMBERS = (
    "positions_stride", "table_rows", "table_stride", "pairs", "q_heads", "k_heads", "q_stride", "q_head_stride",
    "k_stride", "k_head_stride", "q_blocks",
)  # fmt: skip


def kernels() -> Iterator[Kernel]:
    """Yield what is lowered: each function at widths of real models, and one that does not fit."""
    norm = {"epsilon": "fp32", "hidden": "i32"}
    for block in (1024, 4096):
        fixed = {"residual_ptr": None, "BLOCK": block}
        yield Kernel(f"rms_norm, {block}", "rows.norm_dense", ("x_ptr", "weight_ptr", "out_ptr"), norm, fixed)
        pointers = ("x_ptr", "residual_ptr", "weight_ptr")
        fixed = {"out_ptr": None, "BLOCK": block}
        yield Kernel(f"fused_add_rms_norm, {block}", "rows.norm_dense", pointers, norm, fixed)
    for act, name in enumerate(("silu_and_mul", "gelu_and_mul", "gelu_and_mul, tanh")):
        fixed = {"BLOCK": 1024, "ACT": act}
        yield Kernel(name, "gated.gate_dense", ("x_ptr", "out_ptr"), {"half": "i32"}, fixed)
    for neox in (True, False):
        numbers = {"positions_ptr": "*i64", **dict.fromkeys(_ROPE_NUMBERS, "i32")}
        fixed = {"HEADS": 4, "BLOCK": 64, "NEOX": neox}
        yield Kernel(f"rotary_embedding, {'halves' if neox else 'pairs'}", "rotary.rotate_token", _ROPE, numbers, fixed)
    fixed = {"residual_ptr": None, "BLOCK": 131072}
    yield Kernel("rms_norm, 131072", "rows.norm_dense", ("x_ptr", "weight_ptr", "out_ptr"), norm, fixed, fits=False)


def lower(kernel: Kernel, target: str, dtype: str, folder: Path) -> Lowered:
    """Lower one kernel from Triton to HIVM, and read what came out."""
    start = time.monotonic()
    place = folder / re.sub(r"\W+", "_", f"{kernel.name} {target} {dtype}")
    place.mkdir(parents=True, exist_ok=True)
    source = place / "linalg.mlir"
    source.write_text(_to_linalg(kernel, target, dtype), encoding="utf-8")
    spec = importlib.util.find_spec("ascendnpuir")
    if spec is None or spec.origin is None:
        raise SystemExit("ascendnpu-ir is not installed")
    command = [
        Path(spec.origin).with_name("bin") / "bishengir-compile",
        source,
        f"--target={target}",
        "--enable-hfusion-compile=true",
        "--enable-triton-kernel-compile=true",
        "--enable-hivm-compile=true",
        f"--save-temps={place / 'steps'}",
        "-o",
        place / "out",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    seconds = time.monotonic() - start
    said = done.stdout + done.stderr
    found = next(iter((place / "steps").glob("*hivm.opt.mlir")), None)
    if LAST_STEP not in said or found is None:
        lines = [line for line in said.splitlines() if "rror" in line or TOO_LARGE in line.lower()]
        reason = min(lines, key=lambda line: TOO_LARGE not in line.lower(), default=said[-200:] or "no output")
        return Lowered(kernel.name, target, dtype, round(seconds, 2), error=reason[-300:])
    return read(kernel.name, target, dtype, seconds, found.read_text(encoding="utf-8"))


def _to_linalg(kernel: Kernel, target: str, dtype: str) -> str:
    from triton._C.libtriton import ir
    from triton.backends.ascend.compiler import AscendBackend, make_ttir, ttir_to_linalg
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, _, name = kernel.function.partition(".")
    function = getattr(importlib.import_module(f"opdock.nn.kernels.triton.{module}"), name)
    types = {**dict.fromkeys(kernel.pointers, f"*{dtype}"), **kernel.numbers}
    signature = {argument: types[argument] for argument in function.arg_names if argument in types}
    source = ASTSource(fn=function, signature=signature, constants=dict(kernel.constants))
    chip = GPUTarget("npu", target, 0)
    backend = AscendBackend(chip)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    made = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    metadata = {"target": chip, **options.__dict__}
    return str(ttir_to_linalg(make_ttir(made, metadata, options), metadata, options, named_ops=True))


def read(kernel: str, target: str, dtype: str, seconds: float, text: str) -> Lowered:
    """Count what a module in HIVM holds."""
    body = [line for line in text.splitlines() if "func.func private" not in line]
    ends = [0]
    for line in body:
        for offset, shape, item in _CAST.findall(line):
            size = _ITEM[item]
            for length in filter(None, shape.split("x")):
                size *= int(length)
            ends.append(int(offset) + size)
    calls = [found for line in body for found in re.findall(r"call @(\w+)", line)]
    return Lowered(
        kernel,
        target,
        dtype,
        round(seconds, 2),
        hivm_bytes=len(text),
        unified_buffer=max(ends),
        synchronisations=sum(len(re.findall(r"set_flag|wait_flag|pipe_barrier", line)) for line in body),
        vector_calls=sum(name.startswith(("v", "enablevc", "broadcast")) for name in calls),
        loads=sum(name.startswith("load_gm") for name in calls),
        stores=sum(name.startswith("store_ubuf") for name in calls),
    )


def faults(kernel: Kernel, made: Lowered) -> str:
    """Return what is wrong with a result, "" if it is as it should be."""
    if not kernel.fits:
        return "" if TOO_LARGE in made.error.lower() else f"it does not fit, and the compiler said {made.error!r}"
    if made.error:
        return made.error
    if not 0 < made.unified_buffer <= UNIFIED_BUFFER:
        return f"{made.unified_buffer} bytes of the unified buffer's {UNIFIED_BUFFER}"
    if not (made.synchronisations and made.vector_calls and made.stores):
        return "the module has no synchronisation, vector instruction or store"
    return ""


def main(folder: Path) -> int:
    """Lower all of it, print the table, and return the exit status."""
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    results, wrong = [], []
    columns = (
        "kernel",
        "target",
        "dtype",
        "seconds",
        "unified_buffer",
        "synchronisations",
        "vector_calls",
        "hivm_bytes",
    )
    print("| " + " | ".join(columns) + " | |")
    print("| --- " * (len(columns) + 1) + "|")
    for kernel in kernels():
        for target in TARGETS:
            for dtype in DTYPES:
                made = lower(kernel, target, dtype, folder)
                fault = faults(kernel, made)
                results.append(asdict(made))
                wrong += [f"{kernel.name}, {target}, {dtype}: {fault}"] if fault else []
                note = fault or ("refused: it does not fit" if made.error else "")
                print("| " + " | ".join(str(getattr(made, column)) for column in columns) + f" | {note} |", flush=True)
    (folder / "hivm.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"{len(results)} modules, {len(wrong)} wrong", *wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
