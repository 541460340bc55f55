"""Which attention backend a need gets, and why not the others: for reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from opdock import context, env
from opdock.errors import OpdockError
from opdock.nn.attention import registry
from opdock.nn.attention.backend import AttentionSelectorConfig
from opdock.nn.attention.selector import explain_backends, select

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AttentionRow:
    """One backend.

    Attributes:
        backend: its name.
        verdict: ``chosen``, ``fits`` or ``does not fit``.
        reasons: why it does not fit.
        source: its class path.
    """

    backend: str
    verdict: str
    reasons: tuple[str, ...]
    source: str


def attention_rows(
    *, head_size: int = 128, dtype: torch.dtype | None = None, block_size: int = 16, has_sink: bool = False
) -> list[AttentionRow]:
    """Return a row for each registered backend, under the platform in force; computes nothing.

    Args:
        head_size: length of a head.
        dtype: of the queries; None: the platform's first.
        block_size: positions of a block.
        has_sink: whether there are sinks.
    """
    platform = context.platform()
    config = AttentionSelectorConfig(
        head_size,
        dtype or platform.supported_dtypes[0],
        "auto",
        block_size,
        has_sink=has_sink,
        use_batch_invariant=env.batch_invariant(),
    )
    try:
        chosen = select(config).get_name()
    except OpdockError:
        chosen = ""
    rows = []
    for verdict in explain_backends(config)[1]:
        text = "does not fit" if verdict.reasons else "chosen" if verdict.name == chosen else "fits"
        rows.append(AttentionRow(verdict.name, text, verdict.reasons, registry.backends[verdict.name]))
    return rows
