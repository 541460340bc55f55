"""Compile the kernels, and a decoder's steps, for v5e, v6e and v5p, and print a table of memory and code.

``python targets.py FOLDER`` writes ``targets.json`` and ``targets.md`` there. It ends with 1 if anything fails that is
to be compiled, or if something is compiled that a predicate refuses because the compiler does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["OPDOCK_PLATFORM"] = "tpu"

from programs import TARGETS, Built, array, build

import opdock

DTYPES = ("bfloat16", "float32")


def kernels(target: str) -> Iterator[Built]:
    """Yield what became of the kernels."""
    from opdock_tpu.kernels import norms
    from opdock_tpu.kernels.paged_attention import paged_attention

    def norm(x: Any, w: Any) -> Any:
        return norms.rms_norm(x, w, 1e-5)

    def plain(x: Any) -> Any:
        return norms.rms_norm(x, None, 1e-5)

    def add_norm(x: Any, r: Any, w: Any) -> Any:
        return norms.fused_add_rms_norm(x, r, w, 1e-5)

    def attention(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        return paged_attention(q, k, v, table, lengths, scale=0.1)

    def windowed(q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        return paged_attention(q, k, v, table, lengths, scale=0.1, window=1000, soft_cap=30.0)

    for dtype in DTYPES:
        for rows, width in ((1, 4096), (256, 4096), (37, 2560), (300, 32768)):
            x, w = array(rows, width, dtype=dtype), array(width, dtype=dtype)
            yield build(f"rms_norm {rows} x {width}", target, dtype, norm, [x, w], export=True)
            name = f"fused_add_rms_norm {rows} x {width}"
            yield build(name, target, dtype, add_norm, [x, x, w], export=True)
        yield build("rms_norm 256 x 128, no weight", target, dtype, plain, [array(256, 128, dtype=dtype)])
        for block, kv_heads, heads, head in ((16, 8, 32, 128), (32, 4, 32, 128), (16, 1, 8, 128), (16, 8, 64, 256)):
            q, cache = array(32, heads, head, dtype=dtype), array(4096, block, kv_heads, head, dtype=dtype)
            numbers = [array(32, 128, dtype="int32"), array(32, dtype="int32")]
            name = f"paged_attention, {heads} heads over {kv_heads} of {head}, blocks of {block}"
            yield build(name, target, dtype, attention, [q, cache, cache, *numbers], export=True)
        name = "paged_attention, window and soft cap"
        yield build(name, target, dtype, windowed, [q, cache, cache, *numbers])
    x, w = array(64, 4096, dtype="float32"), array(4096, dtype="bfloat16")
    yield build("rms_norm 64 x 4096, weight in bfloat16", target, "float32", norm, [x, w])


def decoders(target: str) -> Iterator[Built]:
    """Yield what became of a decoder's steps through torchax."""
    from models import Step, config, decoder_step

    settings = config(layers=2, hidden=2048, heads=16, kv_heads=8)
    for name, step in (("decode, 32 requests", Step(32, 1, 2048)), ("prefill, 2 x 512 tokens", Step(2, 512, 512))):
        fn, arguments = decoder_step(settings, step, "bfloat16")
        yield build(f"Llama of 2 layers, {name}", target, "bfloat16", fn, arguments, donate=[1])


def refused(target: str) -> Iterator[Built]:
    """Yield what became of what the predicates refuse because the compiler does."""
    from opdock_tpu.kernels import norms

    def norm(x: Any, w: Any) -> Any:
        return norms.rms_norm(x, w, 1e-5)

    yield build(
        "rms_norm 256 x 4096",
        target,
        "float16",
        norm,
        [array(256, 4096, dtype="float16"), array(4096, dtype="float16")],
    )


HEAD = ("target", "program", "dtype", "code", "temporary", "arguments", "kernels", "exported", "compiled in")


def table(found: list[Built]) -> str:
    """Return the results as a table in Markdown; sizes in bytes."""
    lines = [" | ".join(HEAD), " | ".join("---" for _ in HEAD)]
    for b in found:
        sizes = [f"{n:,}" for n in (b.code, b.temporary, b.arguments, b.kernels, b.exported)]
        rest = [b.error] if b.error else [*sizes, f"{b.seconds:.1f} s"]
        lines.append(" | ".join([b.target, b.program, b.dtype, *rest]))
    return "\n".join(f"| {line} |" for line in lines)


def main(folder: Path) -> int:
    """Compile everything, and write the tables; 1 if something is not as it should be."""
    found: list[Built] = []
    wrong: list[str] = []
    with opdock.set_current_config():
        opdock.current_platform.device_type  # noqa: B018 - it is chosen here
        for target in TARGETS:
            for built in (*kernels(target), *decoders(target)):
                found.append(built)
                if built.error:
                    wrong.append(f"{target}: {built.program}, {built.dtype} fails: {built.error}")
            passed = [built for built in refused(target) if not built.error]
            wrong += [f"{target}: {b.program}, {b.dtype} compiles, and predicates refuse it" for b in passed]
    text = table(found)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "targets.md").write_text(text + "\n", encoding="utf-8")
    (folder / "targets.json").write_text(json.dumps([asdict(b) for b in found], indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{text}\n\n{len(found)} programs for {', '.join(TARGETS)}; {len(wrong)} wrong\n")
    sys.stdout.writelines(f"wrong: {line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "aot")))
