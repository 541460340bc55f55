"""rotary_and_cache: what the predicate refuses; on a GPU the kernel against float64, and against the two kernels."""

from __future__ import annotations

from typing import Any

import cuda_exact as exact
import pytest
import torch
from cuda_placing import same_bits
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import opdock
from opdock import ir
from opdock.nn.attention.impl import write_slots
from opdock_cuda import ops, rotary_cache

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
HEADS, KV_HEADS, SIZE = 4, 2, 64
NAMES = (
    "positions",
    "query",
    "key",
    "value",
    "key_cache",
    "value_cache",
    "slot_mapping",
    "head_size",
    "cos_sin_cache",
    "k_scale",
    "v_scale",
    "is_neox",
)


def fake(*shape: int, dtype: torch.dtype = BF16, device: str = "meta") -> Tensor:
    """Return a stand-in for a tensor of the first GPU, of which views can be taken."""
    return torch.empty(shape, dtype=dtype, device=device)


def put(value: Any) -> Any:
    """Return a fake tensor on the first GPU for a stand-in."""
    if not isinstance(value, Tensor):
        return value
    device = "cuda:0" if value.is_meta else value.device
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


def said(**changed: Any) -> Any:
    """Return what the predicate says of fake tensors on a GPU, some of which are others."""
    qkv = fake(5, (HEADS + 2 * KV_HEADS) * SIZE)
    query, key, value = qkv.split((HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE), dim=-1)
    both = fake(6, 2, 16, KV_HEADS, SIZE)
    given: dict[str, Any] = {
        "positions": fake(5, dtype=torch.int64),
        "query": query,
        "key": key,
        "value": value.unflatten(-1, (KV_HEADS, SIZE)),
        "key_cache": both[:, 0],
        "value_cache": both[:, 1],
        "slot_mapping": fake(5, dtype=torch.int64),
        "head_size": SIZE,
        "cos_sin_cache": fake(128, SIZE, dtype=F32),
        "k_scale": fake(1, dtype=F32),
        "v_scale": fake(1, dtype=F32),
    }
    given |= {name: make() for name, make in changed.items()}
    with FakeTensorMode(), torch.no_grad():
        return rotary_cache.takes(**{name: put(value) for name, value in given.items()})


def test_views_of_one_projection_and_blocks_of_two_caches_are_taken() -> None:
    assert said() is True
    assert said(is_neox=lambda: False) is True
    in_8_bits = {name: lambda: fake(6, 16, KV_HEADS, SIZE, dtype=FP8) for name in ("key_cache", "value_cache")}
    assert said(**in_8_bits) is True


@pytest.mark.parametrize(
    ("name", "make", "reason"),
    [
        ("query", lambda: fake(5, HEADS * SIZE, device="cpu"), "query is on cpu, and the kernels run on CUDA"),
        ("query", lambda: fake(5, HEADS * SIZE, dtype=torch.float64), "no kernel for query of torch.float64"),
        ("positions", lambda: fake(5, dtype=torch.int16), "positions of torch.int16"),
        ("value", lambda: fake(5, KV_HEADS, SIZE, dtype=F32), "value (5, 2, 64) of torch.float32 is not 5 rows"),
        ("value", lambda: fake(5, SIZE, KV_HEADS).transpose(1, 2), "is not 5 rows of 2 dense heads of 64"),
        ("value", lambda: fake(5, KV_HEADS, SIZE, device="cpu"), "value is on cpu and key on cuda:0"),
        ("key_cache", lambda: fake(6, 16, KV_HEADS, SIZE, dtype=F32), "key_cache of torch.float32 beside key"),
        ("key_cache", lambda: fake(6, 16, KV_HEADS, SIZE, dtype=torch.float8_e5m2), "the same dtype, or"),
        ("key_cache", lambda: fake(6, KV_HEADS, 16, SIZE).transpose(1, 2), "is not blocks of dense rows"),
        ("value_cache", lambda: fake(1, 16, KV_HEADS, SIZE).expand(6, 16, KV_HEADS, SIZE), "elements share memory"),
        ("value_cache", lambda: fake(7, 16, KV_HEADS, SIZE), "value_cache (7, 16, 2, 64)"),
        ("value_cache", lambda: fake(6, 16, KV_HEADS, SIZE, dtype=FP8), "of torch.float8_e4m3fn"),
        ("slot_mapping", lambda: fake(4, dtype=torch.int64), "for each of 5 rows"),
        ("slot_mapping", lambda: fake(10, dtype=torch.int64)[::2], "for each of 5 rows, dense"),
        ("slot_mapping", lambda: fake(5, dtype=F32), "is not one int64 or int32"),
        ("k_scale", lambda: fake(KV_HEADS, dtype=F32), "k_scale is not one float32"),
        ("v_scale", lambda: fake(1, dtype=BF16), "v_scale is not one float32"),
        ("cos_sin_cache", lambda: fake(128, SIZE + 2), "does not fit head_size 64"),
    ],
)
def test_what_the_kernel_does_not_take_is_refused_with_a_reason(name: str, make: Any, reason: str) -> None:
    assert reason in said(**{name: make})


