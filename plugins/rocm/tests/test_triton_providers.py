"""opdock_rocm.triton_providers: the host's Triton kernels, registered as this package's."""

from __future__ import annotations

import contextlib
import sys

import pytest

from opdock import ir, journal
from opdock.nn.kernels import triton
from opdock.nn.kernels.triton import providers
from opdock_rocm import probe
from opdock_rocm.priorities import PROVIDED

OWNER = journal.Owner("opdock-rocm", "0.1.0", "rocm")
MODULE = "opdock_rocm.triton_providers"


class _LaterError(Exception):
    """Of a later hook: the activation fails."""


def test_every_op_with_a_kernel_is_this_packages_and_all_go_when_its_activation_fails() -> None:
    with contextlib.suppress(_LaterError), journal.transaction(OWNER) as made:
        import opdock_rocm.triton_providers  # noqa: F401

        for op in PROVIDED:
            impl = ir.registry[op].impls["triton"]
            assert impl.owner == OWNER
            assert impl.batch_invariant
            assert impl.inplace is (op in ("fused_add_rms_norm", "rotary_embedding"))
        assert sorted(entry.name for entry in made) == sorted(f"{op}.triton" for op in PROVIDED)
        assert {entry.owner for entry in made} == {OWNER}
        assert {entry.site.module for entry in made} == {MODULE}
        raise _LaterError
    assert all("triton" not in ir.registry[op].impls for op in PROVIDED)
    assert MODULE not in sys.modules  # so that the next activation registers them anew


@pytest.mark.parametrize(
    ("without_triton", "interpreted", "expected"),
    [("triton is not installed", False, "triton is not installed"), ("", False, "no AMD GPU"), ("", True, True)],
)
def test_the_reason_is_tritons_or_else_the_probes(
    without_triton: str, interpreted: bool, expected: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "why_not", lambda: without_triton)
    monkeypatch.setattr(triton, "interpreted", lambda: interpreted)
    asked = []

    def why_not() -> str:
        asked.append(1)
        return "no AMD GPU"

    for _, _, facts in providers.all_ops(why_not):
        assert facts["supported"]() == expected
    assert len(asked) == (expected == "no AMD GPU")  # once for all ops, and only where it matters


def test_without_a_gpu_each_says_what_the_probe_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "why_not", lambda: "")
    monkeypatch.setattr(triton, "interpreted", lambda: False)
    reason = probe.why_not()
    if not reason:
        pytest.skip("an AMD GPU is here")
    with contextlib.suppress(_LaterError), journal.transaction(OWNER):
        import opdock_rocm.triton_providers  # noqa: F401

        assert {ir.registry[op].impls["triton"].reason for op in PROVIDED} == {reason}
        raise _LaterError
