"""Compile opdock-cuda's operators as HIP over the stand-in runtime, for the CPU: ``python build.py FILE GFX``.

``GFX`` says which chip's 8-bit floats they write. It takes clang, for its float16 on the CPU, and torch's headers.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE.parents[2] / "cuda" / "csrc"
FLAGS = ("-x", "c++", "-std=c++20", "-O2", "-fPIC", "-shared", "-D__HIP__", "-DUSE_CUDA")
TORCH = "-DTORCH_TARGET_VERSION=0x020b000000000000"


def compiler() -> str:
    """Return clang's path, "" where it is not installed."""
    return next((found for name in ("clang++-19", "clang++") if (found := shutil.which(name))), "")


def build(made: Path, gfx: str) -> None:
    """Compile the file; SystemExit with what the compiler says where that fails."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("torch is not installed")
    torch = Path(spec.origin).parent
    include = (f"-I{HERE}", f"-I{SOURCES}", f"-I{torch / 'include'}")
    link = (f"-L{torch / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-lc10")
    command = (compiler(), *FLAGS, TORCH, f"-D__{gfx}__", *include, str(HERE / "kernels.cpp"), "-o", str(made), *link)
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2])
