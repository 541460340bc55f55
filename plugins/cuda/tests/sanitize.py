"""One small call for each branch of each kernel, for NVIDIA's compute-sanitizer; checks that no branch is left out.

    compute-sanitizer --tool memcheck --error-exitcode 9 --target-processes application-only python sanitize.py
    compute-sanitizer --tool racecheck --error-exitcode 9 --target-processes application-only python sanitize.py

A child outside of the sanitizer runs the same calls under torch's profiler first. The kernels that it saw are compared
with those that the library has: each instance of a template is a branch of the launcher's decision, so one that no
call reaches is an error here, and the remedy is a shape more in ``ROWS``, ``HEADS`` or ``SLOTS``. What one instance
decides at run time (a weight, a bound, rows over two dimensions, positions and slots out of range) is in the arguments.
Every tensor is an allocation of its own, to the byte, so that the sanitizer sees its ends.

``--plan`` lists the calls and runs none; a word selects those that have it in their names; ``--part=1/4`` every fourth
from the second on, to share them among processes; ``--no-coverage`` leaves the child out.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

if "--ran" not in sys.argv:
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
EPSILON = 1e-5
GATED = ("silu", "gelu", "tanh")
NORMS = ("norm", "add", "add anew")
ONLY_SAME = ("gelu", "tanh", "add anew")
"""What no kernel quantises; ``add anew`` is the sum and its norm in new tensors."""
NOISE = torch.randn(1 << 23)
DENSE, TWO, SKEW = "dense", "two leading dimensions", "no 16 bytes aligned"

ROWS: tuple[tuple[int, float, str], ...] = (
    # Vectors of 16 bytes, 1 to 32: several rows in a block, up to 32 threads each; also over two dimensions.
    *((rows, vectors, layout) for vectors in (1, 3, 32) for rows in (1, 6, 300) for layout in (DENSE, TWO)),
    # More: a block for each row, or several; 1, 2, 4 and 8 vectors for a thread.
    *((3, vectors, DENSE) for vectors in (33, 40, 64, 128, 200, 224, 256, 448, 512, 768, 800, 1024, 1025)),
    *((3, vectors, DENSE) for vectors in (1500, 2048, 2049, 4096)),
    # Many rows of few vectors: more for a thread where nothing is joined, more rows than blocks run at once.
    *((rows, vectors, DENSE) for rows, vectors in ((1100, 33), (1100, 130), (2500, 40), (1100, 257), (300, 1030))),
    # Any width, any alignment; rows that are too long, and long ones over two dimensions.
    *((rows, vectors, DENSE) for rows, vectors in ((3, 0.5), (3, 8.5), (300, 33.5), (2, 4100))),
    *((6, vectors, TWO) for vectors in (40, 300)),
    *((6, vectors, SKEW) for vectors in (1, 40, 300)),
)
"""Rows, their width in vectors of 16 bytes, and how they lie in memory."""

CACHED = 1 << 26
"""Bytes of a tensor of which the launcher takes a part to be out of the L2 cache."""
FAR = (33, 64, 128, 200, 768, 800, 2049)
MORE_ROWS: tuple[tuple[int, int, tuple[str, ...], tuple[str, ...]], ...] = (
    (1100, 520, GATED, ("same", "static")),
    *((CACHED // (16 * vectors) + 1, vectors, ("norm", "add"), ("same",)) for vectors in FAR),
    *((CACHED // (16 * vectors) + 1, vectors, ("add",), ("static",)) for vectors in FAR),
)
"""As ``ROWS``, dense, for some ops alone: more rows for a thread, and what is read again from memory."""

HEADS: tuple[tuple[int, int, int, int, str], ...] = (
    *((size, rot, q, k, DENSE) for size, rot in ((64, 64), (128, 64), (256, 256)) for q, k in ((1, 1), (2, 1), (4, 1))),
    (128, 128, 32, 8, DENSE),
    (64, 64, 5, 0, DENSE),
    (16, 16, 7, 2, DENSE),
    (128, 128, 64, 8, DENSE),
    (128, 128, 72, 24, DENSE),
    (10, 6, 3, 1, DENSE),
    (64, 64, 4, 2, SKEW),
    (256, 256, 100, 40, DENSE),
)
"""Head size, rotated columns, heads of query and key, and how they lie in memory."""

SLOTS: tuple[tuple[torch.dtype, int, int, str], ...] = (
    (torch.bfloat16, 2, 64, DENSE),
    (torch.bfloat16, 2, 64, SKEW),
    (torch.float32, 3, 5, DENSE),
    (torch.float32, 8, 128, DENSE),
    (torch.float16, 1, 3, DENSE),
    (torch.float8_e4m3fn, 1, 7, DENSE),
    (torch.float8_e4m3fn, 8, 128, DENSE),
)
"""Dtype, heads, head size of a cache, and how keys and values lie in memory."""


@dataclass(frozen=True)
class Case:
    """A call by name."""

    name: str
    run: Callable[[], Any]


def on_gpu(shape: tuple[int, ...], dtype: torch.dtype, layout: str = DENSE) -> Tensor:
    """Return random rows, made on the CPU: no other kernel than ours runs. Its memory ends with it."""
    many = math.prod(shape)
    values = (NOISE if many <= len(NOISE) else NOISE.repeat(-(-many // len(NOISE))))[:many].view(shape)
    if layout == TWO and shape[0] % 2 == 0:
        return values.view(shape[0] // 2, 2, -1).to(dtype).cuda().transpose(0, 1)  # as heads of a projection
    if layout == SKEW:
        flat = torch.cat((torch.zeros(1), values.flatten())).to(dtype).cuda()
        return flat[1:].view(shape)
    return values.to(dtype).cuda()


def one(value: float) -> Tensor:
    return torch.full((1,), value).cuda()


def rows_cases() -> Iterator[Case]:
    """Yield the calls of all ops of rows."""
    kinds, outs = ("plain", "add", "add anew", "norm", *GATED), ("same", "static", "token")
    for dtype in DTYPES:
        for rows, vectors, layout, some, ends in (*((*row, kinds, outs) for row in ROWS), *_more()):
            width = int(vectors * 16 // dtype.itemsize)
            for kind, out in product(some, ends):
                if (kind, out) == ("plain", "same") or (kind in ONLY_SAME and out != "same"):
                    continue
                for weighted in (True, False)[: 1 if some != kinds else 2] if kind in NORMS else (False,):
                    for bounded in (False, True) if out == "token" else (False,):
                        options = f"{' weight' * weighted}{' bound' * bounded}"
                        name = f"{kind} to {out}, {dtype}, {rows} x {width}, {layout}{options}"
                        yield Case(name, _rows_call(kind, out, dtype, (rows, width), layout, weighted, bounded))


def _more() -> Iterator[tuple[int, float, str, tuple[str, ...], tuple[str, ...]]]:
    for rows, vectors, kinds, outs in MORE_ROWS:
        yield rows, vectors, DENSE, kinds, outs


def _rows_call(
    kind: str, out: str, dtype: torch.dtype, shape: tuple[int, int], layout: str, weighted: bool, bounded: bool
) -> Callable[[], Any]:
    def run() -> Any:
        op = torch.ops.opdock_cuda
        x = on_gpu((shape[0], shape[1] * (2 if kind in GATED else 1)), dtype, layout)
        weight = on_gpu(shape[1:], dtype) if weighted else None
        bound = one(0.5) if bounded else None
        if kind == "plain":
            return op.static_fp8(x, one(0.01)) if out == "static" else op.token_fp8(x, bound)
        if kind == "silu":
            if out == "same":
                return op.silu_and_mul(x)
            return op.silu_and_mul_static_fp8(x, one(0.01)) if out == "static" else op.silu_and_mul_token_fp8(x, bound)
        if kind in GATED:
            return op.gelu_and_mul(x, kind == "tanh")
        if kind == "norm":
            if out == "same":
                return op.rms_norm(x, weight, EPSILON)
            if out == "static":
                return op.rms_norm_static_fp8(x, weight, one(0.01), EPSILON)
            return op.rms_norm_token_fp8(x, weight, EPSILON, bound)
        residual = on_gpu(shape, dtype, layout)
        if kind == "add anew":
            return op.fused_add_rms_norm(x, residual, weight, EPSILON)
        if out == "same":
            return op.fused_add_rms_norm_(x, residual, weight, EPSILON)
        if out == "static":
            return op.add_rms_norm_static_fp8(x, residual, weight, one(0.01), EPSILON)
        return op.add_rms_norm_token_fp8(x, residual, weight, EPSILON, bound)

    return run


def rotary_cases() -> Iterator[Case]:
    """Yield the calls of rotary_embedding_; three positions are not in the cache."""
    for dtype in DTYPES:
        for angles in dict.fromkeys((dtype, torch.float32)):
            for size, rot, heads, kv_heads, layout in HEADS:
                for neox in (True, False):
                    for integer in (torch.int64, torch.int32):

                        def run(
                            dtype: torch.dtype = dtype,
                            angles: torch.dtype = angles,
                            shape: tuple[int, ...] = (size, rot, heads, kv_heads),
                            layout: str = layout,
                            neox: bool = neox,
                            integer: torch.dtype = integer,
                        ) -> None:
                            size, rot, heads, kv_heads = shape
                            positions = torch.tensor([0, 15, -1, 16, 2**31 - 1], dtype=integer).cuda()
                            query, key = (on_gpu((5, n * size), dtype, layout) for n in (heads, kv_heads))
                            table = on_gpu((16, rot), angles)
                            torch.ops.opdock_cuda.rotary_embedding_(positions, query, key, size, table, neox)

                        what = f"{heads} and {kv_heads} heads of {size}, {rot} rotated, {layout}"
                        yield Case(f"rotary, {dtype}, cache {angles}, {what}, neox {neox}, {integer}", run)


def cache_cases() -> Iterator[Case]:
    """Yield the calls of reshape_and_cache_; some slots are padding or not in the cache."""
    for dtype, heads, size, layout in SLOTS:
        for integer in (torch.int64, torch.int32):

            def run(
                dtype: torch.dtype = dtype,
                shape: tuple[int, int, int] = (6, heads, size),
                layout: str = layout,
                integer: torch.dtype = integer,
            ) -> None:
                key, value = on_gpu(shape, dtype, layout), on_gpu(shape, dtype, layout)
                caches = [on_gpu((2, 4, *shape[1:]), dtype) for _ in range(2)]
                slots = torch.tensor([7, -1, 8, 0, 2**31 - 1, -(2**31)], dtype=integer).cuda()
                torch.ops.opdock_cuda.reshape_and_cache_(key, value, *caches, slots)

            yield Case(f"cache, {dtype}, {heads} x {size}, {layout}, {integer}", run)


def rotary_cache_cases() -> Iterator[Case]:
    """Yield the calls of rotary_and_cache_; positions and slots as above, caches of blocks that lie apart."""
    for dtype, (size, rot, heads, kv_heads, layout) in product(DTYPES, HEADS):
        for angles, held in product(dict.fromkeys((dtype, torch.float32)), (dtype, torch.float8_e4m3fn)):
            for neox in (True, False):

                def run(
                    dtypes: tuple[torch.dtype, ...] = (dtype, angles, held),
                    shape: tuple[int, ...] = (size, rot, heads, kv_heads),
                    layout: str = layout,
                    neox: bool = neox,
                ) -> None:
                    (size, rot, heads, kv_heads), (dtype, angles, held) = shape, dtypes
                    integer = torch.int64 if neox else torch.int32
                    positions = torch.tensor([0, 15, -1, 16, 2**31 - 1], dtype=integer).cuda()
                    slots = torch.tensor([7, -1, 8, 0, 2**31 - 1], dtype=integer).cuda()
                    query, key, value = (on_gpu((5, n * size), dtype, layout) for n in (heads, kv_heads, kv_heads))
                    caches = [on_gpu((2, 4, kv_heads, size), held) for _ in range(2)]
                    table, scales = on_gpu((16, rot), angles), (one(0.5), one(2.0))
                    torch.ops.opdock_cuda.rotary_and_cache_(
                        positions, query, key, value.view(5, -1, size), *caches, slots, size, table, *scales, neox
                    )

                what = f"{heads} and {kv_heads} heads of {size}, {rot} rotated, {layout}"
                if kv_heads:  # without keys there is no cache
                    yield Case(f"rotary and cache, {dtype}, angles {angles}, cache {held}, {what}, neox {neox}", run)


def cases(word: str = "") -> list[Case]:
    """Return all calls that have a word in their names."""
    makers = (rows_cases, rotary_cases, cache_cases, rotary_cache_cases)
    return [c for make in makers for c in make() if word in c.name]


# -- which kernels there are, and which ran


def instance(name: str) -> str | None:
    """Return a kernel's name with its template's arguments, from a mangled or a plain one; None for other names."""
    if name.startswith("_Z"):
        name = torch._C._demangle(name)
    found = re.search(r"opdock::(?:\(anonymous namespace\)::)?(\w+_kernel<)", name)
    if found is None or name.startswith("_Z") or re.search(r"__(tmp|handle|device_stub)", name):
        return None
    depth, at = 0, found.start(1)
    for end in range(found.end() - 1, len(name)):
        depth += {"<": 1, ">": -1}.get(name[end], 0)
        if not depth:
            return name[at : end + 1].replace("opdock::", "").replace(" ", "")
    return None


def compiled(library: Path) -> set[str]:
    """Return all kernels of the library: their names are in it, for the driver."""
    strings = re.findall(rb"_ZN6opdock\w+", library.read_bytes())
    return {found for text in set(strings) if (found := instance(text.decode()))}


def ran(all_cases: list[Case]) -> set[str]:
    """Run the calls under the profiler and return the kernels that ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        run_all(all_cases)
    names = {event.name() for event in profiler.profiler.kineto_results.events()}
    return {found for name in names if (found := instance(name))}


