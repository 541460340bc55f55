"""The layer: what it refuses, ranks, weights, its router and shared expert, compiled code, batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import opdock
from opdock.config import KernelConfig, OpdockConfig
from opdock.errors import CheckpointError, ConfigError, UnsupportedError
from opdock.nn.layers import ReplicatedLinear
from opdock.nn.moe import ExpertInputs, FusedMoE, MoEBackend, MoEProblem, moe_backends, register_moe_backend
from opdock.nn.report import backends, describe, recording

HIDDEN, INNER, EXPERTS, TOP_K = 32, 16, 6, 2


def layer(**changes: Any) -> FusedMoE:
    """Return a layer with random weights."""
    made = FusedMoE(**{
        "num_experts": EXPERTS,
        "top_k": TOP_K,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "prefix": "model.layers.4.mlp",
        "gate": ReplicatedLinear(HIDDEN, EXPERTS, bias=False),
        **changes,
    })  # fmt: skip
    torch.manual_seed(1)
    for parameter in made.parameters():
        if parameter.dtype.itemsize > 1:
            nn.init.normal_(parameter, 0.0, 0.2)
    return made


def by_hand(made: FusedMoE, x: torch.Tensor) -> torch.Tensor:
    """Return the experts' sum of softmax routing with renormalised weights, in float64."""
    scores = F.linear(x.double(), made.gate.weight.double()).softmax(-1)
    out = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(x.shape[0]):
        weights, ids = scores[t].topk(TOP_K)
        for w, e in zip(weights / weights.sum(), ids.tolist(), strict=True):
            first = made.w13_weight[e].double() @ x[t].double()
            out[t] += w * (made.w2_weight[e].double() @ (F.silu(first[:INNER]) * first[INNER:]))
    return out


@pytest.mark.parametrize("name", ["auto", "native", "torch_grouped"])
def test_the_output_is_the_weighted_sum_of_the_chosen_experts(config: Any, name: str) -> None:
    made, x = layer(moe_backend=name), torch.randn(7, HIDDEN)
    torch.testing.assert_close(made(x).double(), by_hand(made, x), rtol=0, atol=2e-6)
    torch.testing.assert_close(made(x, made.gate(x)[0]), made(x), rtol=0, atol=0)


def test_the_shared_expert_is_added_times_its_gate(config: Any) -> None:
    shared, gate = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 1)
    made, x = layer(shared_experts=shared, shared_expert_gate=gate), torch.randn(5, HIDDEN)
    want = by_hand(made, x) + (torch.sigmoid(gate(x)) * shared(x)).double()
    torch.testing.assert_close(made(x).double(), want, rtol=0, atol=3e-6)


