"""Checking a platform class against ``Platform``: attributes, signatures, names that are gone."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opdock.errors import nearest
from opdock.journal import Site
from opdock.platforms.enums import PlatformEnum
from opdock.platforms.interface import API_VERSION, Platform

REMOVED = {
    "is_async_output_supported": "no host calls it since asynchronous output is always on",
    "supports_v1": "there is one engine interface",
    "get_piecewise_backend_cls": "graphs are split without a class of the platform",
    "seed_everything": "manual_seed_all seeds the devices",
    "get_lora_vocab_padding_size": "LoRA adds no vocabulary",
}
"""Hooks of earlier hosts that nothing calls any more, and why."""

VLLMS_NAMES = {"vllm_config": "config"}
"""Parameters that have another name in vLLM, whose backends override these hooks; the host gives them by position."""


@dataclass(frozen=True)
class Fault:
    """One finding; ``fatal`` ones stop the activation."""

    text: str
    fatal: bool


def check_platform_class(cls: Any) -> list[Fault]:
    """Return what is wrong with a platform class; nothing of it is called."""
    if not isinstance(cls, type) or not issubclass(cls, Platform):
        return [Fault(f"{cls!r} is not a subclass of opdock.platforms.Platform", fatal=True)]
    faults = []
    if not isinstance(getattr(cls, "_enum", None), PlatformEnum):
        faults.append(Fault("_enum is not a PlatformEnum", fatal=True))
    for name in ("device_name", "device_type", "dispatch_key"):
        value = getattr(cls, name, None)
        if not isinstance(value, str) or not (value or cls._enum is PlatformEnum.UNSPECIFIED):
            faults.append(Fault(f"{name} is {value!r}, expected a string that is not empty", fatal=True))
    stated = cls.api_version
    if stated is not None and stated != API_VERSION:
        faults.append(Fault(f"plugin built for host API {stated}, host has {API_VERSION}", fatal=True))
    own = [k for k in cls.__mro__ if not k.__module__.startswith("opdock.platforms.") and k is not object]
    for klass in own:
        for name, value in vars(klass).items():
            faults += _check_member(klass, name, value)
    return faults


def _check_member(klass: type, name: str, value: object) -> list[Fault]:
    place = Site.of(getattr(value, "__func__", value))
    if name in REMOVED:
        return [Fault(f"{klass.__name__}.{name} is never called: {REMOVED[name]}. ({place})", fatal=False)]
    known = {n for n in dir(Platform) if not n.startswith("_")}
    if name not in known:
        close = nearest(name, known) if not name.startswith("_") and callable(getattr(klass, name, None)) else None
        if close and is_likely_typo(name, close):
            return [Fault(f"{klass.__name__}.{name} is no hook: did you mean {close}? ({place})", fatal=False)]
        return []
    base = inspect.getattr_static(Platform, name)
    if not isinstance(base, (classmethod, staticmethod)) and not inspect.isfunction(base):
        return []
    if isinstance(value, property) or not callable(getattr(klass, name, None)):
        return [Fault(f"{klass.__name__}.{name} is not callable; the host calls it", fatal=True)]
    drift = _drift(base, value)
    return [Fault(f"{klass.__name__}.{name}{drift} ({place})", fatal=True)] if drift else []


def is_likely_typo(name: str, close: str) -> bool:
    """Return whether a method called ``name`` was meant to be the hook ``close``."""
    alike = difflib.SequenceMatcher(a=name, b=close).ratio() >= 0.8
    return alike and abs(len(name) - len(close)) <= 3 and name not in dir(type)


def _parameters(member: object) -> tuple[list[inspect.Parameter], bool]:
    """Return the parameters that a caller on an instance gives, and whether the member is a classmethod."""
    function: Callable[..., Any] = getattr(member, "__func__", member)  # type: ignore[arg-type]
    parameters = list(inspect.signature(function).parameters.values())
    return parameters[0 if isinstance(member, staticmethod) else 1 :], isinstance(member, classmethod)


def _drift(base: object, override: object) -> str:
    """Return why a call as the host makes it would fail, or ""."""
    try:
        wanted, _ = _parameters(base)
        given, _ = _parameters(override)
    except (TypeError, ValueError):
        return ""
    return misfit(wanted, given)


def misfit(wanted: Sequence[inspect.Parameter], given: Sequence[inspect.Parameter]) -> str:
    """Return why a call that fits the parameters ``wanted`` would not fit ``given``, or ""; both without self.

    What a default or an annotation is does not matter, and may be text.
    """
    if any(p.kind is p.VAR_POSITIONAL for p in given) and any(p.kind is p.VAR_KEYWORD for p in given):
        return ""
    plain = [p for p in wanted if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(plain) != len(wanted):
        return ""  # the base takes anything
    text = f"({', '.join(p.name for p in given)}) does not fit the host's ({', '.join(p.name for p in wanted)})"
    positions = [p for p in given if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    takes_rest = any(p.kind is p.VAR_POSITIONAL for p in given)
    required = [p for p in given if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(positions) < len(plain) and not takes_rest:
        missing = plain[len(positions)].name
        return f"{text}: the host also passes {missing!r}"
    names = {p.name for p in plain}
    unexpected = [
        p.name for p in required if p.name not in names and (p not in positions or positions.index(p) >= len(plain))
    ]
    if unexpected:
        return f"{text}: the host never passes {unexpected[0]!r}"
    for mine, theirs in zip(positions, plain, strict=False):
        if VLLMS_NAMES.get(mine.name, mine.name) != theirs.name:
            return f"{text}: {mine.name!r} stands where the host has {theirs.name!r}"
        if theirs.default is not theirs.empty and mine.default is mine.empty:
            return f"{text}: {mine.name!r} must have a default"
    return ""
