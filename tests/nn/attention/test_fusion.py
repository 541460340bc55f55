"""rotary_embedding and the update of the paged cache as one op of a compiled graph: when, when not, the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import opdock
from opdock import ir
from opdock.compile import GraphReport, observing
from opdock.compile.passes import Passes
from opdock.nn.attention import Attention, AttentionMetadata, PagedKVCache, set_forward_context
from opdock.nn.attention.backends.native import NativeAttentionBackend, NativeImpl
from opdock.nn.attention.impl import AttentionImpl, writes_rows
from opdock.nn.layers import get_rope
from opdock.nn.rotary_and_cache import rotary_and_cache

pytestmark = pytest.mark.usefixtures("taken_back")
HEADS, KV_HEADS, SIZE, LAYERS = 4, 2, 16, 3
FUSED = "unified_rotary_and_kv_cache_update"
NAME = "rotary_and_cache"


class Layer(nn.Module):
    """A projection, the rotation, attention over a paged cache, and a way in between for what a test wants there."""

    def __init__(self, number: int, *, neox: bool = True) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, (HEADS + 2 * KV_HEADS) * SIZE, bias=False)
        self.rotary = get_rope(SIZE, SIZE, 64, 1e4, neox)
        self.attn = Attention(HEADS, SIZE, SIZE**-0.5, KV_HEADS, prefix=f"layers.{number}")
        self.before: Callable[..., tuple[Tensor, Tensor, Tensor]] = lambda q, k, v: (q, k, v)
        self.between: Callable[..., tuple[Tensor, Tensor, Tensor]] = lambda q, k, v: (q, k, v)
        self.after: Callable[..., Tensor] | None = None
        self.keep = False

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        raw = self.qkv(x)
        q, k, v = self.before(*raw.split((HEADS * SIZE, KV_HEADS * SIZE, KV_HEADS * SIZE), dim=-1))
        if self.keep:  # the layer would give its arguments away
            table, neox = self.rotary.cos_sin_cache, self.rotary.is_neox_style
            q, k = ir.ops.rotary_embedding(positions, q, k, SIZE, table, neox)
        else:
            q, k = self.rotary(positions, q, k)
        q, k, v = self.between(q, k, v)
        out = x + self.attn(q, k, v)
        out = out if self.after is None else out + self.after(q, k)
        return out + raw[:, ::5].sum() if self.keep else out


class Model(nn.Module):
    def __init__(self, layers: int, *, neox: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(i, neox=neox) for i in range(layers))

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(positions, x)
        return x


def takes(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    head_size: int,
    cos_sin_cache: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    is_neox: bool = True,
) -> bool | str:
    if query.dtype is torch.float64:
        return "no kernel for float64"
    return is_neox or "no kernel for interleaved pairs"


@pytest.fixture
def calls() -> list[tuple[int, ...]]:
    """Register a provider that notes the shapes of the keys that it writes."""
    noted: list[tuple[int, ...]] = []

    @rotary_and_cache.register_impl("t_kernel", supports_args=takes, inplace=True)
    def kernel(
        positions: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slot_mapping: Tensor,
        head_size: int,
        cos_sin_cache: Tensor,
        k_scale: Tensor,
        v_scale: Tensor,
        is_neox: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        noted.append(tuple(key.shape))
        given = query, key, value, key_cache, value_cache, slot_mapping, head_size, cos_sin_cache, k_scale, v_scale
        made = ir.native.rotary_and_cache(positions, *given, is_neox)
        for target, result in zip((query, key, key_cache, value_cache), made, strict=True):
            target.copy_(result)
        return query, key, key_cache, value_cache

    return noted


class Ran:
    """A model, eager and compiled, over the same steps: results, caches, graphs."""

    def __init__(
        self,
        layers: int = 1,
        *,
        backend: str = "opdock_eager",
        kv_dtype: torch.dtype | None = None,
        dtype: torch.dtype = torch.float32,
        neox: bool = True,
        before: Callable[..., Any] | None = None,
        between: Callable[..., Any] | None = None,
        after: Callable[..., Any] | None = None,
        keep: bool = False,
        impl: type[AttentionImpl] | None = None,
        options: dict[str, Any] | None = None,
        providers: tuple[str, ...] = ("t_kernel",),
    ) -> None:
        with opdock.set_current_config(opdock.OpdockConfig(opdock.CompilationConfig(custom_ops=["none"]))):
            self.model = Model(layers, neox=neox).to(dtype).eval()
        torch._dynamo.reset()
        rotary_and_cache.set_default([*(name for name in providers if name in rotary_and_cache.impls), "native"])
        for layer in self.model.layers:
            layer.before, layer.between = before or layer.before, between or layer.between
            layer.after, layer.keep = after, keep
        self.cache = PagedKVCache.for_model(self.model, num_blocks=6, block_size=16, dtype=kv_dtype)
        for layer in self.cache.layers.values() if impl else ():
            layer._impl = impl(layer.spec, layer)
        self.graphs: list[fx.Graph] = []
        self.report = GraphReport()
        self.want = self._steps(self.model, dtype)
        compiled = torch.compile(self.model, backend=backend, fullgraph=True, dynamic=True, options=options)
        with pytest.MonkeyPatch.context() as patch:
            before = Passes.before_inductor
            patch.setattr(Passes, "before_inductor", lambda passes, graph: before(passes, graph) or self._keep(graph))
            with observing() as reports:
                self.got = self._steps(compiled, dtype)
        self.report = reports[0]

    def _keep(self, graph: fx.Graph) -> None:
        self.graphs.append(graph)

    def _steps(self, run: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Run two prompts with a row of padding, then a token of each; return results and caches."""
        torch.manual_seed(1)
        for keys, values in self.cache.tensors.values():
            keys.zero_(), values.zero_()
        found = []
        for new, total, rows in (((5, 18), (5, 18), 24), ((1, 1), (6, 19), 2)):
            step = AttentionMetadata.build(
                query_lens=new, seq_lens=total, block_tables=[[4], [1, 3]], block_size=16, num_tokens=rows
            )
            positions = torch.cat([torch.arange(t - n, t) for n, t in zip(new, total, strict=True)])
            positions = torch.cat((positions, positions.new_zeros(rows - len(positions))))
            with torch.no_grad(), set_forward_context(step, self.cache):
                found.append(run(positions, torch.randn(rows, 64, dtype=dtype)))
        return [*found, *(t.clone() for pair in self.cache.tensors.values() for t in pair)]

    @property
    def same(self) -> bool:
        """Whether every result and every byte of the caches is the same."""
        bits = [[t.contiguous().view(torch.uint8) for t in side] for side in (self.want, self.got)]
        return all(torch.equal(a, b) for a, b in zip(*bits, strict=True))

    def count(self, name: str) -> int:
        """Return in how many nodes of the first graph an op is."""
        return sum(name in f"{n.target} {n.args[:1]}" for n in self.graphs[0].nodes if n.op == "call_function")