def test_a_correction_bias_moves_the_choice_and_not_the_weights(config: Any) -> None:
    made, x = layer(correction_bias=True, renormalize=False, scoring_func="sigmoid"), torch.randn(1, HIDDEN)
    made.e_score_correction_bias.data.copy_(torch.tensor([0.0, 9.0, 0.0, 0.0, 9.0, 0.0]))
    scores = made.gate(x)[0].sigmoid()[0]
    want = torch.zeros(HIDDEN)
    for e in (1, 4):
        first = made.w13_weight[e] @ x[0]
        want += scores[e] * (made.w2_weight[e] @ (F.silu(first[:INNER]) * first[INNER:]))
    torch.testing.assert_close(made(x)[0], want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", ["native", "torch_grouped"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_experts_and_their_results_add_up(config: Any, ranks: int, name: str) -> None:
    """Six experts over four ranks: two, two, one, one; the shared expert is in the first rank's result."""
    gate, shared = ReplicatedLinear(HIDDEN, EXPERTS, bias=False), nn.Linear(HIDDEN, HIDDEN)
    common = {"gate": gate, "shared_experts": shared}
    parts = [layer(ep_size=ranks, ep_rank=rank, moe_backend=name, **common) for rank in range(ranks)]
    whole, x = layer(**common), torch.randn(9, HIDDEN)
    for part in parts:
        for e in range(EXPERTS):  # those elsewhere are left out
            part.weight_loader(part.w13_weight, whole.w13_weight[e, :INNER], ("w1", e))
            part.weight_loader(part.w13_weight, whole.w13_weight[e, INNER:], ("w3", e))
            part.weight_loader(part.w2_weight, whole.w2_weight[e], ("w2", e))
    total, held = sum(part(x) for part in parts), [part.local_experts for part in parts]
    assert held == {2: [3, 3], 4: [2, 2, 1, 1]}[ranks]
    torch.testing.assert_close(total, whole(x), rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"top_k": 7}, ConfigError, "7 of 6 experts"),
        ({"num_expert_group": 4}, ConfigError, "4 groups of equal size"),
        ({"scoring_func": "sigmoyd"}, ConfigError, "Did you mean 'sigmoid'"),
        ({"moe_backend": "trition"}, ConfigError, "Did you mean 'triton'"),
        ({"moe_backend": "torch_grouped", "params_dtype": torch.float64}, UnsupportedError, "rows of float64"),
        ({"activation": "relu2"}, UnsupportedError, "native: no activation 'relu2': it has silu, gelu"),
        ({"weight_dtype": torch.int8}, UnsupportedError, "native: matrices of int8 for rows of float32"),
        ({"weight_dtype": torch.float16}, UnsupportedError, "native: matrices of float16 for rows of float32"),
        ({"params_dtype": torch.int32}, UnsupportedError, "native: rows of int32"),
        ({"params_dtype": torch.float8_e4m3fn}, UnsupportedError, "native: rows of float8_e4m3fn"),
        ({"intermediate_size": 0}, ConfigError, "intermediate_size is 0"),
        ({"ep_size": 7}, ConfigError, "Rank 0 of 7"),
        ({"ep_size": 2, "ep_rank": 2}, ConfigError, "Rank 2 of 2"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_built_with_the_layers_name(
    config: Any, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        layer(**changes)
    assert "model.layers.4.mlp" in str(caught.value)


def test_the_configuration_says_which_backend() -> None:
    with opdock.set_current_config(OpdockConfig(kernel_config=KernelConfig(moe_backend="native"))):
        assert layer().served_by == "native"
    with (
        opdock.set_current_config(OpdockConfig(kernel_config=KernelConfig(moe_backend="nativ"))),
        pytest.raises(ConfigError, match="Did you mean 'native'"),
    ):
        layer()


def test_a_package_adds_a_backend_that_is_tried_first(config: Any) -> None:
    @register_moe_backend("doubling")
    class Doubling(MoEBackend):
        @classmethod
        def why_not(cls, problem: MoEProblem) -> str:
            return "" if problem.hidden_size == HIDDEN else "another size"

        @classmethod
        def apply(cls, problem: MoEProblem, given: ExpertInputs) -> torch.Tensor:
            return given.x * 2

    try:
        made, x = layer(), torch.randn(3, HIDDEN)
        assert torch.equal(made(x), x * 2)
        assert describe(made)[0::2] == ("fused_moe", "doubling")
        assert layer(hidden_size=64, gate=None).served_by == "torch_grouped"
    finally:
        moe_backends.unregister("doubling")
    assert layer().served_by == "torch_grouped"


def test_the_report_says_of_each_layer_which_backend_runs_and_why_no_other(config: Any) -> None:
    model = nn.Sequential(layer(), nn.ReLU(), layer(moe_backend="native"))
    found = backends(model)
    assert sorted(found) == ["0", "2"]
    assert [line.split()[0] for line in found["0"]] == ["triton", "torch_grouped", "native"]
    assert found["0"][1:] == ["torch_grouped  chosen", "native         torch_grouped comes before it"]
    assert found["2"][0] == "native         chosen"
    assert "moe_backend='native' was asked for" in found["2"][1]
    with recording(model) as record:
        model(torch.randn(3, HIDDEN))
    assert [(row.op, row.method, row.calls) for row in record.rows() if row.op == "fused_moe"] == [
        ("fused_moe", "native", 1),
        ("fused_moe", "torch_grouped", 1),
    ]


def test_without_a_router_the_logits_must_be_given(config: Any) -> None:
    made = layer(gate=None)
    with pytest.raises(ConfigError, match="no router"):
        made(torch.randn(2, HIDDEN))
    assert made(torch.randn(2, HIDDEN), torch.randn(2, EXPERTS)).shape == (2, HIDDEN)


@pytest.mark.parametrize(
    ("shard", "shape", "words"),
    [
        (("w4", 0), (INNER, HIDDEN), "no shard"),
        (("w1", 6), (INNER, HIDDEN), "no shard"),
        (("w1", 2), (INNER + 1, HIDDEN), "expert 2 w1"),
        (("w2", 5), (INNER, HIDDEN), "expert 5 w2"),
    ],
)
def test_a_tensor_of_another_place_or_shape_is_refused(
    config: Any, shard: tuple[str, int], shape: tuple[int, int], words: str
) -> None:
    made = layer()
    param = made.w2_weight if shard[0] == "w2" else made.w13_weight
    with pytest.raises(CheckpointError, match=words) as caught:
        made.weight_loader(param, torch.zeros(shape), shard)
    assert "model.layers.4.mlp" in str(caught.value)


def test_compiled_code_holds_one_node_for_the_experts(config: Any) -> None:
    made, x = layer(), torch.randn(5, HIDDEN)
    graphs = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    with torch.inference_mode():
        got = torch.compile(made, backend=keep, fullgraph=True)(x)
    assert torch.equal(got, made(x))
    nodes = [n for n in graphs[0].graph.nodes if "moe_experts" in str(n.target)]
    assert len(nodes) == 1


def test_the_op_for_compiled_code_is_well_formed(config: Any) -> None:
    made, x = layer(), torch.randn(5, HIDDEN)
    logits = torch.randn(5, EXPERTS)
    args = (x, logits, None, made.w13_weight.data, made.w2_weight.data, None, None, None, made._number)
    torch.library.opcheck(torch.ops.opdock.moe_experts.default, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_invariance_gives_a_row_the_same_bits_in_any_batch(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """From given logits on; the router is a linear layer like others."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    with opdock.set_current_config():
        made = layer(params_dtype=dtype, gate=None)
    assert made.served_by == "native"
    x, logits = torch.randn(40, HIDDEN).to(dtype), torch.randn(40, EXPERTS).to(dtype)
    whole = made(x, logits)
    for rows in (slice(0, 1), slice(11, 12), slice(5, 33), slice(0, 39)):
        assert torch.equal(made(x[rows], logits[rows]), whole[rows])


@pytest.mark.parametrize(
    "shapes", [((3, HIDDEN), (3, 7)), ((3, HIDDEN), (3, 9)), ((3, HIDDEN), (2, 8)), ((3, 31), (3, 8))]
)
def test_rows_and_logits_that_do_not_fit_are_refused_with_the_layers_name(shapes: Any, config: Any) -> None:
    """Logits of an expert too many would route tokens to no expert without a word."""
    made = layer(prefix="layers.3.mlp")
    wide, narrow = (torch.randn(*shape) for shape in shapes)
    with pytest.raises(ConfigError, match=r"do not fit the experts[\s\S]*layers.3.mlp"):
        made(wide, narrow)


@pytest.mark.parametrize("name", ["native", "torch_grouped"])
def test_rows_of_another_dtype_than_the_experts_are_refused_with_the_layers_name(name: str, config: Any) -> None:
    """By every backend alike; a layer that was converted takes rows of its new dtype."""
    made = layer(prefix="layers.3.mlp", moe_backend=name)
    x, logits = torch.randn(3, HIDDEN), torch.randn(3, made.routing.num_experts)
    with pytest.raises(ConfigError, match=r"Rows of torch.bfloat16 do not fit experts of torch.float32[\s\S]*layers.3"):
        made(x.bfloat16(), logits)
    assert made.bfloat16()(x.bfloat16(), logits).dtype == torch.bfloat16


@pytest.mark.usefixtures("taken_back")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x.double(), "torch.float64"),
        (lambda x: x[:, :-1], r"\(3, \d+\)"),
        (lambda x: x.t().contiguous().t(), "strides"),
        (lambda x: x, "the rows themselves"),
        (lambda x: None, "NoneType"),
    ],
    ids=["dtype", "shape", "strides", "same", "nothing"],
)
def test_what_a_package_returns_is_looked_at(change: Any, words: str, config: Any, *, compiled: bool) -> None:
    """Compiled code would read the memory as something else."""

    @register_moe_backend("careless")
    class Careless(MoEBackend):
        @classmethod
        def why_not(cls, problem: MoEProblem) -> str:
            return ""

        @classmethod
        def apply(cls, problem: MoEProblem, given: ExpertInputs) -> torch.Tensor:
            return change(given.x)  # type: ignore[no-any-return]

    made = layer(prefix="layers.3.mlp", moe_backend="careless")
    call = torch.compile(made, backend="eager") if compiled else made
    x, logits = torch.randn(3, HIDDEN), torch.randn(3, made.routing.num_experts)
    with pytest.raises(RuntimeError, match=rf"'careless'[\s\S]*layer layers.3.mlp[\s\S]*Careless[\s\S]*{words}"):
        call(x, logits)
