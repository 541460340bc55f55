"""Check a built wheel: one shared object, only stable symbols; then import it under the torch of other Pythons.

    python check_wheel.py dist/opdock_cuda-*.whl [--python PYTHON ...]

Prints what was found as a table in Markdown; exits with 1 if something is wrong. Where a Python has a torch for CPUs, a
stand-in for libtorch_cuda is compiled, with functions that do nothing: then it is shown that the file loads and
registers its ops, and not that a kernel runs.
"""

# ruff: noqa: S603, S607, T201 - a script that runs binutils, and prints
from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent
TORCH = re.compile(r"(aoti_)?torch_\w+")
"""The names of torch's stable C interface; whether torch still has them is seen when the file is loaded."""
FATBIN = struct.pack("<IH", 0xBA55ED50, 1)
FOREIGN = re.compile(r"_Z\w*?N[VK]*(3c10|2at|5torch)")
"""C++ names of torch, in the mangling of GCC: none of them is stable."""
LOAD = """
import sys
import torch
from opdock_cuda import library
reason = library.why_not()
if reason: sys.exit(reason)
ops = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith("opdock_cuda::"))
x, w = torch.empty(4, 64, device="meta"), torch.empty(64, device="meta")
assert torch.ops.opdock_cuda.rms_norm(x, w, 1e-6).shape == (4, 64)
print(f"{sys.version.split()[0]}|{torch.__version__}|{len(ops)}")
"""


def main() -> int:
    """Check the wheel that the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", action="append", default=[], metavar="PYTHON", help="also import it there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(args.wheel) as archive:
            archive.extractall(folder)
        file = Path(folder) / "opdock_cuda" / "_C.abi3.so"
        wrong = [*check_names(args.wheel, Path(folder)), *check_symbols(symbols(file, "undefined"))]
        wrong += [f"exports {name}" for name in symbols(file, "defined") if not name.startswith(("_", "PyInit__C"))]
        found = images(file.read_bytes())
        wrong += check_images(found, Path(folder))
        print("| what | |\n| --- | --- |")
        print(f"| {args.wheel.name} | {args.wheel.stat().st_size / 1e6:.1f} MB |")
        print(f"| _C.abi3.so | {file.stat().st_size / 1e6:.1f} MB |")
        print(f"| compiled for | {', '.join(found)} |")
        for python in args.python:
            said, fault = load_under(python, Path(folder))
            print(f"| {said} |")
            wrong += [fault] if fault else []
    for text in wrong:
        print(f"wrong: {text}", file=sys.stderr)
    return 1 if wrong else 0


def check_names(wheel: Path, folder: Path) -> list[str]:
    """Return what is wrong with the wheel's tag and with the shared objects in it."""
    wrong = [] if "-cp310-abi3-linux_" in wheel.name else [f"the tag of {wheel.name} is not cp310-abi3-linux"]
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.so*"))
    return wrong if found == ["opdock_cuda/_C.abi3.so"] else [*wrong, f"shared objects: {found}"]


def check_symbols(names: list[str]) -> list[str]:
    """Return which of the symbols that a shared object wants are not stable: of Python, and of torch in C++."""
    stable = stable_abi()
    wrong = [f"wants {n}, which is not in Python's stable ABI" for n in names if n.startswith("Py") and n not in stable]
    wrong += [f"wants {n}, which is private to Python" for n in names if n.startswith("_Py") and n not in stable]
    return wrong + [f"wants {n}, which is torch's C++" for n in names if FOREIGN.match(n)]


def stable_abi() -> frozenset[str]:
    """Return the names of Python's stable ABI, as its own tests list them.

    That a name is in the ABI of 3.10 already is the compiler's work: ``Py_LIMITED_API`` hides the others.
    """
    listed = importlib.import_module("test.test_stable_abi_ctypes").SYMBOL_NAMES
    return frozenset(listed) | {"PyModule_Create2"}  # documented as stable; the list leaves it out


def symbols(file: Path, kind: str) -> list[str]:
    """Return the dynamic symbols of a shared object that are ``defined`` or ``undefined``, without versions."""
    done = subprocess.run(["nm", "-D", f"--{kind}-only", str(file)], capture_output=True, text=True, check=True)
    return sorted(line.split()[-1].partition("@")[0] for line in done.stdout.splitlines())


def images(data: bytes) -> list[str]:
    """Return what the kernels in a shared object were compiled for, such as ``sm_90`` or ``compute_100`` (PTX).

    nvcc puts them into fat binaries: a header (magic number, version, its own size, size of what follows), then images,
    each with a header of kind (1: PTX, 2: machine code), its own size and the size of what follows; at byte 28 the
    compute capability.
    """
    found: set[str] = set()
    at = data.find(FATBIN)
    while at >= 0:
        head, size = struct.unpack_from("<HQ", data, at + 6)
        here, end = at + head, at + head + size
        while here < min(end, len(data) - 32):
            kind, head, size = struct.unpack_from("<H2xIQ", data, here)
            found.add(f"{'compute' if kind == 1 else 'sm'}_{struct.unpack_from('<I', data, here + 28)[0]}")
            here += head + size
            if not head:
                break
        at = data.find(FATBIN, max(end, at + 4))
    return sorted(found)


def check_images(found: list[str], folder: Path) -> list[str]:
    """Return what is wrong where the images are not those that the file of facts beside the object names."""
    named = json.loads((folder / "opdock_cuda" / "_C.json").read_text(encoding="utf-8"))["architectures"]
    numbers = [name.removesuffix("+PTX").replace(".", "") for name in named]
    wanted = [f"sm_{number}" for number in numbers]
    wanted += [f"compute_{number}" for name, number in zip(named, numbers, strict=True) if name.endswith("+PTX")]
    return [] if found == sorted(wanted) else [f"compiled for {found}, and _C.json says {named}"]


def load_under(python: str, folder: Path) -> tuple[str, str]:
    """Import the package of ``folder`` with another Python; return a row of the table, and what went wrong."""
    where = [python, "-c", "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"]
    torch = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip())
    whole = (torch / "lib" / "libtorch_cuda.so").is_file()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT.parents[1] / "core")])}
    if not whole:
        environ["LD_LIBRARY_PATH"] = str(stand_in(folder, torch))
    done = subprocess.run([python, "-c", LOAD], capture_output=True, text=True, check=False, env=environ, cwd=folder)
    if done.returncode:
        fault = f"under {python}: {done.stderr.strip()[-2000:]}"
        return f"{python} | does not load", fault
    version, built, ops = done.stdout.strip().split("|")
    more = "" if whole else ", with a stand-in for libtorch_cuda"
    return f"Python {version}, torch {built} | loads, {ops} ops{more}", ""


def stand_in(folder: Path, torch: Path) -> Path:
    """Compile a libtorch_cuda that has what the kernels want and torch for CPUs lacks; return its folder."""
    wanted = [n for n in symbols(folder / "opdock_cuda" / "_C.abi3.so", "undefined") if TORCH.fullmatch(n)]
    known = {n for name in ("torch_cpu", "c10") for n in symbols(torch / "lib" / f"lib{name}.so", "defined")}
    source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in wanted if name not in known)
    made = folder / "stand_in"
    made.mkdir(exist_ok=True)
    line = ["-shared", "-fPIC", "-x", "c", "-", "-o", str(made / "libtorch_cuda.so"), "-Wl,-soname,libtorch_cuda.so"]
    subprocess.run([*os.environ.get("CC", "cc").split(), *line], input=source, text=True, check=True)
    return made


if __name__ == "__main__":
    sys.exit(main())
