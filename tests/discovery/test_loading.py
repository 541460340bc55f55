"""What can be loaded is decided without an import; what is loaded is the distribution's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opdock.discovery import loading, metadata, selecting


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on the path, whose modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def candidate(site: Path, value: str, *files: str, name: str = "vendor") -> metadata.Candidate:
    """Return a candidate whose distribution records ``files``."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\nRequires-Dist: opdock\n")
    (info / "entry_points.txt").write_text(f"[vllm.platform_plugins]\nchip = {value}\n")
    (info / "RECORD").write_text("".join(f"{f},,\n" for f in files))
    return next(c for c in metadata.scan([str(site)], cwd="/").candidates if c.dist.name == name)


def test_dangling_target_is_found_without_an_import(site: Path) -> None:
    """The distribution ships no such module."""
    reason = loading.locate(candidate(site, "vendor_missing:register"))
    assert reason is not None and "module vendor_missing does not exist: vendor does not ship it" in reason


def test_target_in_somebody_elses_distribution_is_refused(site: Path) -> None:
    """Two packages, one of which points into the other: it would silently run the other's code."""
    (site / "vllm_chip.py").write_text("raise SystemExit('imported')")
    reason = loading.locate(candidate(site, "vllm_chip:register", "vendor/__init__.py"))
    assert reason is not None and "vendor does not ship module vllm_chip" in reason
    assert loading.locate(candidate(site, "vllm_chip:register", "vllm_chip.py", name="the_owner")) is None
    reason = loading.locate(candidate(site, "vllm_chip:register", "vendor/__init__.py"))
    assert reason is not None and "it belongs to the-owner 1.0" in reason
    assert "vllm_chip" not in sys.modules


def test_namespace_package_without_code_is_refused_and_a_real_one_works(site: Path) -> None:
    """A folder left over by an uninstall is a namespace package to Python."""
    (site / "leftover" / "__pycache__").mkdir(parents=True)
    reason = loading.locate(candidate(site, "leftover:register", "leftover/__init__.py"))
    assert reason is not None and "namespace package without code" in reason
    (site / "nsvendor" / "plugin").mkdir(parents=True)
    (site / "nsvendor" / "plugin" / "__init__.py").write_text("def register(): return 'here'")
    good = candidate(site, "nsvendor.plugin:register", "nsvendor/plugin/__init__.py", name="good")
    assert loading.locate(good) is None
    assert "nsvendor" not in sys.modules
    found = loading.load(good)
    assert callable(found) and found() == "here"


def test_nested_namespaces_are_walked_without_importing_them(site: Path) -> None:
    """Neither acme nor acme.accel has no code; importlib itself would need acme imported."""
    folder = site / "nsacme" / "accel" / "plug"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("def register(): ...\nclass P: ...")
    mine = candidate(site, "nsacme.accel.plug:register", "nsacme/accel/plug/__init__.py")
    assert loading.locate(mine) is None
    assert not {m for m in sys.modules if m.startswith("nsacme")}
    assert loading.resolve_class("nsacme.accel.plug.P", mine).__name__ == "P"


def test_class_in_another_distributions_part_of_a_namespace_is_refused(site: Path) -> None:
    """Sharing the first word of a namespace does not make it one's own."""
    for part in ("mine", "theirs"):
        (site / "nsshared" / part).mkdir(parents=True)
        (site / "nsshared" / part / "__init__.py").write_text("class P: ...")
    candidate(site, "nsshared.theirs:register", "nsshared/theirs/__init__.py", name="other")
    mine = candidate(site, "nsshared.mine:register", "nsshared/mine/__init__.py")
    with pytest.raises(loading.LoadError, match=r"nsshared.theirs; it belongs to other 1\.0"):
        loading.resolve_class("nsshared.theirs:P", mine)


def test_a_submodule_of_a_plain_module_does_not_exist(site: Path) -> None:
    """Not even if a module of that last name is on the path."""
    (site / "plainmod.py").write_text("")
    (site / "sub.py").write_text("")
    reason = loading.locate(candidate(site, "plainmod.sub:register", "plainmod.py"))
    assert reason is not None and "module plainmod.sub does not exist" in reason


def test_target_in_the_standard_library_is_refused(site: Path) -> None:
    """It is nobody's plugin."""
    for value in ("json:loads", "sys:exit"):
        reason = loading.locate(candidate(site, value, "vendor/__init__.py"))
        assert reason is not None and ("the standard library" in reason or "built into Python" in reason)


