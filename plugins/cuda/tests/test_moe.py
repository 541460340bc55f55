"""The experts of a step on a GPU: values against float64, ranks, graphs, batches, 8-bit floats, and the choice."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opdock
from opdock.nn.kernels import triton
from opdock.nn.moe.grouped import grouped_experts
from opdock.nn.moe.native import fused_experts as definition

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("gpu"),
    pytest.mark.skipif(bool(triton.why_not()), reason=f"needs Triton: {triton.why_not()}"),
]
DEVICE = "cuda"
HALF_STEP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-22}


class Step(NamedTuple):
    """Inputs of a step, in the order of the functions' parameters."""

    x: Tensor
    w13: Tensor
    w2: Tensor
    weights: Tensor
    ids: Tensor


def make(tokens: int, experts: int, top_k: int, hidden: int, inner: int, dtype: torch.dtype = torch.bfloat16) -> Step:
    torch.manual_seed(tokens + experts)
    w13 = (torch.randn(experts, 2 * inner, hidden, device=DEVICE) * hidden**-0.5).to(dtype)
    w2 = (torch.randn(experts, hidden, inner, device=DEVICE) * inner**-0.5).to(dtype)
    weights, ids = torch.rand(tokens, experts, device=DEVICE).topk(top_k, dim=-1)
    return Step(torch.randn(tokens, hidden, device=DEVICE).to(dtype), w13, w2, weights, ids.int())


