"""The key covers what an implementation depends on in source, and nothing that changes while a process runs."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from opdock import ir
from opdock.ir import modules
from opdock.ir.cachekey import implementation_key

LOOSE = {
    "t_prov.py": "import t_helper\ndef f(x): return t_helper.k(x)\ndef g(x): return x\n",
    "t_helper.py": "def k(x):\n    import t_lazy\n    return t_lazy.v * x\n",
    "t_lazy.py": "v = 1\n",
    "t_unrelated.py": "v = 1\n",
}


@pytest.fixture
def loose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Loose modules on the path, of no distribution: the repro of the report."""
    for name, text in LOOSE.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in LOOSE:
        sys.modules.pop(name[:-3], None)


def load(path: Path, name: str = "t_external") -> ModuleType:
    """Load a file by its path, outside of sys.modules."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_b39_an_edit_of_a_helper_changes_the_key_and_its_undoing_restores_it(loose: Path) -> None:
    """Transitively, also through an import inside a function; unrelated files do not count."""
    f = importlib.import_module("t_prov").f
    before = implementation_key(f)
    for name in ("t_prov.py", "t_helper.py", "t_lazy.py"):
        (loose / name).write_text(LOOSE[name] + "# edited\n")
        assert implementation_key(f) != before, name
        (loose / name).write_text(LOOSE[name])
        assert implementation_key(f) == before, name
    (loose / "t_unrelated.py").write_text("v = 2\n")
    assert implementation_key(f) == before


def test_b39_the_key_does_not_depend_on_what_has_run(loose: Path) -> None:
    """Neither on modules that got imported, nor on ops that were built, nor on counters."""
    module = importlib.import_module("t_prov")
    before = implementation_key(module.f)
    module.f(2)
    module.f.calls = 17
    module.COUNTER = 17
    assert "t_lazy" in sys.modules
    ir.register_op(name="t_one_more")(_native)
    assert implementation_key(module.f) == before


def _native(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def test_b39_a_module_loaded_from_a_file_follows_its_neighbours(tmp_path: Path) -> None:
    """Outside of the path and of sys.modules."""
    (tmp_path / "impl.py").write_text("try:\n    import neighbour\nexcept ImportError: pass\ndef f(x): return x\n")
    (tmp_path / "neighbour.py").write_text("v = 1\n")
    f = load(tmp_path / "impl.py").f
    before = implementation_key(f)
    (tmp_path / "neighbour.py").write_text("v = 2\n")
    assert implementation_key(f) != before
    (tmp_path / "neighbour.py").write_text("v = 1\n")
    assert implementation_key(f) == before


def make(factor: object) -> Callable[..., Any]:
    """Return a closure."""

    def made(x: torch.Tensor) -> object:
        return x, factor

    return made


def with_default(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


class Callable_:
    """An object that is called."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


KEYED: dict[str, Any] = {
    "closure": make(1.0),
    "closure with another value": make(2.0),
    "closure over a function": make(with_default),
    "default": with_default,
    "partial": functools.partial(with_default, factor=3.0),
    "partial with another value": functools.partial(with_default, factor=4.0),
    "positional partial": functools.partial(make, 1),
    "lambda": lambda x: x,
    "torch op": torch.ops.aten.silu.default,
    "torch packet": torch.ops.aten.gelu,
    "object": Callable_(),
    "generated": eval("lambda x: x + 1"),
    "generated otherwise": eval("lambda x: x + 2"),
}


def test_b39_partials_torch_ops_lambdas_and_objects_have_keys_that_differ() -> None:
    """None of them has a source file to ask for; the values they hold count."""
    keys = {name: implementation_key(fn) for name, fn in KEYED.items()}
    assert len(set(keys.values())) == len(keys)
    assert keys == {name: implementation_key(fn) for name, fn in KEYED.items()}
    assert implementation_key(make(1.0)) == keys["closure"]


def test_objects_without_plain_values_do_not_put_addresses_into_the_key() -> None:
    """A held tensor counts by its type."""
    assert implementation_key(make(torch.ones(1))) == implementation_key(make(torch.zeros(2)))
    assert implementation_key(make(SimpleNamespace(a=1))) == implementation_key(make(SimpleNamespace(a=2)))


def test_the_predicate_counts() -> None:
    """It decides which code is in the graph."""
    op = ir.register_op(name="t_keyed")(_native)
    a = op.register_impl("a", supports_args=eval("lambda x: x.dim() == 1"))(_native)
    b = op.register_impl("b", supports_args=eval("lambda x: x.dim() == 2"))(_native)
    assert a.uuid() != b.uuid() != op.impls["native"].uuid()


