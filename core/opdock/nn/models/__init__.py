"""Decoders, and the checkpoints that they load."""

from opdock.nn.models import families as _families  # registers the known architectures
from opdock.nn.models.architectures import Architecture, architectures
from opdock.nn.models.config import ModelConfig

__all__ = ["Architecture", "ModelConfig", "architectures"]
del _families
