"""Programs compiled ahead of time for TPUs, by libtpu's compiler, on a machine that has none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# No TPU's metadata server is asked, what is computed is computed on the CPU, and several processes may compile at once.
os.environ.update(TPU_SKIP_MDS_QUERY="1", TPU_WORKER_HOSTNAMES="localhost", TPU_ACCELERATOR_TYPE="v5litepod-4")
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
os.environ.setdefault("OPDOCK_TPU_ON", "cpu")

import jax
import jax.numpy as jnp
import torch
from traffic import hbm_bytes

jax.config.update("jax_platforms", "cpu")

TARGETS = {"v5e": "v5e:2x2", "v6e": "v6e:2x2", "v5p": "v5p:2x2x1"}
"""Names of topologies by generation; programs are compiled for one chip of each."""


@dataclass(frozen=True)
class Built:
    """What became of one program.

    Args:
        program, target, dtype: which.
        seconds: that compiling took.
        code: bytes of machine code, with its constants.
        arguments, outputs, temporary: bytes of the device's memory.
        moved: bytes that it reads and writes in the device's memory, see ``traffic``.
        kernels: Mosaic kernels in it.
        exported: bytes of the portable program, by ``jax.export``; 0 if that was not asked for.
        error: why it could not be compiled; "".
    """

    program: str
    target: str
    dtype: str
    seconds: float = 0.0
    code: int = 0
    arguments: int = 0
    outputs: int = 0
    temporary: int = 0
    moved: int = 0
    kernels: int = 0
    exported: int = 0
    error: str = ""


def device_of(target: str) -> Any:
    """Return a chip of a target that is not here."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(TARGETS[target], platform="tpu").devices[0]


def shaped(device: Any, shapes: Any) -> Any:
    """Return a tree of (shape, dtype) as arguments that lie on ``device``."""
    where = jax.sharding.SingleDeviceSharding(device)
    return jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
        shapes,
        is_leaf=lambda s: hasattr(s, "dtype"),
    )


def array(*shape: int, dtype: Any = jnp.bfloat16) -> Any:
    """Return the shape and dtype of an argument."""
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def build(
    program: str,
    target: str,
    dtype: str,
    fn: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    donate: Sequence[int] = (),
    export: bool = False,
) -> Built:
    """Compile ``fn`` of arrays for a target; what fails is in ``error``.

    Args:
        program: its name, for the record.
        target: one of ``TARGETS``.
        dtype: likewise for the record.
        fn: a function of arrays of jax.
        arguments: trees of ``array``.
        donate: arguments whose memory the results may take.
        export: make the portable program too.
    """
    from opdock_tpu import xla

    start = time.monotonic()
    with xla.for_tpu():
        try:
            jitted = jax.jit(fn, donate_argnums=tuple(donate))
            made = jitted.lower(*shaped(device_of(target), list(arguments))).compile()
            exported = len(_exported(jitted, arguments)) if export else 0
        except Exception as err:  # noqa: BLE001 - compilers raise what they like
            told = " ".join(str(err).split())
            return Built(program, target, dtype, time.monotonic() - start, error=f"{type(err).__name__}: {told}"[:400])
    memory, text = made.memory_analysis(), made.as_text()
    return Built(
        program,
        target,
        dtype,
        seconds=time.monotonic() - start,
        code=memory.generated_code_size_in_bytes,
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        temporary=memory.temp_size_in_bytes,
        moved=hbm_bytes(text),
        kernels=text.count('custom_call_target="tpu_custom_call"'),
        exported=exported,
    )


def _exported(jitted: Any, arguments: Sequence[Any]) -> bytes:
    from jax import export

    made = export.export(jitted, platforms=["tpu"])(*arguments)
    data = made.serialize()
    if export.deserialize(data).platforms != ("tpu",):
        raise ValueError("what was exported is not for TPUs")
    return bytes(data)


def native(op: str) -> Callable[..., Any]:
    """Return the native definition of an IR op as a function of arrays of jax; numbers are passed by keyword order."""
    from torchax import interop

    from opdock import ir

    definition = ir.registry[op].native

    def call(*args: Any) -> Any:
        import torchax

        with torchax.default_env(), torch.no_grad():
            return interop.jax_view(definition(*(interop.torch_view(list(args)))))

    return call
