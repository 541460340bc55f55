"""Time the compiled path: lowering, compiling a deep stack, decoding.

    python benchmarks/compile.py [--quick] [--threads N] [--out benchmarks/results]

Lowering: 244 calls of two kinds, against the same with each call traced for itself. Compiling: a stack of 61 layers by
the backend `opdock`, against plain `torch.compile` of the same stack written with the ops' native definitions; both
start with empty caches and take turns. Decoding: SmolLM2, compiled, against transformers' model compiled with its
static cache; same weights, dtype, threads, prompt and number of tokens. Exit status 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from record import Result, Row, write
from torch import Tensor, nn
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import fresh_cache
from torch.fx.experimental.proxy_tensor import make_fx

import opdock
from opdock import ir
from opdock.compile import GraphReport
from opdock.compile.lowering import Lowering
from opdock.nn.generation import generate, load_model
from opdock.nn.models.resolve import resolve_model

CALLS, LAYERS, PROMPT = 244, 61, 17
FASTER, COMPILE_RATIO, NOT_SLOWER = 5.0, 1.1, 1.0
CONDITIONS = "Float32 on the CPU. Lowering: medians; compiling: the median of ratios of neighbouring runs."


class EachForItself(Lowering):
    """Lowering that forgets every body at once."""

    def _body_of(self, call: Any) -> Any:
        self._bodies.clear()
        return super()._body_of(call)


def _many_calls(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    for _ in range(CALLS // 2):
        x, residual = ir.ops.fused_add_rms_norm(x, residual, weight, 1e-5)
        x = ir.ops.silu_and_mul(torch.cat((x, x), dim=-1))
    return x + residual


def time_lowering(rounds: int) -> dict[str, float]:
    """Return seconds and the ratio, with fixed and with symbolic sizes."""
    args = torch.randn(8, 128), torch.randn(8, 128), torch.ones(128)
    found: dict[str, float] = {}
    for sizes, mode in (("fixed", "fake"), ("symbolic", "symbolic")):
        times: dict[type[Lowering], list[float]] = {Lowering: [], EachForItself: []}
        for _ in range(rounds):
            for kind, seconds in times.items():
                graph = make_fx(_many_calls, tracing_mode=mode)(*args).graph
                lowering = kind(select_decomp_table(), GraphReport())
                start = time.perf_counter()
                lowering.lower(graph, also_mutating=True)
                seconds.append(time.perf_counter() - start)
        ours, each = (statistics.median(seconds) for seconds in times.values())
        found |= {f"{sizes}: ours_s": ours, f"{sizes}: each_s": each, f"{sizes}: ratio": each / ours}
    return found


class Stack(nn.Module):
    """Layers of two norms, two projections and a gate, on either namespace of ops."""

    def __init__(self, ops: Any, hidden: int = 64) -> None:
        super().__init__()
        self.ops = ops
        self.up = nn.ModuleList(nn.Linear(hidden, 2 * hidden, bias=False) for _ in range(LAYERS))
        self.down = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(LAYERS))
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Run all layers."""
        residual = torch.zeros_like(x)
        for up, down in zip(self.up, self.down, strict=True):
            x, residual = self.ops.fused_add_rms_norm(x, residual, self.weight, 1e-5)
            x = self.ops.silu_and_mul(up(x))
            x, residual = self.ops.fused_add_rms_norm(x, residual, self.weight, 1e-5)
            x = down(x)
        return x + residual


