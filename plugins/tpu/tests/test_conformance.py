"""opdock's conformance kit over this package, with XLA's CPU client and Pallas' interpreter where they are there."""

from __future__ import annotations

import importlib.util

from opdock.testing import Conformance

HAS_JAX = importlib.util.find_spec("jax") is not None


class TestConformance(Conformance):
    plugin = "opdock_tpu"
    environ = {  # noqa: RUF012 - the kit's attribute
        "OPDOCK_TPU_ON": "cpu",
        # What is interpreted is compiled anew for each of a few hundred shapes: quickly, then.
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    }
    device = "cpu" if HAS_JAX else ""  # the kernels' interpreter takes CPU tensors