@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn], ids=["plain", "8-bit"])
def test_each_layer_has_the_fused_op_once_and_every_bit_stays(
    calls: list[tuple[int, ...]], kv_dtype: torch.dtype | None
) -> None:
    ran = Ran(LAYERS, kv_dtype=kv_dtype)
    assert ran.same
    assert ran.report.fused == {NAME: LAYERS} and not ran.report.declined
    assert ran.count(FUSED) == ran.count("unified_attention_with_output") == LAYERS
    assert ran.count("rotary_embedding") == 0
    assert calls == [(24, KV_HEADS * SIZE)] * LAYERS + [(2, KV_HEADS * SIZE)] * LAYERS
    assert [(c.op, c.provider, c.made_by) for c in ran.report.choices] == [(NAME, "t_kernel", NAME)] * LAYERS
    assert all(n.kwargs["update_cache"] is False for n in ran.graphs[0].nodes if "update_cache" in n.kwargs)


@pytest.mark.compiler
def test_inductor_leaves_the_caches_where_they_are(calls: list[tuple[int, ...]]) -> None:
    from torch._inductor.utils import fresh_cache, run_and_get_code

    found: list[str] = []
    with fresh_cache():
        ran, found = run_and_get_code(lambda: Ran(2, backend="opdock"))
    for mine, theirs in zip(ran.got, ran.want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    assert ran.report.fused == {NAME: 2} and len(calls) == 4
    code = next(text for text in found if FUSED in text)
    assert "cpp_fused_clone" not in code and not ran.report.clones_left  # query and key are written in the projection
    cached = [line for line in code.splitlines() if "(6, 16, 2, 16)" in line]
    assert not any("empty_strided" in line for line in cached)  # no second cache
    assert code.count(f"opdock.{FUSED}.default(") == 2


def test_an_update_of_its_own_goes(calls: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeAttentionBackend, "forward_includes_kv_cache_update", False)
    monkeypatch.setattr(opdock.nn.attention.attention, "choose_for_layer", lambda *_, **__: NativeAttentionBackend)
    ran = Ran(2)
    assert ran.same and ran.report.fused == {NAME: 2} and len(calls) == 4
    assert ran.count(FUSED) == 2 and ran.count("unified_kv_cache_update") == 0


def test_keys_may_be_used_again_afterwards(calls: list[tuple[int, ...]]) -> None:
    """What is rotated is a result of the fused op too, in the layout that the rotation had."""
    ran = Ran(1, after=lambda q, k: q.view(-1)[::7].sum() + (k * 3).max())
    assert ran.same and ran.report.fused == {NAME: 1} and len(calls) == 2
    assert ran.report.clones_left == 2


@pytest.mark.parametrize(
    "before",
    [
        lambda q, k, v: (q, k * 2, v),
        lambda q, k, v: (q * 2, k, v + 1),
        lambda q, k, v: (q + 1, k + 1, v + 1),
        lambda q, k, v: (q, k, v + q.sum() + k.sum()),
        lambda q, k, v: (torch.cat((k, k), -1), k, v),
    ],
    ids=["key", "query and value", "all three", "value of them all", "query of keys"],
)
def test_rows_that_are_no_parts_of_one_tensor_are_fused_too(calls: list[tuple[int, ...]], before: Any) -> None:
    ran = Ran(2, before=before)
    assert ran.same and ran.report.fused == {NAME: 2} and len(calls) == 4


@pytest.mark.compiler
@pytest.mark.parametrize("before", [None, lambda q, k, v: (q, k, v + q.sum() + k.sum())], ids=["parts", "read again"])
def test_what_is_not_rotated_is_still_there_for_others(calls: list[tuple[int, ...]], before: Any) -> None:
    """The projection is read again after its parts were rotated in it."""
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        ran = Ran(1, backend="opdock", before=before or (lambda q, k, v: (q, k, v)), keep=True)
    for mine, theirs in zip(ran.got, ran.want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=2e-5)
    assert ran.report.fused == {NAME: 1} and len(calls) == 2


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (lambda q, k, v: (q, k, v + k), "needs what is rotated before the cache is written"),
        (lambda q, k, v: (q * 2, k, v), "needs what is rotated before the cache is written"),
        (lambda q, k, v: (q, k, k), "the values or the cache are made of what is rotated"),
    ],
    ids=["values of keys", "queries scaled", "keys as values"],
)
def test_what_needs_the_rotated_rows_before_keeps_the_ops_apart(
    calls: list[tuple[int, ...]], between: Any, reason: str
) -> None:
    ran = Ran(1, between=between)
    assert ran.same and not calls
    assert reason in ran.report.declined[NAME] and ran.count("rotary_embedding") + ran.count("mul") > 0
    assert ran.count(FUSED) == 0


