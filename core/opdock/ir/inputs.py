"""Making inputs for an op: one generator for each, with the same parameters everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from opdock import journal
from opdock.errors import OrderError

F = TypeVar("F", bound=Callable[..., "tuple[Any, ...]"])


class InputGenerator:
    """The input generator of one op.

    A generator takes ``num_tokens``, ``hidden_size``, ``dtype`` and ``device``, each with a default, and returns
    the op's positional arguments.
    """

    name: str

    def __init__(self) -> None:
        """Start without one."""
        self._generator: Callable[..., tuple[Any, ...]] | None = None

    def register_input_generator(self, fn: F) -> F:
        """Use ``fn`` to make inputs; returns ``fn``."""
        previous, self._generator = self._generator, fn
        journal.record("IR inputs", self.name, lambda: setattr(self, "_generator", previous))
        return fn

    @property
    def has_input_generator(self) -> bool:
        """Whether inputs can be made."""
        return self._generator is not None

    def generate_inputs(self, **kwargs: Any) -> tuple[Any, ...]:
        """Return positional arguments; OrderError if there is no generator."""
        if self._generator is None:
            raise OrderError(
                f"No input generator registered for op '{self.name}'.",
                remedy=f"use @ir.ops.{self.name}.register_input_generator.",
            )
        return self._generator(**kwargs)
