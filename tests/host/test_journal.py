"""The journal and the registries that write through it."""

from __future__ import annotations

import contextlib
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
