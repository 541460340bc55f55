"""The type of what ``register_op`` returns, for type checkers: a function with the op's methods."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    import torch

    from opdock.ir.choice import Choice
    from opdock.ir.impl import IrOpImpl, Supported
    from opdock.ir.op import IrOp

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


class PublicOp(Protocol[P, R_co]):
    """The public function of an op; ``IrOp`` describes its attributes."""

    op: IrOp
    name: str
    impls: Mapping[str, IrOpImpl]
    activations: tuple[str, ...]
    activation_indices: tuple[int, ...]
    allow_inplace: bool
    torch_op: Any
    overload: Any

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the provider that the priority in force chooses."""
        ...

    @property
    def maybe_inplace(self) -> PublicOp[P, R_co]:
        """The overload that the activations are given away to: their memory may hold the results afterwards."""
        ...

    def register_impl(
        self,
        provider: str,
        *,
        supported: Supported = ...,
        supports_args: Callable[..., object] | None = ...,
        inplace: bool = ...,
        batch_invariant: bool = ...,
    ) -> Callable[[Callable[..., Any]], IrOpImpl]:
        """See ``IrOp.register_impl``."""
        ...

    def register_fake(self, fn: F) -> F:
        """See ``IrOp.register_fake``."""
        ...

    def register_input_generator(self, fn: F) -> F:
        """See ``InputGenerator.register_input_generator``."""
        ...

    def generate_inputs(self, **kwargs: Any) -> tuple[Any, ...]:
        """See ``InputGenerator.generate_inputs``."""
        ...

    def override_tolerance(self, dtype: torch.dtype, *, atol: float, rtol: float, provider: str | None = ...) -> None:
        """See ``Tolerances.override_tolerance``."""
        ...

    def get_tolerance(self, dtype: torch.dtype, provider: str | None = ...) -> dict[str, float]:
        """See ``Tolerances.get_tolerance``."""
        ...

    def set_default(self, priority: Sequence[str]) -> None:
        """See ``IrOp.set_default``."""
        ...

    def set_priority(self, priority: Sequence[str]) -> contextlib.AbstractContextManager[None]:
        """See ``IrOp.set_priority``."""
        ...

    def get_priority(self) -> list[str]:
        """See ``IrOp.get_priority``."""
        ...

    def supported_providers(self) -> list[str]:
        """See ``IrOp.supported_providers``."""
        ...

    def apply_arg_defaults(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """See ``IrOp.apply_arg_defaults``."""
        ...

    def dispatch(self, *args: Any, **kwargs: Any) -> IrOpImpl:
        """See ``IrOp.dispatch``."""
        ...

    def explain(self, *args: Any, **kwargs: Any) -> Choice:
        """See ``IrOp.explain``."""
        ...
