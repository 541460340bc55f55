"""opdock's conformance kit over this platform on CPU tensors, its Triton kernels in the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from opdock.nn.kernels import triton
from opdock.testing.results import FAILED
from opdock.testing.session import Session
from opdock.testing.settings import Settings

NAME = "opdock_rocm_interpreted"
REGISTER = f"""\
import opdock

register = opdock.platform_plugin("{NAME}.platform:Interpreted", probe=lambda: None)
"""
PLATFORM = '''\
from opdock.nn.kernels import triton
from opdock_rocm.platform import RocmPlatform


class Interpreted(RocmPlatform):
    """The platform, over CPU tensors."""

    device_type = "cpu"
    dispatch_key = "CPU"

    @classmethod
    def import_ir_kernels(cls):
        from opdock.nn.kernels.triton import interpreting

        interpreting.round_like_hardware()
        super().import_ir_kernels()
'''
SUBJECT = "gemma_rms_norm"
"""The replaced layer. Ops over the kit's inputs take a quarter of an hour, and attention is in interpreted.py."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose platform is this one's, but for the device."""
    if reason := triton.why_not():
        pytest.skip(f"needs Triton, which nox -s plugin-rocm has: {reason}")
    files = {"__init__.py": REGISTER, "platform.py": PLATFORM}
    (tmp_path / NAME).mkdir()
    for file, text in files.items():
        (tmp_path / NAME / file).write_text(text, encoding="utf-8")
    metadata = tmp_path / f"{NAME}-1.0.dist-info"
    metadata.mkdir()
    head = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\nRequires-Dist: opdock>=0.1,<0.2\n"
    (metadata / "METADATA").write_text(head, encoding="utf-8")
    entry = f"[vllm.platform_plugins]\n{NAME} = {NAME}:register\n"
    (metadata / "entry_points.txt").write_text(entry, encoding="utf-8")
    (metadata / "RECORD").write_text("".join(f"{NAME}/{file},,\n" for file in files), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return NAME


@pytest.mark.slow
def test_the_replaced_layer_passes_the_kit_in_the_interpreter(package: str) -> None:
    environ = {"TRITON_INTERPRET": "1", "VLLM_PLUGINS": package, "OMP_NUM_THREADS": "1"}
    session = Session(Settings(package, timeout=120.0, environ=environ, device="cpu"))
    try:
        chosen = [(c, s) for c, s in session.items() if s == SUBJECT]
        results = [session.run(check.name, subject) for check, subject in chosen]
    finally:
        session.close()
    assert [r.message for r in results if r.status == FAILED] == []
    passed = {r.check for r in results if r.status == "passed"}
    assert {"layer.values", "layer.copies", "layer.weights_anew", "layer.compiled"} <= passed
