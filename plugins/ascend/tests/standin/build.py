"""Compile the stand-in for CANN's runtime: the libraries that the installed torch_npu asks for, over host memory.

``python build.py FOLDER`` writes them; it takes a C compiler and binutils, and reads torch_npu's files alone.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

RUNTIME = Path(__file__).with_name("runtime.c")
LIBRARY = "libascendcl.so"
"""The one that holds every function; the others are empty and need it."""
OTHERS = (
    "libhccl.so",
    "libacl_op_compiler.so",
    "libge_runner.so",
    "libgraph.so",
    "libacl_tdt_channel.so",
    "libatb.so",
    "libopapi.so",
)
INTERNAL_ERROR = 500000
_CANN = re.compile(r"^(acl|rt[A-Z]|Msprof|Hccl|hccl|ge[A-Z]|_ZN3atb|_ZTHN3atb|_ZN2ge)")


def folder_of(package: str) -> Path:
    """Return the folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed")
    return Path(spec.origin).parent


def missing_names(libraries: list[Path], source: str) -> list[str]:
    """Return the names of CANN that the libraries ask for and the source does not define."""
    names: set[str] = set()
    for library in libraries:
        shown = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
        names.update(line.split()[-1].partition("@")[0] for line in shown.stdout.splitlines())
    return sorted(name for name in names if _CANN.match(name) and not re.search(rf"\b{name}\(", source))


def build(folder: Path) -> None:
    """Write the libraries into ``folder``."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("needs a C compiler, found no cc")
    package = folder_of("torch_npu")
    extension = f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    libraries = [*sorted((package / "lib").glob("*.so")), package / extension]
    source = RUNTIME.read_text(encoding="utf-8")
    rest = [f"long {name}(void) {{ return {INTERNAL_ERROR}; }}" for name in missing_names(libraries, source)]
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "runtime.c"
    text.write_text("\n".join([source, *rest, ""]), encoding="utf-8")
    options = [compiler, "-w", "-shared", "-fPIC", "-O1"]
    subprocess.run([*options, "-o", folder / LIBRARY, f"-Wl,-soname,{LIBRARY}", text], check=True)
    empty = folder / "empty.c"
    empty.write_text("", encoding="utf-8")
    for name in OTHERS:
        links = ["-Wl,--no-as-needed", f"-L{folder}", "-lascendcl"]
        subprocess.run([*options, "-o", folder / name, f"-Wl,-soname,{name}", empty, *links], check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
