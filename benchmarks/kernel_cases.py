"""The ops of the kernel tables: their inputs, what moves, what is right, and how each provider is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from opdock import ir

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
EPSILON, STEP = 1e-5, 8.0 / 448
HEADS, KV_HEADS, HEAD, POSITIONS, BLOCK = 32, 8, 128, 4096, 16

Inputs = tuple[Any, ...]
Call = Callable[[], object]
Provider = Callable[[Inputs], Call]
"""Takes one set of inputs, allocates what the provider wants to be given, and returns the call to be timed."""


@dataclass(frozen=True)
class Case:
    """One op of the tables.

    Args:
        name: in the tables.
        op: the IR op that defines it; None for one that the IR does not have.
        inputs: takes tokens and hidden, returns the op's arguments.
        moved: bytes that must be read and written for each token and column.
        ours: name of the raw op of the package for NVIDIA GPUs; it takes the op's arguments and ``extra``.
        native: the definition.
        vllm: vLLM's kernel, if it has one.
        hiddens: sizes in the table.
        inplace: the arguments that ``ours`` writes, which are its results; else it returns them.
    """

    name: str
    op: Any
    inputs: Callable[[int, int], Inputs]
    moved: float
    ours: str
    native: Callable[..., Any]
    vllm: Provider | None
    hiddens: tuple[int, ...] = (4096, 7168)
    inplace: tuple[int, ...] = ()
    extra: tuple[Any, ...] = ()


def cases() -> list[Case]:
    """Return the ops of the tables; torch ops are looked up when one is called."""
    ops = ir.ops

    def case(name: str, op: Any, inputs: Any, moved: float, ours: str, vllm: Provider | None, **more: Any) -> Case:
        return Case(name, op, inputs, moved, ours, op.op.native, vllm, **more)

    return [
        case("rms_norm", ops.rms_norm, _norm, 4, "rms_norm", _into(_same, "rms_norm")),
        case("fused_add_rms_norm", ops.fused_add_rms_norm, _add_norm, 8, "fused_add_rms_norm", None),
        case(
            "fused_add_rms_norm in place",
            ops.fused_add_rms_norm,
            _add_norm,
            8,
            "fused_add_rms_norm_",
            _into(_none, "fused_add_rms_norm"),
            inplace=(0, 1),
        ),
        case("silu_and_mul", ops.silu_and_mul, _gated, 6, "silu_and_mul", _into(_half, "silu_and_mul")),
        case(
            "static_fp8",
            ops.static_scaled_fp8_quant,
            lambda t, h: (_x(t, h), _scale()),
            3,
            "static_fp8",
            _into(_fp8, "static_scaled_fp8_quant"),
        ),
        case(
            "per_token_fp8",
            ops.dynamic_per_token_scaled_fp8_quant,
            lambda t, h: (_x(t, h),),
            3,
            "token_fp8",
            _into(_fp8_rows, "dynamic_per_token_scaled_fp8_quant", lambda o, s, x: (o, x, s, None)),
            extra=(None,),
        ),
        case(
            "rms_norm+static_fp8",
            ops.rms_norm_static_fp8_quant,
            lambda t, h: (_x(t, h), _w(h), _scale(), EPSILON),
            3,
            "rms_norm_static_fp8",
            _into(_fp8, "rms_norm_static_fp8_quant"),
        ),
        case(
            "fused_add_rms_norm+static_fp8",
            ops.fused_add_rms_norm_static_fp8_quant,
            lambda t, h: (_x(t, h), _x(t, h), _w(h), _scale(), EPSILON),
            7,
            "add_rms_norm_static_fp8",
            _into(_fp8, "fused_add_rms_norm_static_fp8_quant"),
        ),
        case(
            "rms_norm+per_token_fp8",
            ops.rms_norm_dynamic_per_token_fp8_quant,
            _norm,
            3,
            "rms_norm_token_fp8",
            _into(_fp8_rows, "rms_norm_dynamic_per_token_quant", lambda o, s, x, w, e: (o, x, w, s, e, None, None)),
            extra=(None,),
        ),
        case(
            "silu_and_mul+static_fp8",
            ops.silu_and_mul_static_fp8_quant,
            lambda t, h: (*_gated(t, h), _scale()),
            5,
            "silu_and_mul_static_fp8",
            _into(_half_fp8, "silu_and_mul_quant"),
        ),
        case(
            f"rotary {HEADS}q {KV_HEADS}k heads of {HEAD}",
            ops.rotary_embedding,
            _rotary,
            4 * (HEADS + KV_HEADS) / HEADS,
            "rotary_embedding_",
            _into(_none, "rotary_embedding"),
            hiddens=(HEADS * HEAD,),
            inplace=(1, 2),
        ),
        Case(
            f"reshape_and_cache_flash {KV_HEADS} heads of {HEAD}",
            None,
            _cache,
            8 * KV_HEADS / HEADS,
            "reshape_and_cache_",
            _cache_native,
            _cache_vllm,
            hiddens=(HEADS * HEAD,),
            inplace=(2, 3),
        ),
    ]


def peers_of(case: Case, modules: Mapping[str, Any]) -> dict[str, Provider]:
    """Return the providers of a case besides ours and native: those that have it and were found."""
    found: dict[str, Provider] = {"vllm_c": case.vllm} if case.vllm is not None and "vllm_c" in modules else {}
    if case.name == "rms_norm":
        found["torch_F"] = lambda a: lambda: F.rms_norm(a[0], a[0].shape[-1:], a[1], a[2])
    if case.op is not None:
        compiled = torch.compile(case.native, dynamic=False, fullgraph=True)
        found["inductor"] = lambda a: lambda: compiled(*a)
        if case.inplace:
            written = torch.compile(_written(case), dynamic=False, fullgraph=True)
            found["inductor_"] = lambda a: lambda: written(*a)
    liger, gems = modules.get("liger"), modules.get("flaggems")
    if liger is not None and case.name == "rms_norm":
        found["liger"] = lambda a: lambda: liger.rms_norm_forward(*a, 0.0, "llama", None)
    if gems is not None and case.name == "rms_norm":
        found["flaggems"] = lambda a: lambda: gems.rms_norm(a[0], a[0].shape[-1:], a[1], a[2])
    if gems is not None and case.name == "fused_add_rms_norm in place":
        found["flaggems"] = lambda a: lambda: gems.fused_add_rms_norm(a[0], a[1], a[0].shape[-1:], a[2], a[3])
    if gems is not None and case.name == "silu_and_mul":
        found["flaggems"] = lambda a: lambda: gems.silu_and_mul(*a[0].chunk(2, dim=-1))
    return found


def _written(case: Case) -> Callable[..., None]:
    """Return the definition with its results written where ours are."""

    def run(*args: Any) -> None:
        for i, result in zip(case.inplace, _tuple(case.native(*args)), strict=True):
            args[i].copy_(result)

    return run


def error_of(case: Case, call: Callable[..., Any], args: Inputs, *, provider: str) -> str:
    """Return how a call's results miss the definition's, "" if they do not.

    Args:
        case: the op.
        call: takes the arguments; what it returns is judged, or else the arguments that the case says are written.
        args: one set of inputs; copies are used.
        provider: whose tolerances hold.
    """
    want = _tuple(case.native(*_copy(args)))
    given = _copy(args)
    out = call(*given)
    got = tuple(given[i] for i in case.inplace) if out is None else _tuple(out)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        limits = case.op.get_tolerance(b.dtype, provider) if case.op is not None else {"atol": 0.0, "rtol": 0.0}
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"result {k} is {a.dtype} {tuple(a.shape)}, not {b.dtype} {tuple(b.shape)}"
        x, y = a.float(), b.float()
        wrong = ~((x - y).abs() <= limits["atol"] + limits["rtol"] * y.abs())
        if wrong.any():
            return f"result {k}: {int(wrong.sum())} of {y.numel()} numbers wrong, the worst by {(x - y).abs().max():g}"
    return ""


def _x(tokens: int, hidden: int) -> Tensor:
    return torch.randn(tokens, hidden, dtype=BF16, device="cuda")


def _w(hidden: int) -> Tensor:
    return torch.randn(hidden, dtype=BF16, device="cuda")


def _scale() -> Tensor:
    return torch.full((1,), STEP, device="cuda")


def _norm(tokens: int, hidden: int) -> Inputs:
    return _x(tokens, hidden), _w(hidden), EPSILON


def _add_norm(tokens: int, hidden: int) -> Inputs:
    return _x(tokens, hidden), _x(tokens, hidden), _w(hidden), EPSILON


def _gated(tokens: int, hidden: int) -> Inputs:
    return (_x(tokens, 2 * hidden),)


def _rotary(tokens: int, hidden: int) -> Inputs:
    angles = torch.rand(POSITIONS, HEAD // 2, device="cuda") * 6.3
    table = torch.cat((angles.cos(), angles.sin()), dim=-1).to(BF16)
    positions = torch.randint(0, POSITIONS, (tokens,), device="cuda")
    return positions, _x(tokens, hidden), _x(tokens, KV_HEADS * HEAD), HEAD, table, True


def _cache(tokens: int, _hidden: int) -> Inputs:
    k, v = (torch.randn(tokens, KV_HEADS, HEAD, dtype=BF16, device="cuda") for _ in range(2))
    blocks = tokens // BLOCK + 64
    caches = [torch.zeros(blocks, BLOCK, KV_HEADS, HEAD, dtype=BF16, device="cuda") for _ in range(2)]
    return k, v, *caches, torch.randperm(blocks * BLOCK, device="cuda")[:tokens]


def _cache_native(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    for cache, new in ((k_cache, k), (v_cache, v)):
        cache.view(-1, KV_HEADS, HEAD).index_copy_(0, slots, new)
    return k_cache, v_cache


def _cache_vllm(args: Inputs) -> Call:
    one = torch.ones(1, device="cuda")
    return lambda: torch.ops._C_cache_ops.reshape_and_cache_flash(*args, "auto", one, one)


def _into(
    outputs: Callable[[Inputs], tuple[Tensor, ...]], name: str, order: Callable[..., Inputs] | None = None
) -> Provider:
    """Return the provider over vLLM's op ``name``: outputs allocated beforehand, then the inputs, in this order."""

    def prepare(args: Inputs) -> Call:
        fn, given = getattr(torch.ops._C, name), (*outputs(args), *args)
        given = given if order is None else order(*given)
        return lambda: fn(*given)

    return prepare


def _none(_args: Inputs) -> tuple[Tensor, ...]:
    return ()


def _same(args: Inputs) -> tuple[Tensor, ...]:
    return (torch.empty_like(args[0]),)


def _half(args: Inputs) -> tuple[Tensor, ...]:
    return (args[0].new_empty(args[0].shape[0], args[0].shape[1] // 2),)


def _fp8(args: Inputs) -> tuple[Tensor, ...]:
    return (torch.empty_like(args[0], dtype=FP8),)


def _half_fp8(args: Inputs) -> tuple[Tensor, ...]:
    return (_half(args)[0].to(FP8),)


def _fp8_rows(args: Inputs) -> tuple[Tensor, ...]:
    return *_fp8(args), torch.empty(args[0].shape[0], 1, dtype=torch.float32, device="cuda")


def _copy(args: Inputs) -> list[Any]:
    return [a.clone() if isinstance(a, Tensor) else a for a in args]


def _tuple(out: Any) -> tuple[Tensor, ...]:
    return tuple(out) if isinstance(out, tuple | list) else (out,)
