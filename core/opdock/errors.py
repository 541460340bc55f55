"""The errors that opdock raises: one small tree, each also a fitting built-in.

Every message has four parts: what happened; who (plugin, distribution, op, provider); why, with both
sides shown where two clash; and ``Remedy:`` with text to paste.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def printable(text: str, *, keep: str = "") -> str:
    """Return text from a plugin with control and formatting characters, but those in ``keep``, as Python writes them.

    A name in somebody's metadata must not clear the terminal on which an error or a log line is read.
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def _lines(part: str | Sequence[str]) -> list[str]:
    return [part] if isinstance(part, str) else list(part)


class OpdockError(Exception):
    """Base of every error that opdock raises on purpose.

    Args:
        what: one sentence that says what happened; the first line of the message.
        who: the plugins, distributions, ops or files concerned, a line each.
        why: the cause, a line each; for a clash, both sides.
        remedy: text to paste or do next, without the word ``Remedy:``.

    The parts stay readable as attributes of the same names.
    """

    def __init__(
        self,
        what: str,
        *,
        who: str | Sequence[str] = (),
        why: str | Sequence[str] = (),
        remedy: str | None = None,
    ) -> None:
        self.what, self.who, self.why, self.remedy = what, _lines(who), _lines(why), remedy
        body = [what]
        for part in (*self.who, *self.why):
            body.extend(f"  {line}" for line in part.splitlines())
        if remedy:
            body.append(f"Remedy: {remedy}")
        super().__init__(printable("\n".join(body), keep="\n\t"))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with all parts, so that an error crosses a process border whole."""
        return _rebuild, (type(self), self.what, self.who, self.why, self.remedy)


def _rebuild(cls: type[OpdockError], what: str, who: list[str], why: list[str], remedy: str | None) -> OpdockError:
    return cls(what, who=who, why=why, remedy=remedy)


class ConfigError(OpdockError, ValueError):
    """A setting, switch or environment variable has an impossible value."""


class RegistrationError(OpdockError, ValueError):
    """A registration breaks the contract of its registry; nothing was registered."""


class DuplicateError(RegistrationError):
    """Another object already holds the name; the message shows both places."""


class SchemaMismatchError(RegistrationError):
    """A provider's signature differs from its op's native definition."""


class UnknownNameError(OpdockError, LookupError):
    """No object of that name is known; the message lists the known and the nearest."""


class OrderError(OpdockError, RuntimeError):
    """A step ran before the step that it needs."""


class PlatformError(OpdockError, RuntimeError):
    """No platform can be given to the process."""


class PlatformConflictError(PlatformError):
    """More than one platform is active, or two settings contradict each other."""


class PlatformFailedError(PlatformError):
    """A plugin raised, or returned nonsense, while it was asked or activated."""


class PlatformNotFoundError(PlatformError, LookupError):
    """The platform that was asked for by name is not there, or declines."""


class ReentryError(PlatformError):
    """A plugin asked for the platform while the platform was being decided."""


class UnsupportedError(OpdockError, NotImplementedError):
    """The platform or op cannot do what was asked."""


class CheckpointError(OpdockError, ValueError):
    """A model's files are missing, broken or of an unknown kind."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to ``name``, or None where nothing is close."""
    by_folded = {k.lower().replace("-", "_"): k for k in known}
    folded = name.lower().replace("-", "_")
    found = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``Did you mean 'x'? Known: a, b, c.`` for an unknown ``name``."""
    names = sorted(known)
    close = nearest(name, names)
    hint = f"Did you mean {close!r}? " if close else ""
    return f"{hint}Known: {', '.join(names) if names else 'none'}."
