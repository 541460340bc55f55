"""What the three selectors of a model would choose on this platform: attention, quantised linear layers, experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

from opdock import context, env
from opdock.errors import OpdockError

AXES = ("attention", "linear", "fused_moe")
"""The selectors, by the op class that each serves; ``linear`` stands for all linear layers."""

_SIZE, _HEAD, _EXPERTS, _TOP_K = 4096, 128, 64, 8


@dataclass(frozen=True)
class SelectorRow:
    """One backend or kernel, and what a typical layer makes of it.

    Attributes:
        axis: see ``AXES``.
        layer: the layer that was asked about.
        backend: its name.
        chosen: whether it would serve that layer.
        reason: why not; "" where it fits.
    """

    axis: str
    layer: str
    backend: str
    chosen: bool
    reason: str

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return asdict(self)


def selector_rows(axis: str | None = None, *, dtype: torch.dtype | None = None) -> list[SelectorRow]:
    """Return a row for every backend that the selectors know, under the platform in force; nothing is computed.

    Args:
        axis: one of ``AXES``; None: all.
        dtype: of activations; None: the platform's first.
    """
    dtype = dtype or context.platform().supported_dtypes[0]
    makers = {"attention": _attention, "linear": _linear, "fused_moe": _experts}
    return [row for name in AXES if axis in (None, name) for row in makers[name](dtype)]


def _attention(dtype: torch.dtype) -> Iterator[SelectorRow]:
    from opdock.nn.attention.report import attention_rows

    for row in attention_rows(head_size=_HEAD, dtype=dtype):
        reason = "; ".join(row.reasons) or ("" if row.verdict == "chosen" else "another one comes before it")
        yield SelectorRow("attention", f"heads of {_HEAD}", row.backend, row.verdict == "chosen", reason)


def _linear(dtype: torch.dtype) -> Iterator[SelectorRow]:
    from opdock.nn.quantization.selection import explain_linear_kernel
    from opdock.nn.quantization.spec import LinearSpec

    fp8, int8, codes = torch.float8_e4m3fn, torch.int8, torch.uint8
    for spec in (
        LinearSpec("fp8", _SIZE, _SIZE, dtype, fp8, "token", "channel"),
        LinearSpec("fp8_block", _SIZE, _SIZE, dtype, fp8, "group", "block"),
        LinearSpec("int8", _SIZE, _SIZE, dtype, int8, "token", "channel"),
        LinearSpec("mp", _SIZE, _SIZE, dtype, codes, "none", "group", group_size=128),
    ):
        try:
            verdicts = explain_linear_kernel(spec)[1]
        except OpdockError as err:
            yield SelectorRow("linear", spec.describe(), "", chosen=False, reason=str(err).splitlines()[0])
            continue
        for verdict in verdicts:
            yield SelectorRow("linear", spec.describe(), verdict.kernel, verdict.chosen, verdict.reason)


def _experts(dtype: torch.dtype) -> Iterator[SelectorRow]:
    from opdock.nn.moe.backend import MoEProblem, moe_backends
    from opdock.nn.moe.selector import select

    platform = context.platform()
    found = platform.get_device_capability()
    problem = MoEProblem(
        device_type=platform.device_type,
        platform=platform._enum.name.lower(),
        capability=None if found is None else (found.major, found.minor),
        dtype=dtype,
        weight_dtype=dtype,
        num_experts=_EXPERTS,
        local_experts=_EXPERTS,
        top_k=_TOP_K,
        hidden_size=_SIZE,
        intermediate_size=_SIZE // 2,
        batch_invariant=env.batch_invariant(),
    )
    layer = f"{_EXPERTS} experts, {_TOP_K} of them"
    try:
        verdicts = select(problem, moe_backends.view).verdicts
    except OpdockError as err:
        yield SelectorRow("fused_moe", layer, "", chosen=False, reason=str(err).splitlines()[0])
        return
    for verdict in verdicts:
        yield SelectorRow("fused_moe", layer, verdict.name, verdict.chosen, verdict.reason)
