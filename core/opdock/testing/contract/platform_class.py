"""The rules about the platform class: its attributes, and the hooks that it overrides."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from opdock.errors import nearest
from opdock.platforms.hook_check import REMOVED, is_likely_typo, misfit
from opdock.platforms.interface import API_VERSION, Platform
from opdock.testing.contract.findings import NOTE, WARNING, Finding, finding
from opdock.testing.contract.host import PLATFORM
from opdock.testing.contract.literals import UNKNOWN, parameters, value_of
from opdock.testing.contract.source import Found
from opdock.testing.contract.world import World, members

VLLM_BASES = ("vllm.platforms.", "vllm.platforms.interface.")
_KEYS = {
    "cpu": "CPU",
    "cuda": "CUDA",
    "xpu": "XPU",
    "hpu": "HPU",
    "mps": "MPS",
    "xla": "XLA",
    "mtia": "MTIA",
    "ipu": "IPU",
    "meta": "Meta",
    "privateuseone": "PrivateUse1",
}
_TORCH_KEYS = frozenset(_KEYS.values()) | {
    "AutogradCPU",
    "AutogradCUDA",
    "AutogradPrivateUse1",
    "CompositeExplicitAutograd",
    "CompositeImplicitAutograd",
    "MAIA",
    "VE",
    "Vulkan",
    "HIP",
    "FPGA",
}


@dataclass(frozen=True)
class PlatformFact:
    """A platform class, and what its text says of it.

    Args:
        cls: the class.
        lineage: it and its bases, those of the package first.
        unknown: names of bases whose text is not there.
        enum: the member of PlatformEnum, None where it is not known.
    """

    cls: Found
    lineage: tuple[Found, ...]
    unknown: tuple[str, ...]
    enum: str | None

    @property
    def foreign(self) -> bool:
        """Whether its base is vLLM's."""
        return any(name.startswith("vllm.") for name in self.unknown)

    def own(self, world: World) -> list[Found]:
        """Return the classes of the package among it and its bases."""
        return [c for c in self.lineage if world.own(c)]

    def lookup(self, name: str) -> tuple[Found, ast.AST] | None:
        """Return the class that defines an attribute, and what it defines."""
        for found in self.lineage:
            if isinstance(found.node, ast.ClassDef) and name in members(found.node):
                return found, members(found.node)[name]
        return None


def fact_of(world: World, cls: Found) -> PlatformFact:
    """Return what the text says of a platform class."""
    lineage, unknown = world.lineage(cls)
    fact = PlatformFact(cls, tuple(lineage), tuple(unknown), None)
    place = fact.lookup("_enum")
    enum = None
    if place is not None:
        text = place[0].module.qualify(place[1]) or ""
        if ".PlatformEnum." in text or text.startswith("PlatformEnum."):
            enum = text.rpartition(".")[2]
    elif any(u.endswith("cpu.CpuPlatform") for u in unknown):
        enum = "CPU"
    return PlatformFact(cls, tuple(lineage), tuple(unknown), enum)


def check(world: World, fact: PlatformFact) -> Iterator[Finding]:
    """Yield what is wrong with a platform class."""
    names = {c.name for c in fact.lineage}
    at = fact.cls.module.at(fact.cls.node)
    if PLATFORM not in names and not fact.unknown:
        yield finding(
            "platform-base",
            f"{fact.cls.name} is no subclass of opdock.Platform.",
            at,
            remedy=f"class {_short(fact.cls)}(opdock.Platform):",
        )
        return
    if PLATFORM in names:
        yield from _attributes(fact)
    if PLATFORM in names or fact.foreign:
        for found in fact.own(world):
            for name, node in members(found.node).items():  # type: ignore[arg-type]
                yield from _member(found, name, node)


def _short(found: Found) -> str:
    return str(getattr(found.node, "name", found.name))


def _attributes(fact: PlatformFact) -> Iterator[Finding]:
    who, at = fact.cls.name, fact.cls.module.at(fact.cls.node)
    if fact.unknown:  # a base may set them
        return
    place = fact.lookup("_enum")
    if place is None:
        yield finding("platform-enum", f"{who} sets no _enum.", at, remedy="_enum = opdock.PlatformEnum.OOT")
    elif isinstance(place[1], ast.Constant):
        yield finding(
            "platform-enum",
            f"{who}._enum is {place[1].value!r}, no member of PlatformEnum.",
            place[0].module.at(place[1]),
            remedy="_enum = opdock.PlatformEnum.OOT",
        )
    elif fact.enum is not None and not hasattr(_enum_class(), fact.enum):
        yield finding(
            "platform-enum",
            f"PlatformEnum has no member {fact.enum!r}.",
            place[0].module.at(place[1]),
            remedy=f"one of {', '.join(m.name for m in _enum_class())}",
        )
    values = {}
    for name in ("device_name", "device_type", "dispatch_key"):
        values[name] = value = _value(fact, name)
        if value is None or (value is not UNKNOWN and (not isinstance(value, str) or not value)):
            shown = "is not set" if fact.lookup(name) is None else f"is {value!r}"
            yield finding(
                "platform-attribute",
                f"{who}.{name} {shown}, expected a string that is not empty.",
                at,
                remedy=f'{name} = "..."',
            )
    yield from _dispatch_key(fact, values["device_type"], values["dispatch_key"])
    yield from _api_version(fact)


def _enum_class() -> Any:
    from opdock.platforms.enums import PlatformEnum

    return PlatformEnum


