"""Compile csrc/ into one shared object that any Python from 3.10 and any torch from 2.11 can load.

Headers come from the torch that is installed, a CPU build too; nothing of it but its stable interface is used. The
CUDA runtime is linked in. Variables:

    OPDOCK_CUDA_ARCHS  compute capabilities, such as "9.0" or "8.0;9.0;10.0+PTX" (the default)
    NVCC               the compiler; default: nvcc on PATH, or under CUDA_HOME
    MAX_JOBS           files compiled at a time; default: the number of CPUs
"""

# ruff: noqa: S603, T201 - a build runs compilers, and says so
from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
SOURCES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/*.cu"))
HEADERS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("csrc/*.cuh"))
ARCHITECTURES = "8.0;9.0;10.0+PTX"
FLAGS = [
    "-std=c++20",
    "-O3",
    "-DUSE_CUDA",
    "-DPy_LIMITED_API=0x030A0000",
    "-DTORCH_TARGET_VERSION=0x020b000000000000",  # 2.11
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "-Xfatbin=-compress-all",
    "-Xcompiler=-fPIC",
    "-Xcompiler=-fvisibility=hidden",
]

EXTENSION = Extension("opdock_cuda._C", sources=SOURCES, depends=HEADERS, py_limited_api=True)


class BuildKernels(build_ext):
    """``build_ext`` with nvcc."""

    def build_extension(self, ext: Extension) -> None:
        """Compile the files that changed, some at a time, and link them."""
        out = Path(self.get_ext_fullpath(ext.name))
        objects = Path(self.build_temp) / "opdock_cuda"
        objects.mkdir(parents=True, exist_ok=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        nvcc, torch = find_nvcc(), find_torch()
        architectures = parse_architectures(os.environ.get("OPDOCK_CUDA_ARCHS") or ARCHITECTURES)
        include = [torch / "include", Path(sysconfig.get_paths()["include"])]
        base = [nvcc, *FLAGS, *(f"-I{path}" for path in include), *gencodes(architectures)]
        wanted = [
            ([*base, "-c", str(ROOT / s), "-o", str(o)], o) for s in SOURCES for o in [objects / f"{Path(s).stem}.o"]
        ]
        newest = max(path.stat().st_mtime for path in (*ROOT.glob("csrc/*"), ROOT / "build_kernels.py"))
        changed = [(line, o) for line, o in wanted if not is_fresh(o, line, newest)]
        print(
            f"opdock-cuda: nvcc compiles {len(changed)} of {len(wanted)} files for {', '.join(architectures)}",
            flush=True,
        )
        with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)) as pool:
            list(pool.map(lambda each: compile_file(*each), changed))
        run(
            [
                nvcc,
                "-shared",
                "--no-device-link",  # no file needs it, and it would add an image for nvcc's default GPU
                "-o",
                str(out),
                *(str(o) for _, o in wanted),
                "-cudart",
                "static",
                *link_flags(objects, torch),
            ]
        )
        facts = {"architectures": architectures, "nvcc": version_of(nvcc)}
        out.with_name("_C.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")

    def get_outputs(self) -> list[str]:
        """Name the file of facts too, so that it is installed."""
        outputs: list[str] = super().get_outputs()
        return [*outputs, str(Path(self.get_ext_fullpath(EXTENSION.name)).with_name("_C.json"))]

    def copy_extensions_to_source(self) -> None:
        """Take the file of facts along into an editable install."""
        super().copy_extensions_to_source()
        built = Path(self.get_ext_fullpath(EXTENSION.name)).with_name("_C.json")
        for path in (built, Path(self.build_lib) / "opdock_cuda" / "_C.json"):
            if path.is_file() and path.resolve() != (ROOT / "opdock_cuda" / "_C.json").resolve():
                shutil.copy(path, ROOT / "opdock_cuda" / "_C.json")


def parse_architectures(text: str) -> list[str]:
    """Return a list of compute capabilities; SystemExit for text that is none."""
    names = [name.strip() for name in re.split(r"[;,\s]+", text) if name.strip()]
    wrong = [name for name in names if not re.fullmatch(r"\d+\.\d(\+PTX)?", name)]
    if wrong or not names:
        raise SystemExit(
            f"opdock-cuda: OPDOCK_CUDA_ARCHS={text!r} is no list of capabilities such as {ARCHITECTURES!r}."
        )
    return names


def gencodes(architectures: list[str]) -> list[str]:
    """Return nvcc's options: machine code for each capability, and PTX for those marked ``+PTX``."""
    flags = []
    for name in architectures:
        number = name.removesuffix("+PTX").replace(".", "")
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if name.endswith("+PTX"):
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


def is_fresh(made: Path, line: list[str], newest: float) -> bool:
    """Return whether an object file is younger than every source and was made by the same command."""
    said = made.with_suffix(".txt")
    return (
        made.is_file()
        and made.stat().st_mtime > newest
        and said.is_file()
        and said.read_text(encoding="utf-8") == " ".join(line)
    )


def compile_file(line: list[str], made: Path) -> None:
    """Compile one file, and note by which command."""
    run(line)
    made.with_suffix(".txt").write_text(" ".join(line), encoding="utf-8")


def link_flags(folder: Path, torch: Path) -> list[str]:
    """Return the linker's options: torch's libraries by name, libtorch_cuda also where only a CPU torch is here.

    Without its name in the file, the symbols that it has would not be found: torch loads its libraries locally. An
    empty library of that name is enough to link against.
    """
    stand_in = folder / "libtorch_cuda.so"
    compiler = os.environ.get("CC", "cc").split()
    run([*compiler, "-shared", "-o", str(stand_in), "-x", "c", os.devnull, "-Wl,-soname,libtorch_cuda.so"])
    options = [f"-L{folder}", f"-L{torch / 'lib'}", "-Xlinker", "--no-as-needed", "-Xlinker", "--strip-all"]
    return [*options, "-ltorch_cuda", "-ltorch_cpu", "-lc10"]


def find_nvcc() -> str:
    """Return the compiler; SystemExit where there is none."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    found = os.environ.get("NVCC") or shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    if not found:
        raise SystemExit("opdock-cuda: OPDOCK_CUDA_BUILD=1, and nvcc is neither on PATH nor under CUDA_HOME.")
    return found


def find_torch() -> Path:
    """Return the folder of the installed torch, without importing it; SystemExit where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        raise SystemExit(
            "opdock-cuda: OPDOCK_CUDA_BUILD=1 needs torch: install it, and build with --no-build-isolation."
        )
    return Path(spec.origin).parent


def version_of(nvcc: str) -> str:
    """Return nvcc's version, such as ``13.0``."""
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"release (\d+\.\d+)", said)
    return found[1] if found else "unknown"


def run(line: list[str]) -> None:
    """Run a command; SystemExit with what it said where it fails."""
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"opdock-cuda: {' '.join(line)}\n{done.stdout}{done.stderr}")
