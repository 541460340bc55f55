"""This package's Triton path, values included, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.slow
def test_providers_layer_attention_and_a_decoder_agree_with_native_in_the_interpreter(
    interpret: Callable[[str], str],
) -> None:
    assert " passed" in interpret("interpreted.py")
