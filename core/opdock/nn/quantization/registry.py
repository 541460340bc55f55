"""Quantisation methods by name."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from opdock import context, journal
from opdock.errors import RegistrationError, UnknownNameError, suggest
from opdock.nn.quantization.config import QuantizationConfig

C = TypeVar("C", bound=type)

logger = logging.getLogger("opdock")

PACKAGE = __name__.rpartition(".")[0]
_BUILT_IN = {
    "fp8": f"{PACKAGE}.fp8:Fp8Config",
    "int8_w8a8": f"{PACKAGE}.int8:Int8Config",
    "gptq": f"{PACKAGE}.gptq:GPTQConfig",
    "awq": f"{PACKAGE}.awq:AWQConfig",
    "compressed-tensors": f"{PACKAGE}.compressed_tensors:CompressedTensorsConfig",
}
_added: journal.Registry[type[QuantizationConfig]] = journal.Registry("quantisation method")


def quantization_methods() -> list[str]:
    """Return the names of all methods, the built-in ones first."""
    return [*_BUILT_IN, *(name for name in _added if name not in _BUILT_IN)]


def register_quantization_config(quantization: str) -> Callable[[C], C]:
    """Return a decorator that registers a QuantizationConfig under a name.

    A built-in name may be taken over, which is logged. Where the platform lists the methods that it supports, the
    new one is added to the list. Nothing is registered, and the list is unchanged, if a check fails.

    Raises: RegistrationError for a name that is none, or a class that is no concrete QuantizationConfig;
        DuplicateError showing both places if somebody else registered the name.
    """

    def decorate(cls: C) -> C:
        _check(quantization, cls)
        new, site = quantization not in _added, journal.Site.here(beyond=PACKAGE)
        _added.register(quantization, cls, site=site)
        if new and quantization in _BUILT_IN:
            logger.info(
                "Quantisation method %s: %s.%s (%s) in place of the built-in one",
                quantization,
                cls.__module__,
                cls.__qualname__,
                site,
            )
        _let_platform_support(quantization)
        return cls

    return decorate


def _check(name: object, cls: object) -> None:
    if not isinstance(name, str) or not name.strip() or name != name.strip():
        raise RegistrationError(
            f"{name!r} is no name of a quantisation method.",
            who=repr(cls),
            why="A name is a text without blanks around it, as quant_method of a checkpoint has it.",
            remedy='@register_quantization_config("my_method")',
        )
    if not (isinstance(cls, type) and issubclass(cls, QuantizationConfig)):
        raise RegistrationError(
            "The quantization config must be a subclass of `QuantizationConfig`.",
            who=f"{name!r} -> {cls!r}",
            why=_is(cls),
            remedy="class MyConfig(QuantizationConfig): ...",
        )
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    if inspect.isabstract(cls):
        raise RegistrationError(
            f"{cls.__qualname__} lacks {', '.join(lacking)}.",
            who=f"{name!r} -> {cls.__module__}.{cls.__qualname__}",
            why="A method that a layer is asked for must answer.",
            remedy="define them; see QuantizationConfig.",
        )


def _is(cls: object) -> str:
    """Return what was given in place of a QuantizationConfig, in words."""
    if isinstance(cls, type):
        return f"its bases: {', '.join(f'{base.__module__}.{base.__qualname__}' for base in cls.__mro__[1:])}"
    return f"it is no class but a {type(cls).__name__}"


def _let_platform_support(name: str) -> None:
    config = context.get_current_config_or_none()
    platform = config.platform if config is not None else _resolved()
    cls: Any = type(platform)
    listed = list(getattr(cls, "supported_quantization", ()) or ())
    if platform is None or not listed or name in listed:
        return
    cls.supported_quantization = [*listed, name]

    def undo() -> None:
        cls.supported_quantization = [n for n in cls.supported_quantization if n != name]

    journal.record("supported quantisation", name, undo, site=journal.Site.here(beyond=PACKAGE))


def _resolved() -> object | None:
    """Return the platform if there is one already: a registration must not start the search for it."""
    current = sys.modules.get("opdock.platforms.current")
    return getattr(current, "resolved", lambda: None)() if current is not None else None


def get_quantization_config(quantization: str) -> type[QuantizationConfig]:
    """Return the class that is registered under a name.

    Raises: UnknownNameError with near matches.
    """
    if quantization in _added:
        return _added.get(quantization)
    if quantization in _BUILT_IN:
        module, _, name = _BUILT_IN[quantization].partition(":")
        found: type[QuantizationConfig] = getattr(import_module(module), name)
        return found
    raise UnknownNameError(
        f"Invalid quantization method: {quantization}",
        why="No package that was imported registered it.",
        remedy=suggest(str(quantization), quantization_methods()),
    )
