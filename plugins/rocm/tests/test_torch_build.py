"""opdock_rocm.torch_build: what PyTorch is built for, without importing it."""

from __future__ import annotations

import torch

from opdock_rocm.torch_build import Build, parse, read


def test_the_installed_pytorch_is_read_as_it_states_itself() -> None:
    found = read()
    assert found is not None
    assert (found.version, found.cuda, found.hip) == (torch.__version__, torch.version.cuda, torch.version.hip)
    assert found.libraries.endswith("torch/lib")


def test_a_rocm_build_states_hip() -> None:
    source = "__version__ = '2.13.0+rocm7.1'\ncuda: Optional[str] = None\nhip: Optional[str] = '7.1.25424'\n"
    assert parse(source, "lib") == Build("2.13.0+rocm7.1", None, "7.1.25424", "lib")


def test_a_file_that_states_nothing_is_of_unknown_version() -> None:
    assert parse("x = 1") == Build("of unknown version", None, None)
