"""Which backend a layer gets, and why not the others."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import opdock
from opdock.errors import ConfigError, RegistrationError, UnknownNameError, UnsupportedError
from opdock.nn.attention import (
    Attention,
    AttentionBackend,
    AttentionSelectorConfig,
    MultipleOf,
    PagedKVCache,
    get_attn_backend,
    register_backend,
    unregister_backend,
)
from opdock.nn.attention.backends.native import NativeAttentionBackend, NativeImpl
from opdock.nn.attention.selector import choose_backend, explain_backends, select
from opdock.nn.kernels import triton
from opdock.platforms.cpu import CpuPlatform

pytestmark = pytest.mark.usefixtures("config")


class Picky(AttentionBackend):
    """Takes next to nothing."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["float16"]

    @staticmethod
    def get_name() -> str:
        return "PICKY"

    @staticmethod
    def get_impl_cls() -> Any:
        return NativeImpl

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int | MultipleOf]:
        return [8, MultipleOf(32)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [64]

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return False

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False

    @classmethod
    def supports_combination(cls, config: Any, device_capability: Any) -> str | None:
        return "not on a Monday"


EVERYTHING = AttentionSelectorConfig(
    40, torch.float32, "fp8_e4m3", 16, True, True, True, True, True, "encoder", *[True] * 10
)


def test_every_reason_is_given_in_the_contracts_order() -> None:
    assert Picky.validate_configuration(EVERYTHING) == [
        "head_size not supported",
        "dtype not supported",
        "kv_cache_dtype not supported",
        "block_size not supported",
        "partial multimodal token full attention not supported",
        "MLA not supported",
        "attention sinks not supported",
        "sparse not supported",
        "per-head quant scales not supported",
        "compute capability not supported",
        "attention type encoder not supported",
        "sliding window not supported",
        "R-SWA not supported",
        "non-causal attention not supported",
        "non-causal MLA attention with DCP not supported",
        "batch invariance not supported",
        "KV connector not supported",
        "PCP not supported",
        "DCP not supported",
        "device-cpu query lens mismatch not supported, this is needed for adaptive verification",
        "ALiBi and logits soft cap not supported",
        "not on a Monday",
    ]


def test_what_a_latent_or_sparse_backend_does_not_take_is_plain_attention() -> None:
    class Latent(Picky):
        @classmethod
        def is_mla(cls) -> bool:
            return True

        @classmethod
        def is_sparse(cls) -> bool:
            return True

    reasons = Latent.validate_configuration(AttentionSelectorConfig(64, torch.float16, None, None))
    assert "non-MLA not supported" in reasons
    assert "non-sparse not supported" in reasons


@pytest.mark.parametrize(("size", "fits"), [(8, True), (32, True), (96, True), (16, False), (None, True)])
def test_block_sizes_are_single_numbers_or_multiples(size: int | None, fits: bool) -> None:
    assert Picky.supports_block_size(size) is fits


def test_each_candidate_has_a_verdict_and_the_first_that_fits_is_chosen() -> None:
    config = AttentionSelectorConfig(40, torch.float32, "auto", 16)
    candidates = [("GONE", ImportError("no acme")), ("PICKY", Picky), ("NATIVE", NativeAttentionBackend)]
    chosen, verdicts = choose_backend(candidates, config, device_type="cpu", capability=None)
    assert chosen is NativeAttentionBackend
    assert [v.name for v in verdicts] == ["GONE", "PICKY", "NATIVE"]
    assert verdicts[0].reasons == ("ImportError: no acme",)
    assert "dtype not supported" in verdicts[1].reasons
    assert verdicts[2].reasons == ()


def test_the_host_explains_its_choice_on_a_cpu() -> None:
    chosen, verdicts = explain_backends(AttentionSelectorConfig(64, torch.float32, "auto", 16))
    reasons = {v.name: v.reasons for v in verdicts}
    assert chosen is not None
    assert chosen.get_name() == "SDPA"
    assert reasons["SDPA"] == ()
    assert reasons["TRITON_ATTN"]


def test_features_leave_the_backends_out_that_lack_them() -> None:
    assert get_attn_backend(64, torch.float32).get_name() == "SDPA"
    assert get_attn_backend(64, torch.float32, has_sink=True).get_name() == "NATIVE"


def test_forced_and_unsupported_is_an_error_with_the_reasons() -> None:
    with pytest.raises(UnsupportedError, match=r"Selected backend SDPA is not valid.*attention sinks not supported"):
        get_attn_backend(64, torch.float32, has_sink=True, backend="SDPA")


def test_forced_by_a_layer_names_the_layer() -> None:
    from opdock.nn.attention import PagedKVCache

    layer = Attention(4, 40, 1.0, prefix="model.layers.3.attn", logits_soft_cap=2.0, attn_backend="SDPA")
    with pytest.raises(UnsupportedError, match="soft cap") as found:
        PagedKVCache({"a": layer}, num_blocks=1)
    assert "model.layers.3.attn" in str(found.value)


def test_an_unknown_backend_is_refused_when_the_layer_is_built() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'SDPA'") as found:
        Attention(4, 40, 1.0, prefix="model.layers.3.attn", attn_backend="SPDA")
    assert "model.layers.3.attn" in str(found.value)


def test_nothing_is_remembered_between_selections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "0")
    register_backend("PICKY", f"{__name__}:Picky")
    with pytest.raises(UnsupportedError, match="PICKY"):
        get_attn_backend(64, torch.float16, backend="PICKY")
    unregister_backend("PICKY")
    with pytest.raises(UnknownNameError):
        get_attn_backend(64, torch.float16, backend="PICKY")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert get_attn_backend(64, torch.float32).supports_batch_invariance()


