"""The fusions that the host ships, in the order in which they are tried."""

from opdock.compile.fusions.add_norm import ADD_RMS_NORM
from opdock.compile.fusions.all_reduce_norm import ALL_REDUCE_NORM
from opdock.compile.fusions.fp8_quant import FP8_QUANT

BUILT_IN = (*ADD_RMS_NORM, *ALL_REDUCE_NORM, *FP8_QUANT)

__all__ = ["BUILT_IN"]
