"""The kernels' values, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.slow
def test_kernels_agree_with_the_definitions_in_the_interpreter(interpret: Callable[[str], str]) -> None:
    assert " passed" in interpret("interpreted.py")
