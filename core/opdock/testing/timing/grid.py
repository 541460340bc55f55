"""Which sizes are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opdock.errors import ConfigError

if TYPE_CHECKING:
    import torch

TOKENS_CPU, TOKENS_DEVICE = (1, 16, 256), (1, 16, 256, 4096)
HIDDEN = (1024, 4096)
_MOST = 2**31


@dataclass(frozen=True)
class Grid:
    """All combinations of sizes.

    Args:
        tokens: rows of the activation.
        hidden: length of a row, as input generators take it.
        dtype: of the activation.

    Raises: ConfigError for a list that is empty, or a size that is not possible.
    """

    tokens: tuple[int, ...]
    hidden: tuple[int, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name, sizes in (("tokens", self.tokens), ("hidden", self.hidden)):
            if not sizes or not all(0 < n < _MOST for n in sizes):
                raise ConfigError(
                    f"--{name} {','.join(map(str, sizes))} is not a list of sizes.",
                    why=f"Each is a whole number from 1 to {_MOST - 1}.",
                    remedy=f"--{name} {'1,16,256' if name == 'tokens' else '1024,4096'}",
                )

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield (tokens, hidden), small ones first."""
        return ((t, h) for h in self.hidden for t in self.tokens)

    def __len__(self) -> int:
        """Return the number of sizes."""
        return len(self.tokens) * len(self.hidden)


def default_grid(
    device: torch.device,
    dtype: torch.dtype,
    *,
    tokens: Sequence[int] | None = None,
    hidden: Sequence[int] | None = None,
) -> Grid:
    """Return the grid for a device; the CPU leaves the largest number of tokens out."""
    return Grid(
        tuple(dict.fromkeys(tokens if tokens is not None else _tokens(device))),
        tuple(dict.fromkeys(hidden if hidden is not None else HIDDEN)),
        dtype,
    )


def _tokens(device: torch.device) -> tuple[int, ...]:
    return TOKENS_CPU if device.type == "cpu" else TOKENS_DEVICE