def test_a_backend_whose_import_fails_is_an_error_with_the_cause() -> None:
    register_backend("GONE_ATTN", "no_such_module_of_acme:Backend")
    with pytest.raises(UnsupportedError, match="ModuleNotFoundError") as found:
        get_attn_backend(64, torch.float32, backend="GONE_ATTN")
    assert isinstance(found.value.__cause__, ImportError)
    unregister_backend("GONE_ATTN")


class Raising(NativeAttentionBackend):
    """Installed, and broken."""

    @staticmethod
    def get_name() -> str:
        return "RAISING_ATTN"

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        raise RuntimeError("driver too old\nand more")


BROKEN: dict[str, tuple[str, str]] = {
    "a module that is not there": ("no_such_module_of_acme:Backend", "ModuleNotFoundError: No module named"),
    "a module that raises": ("acme_raises:Backend", "RuntimeError: driver too old"),
    "a class that is not there": ("json:Backend", "RegistrationError: The module json has no class Backend"),
    "a class that is none": ("json:JSONDecoder", "RegistrationError: .*is no AttentionBackend"),
    "a class that raises": (f"{__name__}:Raising", "asked whether it fits, it raised RuntimeError: driver too old"),
}


@pytest.mark.usefixtures("taken_back")
@pytest.mark.parametrize("which", BROKEN)
def test_a_broken_backend_leaves_the_others_and_is_an_error_with_its_source_where_it_is_asked_for(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for by a layer, by a selection or by the platform; in reports it is a row like others."""
    (tmp_path / "acme_raises.py").write_text("raise RuntimeError('driver too old')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    path, words = BROKEN[which]
    register_backend("RAISING_ATTN", path)
    config = AttentionSelectorConfig(64, torch.float32, "auto", 16)
    assert select(config).get_name() == "SDPA"
    chosen, verdicts = explain_backends(config)
    assert chosen is not None and chosen.get_name() == "SDPA"
    assert re.match(words, next(v.reasons[0] for v in verdicts if v.name == "RAISING_ATTN"))

    def forced() -> None:
        PagedKVCache({"a": Attention(4, 40, 1.0, prefix="layers.3.attn", attn_backend="RAISING_ATTN")}, num_blocks=1)

    with pytest.raises(UnsupportedError, match=words) as found:
        forced()
    assert "layer layers.3.attn" in str(found.value) and "\nand more" not in str(found.value)
    with pytest.raises(UnsupportedError, match=words):
        select(config, backend="RAISING_ATTN")
    Own.answer = path
    with pytest.raises(UnsupportedError, match=words):
        select(config, platform=Own())


def test_bfloat16_is_not_left_to_tritons_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its products of it are wrong by many powers of ten."""
    monkeypatch.setattr(triton, "why_not", lambda: "")
    monkeypatch.setattr(triton, "interpreted", lambda: True)
    narrow = AttentionSelectorConfig(64, torch.bfloat16, "auto", 16)
    assert select(narrow._replace(dtype=torch.float32)).get_name() == "TRITON_ATTN"
    assert select(narrow).get_name() == "SDPA"
    with pytest.raises(UnsupportedError, match="interpreter multiplies bfloat16 wrongly"):
        select(narrow, backend="TRITON_ATTN")


class Computeless(NativeAttentionBackend):
    """Its impl is none."""

    @staticmethod
    def get_name() -> str:
        return "COMPUTELESS_ATTN"

    @staticmethod
    def get_impl_cls() -> Any:
        return dict


@pytest.mark.usefixtures("taken_back")
def test_a_backend_that_computes_nothing_is_an_error_with_the_layer_when_its_cache_is_bound() -> None:
    """And the layer is as before."""
    register_backend("COMPUTELESS_ATTN")(Computeless)
    layer = Attention(4, 40, 1.0, prefix="layers.3.attn", attn_backend="COMPUTELESS_ATTN")
    cache = PagedKVCache({"layers.3.attn": layer}, num_blocks=1)
    with pytest.raises(RegistrationError, match=r"COMPUTELESS_ATTN returns <class 'dict'>[\s\S]*layer layers.3.attn"):
        cache.bind()
    assert layer.served_by == "contiguous"


def test_backends_behind_the_first_that_fits_are_not_imported() -> None:
    """A package that nobody asks for costs no import."""
    register_backend("LATER_ATTN", "wave:Backend")
    sys.modules.pop("wave", None)
    try:
        select(AttentionSelectorConfig(64, torch.float32, "auto", 16))
        assert "wave" not in sys.modules
    finally:
        unregister_backend("LATER_ATTN")


def test_no_backend_at_all_gives_the_reasons_of_all() -> None:
    with pytest.raises(UnsupportedError, match=r"No valid attention backend found for cpu.*NATIVE: \[sparse"):
        get_attn_backend(64, torch.float32, use_sparse=True)


class Own(CpuPlatform):
    """A platform with a choice of its own."""

    answer: Any = ""

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, attn_selector_config: Any, num_heads: Any = None) -> str:
        return str(cls.answer)


def test_the_platforms_choice_comes_first_and_is_checked_too() -> None:
    config = AttentionSelectorConfig(64, torch.float32, "auto", 16)
    Own.answer = "opdock.nn.attention.backends.native.NativeAttentionBackend"
    assert select(config, platform=Own()) is NativeAttentionBackend
    with pytest.raises(UnsupportedError, match="the platform gives NATIVE instead"):
        select(config, platform=Own(), backend="SDPA")
    Own.answer = f"{__name__}:Picky"
    with pytest.raises(UnsupportedError, match="dtype not supported"):
        select(config, platform=Own())
    Own.answer = "nonsense"
    with pytest.raises(ConfigError, match="Invalid attention backend for cpu"):
        select(config, platform=Own())
    Own.answer = ""
    assert select(config, platform=Own()).get_name() == "SDPA"


def test_the_platform_in_force_is_the_one_of_the_configuration() -> None:
    with opdock.set_current_config():
        assert get_attn_backend(64, torch.float32).get_name() == "SDPA"
