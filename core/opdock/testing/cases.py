"""The inputs of the kit: what an op is called with, as a description that can be printed, drawn and shrunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from opdock.ir import IrOp

DENSE, EXPANDED = "dense", "expanded"
LAYOUTS = (
    "padded rows",
    "odd offset",
    "columns of a wider tensor",
    "transposed",
    "one dimension",
    "three dimensions",
    "four dimensions",
    "heads in a dimension",
    "first activation padded",
    "parameters apart",
    EXPANDED,
)
"""How the activations lie in memory, besides dense; ``placing`` knows what each is."""

_STRINGS = {"approximate": ("none", "tanh")}
"""Values of text parameters, by name: a signature does not list them."""

TOKENS = (1, 2, 3, 7, 8, 16, 17, 33, 64, 129)
HIDDEN = (64, 80, 128)
EDGES = ((257, 64), (1025, 32), (3, 1032), (3, 2048), (3, 4104), (2, 8200), (65537, 8))
"""Tokens and columns beyond a block of threads, its memory, and a dimension of a grid of blocks; in every run."""

TOKENS_FULL, HIDDEN_FULL = (*TOKENS, 255, 256, 257, 1024), (1, 2, 46, *HIDDEN, 769, 2048, 3420, 4096)


@dataclass(frozen=True)
class Turned:
    """A value of an option that is made from the one that the generator gives.

    Args:
        what: the outcome in words; it stands for ``make`` where cases are compared and printed.
        make: the outcome, a tensor in memory of its own or not.
    """

    what: str
    make: Callable[[torch.Tensor], torch.Tensor] = field(compare=False)

    def __repr__(self) -> str:
        return self.what


@dataclass(frozen=True)
class Case:
    """One input.

    Args:
        tokens, hidden: what the op's input generator is asked for.
        dtype: of the activations.
        layout: of the activations in memory.
        scale: factor of the activations.
        options: parameters that get another value than the generator's.
        special: ``nan``, ``inf`` or ``zeros``: what one row holds.
        seed: of the random numbers.
    """

    tokens: int
    hidden: int
    dtype: torch.dtype
    layout: str = DENSE
    scale: float = 1.0
    options: tuple[tuple[str, Any], ...] = ()
    special: str = ""
    seed: int = 0

    def __str__(self) -> str:
        parts = [f"num_tokens={self.tokens}, hidden_size={self.hidden}, {str(self.dtype).removeprefix('torch.')}"]
        parts += [self.layout] if self.layout != DENSE else []
        parts += [f"activations times {self.scale:g}"] if self.scale != 1.0 else []
        parts += [f"{name}={value!r}" for name, value in self.options]
        parts += [f"a row of {self.special}"] if self.special else []
        return ", ".join(parts) + f", seed {self.seed}"


def make(op: IrOp, case: Case) -> list[Any] | None:
    """Return the op's arguments for a case as dense CPU tensors, or None where the op has no such input."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        try:
            made = op.generate_inputs(
                num_tokens=case.tokens, hidden_size=case.hidden, dtype=case.dtype, device=torch.device("cpu")
            )
            args = list(op.apply_arg_defaults(made))
        except Exception:  # noqa: BLE001 - a size that this op does not have
            return None
    values = dict(zip(op.parameters, args, strict=True))
    for name, value in case.options:
        values[name] = value.make(values[name]) if isinstance(value, Turned) else value
    for name in op.activations:
        value = values[name]
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value = value * case.scale if case.scale != 1.0 else value
            values[name] = _with_special_row(value, case.special)
    return list(values.values())


