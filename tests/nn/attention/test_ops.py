"""The two torch ops, eager and in compiled graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx

from opdock.errors import ConfigError, OrderError, UnknownNameError, UnsupportedError
from opdock.nn.attention import get_forward_context, set_forward_context
from opdock.nn.attention.backends.native import NativeAttentionBackend, NativeImpl
from opdock.testing.attention_cases import AttentionCase, Step

CASE = AttentionCase((1, 5, 2), (20, 5, 18), padding=1)


@pytest.fixture
def step() -> Step:
    return Step(CASE, "NATIVE", dtype=torch.float32, device="cpu")


def test_a_layer_is_one_node_of_a_compiled_graph_and_gives_eager_bits(step: Step) -> None:
    want, graphs = step.run(), list[fx.GraphModule]()

    def keep(graph: fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(step.layer, backend=keep, fullgraph=True)
    with torch.inference_mode(), set_forward_context(step.metadata, step.cache):
        got = compiled(step.query, step.key, step.value)
    assert torch.equal(got, want)
    names = [str(n.target) for n in graphs[0].graph.nodes if "unified" in str(n.target)]
    assert names == ["opdock.unified_attention_with_output"]


@pytest.mark.compiler
def test_inductor_keeps_the_caches_where_they_are(step: Step) -> None:
    keys = step.cache.tensors["layer"][0]
    torch._dynamo.reset()
    compiled = torch.compile(step.layer, fullgraph=True)
    with torch.inference_mode(), set_forward_context(step.metadata, step.cache):
        got = compiled(step.query, step.key, step.value)
    written = step.metadata.slot_mapping[0]
    assert torch.equal(keys.view(-1, 2, 64)[written], step.key[0].view(2, 64))
    torch.testing.assert_close(got.double(), step.expected(), atol=3e-5, rtol=0)


def test_the_schemas_declare_what_is_written() -> None:
    attend = torch.ops.opdock.unified_attention_with_output.default._schema
    written = [a.name for a in attend.arguments if a.alias_info is not None and a.alias_info.is_write]
    assert written == ["output", "key_cache", "value_cache"]
    update = torch.ops.opdock.unified_kv_cache_update.default._schema
    written = [a.name for a in update.arguments if a.alias_info is not None and a.alias_info.is_write]
    assert written == ["key_cache", "value_cache"]


def test_the_cache_may_be_written_by_an_op_of_its_own(step: Step) -> None:
    want = step.run()
    keys, values = step.cache.tensors["layer"]
    fresh = Step(CASE, "NATIVE", dtype=torch.float32, device="cpu")
    k, v = fresh.key.view(-1, 2, 64), fresh.value.view(-1, 2, 64)
    out = torch.empty(9, 4, 64)
    with set_forward_context(fresh.metadata, fresh.cache):
        tensors = fresh.cache.tensors["layer"]
        torch.ops.opdock.unified_kv_cache_update(k, v, *tensors, "layer")
        torch.ops.opdock.unified_attention_with_output(
            fresh.query.view(-1, 4, 64), k, v, out, "layer", *tensors, update_cache=False
        )
    assert torch.equal(out.flatten(1), want)
    assert torch.equal(tensors[0].nan_to_num(9.0), keys.nan_to_num(9.0))
    assert torch.equal(tensors[1].nan_to_num(9.0), values.nan_to_num(9.0))


def test_outside_a_step_the_paged_path_is_refused(step: Step) -> None:
    with pytest.raises(OrderError, match="outside a step"):
        step.layer(step.query, step.key, step.value)
    with pytest.raises(OrderError):
        get_forward_context()


def test_metadata_may_differ_by_layer_and_unknown_layers_are_refused(step: Step) -> None:
    want = step.run()
    with set_forward_context({"layer": step.metadata}, step.cache):
        assert torch.equal(step.layer(step.query, step.key, step.value), want)
    with (
        set_forward_context({"other": step.metadata}, step.cache),
        pytest.raises(UnknownNameError, match="no metadata for the layer 'layer'"),
    ):
        step.layer(step.query, step.key, step.value)
    with (
        set_forward_context(step.metadata, {"layers": step.layer}),
        pytest.raises(UnknownNameError, match="Did you mean 'layers'"),
    ):
        step.layer(step.query, step.key, step.value)


def test_rows_and_block_tables_that_do_not_fit_name_the_layer(step: Step) -> None:
    short = replace(step.metadata, block_table=step.metadata.block_table[:, :1])
    with set_forward_context(short, step.cache), pytest.raises(ConfigError, match="too short") as found:
        step.layer(step.query, step.key, step.value)
    assert "layer layer" in str(found.value)
    with set_forward_context(step.metadata, step.cache), pytest.raises(ConfigError, match="is given 3 rows"):
        step.layer(step.query[:3], step.key[:3], step.value[:3])


@pytest.mark.parametrize(("name", "bad"), [("slot_mapping", 10**6), ("block_table", 77), ("seq_lens", 99)])
def test_strict_mode_looks_at_every_slot_and_block(
    step: Step, name: str, bad: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPDOCK_STRICT", "1")
    tensor = getattr(step.metadata, name).clone()
    tensor.view(-1)[0] = bad
    with (
        set_forward_context(replace(step.metadata, **{name: tensor}), step.cache),
        pytest.raises(ConfigError, match=r"none of the cache|block table holds"),
    ):
        step.layer(step.query, step.key, step.value)


def test_a_quantised_output_is_refused_until_a_backend_has_it(step: Step) -> None:
    rows = step.query.view(-1, 4, 64)
    with set_forward_context(step.metadata, step.cache), pytest.raises(UnsupportedError, match="no quantised output"):
        torch.ops.opdock.unified_attention_with_output(
            rows, rows, rows, rows.clone(), "layer", *step.cache.tensors["layer"], torch.ones(())
        )


def test_slots_below_zero_write_nothing_anywhere() -> None:
    """Padding rows in front, in between and behind."""
    step = Step(AttentionCase((1, 1, 1), (1, 1, 1)), "NATIVE", dtype=torch.float32, device="cpu")
    slots = step.metadata.slot_mapping.clone()
    slots[1] = -1
    keys = step.cache.tensors["layer"][0]
    before = keys.clone()
    k = step.key.view(-1, 2, 64)
    step.layer.impl.update_cache(k, k, *step.cache.tensors["layer"], replace(step.metadata, slot_mapping=slots))
    changed = (keys.nan_to_num(9.0) != before.nan_to_num(9.0)).any(-1).any(-1).view(-1).nonzero().flatten().tolist()
    assert changed == sorted([int(slots[0]), int(slots[2])])


class OwnMemory(NativeImpl):
    """Has its result in memory of its own where nothing is traced."""

    def prompts_alone(self, query: torch.Tensor, *_: Any) -> torch.Tensor | None:
        return torch.full_like(query, 3.0)


class Apart(NativeAttentionBackend):
    """Wants the cache to be written by the other op."""

    forward_includes_kv_cache_update = False


def test_eager_code_takes_a_result_that_a_kernel_allocated_and_compiled_code_does_not(step: Step) -> None:
    want, layer = step.run(), step.layer
    layer._impl = OwnMemory(layer.impl.spec, layer)
    assert bool((step.run() == 3.0).all())
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    with torch.inference_mode(), set_forward_context(step.metadata, step.cache):
        assert torch.equal(compiled(step.query, step.key, step.value), want)
    layer._direct = False  # a platform whose attention is one opaque op
    assert torch.equal(step.run(), want)


def test_a_backend_that_wants_two_ops_gets_two_nodes(step: Step) -> None:
    want, graphs = step.run(), list[fx.GraphModule]()
    step.layer.backend = Apart

    def keep(graph: fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch.inference_mode(), set_forward_context(step.metadata, step.cache):
        got = torch.compile(step.layer, backend=keep, fullgraph=True)(step.query, step.key, step.value)
    assert torch.equal(got, want)
    names = [str(n.target) for n in graphs[0].graph.nodes if "unified" in str(n.target)]
    assert names == ["opdock.unified_kv_cache_update", "opdock.unified_attention_with_output"]
