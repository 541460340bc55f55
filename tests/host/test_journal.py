"""The journal and the registries that write through it."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
import types
from pathlib import Path
from types import MappingProxyType

import pytest

from opdock import journal
from opdock.errors import DuplicateError, UnknownNameError


class Stop(Exception):
    """Ends a transaction."""


@pytest.fixture
def registry() -> journal.Registry[object]:
    """Return an empty registry of things."""
    return journal.Registry("thing")


def test_same_object_is_a_no_op_and_another_is_an_error_with_both_places(
    registry: journal.Registry[object],
) -> None:
    """File and line of the first and of the second."""
    first, second = object(), object()
    assert registry.register("a", first) is registry.register("a", first)
    with pytest.raises(DuplicateError) as caught:
        registry.register("a", second)
    assert str(caught.value).count(__file__) == 2 and "Duplicate thing name: a" in str(caught.value)
    assert registry.get("a") is first


def test_override_is_by_keyword_and_undone_to_the_former(registry: journal.Registry[object]) -> None:
    """An undone override gives the first object back."""
    registry.register("a", 1)
    entry = registry.register("a", 2, override=True)
    assert registry.get("a") == 2
    entry.undo()
    assert registry.get("a") == 1


def test_unknown_name_lists_the_known(registry: journal.Registry[object]) -> None:
    """With the nearest first."""
    registry.register("rms_norm", 1)
    with pytest.raises(UnknownNameError, match=r"No thing is called 'rms_nrom'[\s\S]*Did you mean 'rms_norm'"):
        registry.get("rms_nrom")


def test_transaction_undoes_everything_newest_first(registry: journal.Registry[object]) -> None:
    """And leaves the journal as it was."""
    before, undone = journal.entries(), []
    with contextlib.suppress(Stop), journal.transaction(journal.Owner("d", "1", "e")):
        registry.register("a", 1)
        journal.record("x", "1", lambda: undone.append(1))
        journal.record("x", "2", lambda: undone.append(2))
        raise Stop
    assert undone == [2, 1] and "a" not in registry and journal.entries() == before


def test_inner_transaction_hands_its_registrations_up(registry: journal.Registry[object]) -> None:
    """A later failure outside still undoes what succeeded inside."""
    with contextlib.suppress(Stop), journal.transaction():
        with journal.transaction():
            registry.register("a", 1)
        raise Stop
    assert "a" not in registry


def test_failed_inner_transaction_leaves_the_outer_one(registry: journal.Registry[object]) -> None:
    """Only its own registrations are undone."""
    with journal.transaction():
        registry.register("a", 1)
        with contextlib.suppress(Stop), journal.transaction():
            registry.register("b", 1)
            raise Stop
    assert list(registry) == ["a"]


def test_owner_and_place_are_recorded(registry: journal.Registry[object]) -> None:
    """The message of a clash can name the distribution."""
    with journal.transaction(journal.Owner("opdock-x", "1.2", "x")):
        entry = registry.register("a", 1)
    assert entry.where().startswith(__file__) and "opdock-x 1.2 (entry point 'x')" in entry.where()


def test_b27_same_definition_is_recognised_and_closures_are_told_apart() -> None:
    """A hook that runs twice makes equal functions; a factory makes different ones."""

    def hook() -> object:
        def made(x: int) -> int:
            return x

        return made

    def factory(n: int) -> object:
        def made() -> int:
            return n

        return made

    assert journal.same_definition(hook(), hook())
    assert not journal.same_definition(factory(1000), factory(2000))


def test_view_is_read_only(registry: journal.Registry[object]) -> None:
    """Nobody writes past register()."""
    assert isinstance(registry.view, MappingProxyType)


def test_b27_a_module_whose_registrations_are_rolled_back_registers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left in sys.modules, it would be imported again without registering anything, and nobody would be told."""
    (tmp_path / "plug_rb").mkdir()
    (tmp_path / "plug_rb" / "__init__.py").touch()
    (tmp_path / "plug_rb" / "outer.py").write_text("from plug_rb import inner\n")
    (tmp_path / "plug_rb" / "inner.py").write_text(
        "import plug_rb_target\nplug_rb_target.thing.register('a', object())\n"
    )
    target = types.ModuleType("plug_rb_target")
    target.thing = journal.Registry("thing")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "plug_rb_target", target)
    monkeypatch.syspath_prepend(str(tmp_path))
    for _ in range(2):
        with contextlib.suppress(Stop), journal.transaction():
            importlib.import_module("plug_rb.outer")
            assert "a" in target.thing
            raise Stop
        assert "a" not in target.thing
    assert "plug_rb.inner" not in sys.modules


def test_what_a_module_of_the_host_registers_is_no_plugins(registry: journal.Registry[object]) -> None:
    """A plugin's hook may be the first to import a layer: the layer is not undone with the plugin."""
    site = journal.Site("norm.py", 1, "opdock.nn.layers.norm")
    with contextlib.suppress(Stop), journal.transaction(journal.Owner("acme", "1")):
        registry.register("norm", object(), site=site)
        raise Stop
    assert "norm" in registry
    assert registry.record_of("norm").owner is None
    registry.unregister("norm")


def test_b27_what_only_looks_like_the_same_definition_is_told_apart() -> None:
    """Lambdas on one line, code without a file, classes of one factory."""
    first, second = (lambda: 1), (lambda: 2)
    assert not journal.same_definition(first, second)
    made: list[dict[str, object]] = [{}, {}]
    for number, scope in enumerate(made):
        exec(f"def f(): return {number}", scope)
    assert not journal.same_definition(made[0]["f"], made[1]["f"])

    def classes(k: int) -> type:
        class Layer:
            def scale(self) -> int:
                return k

        return Layer

    assert not journal.same_definition(classes(1000), classes(2000))


def test_b27_a_bound_method_and_a_recursive_closure_are_the_same_again() -> None:
    """A bound method is a new object at each look; a cell that is still empty is no error."""

    class Kernels:
        def norm(self) -> None:
            """Do nothing."""

    kernels = Kernels()
    assert journal.same_definition(kernels.norm, kernels.norm)
    assert not journal.same_definition(kernels.norm, Kernels().norm)

    def early() -> object:
        return late  # an empty cell while it is compared

    def other() -> object:
        return late

    assert not journal.same_definition(early, other)
    late = 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_b14_a_child_forked_while_another_thread_registers_can_register(registry: journal.Registry[object]) -> None:
    """The lock that the other thread held is not there any more to let go of it."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with journal._lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        registry.register("child", object())
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert status == 0
