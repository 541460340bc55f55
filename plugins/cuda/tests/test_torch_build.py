"""opdock_cuda.torch_build: what PyTorch was built for, without importing it."""

from __future__ import annotations

import torch

from opdock_cuda.torch_build import Build, parse, read


def test_the_installed_build_is_read_as_torch_itself_states_it() -> None:
    assert read() == Build(torch.__version__, torch.version.cuda, torch.version.hip)


def test_both_spellings_of_the_file_are_read() -> None:
    annotated = "__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
    plain = "__version__ = '1.13.0'\ncuda = '11.7'\n"
    assert parse(annotated) == Build("2.13.0", "13.0", None)
    assert parse(plain) == Build("1.13.0", "11.7", None)
    assert parse("") == Build("of unknown version", None, None)
