"""Every op of rows on the GPU: dtypes, widths, rows and layouts, both kernels and the op as a whole, against float64.

One test for each op and dtype goes over all of it, so that what is exact is computed once for each width.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from cuda_canaries import LAYOUTS, Canaries, geometry
from cuda_findings import Detailed, Findings
from cuda_table import ROW_OPS, STATIC_SCALE, RowOp, Values, comparisons
from torch import Tensor

from opdock import ir
from opdock_cuda import predicates

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels", "registered")]
DEVICE = "cuda"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HIDDEN = (1, 46, 80, 769, 2048, 3420, 3584, 4096, 5120, 7168, 16384)
TOKENS = (0, 1, 2, 7, 255, 256, 257, 8192)
TRITON_ODD = (769, 4096)
"""The widths at which Triton is tried in every layout and variant: each of them is a compilation of its own."""
ORDER = ("cuda", "triton", "native")


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("op", ROW_OPS, ids=lambda o: f"{o.op}-{o.kind}")
def test_an_op_is_right_in_every_size_and_layout(op: RowOp, dtype: torch.dtype) -> None:
    wrong: list[str] = []
    for hidden in HIDDEN:
        values, found = Values.random(op, max(TOKENS), hidden, dtype, DEVICE), Findings(DEVICE)
        for layout, tokens in product(LAYOUTS, TOKENS):
            if geometry(tokens, values.x.shape[-1], layout) is None:
                continue
            for variant in op.variants() if layout in ("dense", "odd offset") else op.variants()[:1]:
                found.case = f"{op.op} {op.kind}, {dtype}, {tokens} x {hidden}, {layout}, {variant}"
                one_size(values, tokens, layout, variant, found)
        said = found.wrong()
        if said and not wrong:
            wrong.extend(_in_detail(values, said[0]))
        wrong.extend(said)
    torch.cuda.empty_cache()
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:20])


def _in_detail(values: Values, said: str) -> list[str]:
    """Look at the case of which something is said once more, with numbers."""
    for layout, tokens, variant in product(LAYOUTS, TOKENS, values.op.variants()):
        if f" {tokens} x " in said and f", {layout}, {variant}" in said:
            found = Detailed(DEVICE)
            one_size(values, tokens, layout, variant, found)
            return found.wrong()
    return []


def one_size(values: Values, tokens: int, layout: str, variant: tuple[bool, float | None], found: Findings) -> None:
    """Look at one size, for each kernel that takes it, and for the op where none of the first does."""
    op, hidden = values.op, values.x.shape[-1] // (2 if values.op.gated else 1)
    call = Call(values, tokens, layout, variant)
    entry = ir.registry[op.op]
    for provider in ORDER[:2]:
        common = layout == "dense" and variant == op.variants()[0]
        if provider not in entry.impls or (provider == "triton" and not common and hidden not in TRITON_ODD):
            continue
        arguments = call.arguments()
        if entry.impls[provider].supports_args(*arguments):
            call.run(entry.impls[provider].impl_fn, arguments, provider, provider, found, in_place=op.in_place)
            if provider == "cuda" and layout == "dense":
                with entry.set_priority(ORDER):
                    call.run(entry, call.arguments(), provider, "the op", found, in_place=False)
        elif provider == "cuda":
            if layout not in ("transposed", "four") and DEVICE == "cuda":
                found.say(f"refused: {getattr(predicates, op.op)(*arguments)}")
            with entry.set_priority(ORDER):
                chosen = entry.dispatch(*arguments).provider
                if chosen == "cuda":
                    found.say("the op calls a kernel that refuses")
                call.run(entry, arguments, chosen, f"the op, by {chosen}", found, in_place=False)
    for name, held in call.held.items():
        found.add(f"memory beside {name} was written", held.last())


class Call:
    """The arguments of one call, each between canaries."""

    def __init__(self, values: Values, tokens: int, layout: str, variant: tuple[bool, float | None]) -> None:
        self.values, self.tokens = values, tokens
        self.weighted, self.bound = variant
        dtype, op = values.x.dtype, values.op
        self.rows = {"x": values.x[:tokens]}
        if values.residual is not None:
            self.rows["residual"] = values.residual[:tokens]
        self.held = {}
        for name, rows in self.rows.items():
            where = geometry(tokens, rows.shape[-1], layout)
            assert where is not None
            self.held[name] = Canaries(dtype, where, DEVICE)
        odd = 67 if layout in ("odd offset", "padded") else 64
        self.constants: dict[str, Tensor] = {}
        if self.weighted and values.weight is not None:
            self.constants["weight"] = values.weight
            self.held["weight"] = Canaries(dtype, ((values.weight.numel(),), (1,), odd), DEVICE)
        number = STATIC_SCALE if op.out == "static" else self.bound
        if number is not None:
            self.constants["scale"] = torch.full((1,), number, device=DEVICE)
            self.held["scale"] = Canaries(torch.float32, ((1,), (1,), odd), DEVICE)

    def arguments(self) -> tuple[Any, ...]:
        """Put all values in place, and return the arguments."""
        made = {name: self.held[name].put(v) for name, v in (self.rows | self.constants).items()}
        return self.values.op.arguments(*(made.get(n) for n in ("x", "residual", "weight", "scale")))  # type: ignore[arg-type]

    def run(
        self, fn: Any, arguments: tuple[Any, ...], provider: str, who: str, found: Findings, *, in_place: bool
    ) -> None:
        """Call, and look at the results and the arguments."""
        got = fn(*arguments)
        results = got if isinstance(got, tuple) else (got,)
        given = {"weighted": self.weighted, "bound": self.bound, "provider": provider}
        for name, part, span in comparisons(self.values, self.tokens, results, **given):  # type: ignore[arg-type]
            found.compare(f"{who}: {name} is wrong", part, span)
        if in_place:
            if any(a.data_ptr() != b.data_ptr() for a, b in zip(results, arguments[:2], strict=True) if a.numel()):
                found.say(f"{who}: the results are not the arguments")
        elif provider == "cuda" and not all(r.is_contiguous() for r in results):
            found.say(f"{who}: a result is not dense")
        for name, value in (self.constants if in_place else self.rows | self.constants).items():
            found.add(f"{who}: {name} was written", self.held[name].has(value))
