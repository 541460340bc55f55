"""Attention by FlashInfer and FlashAttention: why not, what they are called with, and their results on a GPU."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar
from unittest import mock

import pytest
import torch

from opdock.errors import UnsupportedError
from opdock.nn.attention import AttentionBackend, AttentionMetadata, AttentionSelectorConfig, AttentionSpec, registry
from opdock.nn.attention.selector import explain_backends, select
from opdock.platforms.interface import DeviceCapability
from opdock.testing.attention_cases import AttentionCase, Step, cases, judge
from opdock_cuda import attention_choice, flash_attention, flashinfer
from opdock_cuda.flash_attention import Facts, FlashAttentionBackend
from opdock_cuda.flashinfer import FlashInferBackend, Pages, Shape
from opdock_cuda.optional_attention import Library, LibraryBackend, lens_of

HOPPER, TURING = DeviceCapability(9, 0), DeviceCapability(7, 5)
FITS = {
    FlashInferBackend: AttentionSelectorConfig(128, torch.bfloat16, "auto", 16, has_sliding_window=True),
    FlashAttentionBackend: AttentionSelectorConfig(96, torch.float16, "auto", 256, has_alibi=True, has_soft_cap=True),
}
BACKENDS = list(FITS)


def _reasons(backend: type[LibraryBackend], capability: DeviceCapability = HOPPER, **changed: object) -> list[str]:
    """Return the reasons against a configuration that would fit but for the changes; not that it is not installed."""
    found = backend.validate_configuration(FITS[backend]._replace(**changed), capability)
    return [reason for reason in found if "pip install" not in reason]


@pytest.fixture(autouse=True)
def registered_backends() -> Iterator[None]:
    new = [name for name in attention_choice.OPTIONAL if name not in registry.backends]
    for name in new:
        registry.register_backend(name, attention_choice.OPTIONAL[name])
    yield
    for name in new:
        registry.unregister_backend(name)


def test_a_library_that_is_not_installed_or_too_old_is_named_with_what_pip_installs() -> None:
    assert Library("nothing", "opdock-has-no-such-library", (2, 1)).why_not() == (
        'not installed: pip install "opdock-has-no-such-library>=2.1"'
    )
    assert "is too old: pip install" in Library("pytest", "pytest", (999,)).why_not()
    assert Library("pytest", "pytest", (1, 0)).why_not() == ""


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_its_library_a_backend_is_not_here_and_says_so_once(
    backend: type[LibraryBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Library("nothing", "opdock-has-no-such-library", (2, 1))
    monkeypatch.setattr(backend, "library", absent)
    assert backend.why_not_here("cuda") == absent.why_not()
    assert backend.why_not_here("cpu") == "no kernels for cpu tensors"
    assert backend.validate_configuration(FITS[backend], HOPPER).count(absent.why_not()) == 1


def test_a_library_that_cannot_be_imported_is_one_error_that_names_the_layer() -> None:
    with pytest.raises(UnsupportedError, match=r"opdock_no_module cannot be imported.\n  layer model.3\n  ModuleNot"):
        Library("opdock_no_module", "opdock-no-module", (1,)).load("model.3")


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_fits_has_no_reason_but_that_the_library_may_be_missing(backend: type[LibraryBackend]) -> None:
    assert _reasons(backend) == []
    absent = backend.library.why_not()
    assert backend.validate_configuration(FITS[backend], HOPPER) == ([absent] if absent else [])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"dtype": torch.float32}, "dtype not supported: float16 and bfloat16 are"),
        ({"head_size": 132}, "head_size not supported"),
        ({"has_sink": True}, "attention sinks not supported"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "kv_cache_dtype not supported"),
        ({"use_batch_invariant": True}, "batch invariance not supported"),
        ({"use_mla": True}, "MLA not supported"),
        ({"capability": TURING}, "compute capability not supported: 8.0 and later are"),
    ],
    ids=str,
)
def test_each_thing_that_neither_can_do_is_one_reason(
    backend: type[LibraryBackend], changed: dict[str, object], word: str
) -> None:
    (reason,) = _reasons(backend, **changed)  # type: ignore[arg-type]
    assert reason.startswith(word)


def test_what_only_one_of_them_can_do() -> None:
    (alibi,) = _reasons(FlashInferBackend, has_alibi=True)
    assert alibi.startswith("ALiBi not supported: ")
    assert _reasons(FlashInferBackend, head_size=96) == ["head_size not supported: 64, 128 and 256 are"]
    assert _reasons(FlashInferBackend, block_size=7, has_soft_cap=True) == []
    assert _reasons(FlashAttentionBackend, block_size=16) == ["block_size not supported: multiples of 256 are"]
    assert _reasons(FlashAttentionBackend, block_size=512) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_of_another_half_than_the_queries_is_a_reason(backend: type[LibraryBackend]) -> None:
    other = {torch.float16: "bfloat16", torch.bfloat16: "float16"}[FITS[backend].dtype]
    (reason,) = _reasons(backend, kv_cache_dtype=other)
    assert reason.startswith(f"a cache of {other} beside queries of")


def test_only_flashinfer_says_that_its_steps_cannot_be_captured() -> None:
    assert "plans each step on the host" in (FlashInferBackend.why_no_capture() or "")
    assert FlashAttentionBackend.why_no_capture() is None


def test_all_reasons_are_told_at_once() -> None:
    found = _reasons(FlashAttentionBackend, TURING, block_size=16, has_sink=True, dtype=torch.float32)
    assert len(found) == 4


def test_neither_is_chosen_where_nobody_asks_for_it() -> None:
    for config in FITS.values():
        chosen, verdicts = explain_backends(config, device_type="cuda")
        assert chosen is not None and chosen.get_name() not in attention_choice.OPTIONAL
        assert set(attention_choice.OPTIONAL) <= {verdict.name for verdict in verdicts}


@pytest.mark.parametrize("name", attention_choice.OPTIONAL)
def test_asked_for_where_it_does_not_fit_it_is_an_error_with_every_reason(name: str) -> None:
    config = AttentionSelectorConfig(132, torch.float32, "auto", 16, has_sink=True)
    with pytest.raises(UnsupportedError, match=r"head_size not supported.*dtype not supported.*sinks not supported"):
        select(config, backend=name, device_type="cuda")
    with pytest.raises(UnsupportedError, match="no kernels for cpu tensors"):
        select(config, backend=name, device_type="cpu")


def test_asking_why_not_imports_no_library() -> None:
    script = (
        "import sys, torch, opdock_cuda; from opdock_cuda import attention_choice, flashinfer, flash_attention;"
        "from opdock.nn.attention import AttentionSelectorConfig as C;"
        "[b.validate_configuration(C(128, torch.float16, 'auto', 256))"
        " for b in (flashinfer.FlashInferBackend, flash_attention.FlashAttentionBackend)];"
        "assert not {'flashinfer', 'flash_attn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_lengths_come_from_the_host_or_from_the_device() -> None:
    step = AttentionMetadata.build(query_lens=[3, 0, 1], seq_lens=[7, 2, 5], block_tables=[[0]] * 3, block_size=16)
    assert lens_of(step) == ([3, 0, 1], [7, 2, 5])
    assert lens_of(replace(step, query_lens=None, context_lens=None)) == ([3, 0, 1], [7, 2, 5])


def test_requests_are_counted_in_blocks_and_those_without_tokens_or_positions_left_out() -> None:
    query_lens, seq_lens = [2, 0, 1, 3, 1], [17, 4, 0, 3, 32]
    table = torch.arange(15).view(5, 3) + 100
    found = Pages.of(query_lens, seq_lens, 16, 3)
    assert found is not None
    assert found.query_starts.tolist() == [0, 2, 5, 6]
    assert found.page_starts.tolist() == [0, 2, 3, 5]
    assert found.last_page.tolist() == [1, 3, 16]
    assert table.flatten()[found.places].tolist() == [100, 101, 109, 112, 113]
    assert found.rows is not None and found.rows.tolist() == [0, 1, 3, 4, 5, 6]
    together = Pages.of([2, 0, 3], [17, 4, 3], 16, 3)
    assert together is not None and together.rows is None and together.tokens == 5
    assert Pages.of([0, 1], [3, 0], 16, 3) is None


def test_the_workspace_holds_what_two_programs_of_each_processor_leave() -> None:
    shape = Shape(64, 2, 256, 1.0, None, None, torch.bfloat16, 16)
    assert shape.workspace(132) > 2 * 132 * 128 * 32 * 256 * 4
    assert shape._replace(num_heads=2).workspace(132) == 128 << 20


def test_flash_attention_is_told_sums_of_positions_and_no_single_tokens_where_rows_may_be_missing() -> None:
    def facts(query_lens: list[int], seq_lens: list[int], *, known: bool = True) -> Facts:
        count = len(seq_lens)
        step = AttentionMetadata.build(
            query_lens=query_lens, seq_lens=seq_lens, block_tables=[[0]] * count, block_size=256
        )
        made = step if known else replace(step, query_lens=None, context_lens=None)
        found = Facts.of(made)
        assert (Facts.of(made) is found) == known  # without numbers on the host its tensors may change
        return found

    ones = facts([1, 1], [9, 4])
    assert ones.key_starts.tolist() == [0, 9, 13] and (ones.rows, ones.longest) == (2, 1)
    assert facts([1, 0], [9, 4]).longest == 2
    assert facts([5, 1], [9, 4]).longest == 5
    unknown = facts([1, 1], [9, 4], known=False)
    assert (unknown.rows, unknown.longest) == (None, 2) and unknown.key_starts.tolist() == [0, 9, 13]


def _absent(library: Library) -> str:
    return library.why_not() and f"needs {library.distribution}: {library.why_not()}"


@pytest.mark.skipif(bool(_absent(flashinfer.LIBRARY)), reason=_absent(flashinfer.LIBRARY))
def test_flashinfer_takes_the_calls_and_plans_a_step_once() -> None:
    """Its class with its signatures, without its kernels: on CPU tensors nothing is computed."""
    library = flashinfer.LIBRARY.load("layer")
    spec = AttentionSpec(8, 2, 128, 0.1, sliding_window=5, logits_soft_cap=3.0)
    step = AttentionMetadata.build(query_lens=[2, 1], seq_lens=[17, 5], block_tables=[[3, 4], [7]], block_size=16)
    cache = torch.zeros(9, 16, 2, 128, dtype=torch.bfloat16)
    query, output = torch.zeros(5, 8, 128, dtype=torch.bfloat16), torch.ones(5, 8, 128, dtype=torch.bfloat16)
    plans = flashinfer._Plans()
    with (
        mock.patch.object(library, "BatchPrefillWithPagedKVCacheWrapper", autospec=True) as made,
        mock.patch.object(flashinfer, "_plans", plans),
    ):
        for _ in range(3):
            impl = flashinfer.FlashInferImpl(spec, mock.Mock(prefix="layer"))
            impl.forward(query, query, query, cache, cache, step, output)
        wrapper = made.return_value
        assert (made.call_count, wrapper.plan.call_count, wrapper.run.call_count) == (1, 1, 3)
        args, options = wrapper.plan.call_args
        assert [a.tolist() for a in args] == [[0, 2, 3], [0, 2, 3], [3, 4, 7], [1, 5]]
        assert (options["window_left"], options["logits_soft_cap"], options["sm_scale"]) == (4, 3.0, 0.1)
        assert wrapper.run.call_args.args[0].shape[0] == 3 and not output[3:].any()
        impl.forward(query, query, query, cache, cache, replace(step), output)
        assert wrapper.plan.call_count == 2


@pytest.mark.skipif(
    bool(_absent(flash_attention.LIBRARY)) or not torch.cuda.is_available(),
    reason=_absent(flash_attention.LIBRARY) or "flash_attn needs CUDA to be imported",
)
def test_flash_attention_takes_the_call() -> None:
    function = flash_attention.LIBRARY.load("layer").flash_attn_varlen_func
    step = AttentionMetadata.build(query_lens=[2, 1], seq_lens=[17, 5], block_tables=[[3], [7]], block_size=256)
    tensor = torch.zeros(3, 8, 128)
    args, options = flash_attention.call(
        tensor, tensor, tensor, step, Facts.of(step), AttentionSpec(8, 2, 128, 1.0), None
    )
    inspect.signature(function).bind(*args, **options)


FEATURES = {"plain": {}, "window": {"window": 19}, "soft cap": {"soft_cap": 1.0}}


class TestOnAGpu:
    """Against float64, with NaN in unwritten slots; heads of one size, for each is compiled on its own."""

    pytestmark: ClassVar = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: CUDA finds none"),
    ]

    @pytest.fixture(autouse=True)
    def _platform(self) -> Iterator[None]:
        import opdock

        with opdock.set_current_config():
            yield

    @pytest.mark.parametrize("feature", FEATURES)
    @pytest.mark.parametrize(("backend", "block_size"), [(FlashInferBackend, 16), (FlashAttentionBackend, 256)])
    def test_results_equal_the_formula(self, backend: type[LibraryBackend], block_size: int, feature: str) -> None:
        _skip_without(backend)
        lens = dict.fromkeys((c.query_lens, c.seq_lens, c.padding, c.kv_heads) for c in cases(block_size=block_size))
        wrong = []
        for query_lens, seq_lens, padding, kv_heads in lens:
            case = AttentionCase(query_lens, seq_lens, block_size, kv_heads=kv_heads, head_size=128, padding=padding)
            case = replace(case, **FEATURES[feature])
            miss = judge(case, backend.get_name(), dtype=torch.bfloat16, device="cuda")
            wrong += [f"{case}: {miss}"] if miss else []
        assert not wrong

    def test_flash_attention_takes_slopes(self) -> None:
        _skip_without(FlashAttentionBackend)
        case = AttentionCase((1, 300), (700, 400), 256, head_size=128, alibi=True)
        assert judge(case, "FLASH_ATTN", dtype=torch.bfloat16, device="cuda") == ""

    def test_flashinfer_is_refused_under_capture(self) -> None:
        _skip_without(FlashInferBackend)
        step = Step(AttentionCase((1,), (40,), head_size=128), "FLASHINFER", dtype=torch.bfloat16, device="cuda")
        step.run()
        with pytest.raises(UnsupportedError, match="cannot be captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            step.run()


def _skip_without(backend: type[LibraryBackend]) -> None:
    absent = _absent(backend.library)
    if absent:
        pytest.skip(absent)


def test_both_are_backends_under_their_names() -> None:
    for name in attention_choice.OPTIONAL:
        found = registry.backend_class(name)
        assert issubclass(found, AttentionBackend) and found.get_name() == name