def _value(fact: PlatformFact, name: str) -> Any:
    place = fact.lookup(name)
    if place is None:
        return None
    if isinstance(place[1], ast.FunctionDef):  # a property
        return UNKNOWN
    return value_of(place[0].module, place[1])


def _dispatch_key(fact: PlatformFact, device: Any, key: Any) -> Iterator[Finding]:
    place = fact.lookup("dispatch_key")
    if place is None or not isinstance(key, str) or not key:
        return
    at = place[0].module.at(place[1])
    if place[0].name == PLATFORM:
        at = fact.cls.module.at(fact.cls.node)
    if key not in _TORCH_KEYS:
        close = nearest(key, _TORCH_KEYS)
        yield finding(
            "dispatch-key",
            f"{fact.cls.name}.dispatch_key is {key!r}, no dispatch key of torch for a device.",
            at,
            remedy=f'dispatch_key = "{close or "PrivateUse1"}"',
        )
        return
    expected = _KEYS.get(device) if isinstance(device, str) else None
    if expected is None and isinstance(device, str) and device and key in ("CPU", "CUDA"):
        expected = "PrivateUse1"  # a name that torch does not know is a renamed PrivateUse1
    if expected is not None and expected != key:
        stated = "inherits" if place[0].name == PLATFORM else "has"
        yield finding(
            "dispatch-key",
            f"{fact.cls.name} {stated} dispatch_key {key!r}; torch dispatches {device!r} tensors to {expected!r}.",
            at,
            remedy=f'dispatch_key = "{expected}"',
        )


def _api_version(fact: PlatformFact) -> Iterator[Finding]:
    place = fact.lookup("api_version")
    value = _value(fact, "api_version")
    if value is None:
        yield finding(
            "api-version",
            f"{fact.cls.name} does not state the interface that it was written for.",
            fact.cls.module.at(fact.cls.node),
            remedy=f"api_version = {API_VERSION}",
            level=NOTE,
        )
    elif value is not UNKNOWN and value != API_VERSION and place is not None:
        yield finding(
            "api-version",
            f"{fact.cls.name} is written for interface {value!r}; this opdock has {API_VERSION}.",
            place[0].module.at(place[1]),
            why="the activation refuses it.",
            remedy=f"check it against this opdock, then api_version = {API_VERSION}",
        )


def _member(found: Found, name: str, node: ast.AST) -> Iterator[Finding]:
    at, who = found.module.at(node), f"{_short(found)}.{name}"
    if name in REMOVED:
        yield finding("hook-removed", f"{who} is never called.", at, why=REMOVED[name], remedy="delete it.")
        return
    known = {n for n in dir(Platform) if not n.startswith("_")}
    function = node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else None
    if name not in known:
        close = nearest(name, known) if not name.startswith("_") and function is not None else None
        if close and is_likely_typo(name, close) and close not in members(found.node):  # type: ignore[arg-type]
            yield finding(
                "hook-unknown",
                f"{who} is no hook: nothing calls it.",
                at,
                remedy=f"did you mean {close}? A helper of your own may have a name that begins with an underscore.",
            )
        return
    base = inspect.getattr_static(Platform, name)
    if not isinstance(base, classmethod | staticmethod) and not inspect.isfunction(base):
        return
    kinds = _kinds(found, function)
    if (function is None and isinstance(node, ast.Constant)) or "property" in kinds:
        what = "a property" if function is not None else f"the constant {node.value!r}"  # type: ignore[attr-defined]
        yield finding("hook-not-callable", f"{who} is {what}; the host calls it.", at, remedy=_head(name, base))
        return
    if function is not None and not kinds - {"classmethod", "staticmethod"}:
        yield from _signature(found, name, function, base, kinds)


def _kinds(found: Found, function: ast.AST | None) -> set[str]:
    names = set()
    for decorator in getattr(function, "decorator_list", []):
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = str(
            found.module.qualify(target) or getattr(target, "id", None) or getattr(target, "attr", "?")
        ).rpartition(".")[2]
        names.add("property" if name in ("property", "cached_property") else name)
    return names - {"cache", "lru_cache", "override", "abstractmethod", "no_grad", "final"}


def _signature(found: Found, name: str, function: Any, base: Any, kinds: set[str]) -> Iterator[Finding]:
    at, who = found.module.at(function), f"{_short(found)}.{name}"
    wanted = list(inspect.signature(getattr(base, "__func__", base)).parameters.values())
    wanted = wanted[0 if isinstance(base, staticmethod) else 1 :]
    given = parameters(function, skip_first="staticmethod" not in kinds)
    said = misfit(wanted, given)
    if isinstance(base, classmethod) and not kinds & {"classmethod", "staticmethod"}:
        alone = bool(function.args.args) and function.args.args[0].arg == "self"
        yield finding(
            "hook-not-classmethod",
            f"{who} is no classmethod.",
            at,
            why="opdock calls hooks on the instance, on which it works; other hooks and hosts call it on the class."
            if alone
            else "its first parameter is cls, and called on the instance it gets the instance.",
            remedy=f"@classmethod\ndef {name}(cls, ...)",
            level="" if said else WARNING,
        )
    if said:
        yield finding("hook-signature", f"{who}{said}.", at, why="the call raises TypeError.", remedy=_head(name, base))


def _head(name: str, base: Any) -> str:
    decorator = "@classmethod\n" if isinstance(base, classmethod) else ""
    plain = inspect.signature(getattr(base, "__func__", base))
    text = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in plain.parameters.values())
    return f"{decorator}def {name}({text}): ..."
