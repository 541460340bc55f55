"""Continuous batches: requests of different lengths that join and leave between the steps of one model."""

from opdock.nn.batch.batch import Batch
from opdock.nn.batch.request import DrawError, Output
from opdock.nn.batch.single import ReplayedGeneration

__all__ = ["Batch", "DrawError", "Output", "ReplayedGeneration"]