def test_keys_that_are_changed_before_they_are_cached_are_another_pattern(calls: list[tuple[int, ...]]) -> None:
    ran = Ran(1, between=lambda q, k, v: (q, k * 2, v))
    assert ran.same and not calls and not ran.report.fused and NAME not in ran.report.declined


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"dtype": torch.float64}, "no kernel for it (t_kernel: no kernel for float64)"),
        ({"neox": False}, "no kernel for it (t_kernel: no kernel for interleaved pairs)"),
    ],
)
def test_a_dtype_or_style_without_a_kernel_keeps_the_ops_apart(
    calls: list[tuple[int, ...]], given: dict[str, Any], reason: str
) -> None:
    ran = Ran(1, **given)
    assert ran.same and not calls and ran.count(FUSED) == 0
    assert ran.report.declined == {NAME: reason}


def test_a_platform_without_a_provider_keeps_the_ops_apart(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="opdock"):
        ran = Ran(1, providers=())
    assert ran.same and ran.count(FUSED) == 0
    assert ran.report.declined[NAME].startswith("no kernel for it")
    assert any("Fusion rotary_and_cache is left out" in message for message in caplog.messages)


def test_a_backend_with_a_cache_of_its_own_keeps_the_ops_apart(calls: list[tuple[int, ...]]) -> None:
    class Own(NativeImpl):
        def update_cache(self, *given: Any) -> None:
            super().update_cache(*given)

    class Same(NativeImpl):
        @writes_rows
        def update_cache(self, *given: Any) -> None:
            super().update_cache(*given)

    ran = Ran(1, impl=Own)
    assert ran.same and not calls
    assert ran.report.declined == {NAME: "Own writes its cache in a way of its own"}
    ran = Ran(1, impl=Same)
    assert ran.same and len(calls) == 2


