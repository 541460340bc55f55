"""Compile opdock-cuda's kernels as HIP for AMD GPUs, without one, and look at the machine code.

``python hip_kernels.py FOLDER`` leaves a code object for each target in the folder, prints a table, and writes it as
``hip.md`` and ``hip.json``. It ends with 1 if a target does not build or a kernel is not as it should be. It takes
LLVM's clang with lld and llvm (Debian: clang-19 lld-19 llvm-19), HIP's headers (libamdhip64-dev) and ROCm's device
libraries (rocm-device-libs).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE.parents[2] / "cuda" / "csrc"
TARGETS = {"gfx90a": 64, "gfx942": 64, "gfx1100": 32}
"""Threads of a wave of each."""
FLAGS = ("-O3", "-std=c++20", "-Wall", "-Werror")
PACKAGES = "clang-19 lld-19 llvm-19 libamdhip64-dev rocm-device-libs"
"""Of Debian 12."""
ISA = {"942": 9402, "1100": 11000}
"""What Debian's device libraries lack for targets that its clang has: the number in ``oclc_isa_version_*.bc``."""

OPS = {
    ("0", "true", "0"): "rms_norm",
    ("1", "true", "0"): "fused_add_rms_norm",
    ("0", "true", "1"): "rms_norm_static_fp8_quant",
    ("0", "true", "2"): "rms_norm_dynamic_per_token_fp8_quant",
    ("1", "true", "1"): "fused_add_rms_norm_static_fp8_quant",
    ("1", "true", "2"): "fused_add_rms_norm_dynamic_per_token_fp8_quant",
    ("2", "false", "0"): "silu_and_mul",
    ("3", "false", "0"): "gelu_and_mul",
    ("4", "false", "0"): "gelu_and_mul, tanh",
    ("2", "false", "1"): "silu_and_mul_static_fp8_quant",
    ("2", "false", "2"): "silu_and_mul_dynamic_per_token_fp8_quant",
    ("0", "false", "1"): "static_scaled_fp8_quant",
    ("0", "false", "2"): "dynamic_per_token_scaled_fp8_quant",
}
DTYPES = {"float": "float32", "__half": "float16", "__nv_bfloat16": "bfloat16"}


@dataclass(frozen=True)
class Kernel:
    """One kernel of a code object: registers of a thread, ``lds`` and ``code`` in bytes, counts of instructions."""

    target: str
    name: str
    dtype: str
    vgprs: int
    sgprs: int
    lds: int
    code: int
    wave: int
    spills: int
    scratch: int
    wide_loads: int
    fp8_instructions: int


def tool(name: str) -> str:
    """Return the path of a tool of LLVM; SystemExit where there is none."""
    if found := shutil.which(f"{name}-19") or shutil.which(name):
        return found
    raise SystemExit(f"{name} is not installed: apt-get install {PACKAGES}")


def run(*command: str | Path) -> str:
    """Run a program and return what it prints; SystemExit with what it says where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr[-3000:]}")
    return done.stdout


def device_libraries(folder: Path) -> Path:
    """Return a folder with ROCm's device libraries, and with what they lack for our targets."""
    given = Path(os.environ.get("HIP_DEVICE_LIB_PATH") or run(tool("clang"), "-print-file-name=amdgcn/bitcode").strip())
    if not given.is_dir():
        raise SystemExit("ROCm's device libraries are not installed: apt-get install rocm-device-libs")
    folder.mkdir(parents=True, exist_ok=True)
    for file in given.glob("*.bc"):
        link = folder / file.name
        if not link.exists():
            link.symlink_to(file)
    for number, version in ISA.items():
        made = folder / f"oclc_isa_version_{number}.bc"
        if made.exists():
            continue
        source = folder / f"isa_{number}.c"
        kind = '__attribute__((address_space(4), visibility("hidden")))'
        source.write_text(f"const {kind} int __oclc_ISA_version = {version};\n", encoding="utf-8")
        options = ("-target", "amdgcn-amd-amdhsa", "-nogpulib", "-Xclang", "-mcode-object-version=none", "-emit-llvm")
        run(tool("clang"), "-x", "c", *options, "-c", source, "-o", made)
    return folder


def build(target: str, libraries: Path, folder: Path) -> Path:
    """Compile the kernels for one target, and return the code object."""
    made = folder / f"opdock_{target}.hsaco"
    where = ("--rocm-path=/usr", f"--rocm-device-lib-path={libraries}", f"-I{SOURCES}")
    what = ("-x", "hip", f"--offload-arch={target}", "--offload-device-only", "--no-gpu-bundle-output")
    run(tool("clang"), *what, *FLAGS, *where, HERE / "kernels.hip", "-o", made)
    return made


def read(target: str, made: Path) -> list[Kernel]:
    """Return what a code object says of its kernels."""
    notes = run(tool("llvm-readelf"), "--notes", made)
    symbols = run(tool("llvm-readelf"), "-sW", made)
    sizes = {line.split()[-1]: int(line.split()[2]) for line in symbols.splitlines() if " FUNC " in line}
    loads, converts = instructions(run(tool("llvm-objdump"), "-d", "--no-show-raw-insn", made))
    found = []
    for block in re.split(r"\n  - (?=\.)", notes)[1:]:
        values = dict(re.findall(r"^ *\.(\w+): +(\S+)$", block, re.MULTILINE))
        symbol = values["name"]
        name, dtype = named(run(tool("llvm-cxxfilt"), symbol).strip())
        found.append(
            Kernel(
                target=target,
                name=name,
                dtype=dtype,
                vgprs=int(values["vgpr_count"]),
                sgprs=int(values["sgpr_count"]),
                lds=int(values["group_segment_fixed_size"]),
                code=sizes[symbol],
                wave=int(values["wavefront_size"]),
                spills=int(values["vgpr_spill_count"]) + int(values["sgpr_spill_count"]),
                scratch=int(values["private_segment_fixed_size"]),
                wide_loads=loads.get(symbol, 0),
                fp8_instructions=converts.get(symbol, 0),
            )
        )
    return sorted(found, key=lambda kernel: (kernel.name, kernel.dtype))