def test_python_functions_behind_torch_ops_count(tmp_path: Path) -> None:
    """Of torch.library.custom_op."""
    source = (
        "import torch\n@torch.library.custom_op('t_keyed_ops::{name}', mutates_args=())\n"
        "def f(x: torch.Tensor) -> torch.Tensor:\n    return x * {factor}\n"
    )
    keys = []
    for name, factor in (("a", 1), ("b", 2)):
        (tmp_path / f"{name}.py").write_text(source.format(name=name, factor=factor))
        load(tmp_path / f"{name}.py", f"t_custom_{name}")
        op = getattr(torch.ops.t_keyed_ops, name).default
        before = implementation_key(op)
        (tmp_path / f"{name}.py").write_text(source.format(name=name, factor=9))
        assert implementation_key(op) != before
        keys.append(before)
    assert len(set(keys)) == 2


def test_libraries_count_by_content_beside_the_source_or_by_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library elsewhere that defines no op of ours does not."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "impl.py").write_text("import torch\ndef f(x): return torch.ops.t_jit_ns.f(x)\n")
    f = load(tmp_path / "pkg" / "impl.py").f
    beside, jit, other = tmp_path / "pkg" / "_C.so", tmp_path / "jit.so", tmp_path / "other.so"
    contents = {beside: b"1", jit: b"..\0t_jit_ns\0..", other: b"..\0other_ns\0.."}
    for path, content in contents.items():
        path.write_bytes(content)
    before = implementation_key(f)
    monkeypatch.setattr(torch.ops, "loaded_libraries", {str(p) for p in contents})
    loaded = implementation_key(f)
    assert loaded != before
    for path, changes in ((beside, True), (jit, True), (other, False)):
        path.write_bytes(contents[path] + b"!")
        assert (implementation_key(f) != loaded) is changes, path.name
        path.write_bytes(contents[path])
    monkeypatch.setattr(torch.ops, "loaded_libraries", {str(beside), str(jit)})
    assert implementation_key(f) == loaded


def test_versions_of_other_distributions_count(loose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files do not: a release is immutable."""
    (loose / "t_prov.py").write_text("import torch\n" + LOOSE["t_prov.py"])
    f = importlib.import_module("t_prov").f
    before = implementation_key(f)
    monkeypatch.setattr(modules, "version_of", lambda name: "99" if name == "torch" else "")
    assert implementation_key(f) != before


def test_the_native_definitions_reach_the_hosts_own_modules() -> None:
    """Of one distribution, whether it is installed or not."""
    native = ir.registry["rms_norm"].native
    found = modules.reach(native.__module__, Path(native.__code__.co_filename))
    assert {"opdock.ir.ops.rms_norm", "opdock.ir.ops._numerics", "opdock.ir.op", "opdock"} <= set(found.files)
    assert "torch" in found.foreign and not any(name.startswith("torch") for name in found.files)


def test_another_process_agrees(loose: Path) -> None:
    """Whatever the seed of its string hashes."""
    (loose / "t_prov.py").write_text("def f(x, a=frozenset({'b', 'c', 'd'})): return x in {'e', 'f', 'g'}\n")
    code = (
        "from opdock.ir.cachekey import implementation_key as k; import t_prov; print(k(t_prov.f, eval('lambda x: x')))"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    keys = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": path, "PATH": os.defpath},
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert keys == {implementation_key(importlib.import_module("t_prov").f, eval("lambda x: x"))}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a package whose provider imports a helper, which imports another."""
    root = tmp_path / "keypkg"
    root.mkdir()
    (root / "__init__.py").write_text("")
    (root / "deep.py").write_text("K = 1\n")
    (root / "helper.py").write_text("from . import deep\ndef k(x):\n    return x * deep.K\n")
    (root / "unrelated.py").write_text("A = 1\n")
    (root / "prov.py").write_text(
        "import torch\nfrom keypkg import helper\n"
        "def p(x: torch.Tensor) -> torch.Tensor:\n    return helper.k(x[..., 1:])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield root
    for name in [n for n in sys.modules if n.startswith("keypkg")]:
        del sys.modules[name]


def test_b39_helper_edit_changes_the_key_and_nothing_else_does(package: Path) -> None:
    """Transitively within the package; an unrelated file and more registrations do not count."""
    impl = ir.ops.silu_and_mul.register_impl("keyed")(importlib.import_module("keypkg.prov").p)
    first = impl.uuid()
    assert first == impl.uuid()
    (package / "unrelated.py").write_text("A = 2\n")
    ir.ops.gelu_and_mul.register_impl("more")(_gelu)
    assert impl.uuid() == first
    for name in ("helper.py", "deep.py", "prov.py"):
        text = (package / name).read_text()
        (package / name).write_text(text + "# an edit\n")
        assert impl.uuid() != first, name
        (package / name).write_text(text)
        assert impl.uuid() == first, name


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return x


def test_natives_have_keys_that_differ() -> None:
    """Each op its own."""
    keys = [op.impls["native"].uuid() for op in ir.registry.values()]
    assert len(set(keys)) == len(keys)
