"""Native definitions through XLA beside the kernels, compiled for v5e, v6e and v5p: what each moves.

``python compare.py FOLDER`` writes ``compare.json`` and ``compare.md`` there. Nothing is measured. All these programs
wait for memory: the bytes which they read and write there, see ``traffic``, say which is expected to be faster.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["OPDOCK_PLATFORM"] = "tpu"

from programs import TARGETS, Built, array, build, native

import opdock

ROWS, WIDTH = 256, 4096


def pairs(target: str) -> Iterator[tuple[str, Built, Built]]:
    """Yield (what, native through XLA, the kernel)."""
    import jax

    from opdock_tpu.kernels import norms

    norm, add_norm = native("rms_norm"), native("fused_add_rms_norm")

    def both(
        what: str, program: Callable[..., Any], theirs: Any, ours: Any, *arguments: Any
    ) -> tuple[str, Built, Built]:
        def of(implementation: Any) -> Callable[..., Any]:
            return lambda *args: program(implementation, *args)

        built = (build(what, target, "bfloat16", of(which), arguments) for which in (theirs, ours))
        return what, next(built), next(built)

    def norm_native(x: Any, w: Any) -> Any:
        return norm(x, w, 1e-5)

    def norm_kernel(x: Any, w: Any) -> Any:
        return norms.rms_norm(x, w, 1e-5)

    def add_native(x: Any, r: Any, w: Any) -> Any:
        return add_norm(x, r, w, 1e-5)

    def add_kernel(x: Any, r: Any, w: Any) -> Any:
        return norms.fused_add_rms_norm(x, r, w, 1e-5)

    def alone(implementation: Any, *args: Any) -> Any:
        return implementation(*args)

    def between(implementation: Any, x: Any, r: Any, w: Any, first: Any, second: Any) -> Any:
        y, total = implementation(x @ first, r, w)
        return jax.nn.silu(y @ second), total

    x, w, matrix = array(ROWS, WIDTH), array(WIDTH), array(WIDTH, WIDTH)
    yield both("rms_norm", alone, norm_native, norm_kernel, x, w)
    yield both("fused_add_rms_norm", alone, add_native, add_kernel, x, x, w)
    yield both("matmul, fused_add_rms_norm, matmul, silu", between, add_native, add_kernel, x, x, w, matrix, matrix)
    scaled = lambda impl, x, w, s: impl(x * s, w) + 1  # noqa: E731 - elementwise before and behind
    yield both("scale, rms_norm, add", scaled, norm_native, norm_kernel, x, w, x)
    yield attention(target)


def attention(target: str) -> tuple[str, Built, Built]:
    """Return (what, the formula over gathered blocks, the kernel)."""
    import jax.numpy as jnp

    from opdock_tpu.kernels import formula
    from opdock_tpu.kernels.paged_attention import paged_attention

    requests, columns, block, kv_heads, heads, head = 32, 128, 16, 8, 32, 128

    def gathered(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        starts = jnp.arange(requests + 1, dtype=jnp.int32)
        return formula.paged(q, k, v, starts, lengths, table, most=1, scale=0.1)

    def kernel(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        return paged_attention(q, k, v, table, lengths, scale=0.1)

    cache = array(requests * columns, block, kv_heads, head)
    numbers = (array(requests, columns, dtype="int32"), array(requests, dtype="int32"))
    arguments = (array(requests, heads, head), cache, cache, *numbers)
    what = f"decoded tokens of {requests} requests of {columns * block} positions"
    built = [build(what, target, "bfloat16", fn, arguments) for fn in (gathered, kernel)]
    return what, built[0], built[1]


HEAD = ("target", "program", "native: MB", "kernel: MB", "native: temporary MB", "kernel: temporary MB", "moves less")


def row(what: str, theirs: Built, ours: Built) -> str:
    """Return a line of the table."""
    if theirs.error or ours.error:
        return f"| {theirs.target} | {what} | {theirs.error or ours.error} |"
    numbers = [f"{n / 1e6:.2f}" for n in (theirs.moved, ours.moved, theirs.temporary, ours.temporary)]
    a, b = theirs.moved, ours.moved
    winner = "neither" if max(a, b) < 1.002 * min(a, b) else "native" if a < b else "kernel"
    return " | ".join([f"| {theirs.target}", what, *numbers, f"{winner} |"])


def main(folder: Path) -> int:
    """Compile all pairs, and write the tables; 1 if one fails."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    found: list[dict[str, Any]] = []
    failed = 0
    with opdock.set_current_config():
        opdock.current_platform.device_type  # noqa: B018 - it is chosen here
        for target in TARGETS:
            for what, theirs, ours in pairs(target):
                lines.append(row(what, theirs, ours))
                found.append({"program": what, "native": asdict(theirs), "kernel": asdict(ours)})
                failed += bool(theirs.error or ours.error)
    text = "\n".join(lines) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.md").write_text(text, encoding="utf-8")
    (folder / "compare.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "aot")))