def exact(step: Step, table: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the results in float64, and how large what is added to each of them is."""
    x, inner = step.x.double(), step.w2.shape[2]
    out, size = torch.zeros_like(x), torch.zeros_like(x)
    for e in range(step.w13.shape[0]):
        local = step.ids if table is None else table[step.ids.long()]
        token, slot = torch.where(local == e)
        made = F.linear(x[token], step.w13[e].double())
        made = F.silu(made[:, :inner]) * made[:, inner:]
        weight = step.weights[token, slot, None].double()
        out.index_add_(0, token, F.linear(made, step.w2[e].double()) * weight)
        size.index_add_(0, token, F.linear(made.abs(), step.w2[e].double().abs()) * weight.abs())
    return out, size


def check(got: Tensor, step: Step, table: Tensor | None = None) -> None:
    """Rows between the products, a token's places and its sum are each rounded once: four half steps of the sizes."""
    want, size = exact(step, table)
    assert got.dtype == step.x.dtype
    excess = (got.double() - want).abs() - 4 * HALF_STEP[step.x.dtype] * (size + want.abs()) - 1e-6
    assert bool((excess <= 0).all()), f"off by {float(excess.max()):.3g} more than allowed"


def table_of(experts: int, first: int, count: int) -> Tensor:
    made = torch.full((experts,), -1, dtype=torch.int32, device=DEVICE)
    made[first : first + count] = torch.arange(count, dtype=torch.int32, device=DEVICE)
    return made


@contextlib.contextmanager
def uninitialised_is_nan() -> Iterator[None]:
    """What is allocated and not written is NaN while the block runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is not deterministic says so
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


def ours(*args: Tensor | None, **options: object) -> Tensor:
    from opdock.nn.kernels.triton import moe

    return moe.fused_experts(*args, **options)  # type: ignore[arg-type]


SIZES = [(64, 8, 256, 128), (16, 4, 80, 36), (60, 4, 512, 176)]
TOKENS = (0, 1, 9, 65, 1200)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("size", SIZES, ids=lambda s: "x".join(map(str, s)))
def test_values_are_those_of_float64(size: tuple[int, int, int, int], tokens: int) -> None:
    step = make(tokens, *size)
    with uninitialised_is_nan():
        check(ours(*step), step)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes_are_as_exact_as_they_can_be(dtype: torch.dtype) -> None:
    for tokens in (1, 40, 700):
        step = make(tokens, 16, 4, 256, 128, dtype)
        check(ours(*step), step)


@pytest.mark.parametrize("tokens", [1, 33, 900])
def test_the_results_of_the_ranks_add_up_to_the_whole(tokens: int) -> None:
    whole = make(tokens, 16, 8, 256, 128)
    for first, count in ((0, 4), (4, 5), (9, 7)):
        here = slice(first, first + count)
        part = whole._replace(w13=whole.w13[here].contiguous(), w2=whole.w2[here].contiguous())
        table = table_of(16, first, count)
        with uninitialised_is_nan():
            check(ours(*part, "silu", table), part, table)
            check(grouped_experts(*part, "silu", table), part, table)


@pytest.mark.parametrize("tokens", [1, 5, 64, 700])
def test_torchs_grouped_product_gives_the_same_values(tokens: int) -> None:
    step = make(tokens, 64, 8, 256, 128)
    check(grouped_experts(*step), step)


def test_every_token_to_one_expert_and_experts_without_a_token() -> None:
    step = make(500, 32, 1, 256, 128)
    step.ids.fill_(31)
    check(ours(*step), step)
    wide = step._replace(ids=torch.full_like(step.ids, 7).long())
    check(ours(*wide), wide)


@pytest.mark.parametrize("tokens", [3, 130, 1500])
def test_a_rows_bits_do_not_depend_on_the_batch(tokens: int) -> None:
    step = make(tokens, 64, 8, 512, 192)
    whole = ours(*step, fixed=True)
    check(whole, step)
    for rows in (slice(0, 1), slice(tokens // 2, tokens // 2 + 1), slice(1, tokens), slice(0, tokens // 3 + 1)):
        part = step._replace(x=step.x[rows], weights=step.weights[rows], ids=step.ids[rows])
        assert torch.equal(ours(*part, fixed=True), whole[rows])
    order = torch.randperm(tokens, device=DEVICE)
    mixed = step._replace(x=step.x[order], weights=step.weights[order], ids=step.ids[order])
    assert torch.equal(ours(*mixed, fixed=True), whole[order])


@pytest.mark.parametrize("tokens", [1, 16, 700])
def test_a_graph_replays_with_other_experts_and_nothing_waits_for_the_device(tokens: int) -> None:
    step, other = make(tokens, 64, 8, 256, 128), make(tokens, 64, 8, 256, 128)
    other.ids.copy_(other.ids.flip(0).add(7).remainder(64))
    ours(*step)
    grouped_experts(*step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mode says that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        ours(*step)
        grouped_experts(*step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = ours(*step)
    for mine, new in zip(step, other, strict=True):
        mine.copy_(new)
    graph.replay()
    check(out, other)


@pytest.mark.parametrize("tokens", [1, 20, 600])
def test_8_bit_floats_are_close_to_the_definition(tokens: int) -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU that multiplies float8_e4m3fn")
    step = make(tokens, 32, 4, 512, 256)
    stored = []
    for w in (step.w13, step.w2):
        scale = w.float().abs().amax(-1) / 448.0
        stored.append(((w.float() / scale[..., None]).to(torch.float8_e4m3fn), scale))
    (w13, s13), (w2, s2) = stored
    args = (step.x, w13, w2, step.weights, step.ids, "silu", None, s13, s2)
    got, want, (_, size) = ours(*args), definition(*args), exact(step)
    # A row between the products may round to the next 8-bit float where float32 sums differ in their last bits.
    worst = float(((got.double() - want.double()).abs() / (size + 1e-2)).max())
    assert worst <= 0.03, worst
    assert bool(((want.double() - exact(step)[0]).abs() <= 0.1 * size).all())
    assert torch.equal(ours(*args, fixed=True)[:1], ours(args[0][:1], w13, w2, step.weights[:1], step.ids[:1],
                                                         "silu", None, s13, s2, fixed=True))  # fmt: skip


def test_a_layer_takes_triton_and_is_one_node_of_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from opdock.nn.layers import ReplicatedLinear
    from opdock.nn.moe import FusedMoE

    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    with opdock.set_current_config(), torch.device(DEVICE):
        gate = ReplicatedLinear(256, 16, bias=False, params_dtype=torch.bfloat16)
        layer = FusedMoE(16, 4, 256, 128, torch.bfloat16, gate=gate, prefix="layer")
    assert layer.served_by == "triton", layer.selection.lines()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.05)
    x = torch.randn(12, 256, device=DEVICE).bfloat16()
    with torch.inference_mode():
        want = layer(x)
        got = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("tokens", [0, 1, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("experts", "top_k", "groups"),
    [(8, 2, (1, 1, "max")), (60, 4, (1, 1, "max")), (160, 6, (8, 3, "max")), (256, 8, (8, 4, "top2"))],
)
def test_the_choice_is_that_of_the_definition(
    experts: int, top_k: int, groups: tuple[int, int, str], dtype: torch.dtype, tokens: int
) -> None:
    from opdock.nn.kernels.triton import moe_route
    from opdock.nn.moe import Routing, route

    torch.manual_seed(experts)
    logits, bias = torch.randn(tokens, experts, device=DEVICE).to(dtype), torch.randn(experts, device=DEVICE)
    logits[:1] = 1.0  # ties
    for scoring in ("softmax", "sigmoid"):
        for given in (None, bias):
            routing = Routing(experts, top_k, scoring, True, 2.5, *groups)
            want, want_ids = route(logits, routing, given)
            got, ids = moe_route.route(
                logits,
                given,
                top_k=top_k,
                sigmoid=scoring == "sigmoid",
                renormalize=True,
                scaling=2.5,
                groups=groups[0],
                topk_groups=groups[1],
                top2=groups[2] == "top2",
            )
            assert torch.equal(ids.sort(-1).values, want_ids.sort(-1).values)
            torch.testing.assert_close(got.sort(-1).values, want.sort(-1).values, rtol=1e-5, atol=1e-7)
            assert torch.equal(ids[:1], want_ids[:1])


@pytest.mark.parametrize("kind", ["experts", "latent attention"])
def test_a_batch_of_a_mixture_replays_graphs_and_gives_the_tokens_of_eager_steps(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opdock.nn.batch import Batch
    from opdock.nn.loading import build_model
    from opdock.nn.models.config import ModelConfig
    from opdock.nn.models.facts import LatentConfig, MixtureConfig

    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    latent = LatentConfig(48, 32, 16, 32, q_rank=40) if kind != "experts" else None
    config = ModelConfig(
        architecture="DeepseekV3ForCausalLM" if latent else "Qwen3MoeForCausalLM",
        vocab_size=200,
        hidden_size=128,
        intermediate_size=256,
        num_layers=3,
        num_heads=4,
        num_kv_heads=4 if latent else 2,
        head_dim=16 if latent else 64,
        rms_norm_eps=1e-6,
        max_position=64,
        mixture=MixtureConfig(16, 4, 64, frozenset({1, 2}), shared_size=64, num_groups=4, topk_groups=2),
        latent=latent,
    )
    with opdock.set_current_config():
        model = build_model(config, torch.float32, torch.device(DEVICE))
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
        prompts = [[5, 9, 100], [7], [40, 41, 42, 43, 44, 45, 46], [3, 199]]
        made = []
        for graphs in (False, True):
            with Batch(model, max_requests=4, max_len=32, graphs=graphs) as batch:
                made.append(batch.generate(prompts, max_tokens=10))
    assert made[0] == made[1]
    assert len({tuple(tokens) for tokens in made[0]}) > 1


@pytest.mark.parametrize("tokens", [1, 30, 1000])
def test_a_slot_without_an_expert_adds_nothing(tokens: int) -> None:
    step = make(tokens, 64, 8, 256, 128)
    step.ids[::3, 2] = -1
    with uninitialised_is_nan():
        check(ours(*step), step)
        check(grouped_experts(*step), step)
