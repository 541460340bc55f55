"""The choice of a backend: a pure function, with a verdict and a reason for each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from opdock.errors import ConfigError, DuplicateError, RegistrationError, UnsupportedError
from opdock.nn.kernels import triton
from opdock.nn.moe import MoEBackend, MoEProblem, moe_backends, register_moe_backend, select
from opdock.nn.moe import fused_moe as _in_tree  # noqa: F401 - registers the backends

PROBLEM = MoEProblem("cpu", "cpu", None, torch.float32, torch.float32, 8, 8, 2, 64, 32)
GPU = dataclasses.replace(
    PROBLEM, device_type="cuda", platform="cuda", capability=(9, 0), dtype=torch.bfloat16, weight_dtype=torch.bfloat16
)


def backend(name: str, reason: str = "", *, rank: int = 100, batch_invariant: bool = False) -> type[MoEBackend]:
    """Return a backend that says no for a reason, or serves everything."""

    class Fake(MoEBackend):
        @classmethod
        def why_not(cls, problem: MoEProblem) -> str:
            return reason

        @classmethod
        def apply(cls, *_: Any) -> torch.Tensor:
            return torch.empty(0)

    Fake.name, Fake.rank, Fake.batch_invariant = name, rank, batch_invariant
    return Fake


ALL = {
    "slow": backend("slow", rank=0, batch_invariant=True),
    "fast": backend("fast", rank=50),
    "odd": backend("odd", "rows of 64 numbers", rank=70),
}


def test_the_first_that_can_is_chosen_and_every_other_has_a_reason() -> None:
    found = select(PROBLEM, ALL)
    assert found.name == "fast"
    assert [(v.name, v.chosen, v.reason) for v in found.verdicts] == [
        ("odd", False, "rows of 64 numbers"),
        ("fast", True, ""),
        ("slow", False, "fast comes before it"),
    ]
    assert found.lines()[1] == "fast  chosen"


def test_a_backend_that_raises_when_it_is_asked_leaves_the_others() -> None:
    """Asked for by name it is an error with what it raised."""

    class Raising(ALL["slow"]):  # type: ignore[name-defined,misc]
        @classmethod
        def why_not(cls, problem: MoEProblem) -> str:
            raise RuntimeError("driver too old\nand more")

    Raising.rank = 200
    both = {**ALL, "raising": Raising}
    reason = "asked whether it can, it raised RuntimeError: driver too old"
    found = select(PROBLEM, both)
    assert found.name == "fast" and found.verdicts[0].reason == reason
    with pytest.raises(UnsupportedError, match=reason):
        select(PROBLEM, both, "raising", layer="layers.0.mlp")


def test_of_equal_rank_the_name_decides() -> None:
    assert select(PROBLEM, {"b": backend("b"), "a": backend("a")}).name == "a"


def test_batch_invariance_leaves_out_what_does_not_declare_it() -> None:
    found = select(dataclasses.replace(PROBLEM, batch_invariant=True), ALL)
    assert found.name == "slow"
    assert "VLLM_BATCH_INVARIANT" in found.verdicts[1].reason


def test_a_backend_that_is_asked_for_is_taken() -> None:
    assert select(PROBLEM, ALL, "slow").name == "slow"


def test_a_backend_that_is_asked_for_and_cannot_is_an_error_never_another() -> None:
    with pytest.raises(UnsupportedError, match="'odd' cannot serve this layer") as caught:
        select(PROBLEM, ALL, "odd", layer="model.layers.2.mlp")
    assert all(text in str(caught.value) for text in ("model.layers.2.mlp", "rows of 64 numbers", '"fast"'))


def test_an_unknown_backend_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'fast'. Known: auto, fast, odd, slow"):
        select(PROBLEM, ALL, "fasst")


def test_without_any_that_can_all_reasons_are_in_the_error() -> None:
    with pytest.raises(UnsupportedError, match="odd: rows of 64 numbers"):
        select(PROBLEM, {"odd": ALL["odd"]})


def test_the_same_problem_is_judged_anew_after_a_registration() -> None:
    """Nothing is remembered of a choice before."""
    before = select(PROBLEM, moe_backends.view).name
    entry = moe_backends.register("newcomer", backend("newcomer"))
    try:
        assert select(PROBLEM, moe_backends.view).name == "newcomer"
    finally:
        entry.undo()
    assert select(PROBLEM, moe_backends.view).name == before


def test_registering_checks_name_and_class() -> None:
    class Lacking(MoEBackend):
        pass

    for name, cls, words in (
        ("auto", ALL["fast"], "cannot be called"),
        ("lacking", Lacking, "defines no apply, why_not"),
        ("nothing", int, "is no MoE backend"),
    ):
        with pytest.raises(RegistrationError, match=words):
            register_moe_backend(name)(cls)  # type: ignore[type-var]
        assert name not in moe_backends
    with pytest.raises(DuplicateError, match="Duplicate MoE backend name: native"):
        moe_backends.register("native", ALL["fast"])


def test_a_backend_that_cannot_be_called_as_layers_call_it_is_refused_with_both_signatures() -> None:
    class Long(backend("long")):  # type: ignore[misc]
        @classmethod
        def apply(cls, problem: MoEProblem, x: torch.Tensor, w13: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(RegistrationError, match=r"apply\(\) of the MoE backend 'long'[\s\S]*given[\s\S]*w13"):
        register_moe_backend("long")(Long)
    assert "long" not in moe_backends


@pytest.mark.parametrize(
    ("changes", "chosen", "words"),
    [
        ({}, "torch_grouped", "device type 'cuda'"),
        ({"dtype": torch.float64, "weight_dtype": torch.float64}, "native", "rows of float64"),
        ({"hidden_size": 66, "intermediate_size": 33}, "native", "multiple of 16 bytes"),
        ({"weight_dtype": torch.float8_e4m3fn}, "native", "float8_e4m3fn"),
        ({"batch_invariant": True}, "native", "VLLM_BATCH_INVARIANT"),
    ],
)
def test_on_a_cpu_torchs_product_comes_before_the_definition(
    changes: dict[str, Any], chosen: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "why_not", lambda: "")
    monkeypatch.setattr(triton, "interpreted", lambda: False)
    found = select(dataclasses.replace(PROBLEM, **changes), moe_backends.view)
    assert found.name == chosen
    assert words in " ".join(v.reason for v in found.verdicts)


def test_bfloat16_is_not_left_to_tritons_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its products of it are wrong by many powers of ten."""
    monkeypatch.setattr(triton, "why_not", lambda: "")
    monkeypatch.setattr(triton, "interpreted", lambda: True)
    narrow = dataclasses.replace(PROBLEM, dtype=torch.bfloat16, weight_dtype=torch.bfloat16)
    assert select(PROBLEM, moe_backends.view).name == "triton"
    found = select(narrow, moe_backends.view)
    assert found.name == "torch_grouped" and "interpreter" in found.verdicts[0].reason
    with pytest.raises(UnsupportedError, match="interpreter multiplies bfloat16 wrongly"):
        select(narrow, moe_backends.view, "triton")


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, "triton"),
        ({"batch_invariant": True}, "triton"),
        ({"platform": "rocm", "capability": (9, 4)}, "triton"),
        ({"weight_dtype": torch.float8_e4m3fn}, "triton"),
        ({"weight_dtype": torch.float8_e4m3fn, "capability": (8, 0)}, "native"),
        ({"weight_dtype": torch.float8_e4m3fn, "platform": "rocm", "capability": (9, 4)}, "native"),
        ({"device_type": "npu", "platform": "oot", "capability": None}, "native"),
        ({"expert_parallel": 4, "local_experts": 2}, "triton"),
    ],
)
def test_on_a_gpu_triton_comes_first(changes: dict[str, Any], chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "why_not", lambda: "")
    assert select(dataclasses.replace(GPU, **changes), moe_backends.view).name == chosen


def test_a_gpu_without_triton_takes_torchs_product_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "why_not", lambda: "triton is not installed")
    assert select(GPU, moe_backends.view).name == "torch_grouped"
    old = dataclasses.replace(GPU, capability=(8, 0))
    found = select(old, moe_backends.view)
    assert found.name == "native"
    assert [v.reason for v in found.verdicts[:2]] == [
        "triton is not installed",
        "torch's grouped product needs an NVIDIA GPU of capability 9.0 or more",
    ]
