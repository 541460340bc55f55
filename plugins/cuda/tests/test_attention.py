"""The attention backend of this package: when it is taken, and its results on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from opdock.errors import UnsupportedError
from opdock.nn.attention import AttentionMetadata, AttentionSelectorConfig, set_forward_context
from opdock.nn.kernels import triton
from opdock.platforms.interface import DeviceCapability
from opdock.testing.attention_cases import AttentionCase, Step, cases, judge
from opdock_cuda import attention_choice
from opdock_cuda.attention import LONG, STEP, CudaAttentionBackend, prompts

PLAIN = AttentionSelectorConfig(128, torch.bfloat16, "auto", 16)


def _hopper() -> DeviceCapability:
    return DeviceCapability(9, 0)


def _ampere() -> DeviceCapability:
    return DeviceCapability(8, 0)


gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: CUDA finds none"),
    pytest.mark.skipif(bool(triton.why_not()), reason=f"needs Triton: {triton.why_not()}"),
]


def test_another_backend_that_is_asked_for_is_left_to_the_host() -> None:
    assert attention_choice.choose("SDPA", PLAIN, _hopper) == ""


def test_asked_for_by_name_it_is_given_and_the_host_says_what_does_not_fit() -> None:
    assert attention_choice.choose("CUDA_ATTN", PLAIN._replace(head_size=8), _hopper) == attention_choice.PATH


def test_it_is_left_out_where_it_does_not_fit() -> None:
    assert attention_choice.choose(None, PLAIN._replace(head_size=8), _hopper) == ""
    assert attention_choice.choose(None, PLAIN._replace(block_size=8), _hopper) == ""


@pytest.mark.skipif(bool(triton.why_not()), reason=f"needs Triton: {triton.why_not()}")
def test_it_is_taken_where_triton_is_there() -> None:
    assert attention_choice.choose(None, PLAIN, _hopper) == attention_choice.PATH


@pytest.mark.skipif(bool(triton.why_not()), reason=f"needs Triton: {triton.why_not()}")
def test_a_cache_of_e4m3_is_left_to_the_host_where_triton_cannot_read_it() -> None:
    config = PLAIN._replace(kv_cache_dtype="fp8_e4m3")
    assert attention_choice.choose(None, config, _hopper) == attention_choice.PATH
    assert attention_choice.choose(None, config, _ampere) == ""


def test_long_prompts_without_a_prefix_are_found_by_their_rows() -> None:
    metadata = AttentionMetadata.build(
        query_lens=[1, LONG, LONG, LONG - 1],
        seq_lens=[9, LONG, LONG + 1, LONG - 1],
        block_tables=[[0] * 99] * 4,
        block_size=16,
    )
    assert prompts(metadata) == [(1, LONG)]
    assert prompts(replace(metadata, query_lens=None, context_lens=None)) == []


def test_the_backends_facts_are_those_of_triton() -> None:
    assert CudaAttentionBackend.validate_configuration(PLAIN) == []
    assert CudaAttentionBackend.validate_configuration(PLAIN._replace(head_size=512)) == ["head_size not supported"]


@pytest.fixture(scope="module")
def on_gpu() -> Iterator[None]:
    import opdock
    from opdock_cuda.platform import CudaPlatform

    CudaPlatform.register_oot()
    with opdock.set_current_config():
        yield


PARTS = {torch.bfloat16: ((16, 1), (64, 4)), torch.float16: ((48, 3),), torch.float32: ((16, 4),)}
"""For each dtype, sizes of blocks, and which share of the grid runs with them: every case, every third ..."""


def _wrong(backend: str, dtype: torch.dtype) -> list[str]:
    """Return what is wrong in which case; cases run in threads, for the sake of the compiler."""
    chosen = [case for size, nth in PARTS[dtype] for case in list(cases(block_size=size))[::nth]]

    def one(case: AttentionCase) -> str:
        miss = judge(case, backend, dtype=dtype, device="cuda")
        return f"{case}: {miss}" if miss else ""

    with ThreadPoolExecutor(12) as pool:
        return [miss for miss in pool.map(one, chosen) if miss]


class TestOnAGpu:
    """Against float64, with NaN in unwritten slots."""

    pytestmark = gpu

    @pytest.mark.parametrize("dtype", PARTS, ids=str)
    @pytest.mark.parametrize("backend", ["TRITON_ATTN", "CUDA_ATTN"])
    def test_results_equal_the_formula(self, on_gpu: None, backend: str, dtype: torch.dtype) -> None:
        assert not _wrong(backend, dtype)

    @pytest.mark.parametrize("backend", ["TRITON_ATTN", "CUDA_ATTN"])
    def test_long_requests_equal_the_formula(self, on_gpu: None, backend: str) -> None:
        for case in (
            AttentionCase((1, 1, 33), (8192, 8191, 8192), heads=8, head_size=128),
            AttentionCase((8192,), (8192,), heads=2, kv_heads=1),
            AttentionCase((1, 600, 3, LONG, 700), (4000, 600, 3, LONG, 900), heads=8, head_size=128, padding=5),
            AttentionCase((STEP * 3, STEP * 3), (STEP * 3, STEP * 3), heads=8, head_size=128),
        ):
            assert judge(case, backend, dtype=torch.bfloat16, device="cuda") == "", str(case)

    def test_a_request_has_its_bits_in_any_batch_where_that_is_asked_for(
        self, on_gpu: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
        lens, totals = (1, 300, 1, 40, 1, 600), (5000, 700, 33, 40, 2049, 600)
        step = Step(
            AttentionCase(lens, totals, heads=8, head_size=128), "CUDA_ATTN", dtype=torch.bfloat16, device="cuda"
        )
        together, row = step.run(), 0
        for request, (new, total) in enumerate(zip(lens, totals, strict=True)):
            alone = AttentionMetadata.build(
                query_lens=[new], seq_lens=[total], block_tables=[step.tables[request]], block_size=16, device="cuda"
            )
            part = slice(row, row + new)
            with set_forward_context(alone, step.cache):
                got = step.layer(step.query[part], step.key[part], step.value[part])
            assert torch.equal(got, together[part])
            row += new

    def test_a_captured_step_follows_lengths_that_change(self, on_gpu: None) -> None:
        """A graph for up to 4,096 positions, replayed for other lengths and for fewer requests."""
        case = AttentionCase((1,) * 4, (4096, 100, 17, 1), heads=8, head_size=128)
        step = Step(case, "CUDA_ATTN", dtype=torch.bfloat16, device="cuda")
        fixed = replace(step.metadata, query_lens=None, context_lens=None)
        with torch.inference_mode(), set_forward_context(fixed, step.cache):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step.layer(step.query, step.key, step.value)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = step.layer(step.query, step.key, step.value)
        for lens in ((4096, 100, 17, 1), (2000, 50, 0, 1), (15, 0, 0, 0), (4096, 100, 17, 1)):
            fixed.seq_lens.copy_(torch.tensor(lens, dtype=torch.int32))
            fixed.slot_mapping.fill_(-1)
            graph.replay()
            step.case = replace(case, seq_lens=lens)
            assert (out.double() - step.expected()).abs().max() < 2.5e-2

    def test_one_node_compiles_and_gives_eager_results(self, on_gpu: None) -> None:
        step = Step(
            AttentionCase((1, 20), (60, 20), heads=8, head_size=128), "CUDA_ATTN", dtype=torch.bfloat16, device="cuda"
        )
        want = step.run()
        torch._dynamo.reset()
        compiled = torch.compile(step.layer, backend="opdock_eager", fullgraph=True)
        with torch.inference_mode(), set_forward_context(step.metadata, step.cache):
            assert torch.equal(compiled(step.query, step.key, step.value), want)

    def test_what_does_not_fit_is_refused(self, on_gpu: None) -> None:
        with pytest.raises(UnsupportedError, match="head_size not supported"):
            Step(AttentionCase((1,), (1,), head_size=8), "CUDA_ATTN", dtype=torch.bfloat16, device="cuda")
