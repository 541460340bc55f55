"""opdock's conformance kit over the Triton providers, on CPU tensors, in Triton's interpreter."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from opdock.nn.kernels import triton
from opdock.nn.kernels.triton import providers
from opdock.testing.results import FAILED
from opdock.testing.session import Session
from opdock.testing.settings import Settings

NAME = "opdock_triton_interpreted"
HOOKS = """\
import opdock


@opdock.hookimpl
def import_ir_kernels():
    import opdock_triton_interpreted.providers


@opdock.hookimpl
def default_ir_op_priority(platform, config):
    return {name: ["triton", "native"] for name in OPS}
"""
PROVIDERS = '''\
import functools

from opdock.nn.kernels.triton import interpreting, takes
from opdock_triton_interpreted.hooks import OPS

interpreting.round_like_hardware()


def few(predicate):
    """An interpreted program takes a millisecond: the kit's inputs of 65537 rows would take minutes."""

    @functools.wraps(predicate)
    def decide(*args, **kwargs):
        x = args[0]
        rows = x.shape[0] if x.dim() == 1 else x.numel() // max(1, x.shape[-1]) if x.dim() else 1
        if (x.dim() > 1 or not x.is_floating_point()) and rows > 47:
            return "more rows than are interpreted in a second"
        return predicate(*args, **kwargs)

    return decide


for name in OPS:
    setattr(takes, name, few(getattr(takes, name)))

import opdock_cuda.triton_providers
'''
SUBJECTS = ("fused_add_rms_norm", "rms_norm_dynamic_per_token_fp8_quant", "rotary_embedding")
"""One op of each kind: in place, with several results, with positions. The whole list takes a quarter of an hour."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The providers of opdock-cuda, as a package that runs beside the built-in CPU."""
    if reason := triton.why_not():
        pytest.skip(f"needs Triton: {reason}")
    if importlib.util.find_spec("opdock_cuda") is None:
        pytest.skip("needs opdock-cuda, whose providers are checked; it is not installed")
    ops = [fn.__name__ for fn in providers.PROVIDERS]
    files = {"__init__.py": "", "hooks.py": f"OPS = {ops!r}\n{HOOKS}", "providers.py": PROVIDERS}
    (tmp_path / NAME).mkdir()
    for file, text in files.items():
        (tmp_path / NAME / file).write_text(text)
    metadata = tmp_path / f"{NAME}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\nRequires-Dist: opdock>=0.1,<0.2\n"
    )
    (metadata / "entry_points.txt").write_text(f"[opdock.plugins]\n{NAME} = {NAME}.hooks\n")
    (metadata / "RECORD").write_text("".join(f"{NAME}/{file},,\n" for file in files))
    monkeypatch.syspath_prepend(tmp_path)
    return NAME


@pytest.mark.slow
def test_the_triton_providers_pass_the_kit_in_the_interpreter(package: str) -> None:
    environ = {"TRITON_INTERPRET": "1", "VLLM_PLUGINS": package, "OMP_NUM_THREADS": "1"}
    session = Session(Settings(package, timeout=120.0, environ=environ, device="cpu"))
    try:
        chosen = [(c, s) for c, s in session.items() if not s or s.partition("/")[0] in SUBJECTS]
        results = [session.run(check.name, subject) for check, subject in chosen]
    finally:
        session.close()
    assert [r for r in results if r.status == FAILED] == []
    passed = {r.check for r in results if r.status == "passed" and r.subject}
    assert {"provider.values", "provider.layouts", "provider.batch_invariance", "provider.compiled"} <= passed