def instructions(assembly: str) -> tuple[dict[str, int], dict[str, int]]:
    """Count loads of 16 bytes, and conversions to 8-bit floats, of each function of a disassembly."""
    loads: dict[str, int] = {}
    converts: dict[str, int] = {}
    symbol = ""
    for line in assembly.splitlines():
        if start := re.match(r"[0-9a-f]+ <(\S+)>:", line):
            symbol = start[1]
        elif re.search(r"\b(global|flat|buffer)_load_(dwordx4|b128)\b", line):
            loads[symbol] = loads.get(symbol, 0) + 1
        elif "v_cvt_pk_fp8_f32" in line:
            converts[symbol] = converts.get(symbol, 0) + 1
    return loads, converts


def named(signature: str) -> tuple[str, str]:
    """Return (what a kernel does and for which rows, its dtype) of a signature in C++."""
    plain = signature.replace("opdock::", "").replace("(anonymous namespace)::", "")
    found = re.search(r"(\w+)<(.*?)>\(", plain)
    if found is None:
        raise SystemExit(f"no kernel: {signature}")
    kernel, given = found[1], [re.sub(r"^\(\w+\)", "", part.strip()) for part in found[2].split(",")]
    dtype = DTYPES.get(given[0], given[0])
    if kernel == "cache_kernel":
        return "reshape_and_cache", "16 bytes" if given[0].startswith("HIP_vector_type") else dtype
    if "rotary" in kernel:
        table = "" if given[1] == given[0] else ", float32 table"
        rows = "any" if kernel.startswith("any") else f"{given[3]} a thread"
        return f"rotary_embedding, {'halves' if given[2] == 'true' else 'pairs'}{table}: {rows}", dtype
    if kernel == "long_row_kernel":
        items, part, norm, out, exact, read = given[2:8]
        rest = f"{', exact' * (exact == 'true')}{('', ', kept', ', read twice')[int(read)]}"
        return f"{OPS[part, norm, out]}: long, {items}{rest}", dtype
    part, norm, out = given[2:5]
    return f"{OPS[part, norm, out]}: {'short' if kernel == 'short_row_kernel' else 'any'}", dtype


def fault(kernel: Kernel) -> str:
    """Return what is wrong with a kernel, "" if it is as it should be."""
    if kernel.wave != TARGETS[kernel.target]:
        return f"waves of {kernel.wave}"
    if kernel.spills or kernel.scratch:
        return f"{kernel.spills} registers are spilled, {kernel.scratch} bytes of scratch"
    if kernel.lds > 256:
        return f"{kernel.lds} bytes of shared memory"
    vectors = not kernel.name.endswith(": any") and (kernel.name != "reshape_and_cache" or kernel.dtype == "16 bytes")
    if vectors and not kernel.wide_loads:
        return "no load of 16 bytes"
    if vectors and "fp8" in kernel.name and bool(kernel.fp8_instructions) != (kernel.target == "gfx942"):
        return f"{kernel.fp8_instructions} instructions that convert to 8-bit floats"
    return ""


def table(kernels: Iterable[Kernel], dtypes: tuple[str, ...] = ("bfloat16", "16 bytes")) -> str:
    """Return the table of the kernels for some dtypes, a column for each target."""
    rows: dict[str, dict[str, Kernel]] = {}
    for kernel in kernels:
        if kernel.dtype in dtypes:
            rows.setdefault(kernel.name, {})[kernel.target] = kernel
    lines = [f"| kernel | {' | '.join(TARGETS)} |", "| --- " * (len(TARGETS) + 1) + "|"]
    for name, found in rows.items():
        cells = (f"{k.vgprs}, {k.sgprs}, {k.lds}, {k.code:,}" for k in (found[target] for target in TARGETS))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(folder: Path) -> int:
    """Build and check every target, print and write the table, and return the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    libraries = device_libraries(folder / "device_libraries")
    kernels, sizes = [], []
    for target in TARGETS:
        start = time.monotonic()
        made = build(target, libraries, folder)
        sizes.append(f"{target}: {made.stat().st_size:,} bytes")
        kernels += read(target, made)
        print(f"{sizes[-1]}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    wrong = [f"{k.target}, {k.name}, {k.dtype}: {reason}" for k in kernels if (reason := fault(k))]
    of_each = len(kernels) // len(TARGETS)
    head = f"{of_each} kernels for each target; the code objects: {'; '.join(sizes)}."
    columns = "Those for bfloat16: VGPRs and SGPRs of a thread, bytes of LDS of a block, bytes of code."
    text = f"{head} {columns}\n\n{table(kernels)}\n"
    (folder / "hip.md").write_text(text, encoding="utf-8")
    (folder / "hip.json").write_text(json.dumps([asdict(kernel) for kernel in kernels], indent=1), encoding="utf-8")
    print(text)
    print(f"{len(kernels)} kernels, {len(wrong)} wrong", *wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