def test_an_editable_install_owns_what_is_under_its_source_folder(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record lists no code."""
    source = site / "checkout"
    source.mkdir()
    (source / "edited.py").write_text("def register(): ...")
    monkeypatch.syspath_prepend(str(source))
    candidate(site, "edited:register", "__editable__.vendor-1.0.pth")
    (site / "vendor-1.0.dist-info" / "direct_url.json").write_text(
        f'{{"url": "file://{source}", "dir_info": {{"editable": true}}}}'
    )
    mine = next(c for c in metadata.scan([str(site)], cwd="/").candidates)
    assert mine.dist.editable_root == str(source)
    assert loading.locate(mine) is None


def test_b09_half_imported_module_is_named_as_such(site: Path) -> None:
    """It asks for the platform at its top, above register()."""
    (site / "half.py").write_text(
        "from opdock.discovery import loading\nimport builtins\n"
        "try:\n    loading.load(builtins._half)\nexcept Exception as err:\n    SEEN = str(err)\n"
        "def register(): ...\n"
    )
    mine = candidate(site, "half:register", "half.py")
    import builtins

    builtins._half = mine  # type: ignore[attr-defined]
    try:
        loading.load(mine)
    finally:
        del builtins._half  # type: ignore[attr-defined]
    assert "half is only partially initialized" in sys.modules["half"].SEEN


def test_missing_module_of_another_name_is_named(site: Path) -> None:
    """What a foreign package misses is what it says."""
    (site / "wants.py").write_text("import torch_nowhere.sub")
    with pytest.raises(loading.LoadError, match="it needs module torch_nowhere, which is not installed"):
        loading.load(candidate(site, "wants:register", "wants.py"))


@pytest.mark.parametrize("value", [":register", "1bad:x", "a..b:x", "a b:c", "m:f # a note", "m:"])
def test_nonsense_names_no_module(site: Path, value: str) -> None:
    """Not an exception."""
    reason = loading.locate(candidate(site, value))
    assert reason is not None and "not of the form 'package.module:attribute'" in reason


def test_not_installed_and_broken_are_told_apart(site: Path) -> None:
    """A missing module of vLLM is named as what it is; the cause is chained."""
    (site / "needs.py").write_text("import vllm.platforms")
    with pytest.raises(
        loading.LoadError, match="needs module vllm.*which is not installed: written for vLLM"
    ) as caught:
        loading.load(candidate(site, "needs:register", "needs.py"))
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    (site / "broken.py").write_text("1 / 0")
    with pytest.raises(loading.LoadError, match="ZeroDivisionError"):
        loading.load(candidate(site, "broken:register", "broken.py", name="b"))
    (site / "empty.py").write_text("")
    with pytest.raises(loading.LoadError, match="empty has no attribute 'register'"):
        loading.load(candidate(site, "empty:register", "empty.py", name="c"))


@pytest.mark.parametrize("path", ["plat.P", "plat:P", "plat.P.Inner", "plat:P.Inner"])
def test_class_paths_in_both_forms_and_nested(site: Path, path: str) -> None:
    """pkg.mod.Class and pkg.mod:Class."""
    (site / "plat.py").write_text("class P:\n    class Inner: pass\n")
    cls = loading.resolve_class(path, candidate(site, "plat:register", "plat.py"))
    assert cls.__name__ == path.rpartition(".")[2].rpartition(":")[2]


@pytest.mark.parametrize("path", ["json.JSONDecoder", "json:JSONDecoder", "nowhere.P", "NoDots", ":P", "plat:"])
def test_class_path_outside_of_the_distribution_is_refused(site: Path, path: str) -> None:
    """Or one that is none."""
    (site / "plat.py").write_text("")
    with pytest.raises(loading.LoadError):
        loading.resolve_class(path, candidate(site, "plat:register", "plat.py"))


def test_plugin_answers_only_opdock() -> None:
    """Under another host register() returns None, and the probe does not even run."""
    ran: list[int] = []
    register = selecting.platform_plugin("m:C", probe=lambda: ran.append(1))
    assert register() is None and ran == []
    with selecting.asking():
        assert register() == "m:C" and ran == [1]
    assert register() is None


@pytest.mark.parametrize(
    ("probe", "path", "reason"),
    [
        (None, "m:C", ""),
        (lambda: None, "m:C", ""),
        (lambda: True, "m:C", ""),
        (lambda: False, None, "its probe found no device"),
        (lambda: "", None, "its probe found no device"),
        (lambda: "too old a driver", None, "too old a driver"),
        (lambda: selecting.decline("no NVML"), None, "no NVML"),
    ],
)
def test_probe_declines_with_its_reason(probe: object, path: str | None, reason: str) -> None:
    """Every way of saying no keeps the words."""
    register = selecting.platform_plugin("m:C", probe=probe)  # type: ignore[arg-type]
    with selecting.asking() as answer:
        assert register() == path
    assert answer.reason == reason


def test_probe_that_returns_anything_else_is_an_error() -> None:
    """Zero devices would otherwise count as found."""
    register = selecting.platform_plugin("m:C", probe=lambda: 0)
    with selecting.asking(), pytest.raises(TypeError, match="the probe of m:C returned 0: expected None or True"):
        register()


@pytest.mark.parametrize("path", ["probing:look", "probing.look"])
def test_probe_by_path_is_imported_only_when_opdock_asks(site: Path, path: str) -> None:
    """In both forms of a path."""
    (site / "probing.py").write_text("def look(): return 'no chip'")
    register = selecting.platform_plugin("m:C", probe=path)
    assert register() is None and "probing" not in sys.modules
    with selecting.asking() as answer:
        assert register() is None
    assert answer.reason == "no chip"


def test_decline_outside_of_a_selection_does_nothing() -> None:
    """It returns None, whoever asks."""
    assert selecting.decline("x") is None