def time_compiling(rounds: int) -> dict[str, float]:
    """Return the seconds of a first call, and the ratio."""
    sides: dict[str, tuple[nn.Module, str]] = {
        "ours": (Stack(ir.ops).eval(), "opdock"),
        "plain": (Stack(ir.native).eval(), "inductor"),
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    for i in range(rounds + 1):
        for side in sorted(sides, reverse=bool(i % 2)):
            model, backend = sides[side]
            torch._dynamo.reset()
            with fresh_cache(), torch.no_grad():
                start = time.perf_counter()
                torch.compile(model, backend=backend, fullgraph=True)(torch.randn(4, 64))
                if i:  # the first round imports
                    times[side].append(time.perf_counter() - start)
    ratios = [a / b for a, b in zip(times["ours"], times["plain"], strict=True)]
    return {f"{side}_s": statistics.median(t) for side, t in times.items()} | {"ratio": statistics.median(ratios)}


def time_decoding(count: int, rounds: int) -> dict[str, float]:
    """Return tokens per second of both, eager and compiled, and the ratio of the compiled ones."""
    path = resolve_model("smollm2")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    theirs = theirs.eval()
    tokens = torch.randint(3, theirs.config.vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(0)).tolist()

    def run_ours(model: Any) -> list[int]:
        return list(generate(model, tokens, max_tokens=count))

    def run_theirs() -> list[int]:
        ids = torch.tensor([tokens])
        more: Any = {"cache_implementation": "static", "disable_compile": True}  # compiled below, on any device
        out = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            pad_token_id=0,
            **more,
        )
        return out[0, PROMPT:].tolist()  # type: ignore[no-any-return]

    found: dict[str, float] = {}
    with opdock.set_current_config():
        eager = load_model(path, dtype=torch.float32).model
    want = run_ours(eager)
    with opdock.set_current_config(opdock.OpdockConfig(opdock.CompilationConfig(mode=3))):
        model = load_model(path, dtype=torch.float32).model
    theirs.forward = torch.compile(theirs.forward)
    sides: dict[str, Callable[[], list[int]]] = {
        "ours": lambda: run_ours(model),
        "transformers": run_theirs,
        "ours, eager": lambda: run_ours(eager),
    }
    times: dict[str, list[float]] = {side: [] for side in sides}
    for i in range(rounds + 2):
        for side in sorted(sides, reverse=bool(i % 2)):
            start = time.perf_counter()
            made = sides[side]()
            if i > 1:  # the first rounds compile
                times[side].append(time.perf_counter() - start)
            found[f"{side}: same tokens as eager"] = float(made == want)
    found |= {f"{side}: tokens_per_s": count / statistics.median(t) for side, t in times.items()}
    ratios = [b / a for a, b in zip(times["ours"], times["transformers"], strict=True)]
    return found | {"ratio": statistics.median(ratios)}


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds; more noise")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=("lowering", "compiling", "decoding"), help="one of the three parts")
    parser.add_argument("--out", type=Path, help="folder for compile.json and compile.txt")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    transformers.utils.logging.disable_progress_bar()
    rows: list[Row] = []
    raw: dict[str, float] = {}
    if given.only in (None, "lowering"):
        lowering = time_lowering(1 if given.quick else 5)
        raw |= lowering
        for sizes in ("fixed", "symbolic"):
            rows += [
                (f"lowering {CALLS} calls, {sizes} sizes", lowering[f"{sizes}: ours_s"] * 1e3, "ms", None, "<="),
                (f"over tracing each, {sizes} sizes", lowering[f"{sizes}: ratio"], "x", FASTER, ">="),
            ]
    if given.only in (None, "compiling"):
        compiling = time_compiling(1 if given.quick else 4)
        raw |= {f"compiling: {k}": v for k, v in compiling.items()}
        rows += [
            (f"compiling {LAYERS} layers, ours", compiling["ours_s"], "s", None, "<="),
            (f"compiling {LAYERS} layers, plain", compiling["plain_s"], "s", None, "<="),
            ("compile time over plain torch.compile", compiling["ratio"], "x", COMPILE_RATIO, "<="),
        ]
    if given.only in (None, "decoding"):
        decoding = time_decoding(*((16, 2) if given.quick else (64, 5)))
        raw |= {f"decoding: {k}": v for k, v in decoding.items()}
        sides = ("ours", "transformers", "ours, eager")
        rows += [(f"decoding, {side}", decoding[f"{side}: tokens_per_s"], "/s", None, ">=") for side in sides]
        rows += [
            ("decoding, same greedy tokens as eager", decoding["ours: same tokens as eager"], "", 1.0, ">="),
            ("decoding over transformers, both compiled", decoding["ratio"], "x", NOT_SLOWER, ">="),
        ]
    result = Result("compile", CONDITIONS, ("opdock", "torch", "transformers"), rows, raw)
    print(result.table())
    if given.out is not None:
        write(result, given.out)
    return 1 if result.missed() else 0


if __name__ == "__main__":
    sys.exit(main())
