"""Errors: four parts, pickling, built-in bases, suggestions."""

from __future__ import annotations

import inspect
import pickle

import pytest

from opdock import errors

TREE = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, errors.OpdockError)]


def test_message_has_four_parts_in_order() -> None:
    """What, who, why, Remedy."""
    error = errors.ConfigError("A happened.", who="plugin p", why=["this", "that"], remedy="pip install p")
    assert str(error).splitlines() == [
        "A happened.",
        "  plugin p",
        "  this",
        "  that",
        "Remedy: pip install p",
    ]


@pytest.mark.parametrize("cls", TREE)
def test_errors_keep_their_parts_across_a_process_border(cls: type[errors.OpdockError]) -> None:
    """An error from a child process arrives whole."""
    back = pickle.loads(pickle.dumps(cls("w", who="a", why="b", remedy="c")))
    assert type(back) is cls and (back.what, back.who, back.why, back.remedy) == ("w", ["a"], ["b"], "c")


@pytest.mark.parametrize("cls", [c for c in TREE if c is not errors.OpdockError])
def test_each_error_is_also_a_builtin(cls: type[errors.OpdockError]) -> None:
    """Callers that know nothing of opdock can catch it; KeyError would garble the text."""
    builtin = [b for b in cls.__mro__ if b.__module__ == "builtins" and b not in (Exception, BaseException, object)]
    assert builtin and KeyError not in builtin


def test_suggestion_names_the_nearest_and_the_known() -> None:
    """Dashes, underscores and case do not matter."""
    assert errors.suggest("RMS-nrom", ["rms_norm", "silu"]) == "Did you mean 'rms_norm'? Known: rms_norm, silu."
    assert errors.suggest("zzz", []) == "Known: none."


def test_text_of_a_plugin_does_not_act_on_the_terminal() -> None:
    """The parts keep it as it is; the message, which Python prints, shows it."""
    error = errors.PlatformError("evil\x1b[2J", who="a\nb\u202e", remedy="x")
    assert str(error) == "evil\\x1b[2J\n  a\n  b\\u202e\nRemedy: x"
    assert error.what == "evil\x1b[2J"
