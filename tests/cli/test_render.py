"""Text from a plugin acts on nothing."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from opdock.cli import render

HOSTILE = "\x1b[31mred\x07 \u202eevil\u2066 [bold]x[/bold] :smile: \x9b2J\nline\u2028two\ud800"


class Terminal(io.StringIO):
    """Text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_control_bidi_and_separator_characters_are_shown_as_escapes() -> None:
    """Brackets are text; nothing that acts is left."""
    shown = render.escape(HOSTILE)
    assert shown == ("\\x1b[31mred\\x07 \\u202eevil\\u2066 [bold]x[/bold] :smile: \\x9b2J\\nline\\u2028two\\ud800")
    assert shown.isprintable()


def test_ordinary_text_of_any_script_stays() -> None:
    """Accents, wide characters and emoji are no danger."""
    assert render.escape("naïve 模型 🙂") == "naïve 模型 🙂"


def test_a_models_text_keeps_lines_tabs_and_joined_characters() -> None:
    """Persian and families need joiners; an escape sequence is still shown."""
    assert render.prose("a\tb\n\u200c👩\u200d👧\x1b[0m") == "a\tb\n\u200c👩\u200d👧\\x1b[0m"


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A newline in a reason cannot write a line of its own."""
    render.line("reason\nPlatform: evil")
    assert capsys.readouterr().out == "reason\\nPlatform: evil\n"


def test_a_table_in_a_pipe_is_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Wide characters count as two columns."""
    render.table(("name", "why"), [("模型", "a"), ("x", "b [red]")], title="T")
    assert capsys.readouterr().out == "T\n  name  why\n  模型  a\n  x     b [red]\n\n"


def test_a_table_without_rows_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """No heading of nothing."""
    render.table(("a",), [], title="T")
    assert capsys.readouterr().out == ""


def test_a_table_in_a_terminal_shows_markup_and_escapes_as_text() -> None:
    """Rich does not read the cells as markup, emoji codes or control sequences."""
    pytest.importorskip("rich", reason="needs rich")
    out = Terminal()
    render.table(("name", "b"), [(HOSTILE, "[link=x]y[/link]")], title="T", file=out)
    text = out.getvalue()
    assert "[bold]x" in text and ":smile:" in text and "[link=x]y[/link]" in text
    assert not {"\x07", "\x9b", "\u202e", "\u2066", "\u2028"} & set(text) and "\x1b[31m" not in text


def test_a_table_in_a_terminal_without_rich_is_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich is an extra."""
    monkeypatch.setitem(sys.modules, "rich.console", None)
    out = Terminal()
    render.table(("name",), [("a",)], file=out)
    assert out.getvalue() == "  name\n  a\n\n"


def test_a_log_message_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """A warning may hold a plugin's name."""
    record = logging.LogRecord("opdock", logging.WARNING, "f", 1, "plugin %s failed", ("\x1b[2J",), None)
    render.LogHandler().emit(record)
    assert capsys.readouterr().err == "warning: plugin \\x1b[2J failed\n"
