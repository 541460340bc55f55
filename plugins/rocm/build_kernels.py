"""Compile opdock-cuda's operators as HIP into one shared object that any Python from 3.10 and torch from 2.11 can load.

It works in a checkout, where the sources lie beside this package. Headers come from the torch that is installed, and
rocThrust must be there, which they include. Variables:

    OPDOCK_ROCM_ARCHS  architectures, such as "gfx942" or "gfx90a;gfx942;gfx1100" (the default)
    OPDOCK_ROCM_FLAGS  further options of the compiler
    HIPCC              the compiler; default: hipcc on PATH or under ROCM_PATH, or clang++-19
    MAX_JOBS           files compiled at a time; default: the number of CPUs
"""

# ruff: noqa: S603 - a build runs compilers
from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
SHARED = ROOT.parent / "cuda" / "csrc"
OPERATORS = ("cache.cu", "elementwise.cu", "norms.cu", "rotary.cu")
"""Of opdock-cuda: all but its way past torch's dispatcher, and its module."""
ARCHITECTURES = "gfx90a;gfx942;gfx1100"
FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-DUSE_CUDA",
    "-DPy_LIMITED_API=0x030A0000",
    "-DTORCH_TARGET_VERSION=0x020b000000000000",  # 2.11
    "-Dopdock_cuda=opdock_rocm",  # the namespace of the ops
)
EXTENSION = Extension("opdock_rocm._C", sources=["csrc/module.cpp"], py_limited_api=True)


class BuildKernels(build_ext):
    """``build_ext`` with HIP's compiler."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the files, some at a time, and link them."""
        out = Path(self.get_ext_fullpath(ext.name))
        build(out, Path(self.build_temp) / "opdock_rocm")

    def get_outputs(self) -> list[str]:
        """Name the file of facts too, so that it is installed."""
        outputs: list[str] = super().get_outputs()
        return [*outputs, str(Path(self.get_ext_fullpath(EXTENSION.name)).with_name("_C.json"))]

    def copy_extensions_to_source(self) -> None:
        """Take the file of facts along into an editable install."""
        super().copy_extensions_to_source()
        built = Path(self.get_ext_fullpath(EXTENSION.name)).with_name("_C.json")
        for path in (built, Path(self.build_lib) / "opdock_rocm" / "_C.json"):
            if path.is_file() and path.resolve() != (ROOT / "opdock_rocm" / "_C.json").resolve():
                shutil.copy(path, ROOT / "opdock_rocm" / "_C.json")


def build(out: Path, objects: Path) -> None:
    """Build the library ``out`` and its file of facts; SystemExit with what a compiler says where it fails."""
    if not SHARED.is_dir():
        raise SystemExit(f"opdock-rocm: the kernels' sources are not there: {SHARED}. Build in a checkout.")
    objects.mkdir(parents=True, exist_ok=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    architectures = parse_architectures(os.environ.get("OPDOCK_ROCM_ARCHS") or ARCHITECTURES)
    compiler, torch = find_compiler(), find_torch()
    include = (f"-I{SHARED}", f"-I{torch / 'include'}", f"-I{sysconfig.get_paths()['include']}")
    common = (*FLAGS, *include, *shlex.split(os.environ.get("OPDOCK_ROCM_FLAGS", "")))
    hip = ("-x", "hip", *(f"--offload-arch={name}" for name in architectures))
    lines = [
        [compiler, *hip, *common, "-c", str(SHARED / name), "-o", str(objects / f"{name}.o")] for name in OPERATORS
    ]
    module = str(ROOT / "csrc" / "module.cpp")
    lines.append([compiler, "-x", "c++", *common, "-c", module, "-o", str(objects / "module.o")])
    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)) as pool:
        list(pool.map(run, lines))
    # torch's libraries are loaded locally: the file has to name them. An empty one is enough to link against.
    stand_in = objects / "libtorch_hip.so"
    c = (*os.environ.get("CC", "cc").split(), "-shared", "-x", "c", os.devnull)
    run([*c, "-Wl,-soname,libtorch_hip.so", "-o", str(stand_in)])
    link = ("-Wl,--no-as-needed", "-ltorch_hip", "-ltorch_cpu", "-lc10", "-lamdhip64", "-Wl,--strip-all")
    folders = (objects, torch / "lib", *([rocm / "lib"] if (rocm := rocm_path()) else []))
    where = [f"-L{folder}" for folder in folders]
    run([compiler, "-shared", "-o", str(out), *(line[-1] for line in lines), *where, *link])
    facts = {"architectures": architectures, "torch": "2.11"}
    out.with_name("_C.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")


def parse_architectures(text: str) -> list[str]:
    """Return a list of architectures; SystemExit for text that is none."""
    names = [name for name in re.split(r"[;,\s]+", text) if name]
    if not names or any(not re.fullmatch(r"gfx\d+[0-9a-f]{2}", name) for name in names):
        raise SystemExit(f"opdock-rocm: OPDOCK_ROCM_ARCHS={text!r} is no list such as {ARCHITECTURES!r}.")
    return names


def rocm_path() -> Path | None:
    """Return the folder of ROCm: ROCM_PATH, or that of the hipcc on PATH; None where a system's own packages serve."""
    if given := os.environ.get("ROCM_PATH"):
        return Path(given)
    hipcc = shutil.which("hipcc")
    tree = Path(hipcc).parents[1] if hipcc else None
    return tree if tree is not None and (tree / "llvm").is_dir() else None


def find_compiler() -> str:
    """Return the compiler; SystemExit where there is none."""
    rocm = rocm_path()
    own = shutil.which("hipcc", path=str(rocm / "bin")) if rocm else None
    found = os.environ.get("HIPCC") or own or shutil.which("clang++-19") or shutil.which("hipcc")
    if not found:
        raise SystemExit("opdock-rocm: OPDOCK_ROCM_BUILD=1, and hipcc is neither on PATH nor under ROCM_PATH.")
    return found


def find_torch() -> Path:
    """Return the folder of the installed torch, without importing it; SystemExit where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        raise SystemExit("opdock-rocm: OPDOCK_ROCM_BUILD=1 needs torch: build with --no-build-isolation.")
    return Path(spec.origin).parent


def run(line: list[str]) -> None:
    """Run a command; SystemExit with what it said where it fails."""
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"opdock-rocm: {' '.join(line)}\n{done.stdout}{done.stderr}")
