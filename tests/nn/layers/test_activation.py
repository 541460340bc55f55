"""Gated activations against the formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from opdock.errors import ConfigError
from opdock.nn.layers import GeluAndMul, SiluAndMul

pytestmark = pytest.mark.usefixtures("config")


def test_silu_of_the_first_half_gates_the_second() -> None:
    """The row is halved."""
    x = torch.randn(3, 20, dtype=torch.float64)
    torch.testing.assert_close(SiluAndMul()(x), F.silu(x[:, :10]) * x[:, 10:])


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_the_first_half_gates_the_second(approximate: str) -> None:
    """Both definitions of GELU."""
    x = torch.randn(3, 20, dtype=torch.float64)
    layer = GeluAndMul(approximate)  # type: ignore[arg-type]
    torch.testing.assert_close(layer(x), F.gelu(x[:, :10], approximate=approximate) * x[:, 10:])
    assert approximate in repr(layer)


def test_an_unknown_approximation_is_refused() -> None:
    """With the known ones."""
    with pytest.raises(ConfigError, match="Did you mean 'tanh'") as caught:
        GeluAndMul("tan")  # type: ignore[arg-type]
    assert "Remedy:" in str(caught.value)