def test_the_predicate_has_the_parameters_of_the_op() -> None:
    import inspect

    assert (
        tuple(inspect.signature(rotary_cache.takes).parameters) == NAMES == ir.registry["rotary_and_cache"].parameters
    )


# -- on a GPU


def arguments(
    tokens: int,
    heads: int,
    kv_heads: int,
    size: int,
    rot: int,
    *,
    dtype: torch.dtype,
    held: torch.dtype,
    table: torch.dtype,
    neox: bool,
    layout: str,
    integer: torch.dtype = torch.int64,
) -> list[Any]:
    """Return arguments on the GPU: every third slot is padding or behind the cache."""
    total = heads + 2 * kv_heads
    if layout == "qkv":
        rows = torch.randn(tokens, total * size + 16, device="cuda").to(dtype)[:, : total * size]
        parts = rows.split((heads * size, kv_heads * size, kv_heads * size), dim=-1)
    else:
        shift = int(layout == "odd offset")
        parts = tuple(
            torch.randn(tokens * n * size + shift, device="cuda").to(dtype)[shift:].view(tokens, n * size)
            for n in (heads, kv_heads, kv_heads)
        )
    blocks = tokens // 16 + 3
    both = torch.randn(blocks, 2, 16, kv_heads, size, device="cuda").to(held)
    slots = torch.randperm(blocks * 16, device="cuda")[:tokens].to(integer)
    slots[1::3] = -1
    slots[4::7] = blocks * 16 + 5
    angles = torch.arange(128, device="cuda")[:, None] * 1e4 ** (-torch.arange(rot // 2, device="cuda") / rot)
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1).to(table)
    scales = [torch.tensor(s, device="cuda") for s in (0.013, 0.017)]
    positions = torch.randint(0, 128, (tokens,), device="cuda", dtype=integer)
    value = parts[2].unflatten(-1, (kv_heads, size))
    return [positions, *parts[:2], value, both[:, 0], both[:, 1], slots, size, cos_sin, *scales, neox]


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("size", "rot"), [(64, 64), (128, 128), (128, 64), (80, 32), (10, 6), (256, 256)])
def test_the_kernel_is_the_formula_and_has_the_bits_of_the_two_kernels(
    size: int, rot: int, dtype: torch.dtype, neox: bool
) -> None:
    torch.manual_seed(0)
    for held in (dtype, FP8):
        for heads, kv_heads in ((1, 1), (9, 3), (32, 8), (72, 24)):
            for number, tokens in enumerate((0, 1, 7, 257)):
                for layout in ("qkv", "dense", "odd offset"):
                    table, integer = (dtype, torch.int64) if number % 2 else (F32, torch.int32)
                    kinds = {"dtype": dtype, "held": held, "table": table, "neox": neox, "integer": integer}
                    given = arguments(tokens, heads, kv_heads, size, rot, layout=layout, **kinds)
                    _compare(given, f"{tokens} tokens, {heads} and {kv_heads} heads, {layout}, {held}, {table}")