def run_all(all_cases: list[Case]) -> None:
    """Run the calls one after the other; a fault names its call."""
    name = "nothing yet"
    try:
        for number, case in enumerate(all_cases):
            name = case.name
            if number % 500 == 0:
                print(f"call {number}: {name}", flush=True)
            case.run()
            torch.cuda.synchronize()
    except RuntimeError as err:
        raise SystemExit(f"FAILED: {name}: {err}") from err


def coverage(word: str) -> list[str]:
    """Run the calls in a child that no sanitizer follows, and return the kernels that ran."""
    ours = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "PYTORCH_NO_CUDA_MEMORY_CACHING")
    env = {k: v for k, v in os.environ.items() if k not in ours and "SANITIZER" not in k}
    done = subprocess.run([sys.executable, __file__, "--ran", word], env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"the run for coverage failed with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: list[str]) -> int:
    """Check the coverage, run the calls, and print what was covered; return the exit status."""
    word = next((a for a in arguments if not a.startswith("--")), "")
    if "--plan" in arguments:
        print(*(c.name for c in cases(word)), sep="\n")
        return 0
    from opdock_cuda import library

    if library.why_not():
        print(f"needs the CUDA kernels: {library.why_not()}")
        return 2
    chosen = cases(word)
    part = next((a.removeprefix("--part=").split("/") for a in arguments if a.startswith("--part=")), ("0", "1"))
    if "--ran" in arguments:
        print(json.dumps(sorted(ran(chosen))))
        return 0
    missed: set[str] = set()
    if "--no-coverage" not in arguments:
        there, reached = compiled(Path(library.__file__).with_name(library.FILE)), set(coverage(word))
        missed = (there - reached) if not word else set()
        print(*sorted(reached), sep="\n")
        print(f"{len(reached)} of {len(there)} kernels reached")
        if reached - there:
            print("names that the library has not:", *sorted(reached - there), sep="\n  ")
    chosen = chosen[int(part[0]) :: int(part[1])]
    run_all(chosen)
    print(f"{len(chosen)} calls ran")
    if missed:
        print(f"NOT REACHED, {len(missed)}:", *sorted(missed), sep="\n  ")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