def _with_special_row(value: torch.Tensor, special: str) -> torch.Tensor:
    if not special or not value.shape[0]:
        return value
    value = value.clone()
    row = value[value.shape[0] // 2]
    if special == "zeros":
        row.zero_()
    else:
        row.view(-1)[row.numel() // 2] = float(special)
    return value


def options_of(op: IrOp, hidden: int) -> list[tuple[str, Any]]:
    """Return, for each parameter that allows it, another value than the one that inputs are made with."""
    found: list[tuple[str, Any]] = _turned(op, hidden)
    for name, parameter in op.signature.parameters.items():
        kind, default = str(parameter.annotation), parameter.default
        if "Tensor" in kind:
            found += [(name, None)] if "None" in kind else []
        elif isinstance(default, bool):
            found.append((name, not default))
        elif "float" in kind:
            found += [(name, 1e-12), (name, 0.25), (name, 4.0)] if "eps" in name else [(name, 0.5), (name, 2.0)]
        elif "int" in kind and default is None:
            found += [(name, max(1, hidden // 2)), (name, hidden)]
        elif name in _STRINGS:
            found += [(name, text) for text in _STRINGS[name]]
    return found


def _tensors(op: IrOp, hidden: int) -> dict[str, torch.Tensor]:
    """Return the tensors that the op's generator makes, by parameter; none where it has no such input."""
    made = make(op, Case(2, hidden, torch.float32))
    return {n: v for n, v in zip(op.parameters, made or (), strict=False) if isinstance(v, torch.Tensor)}


def _turned(op: IrOp, hidden: int) -> list[tuple[str, Any]]:
    """Return other dtypes of all tensors but the first activation, and narrower tables."""
    found: list[tuple[str, Any]] = []
    for name, tensor in _tensors(op, hidden).items():
        if tensor.is_floating_point() and name != op.activations[0]:
            found += [(name, Turned(f"in {d}", _cast(getattr(torch, d)))) for d in ("float32", "bfloat16")]
        elif tensor.dtype == torch.int64:
            found.append((name, Turned("in int32", _cast(torch.int32))))
        if name not in op.activations and tensor.dim() == 2 and tensor.shape[1] > 3:
            found.append((name, Turned("its first columns", lambda t: t[:, : t.shape[1] // 4 * 2].clone())))
    return found


def _cast(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: t.to(dtype)


def long_tables(op: IrOp, hidden: int) -> tuple[tuple[str, Any], ...]:
    """Return options with which a table has 8192 rows, and numbers of rows go up to that; none without a table."""
    tensors = {n: t for n, t in _tensors(op, hidden).items() if n not in op.activations}
    rows = [n for n, t in tensors.items() if t.dim() == 1 and not t.is_floating_point()]
    tables = [n for n, t in tensors.items() if t.dim() == 2 and t.is_floating_point()]
    if not rows or not tables:
        return ()
    chosen = [(name, Turned("up to 8191", lambda t: (t * 64 + torch.arange(len(t)) % 64) % 8192)) for name in rows]
    return (*chosen, *((name, Turned("of 8192 rows", _long)) for name in tables))


def _long(table: torch.Tensor) -> torch.Tensor:
    numbers = torch.rand(8192, *table.shape[1:], generator=torch.Generator().manual_seed(5))
    return (2 * numbers - 1).to(table.dtype)


def fixed(dtypes: Sequence[torch.dtype], *, full: bool, layout: str = DENSE) -> Iterator[Case]:
    """Yield the cases that every run has."""
    for dtype in dtypes:
        for hidden in HIDDEN_FULL if full else HIDDEN:
            for tokens in TOKENS_FULL if full else TOKENS:
                yield Case(tokens, hidden, dtype, layout)
        for tokens, hidden in EDGES:
            yield Case(tokens, hidden, dtype, layout)


def drawn(
    op: IrOp, dtypes: Sequence[torch.dtype], *, layouts: Sequence[str] = (DENSE,), full: bool = False
) -> SearchStrategy[Case]:
    """Return a strategy for cases of any size, with any values of the other parameters."""
    from hypothesis import strategies as st

    @st.composite
    def case(draw: Any) -> Case:
        hidden = draw(st.integers(1, 1024 if full else 300))
        options = options_of(op, hidden)
        chosen = draw(st.lists(st.sampled_from(options), max_size=2, unique_by=lambda o: o[0])) if options else []
        return Case(
            draw(st.integers(1, 600 if full else 150)),
            hidden,
            draw(st.sampled_from(list(dtypes))),
            draw(st.sampled_from(list(layouts))),
            draw(st.sampled_from((1.0, 1e-3, 30.0))),
            tuple(chosen),
            seed=draw(st.integers(0, 3)),
        )

    return case()


@dataclass
class Tally:
    """How many inputs were tried and what became of them."""

    taken: int = 0
    none_such: int = 0
    declined: dict[str, int] = field(default_factory=dict)

    def count(self, reason: str) -> None:
        """Count one that the provider takes, or declines for a reason."""
        if reason:
            self.declined[reason] = self.declined.get(reason, 0) + 1
        else:
            self.taken += 1

    def __str__(self) -> str:
        text = f"{self.taken} taken"
        if self.declined:
            reasons = sorted(self.declined.items(), key=lambda item: -item[1])
            text += f", {sum(self.declined.values())} declined: " + "; ".join(f"{r} ({n})" for r, n in reasons[:3])
        return text