def _compare(given: list[Any], what: str) -> None:
    positions, query, key, value, key_cache, value_cache, slots, size, table, k_scale, v_scale, neox = given
    formula = [exact.rotary(t, positions, table, size, neox=neox) for t in (query, key)]
    two = query.clone(), key.clone(), key_cache.clone(), value_cache.clone()
    ops.rotary_embedding_(positions, two[0], two[1], size, table, neox)
    kept = torch.where(slots < key_cache.shape[0] * 16, slots, -1)
    write_slots(two[1].view(value.shape), two[2], kept, k_scale)
    write_slots(value, two[3], kept, v_scale)
    before = value.clone()
    ops.rotary_and_cache_(*given)
    for mine, y in zip((query, key), formula, strict=True):
        exact.Near("", mine, y, exact.half_step(mine.dtype) * 1.01, 2e-6).check(what)
    for name, mine, theirs in zip(NAMES[1:3] + NAMES[4:6], (query, key, key_cache, value_cache), two, strict=True):
        assert same_bits(mine, theirs), f"{what}: {name}"
    assert same_bits(value, before), what


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
def test_a_captured_launch_follows_positions_and_slots_that_change() -> None:
    torch.manual_seed(0)
    kinds = {"dtype": BF16, "held": BF16, "table": BF16, "neox": True, "layout": "qkv"}
    given = arguments(7, 32, 8, 128, 128, **kinds)
    ops.rotary_and_cache_(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.rotary_and_cache_(*given)
    fresh = arguments(7, 32, 8, 128, 128, **kinds)
    for mine, theirs in zip(given[:7], fresh[:7], strict=True):
        mine.copy_(theirs)
    graph.replay()
    ops.rotary_and_cache_(*fresh)
    for mine, theirs in zip(given[:7], fresh[:7], strict=True):
        assert same_bits(mine, theirs)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
def test_a_compiled_layer_has_the_kernel_and_the_bits_of_the_two() -> None:
    from torch._inductor.utils import fresh_cache

    from opdock.compile import observing
    from opdock.nn.attention import Attention, AttentionMetadata, PagedKVCache, set_forward_context
    from opdock.nn.layers import get_rope

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(256, (HEADS + 2 * KV_HEADS) * SIZE, bias=False)
            self.rotary = get_rope(SIZE, SIZE, 128, 1e4, True)
            self.attn = Attention(HEADS, SIZE, SIZE**-0.5, KV_HEADS, prefix="layer")

        def forward(self, positions: Tensor, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).split((HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE), dim=-1)
            return self.attn(*self.rotary(positions, q, k), v)

    torch.manual_seed(0)
    step = AttentionMetadata.build(
        query_lens=[5, 18], seq_lens=[5, 18], block_tables=[[4], [1, 3]], block_size=16, device="cuda", num_tokens=24
    )
    x, positions = torch.randn(24, 256, device="cuda", dtype=BF16), torch.arange(24, device="cuda")
    found = []
    with opdock.set_current_config(opdock.OpdockConfig(opdock.CompilationConfig(mode=3))):
        layer = Layer().to("cuda", BF16).eval()
        cache = PagedKVCache.for_model(layer, num_blocks=8, block_size=16)
        for switch in ("-rotary_and_cache", "+rotary_and_cache"):
            torch._dynamo.reset()
            for pair in cache.tensors.values():
                pair[0].zero_(), pair[1].zero_()
            run = torch.compile(layer, backend="opdock", fullgraph=True, options={"fusions": [switch]})
            with fresh_cache(), torch.no_grad(), set_forward_context(step, cache), observing() as reports:
                out = run(positions, x)
            found.append([out, *(t.clone() for pair in cache.tensors.values() for t in pair)])
            assert reports[0].fused == ({} if switch[0] == "-" else {"rotary_and_cache": 1}), reports[0].declined
            assert {c.provider for c in reports[0].choices if "rotary" in c.op} == {"cuda"}
    assert all(same_bits(a, b) for a, b in zip(*found, strict=True))