def test_switches_leave_it_out(calls: list[tuple[int, ...]]) -> None:
    ran = Ran(1, options={"fusions": [f"-{NAME}"]})
    assert ran.same and not calls and not ran.report.declined
    ran = Ran(1, options={"fusions": ["none", f"+{NAME}"]})
    assert ran.same and len(calls) == 2


def test_a_step_whose_kernel_declines_runs_the_two_ops(calls: list[tuple[int, ...]]) -> None:
    """Compiled code may be used again where the provider that it was made for is not there."""
    ran = Ran(1)
    assert len(calls) == 2
    for keys, values in ran.cache.tensors.values():
        keys.zero_(), values.zero_()
    layer = ran.model.layers[0]
    step = AttentionMetadata.build(query_lens=[3], seq_lens=[3], block_tables=[[2]], block_size=16)
    k, v = torch.randn(3, KV_HEADS * SIZE), torch.randn(3, KV_HEADS, SIZE)
    q, table = torch.randn(3, HEADS * SIZE), layer.rotary.cos_sin_cache
    want = ir.native.rotary_embedding(torch.arange(3), q, k, SIZE, table, True)
    caches = ran.cache.tensors["layers.0"]
    rotary_and_cache.set_default(["native"])
    with torch.no_grad(), set_forward_context(step, ran.cache):
        torch.ops.opdock.unified_rotary_and_kv_cache_update(
            torch.arange(3), q, k, v, *caches, table, SIZE, True, "layers.0"
        )
    assert len(calls) == 2
    assert torch.equal(q, want[0]) and torch.equal(k, want[1])
    assert torch.equal(caches[0].view(-1, KV_HEADS, SIZE)[32:35], k.view(3, KV_HEADS, SIZE))
    assert torch.equal(caches[1].view(-1, KV_HEADS, SIZE)[32:35], v)


def test_the_schema_declares_what_is_written() -> None:
    schema = torch.ops.opdock.unified_rotary_and_kv_cache_update.default._schema
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    assert written == ["query", "key", "key_cache", "value_cache"]


def test_outside_of_a_step_it_says_so(calls: list[tuple[int, ...]]) -> None:
    """A graph may be compiled before any step runs."""
    from opdock.nn.attention.fusion import _choose

    assert _choose({}, None, [], "layers.0")[1] == "Attention over a paged cache ran outside a step."  # type: ignore[arg-type]
