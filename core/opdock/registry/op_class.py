"""What CustomOp and PluggableLayer share: names, replacements, construction, copying."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast, overload

from torch import nn

from opdock import context, ir
from opdock.errors import OrderError, RegistrationError
from opdock.registry import switches, tables

logger = logging.getLogger("opdock")
C = TypeVar("C", bound=type)

_FORWARD_CALLS = {nn.Module._call_impl.__code__, nn.Module._wrapped_call_impl.__code__}


class OpClass(nn.Module):
    """A layer that a platform can replace; see CustomOp and PluggableLayer.

    ``self.ir`` is the namespace through which a layer calls IR ops: ``opdock.ir.ops``, or the native
    definitions when an explicit ``-op`` takes every vendor out of this op.
    """

    name: ClassVar[str]
    ir: Any

    def __new__(cls, *_: object, **__: object) -> OpClass:
        """Allocate the class that replaces ``cls``, unless ``-op`` takes it out."""
        config = context.get_current_config()
        _refuse_inside_forward(cls)
        chosen = switches.class_to_build(cls, config.compilation_config)
        if chosen is not cls:
            logger.debug("Instantiating %s instead of %s", chosen.__qualname__, cls.__qualname__)
        return cast("OpClass", super().__new__(chosen))

    def __init__(self) -> None:
        """Prepare the module, and ``self.ir`` before the subclass goes on."""
        super().__init__()
        config = context.get_current_config().compilation_config
        off = switches.is_switched_off(getattr(self, "name", None), config)
        self.__dict__["ir"] = ir.native if off else ir.ops

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Copy and pickle as the class that was built, whatever replaces it elsewhere."""
        return _allocate, (type(self),), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state, with the namespace of IR ops by name."""
        state = self.__dict__.copy()
        state["ir"] = "native" if state.get("ir") is ir.native else "ops"
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state over and look the namespace up again."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.__dict__["ir"] = getattr(ir, state["ir"])

    @classmethod
    def register(cls, name: str) -> Callable[[C], C]:
        """Return a decorator that registers an in-tree op class under the op name ``name``.

        Raises: RegistrationError for a bad name or class; DuplicateError naming both places.
        """

        def decorate(op_cls: C) -> C:
            given: object = op_cls
            if not (isinstance(given, type) and issubclass(given, cls)):
                raise RegistrationError(
                    f"{op_cls!r} is not a subclass of {cls.__name__}.",
                    remedy=f"class Name({cls.__name__}): ...",
                )
            tables.register_op_class(name, op_cls)
            op_cls.name = name  # type: ignore[attr-defined]
            return op_cls

        return decorate

    @overload
    @classmethod
    def register_oot(cls, _decorated_cls: C, name: str | None = ...) -> C: ...
    @overload
    @classmethod
    def register_oot(cls, _decorated_cls: None = ..., name: str | None = ...) -> Callable[[C], C]: ...
    @classmethod
    def register_oot(cls, _decorated_cls: Any = None, name: str | None = None) -> Any:
        """Register the decorated class as the replacement of an in-tree op class.

        ``@RMSNorm.register_oot``, ``@RMSNorm.register_oot()`` and ``@CustomOp.register_oot(name="RMSNorm")``
        all work. The replacement keeps the op name of the class that it replaces, so that ``+rms_norm`` and
        ``-rms_norm`` go on working.

        Raises: RegistrationError if the class replaces nothing, is not a subclass of what it replaces or goes
            past the dispatch; DuplicateError if another class is registered already.
        """
        if _decorated_cls is not None and not isinstance(_decorated_cls, type):
            raise _not_a_class(_decorated_cls)

        def decorate(op_cls: C) -> C:
            if not isinstance(op_cls, type):
                raise _not_a_class(op_cls)
            target = tables.find_target(op_cls, name, cls)
            tables.register_replacement(target, op_cls)
            op_cls.name = target.name  # type: ignore[attr-defined]
            return op_cls

        return decorate if _decorated_cls is None else decorate(_decorated_cls)


class _NotAClass(RegistrationError, TypeError):
    """register_oot was given something that is not a class."""


def _not_a_class(obj: object) -> _NotAClass:
    hint = f"name={obj!r}" if isinstance(obj, str) else "a class"
    return _NotAClass("Decorator can only be applied to classes.", why=f"got {obj!r}", remedy=f"register_oot({hint}).")


def _allocate(cls: type[OpClass]) -> OpClass:
    return nn.Module.__new__(cls)


def _refuse_inside_forward(cls: type) -> None:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code in _FORWARD_CALLS:
            raise OrderError(
                f"{cls.__name__} is built inside a forward.",
                why="A layer binds its method when it is built; built for each call, it would be bound anew for "
                "each token.",
                remedy="build it once, in __init__ of the layer that uses it.",
            )
        frame = frame.f_back  # type: ignore[assignment]
