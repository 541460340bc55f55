"""The host's cut of attention for AMD GPUs: compiled ahead of time, it fits into their shared memory."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType

import pytest
import torch

from opdock.nn.attention import AttentionSpec
from opdock.nn.kernels import triton

SCRIPT = Path(__file__).parent / "aot" / "triton_kernels.py"
LDS = 64 * 1024
"""Bytes that a block may have on gfx90a, gfx942 and gfx1100."""


@pytest.fixture
def aot() -> ModuleType:
    """The script that compiles ahead of time."""
    if reason := triton.why_not():
        pytest.skip(f"needs Triton, which nox -s plugin-rocm has: {reason}")
    if triton.interpreted():
        pytest.skip("kernels that are interpreted are not compiled")
    spec = importlib.util.spec_from_file_location("triton_kernels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(importlib.sys.modules, spec.name, module)  # its dataclasses look themselves up
        spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_decoded_tokens_with_heads_of_128_fit_into_the_shared_memory_of_gfx942(aot: ModuleType) -> None:
    build = aot.attention(single=True)
    kernel = aot.compile_for(build, "gfx942")
    made = aot.read(build, "gfx942", kernel.asm["amdgcn"], kernel.metadata.shared)
    assert 0 < made.lds <= LDS
    assert aot.fault(build, made) == ""


@pytest.mark.slow
def test_as_it_is_cut_for_nvidia_it_would_not_start_on_gfx942(aot: ModuleType) -> None:
    """The reason for the other cut; if this fails, that may go."""
    from dataclasses import replace

    from opdock.nn.kernels.triton.attention_tuning import tuning_for_single

    tuning = tuning_for_single(AttentionSpec(32, 8, 128, 1.0), 1, 4096, 132)
    build = aot.attention(single=True)
    constants = {**build.constants, "BLOCK_M": tuning.block_m, "TILE": tuning.tile}
    wide = replace(build, constants=constants, warps=tuning.warps, stages=tuning.stages)
    assert aot.compile_for(wide, "gfx942").metadata.shared > LDS


def test_amd_gpus_are_those_of_a_torch_built_for_hip(aot: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from opdock.nn.kernels.triton.attention_launch import memory_of
    from opdock.nn.kernels.triton.attention_tuning import MOST_MEMORY, SMALL_MEMORY

    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    assert memory_of.__wrapped__(0) == SMALL_MEMORY
    assert memory_of.__wrapped__(-1) == MOST_MEMORY  # tensors of the interpreter are on the CPU


def test_no_pair_of_tiles_takes_more_than_half_of_the_memory_and_other_gpus_are_cut_as_ever(aot: ModuleType) -> None:
    from opdock.nn.kernels.triton.attention_tuning import SMALL_MEMORY, tuning_for_prompts, tuning_for_single

    for head, itemsize in itertools.product((16, 64, 80, 96, 128, 192, 256), (2, 4)):
        spec = AttentionSpec(32, 8, head, 1.0)
        padded = 1 << (head - 1).bit_length()
        for small in (
            tuning_for_single(spec, 1, 4096, 304, itemsize=itemsize, memory=SMALL_MEMORY),
            tuning_for_prompts(spec, itemsize=itemsize, memory=SMALL_MEMORY),
        ):
            assert small.stages == 2
            assert small.tile >= 16
            assert 2 * small.tile * padded * itemsize <= LDS // 2
    wide = tuning_for_single(AttentionSpec(32, 8, 128, 1.0), 1, 4096, 132)
    assert (wide.block_m, wide.tile, wide.warps, wide.stages, wide.splits) == (16, 128, 4, 5, 16)
    wide = tuning_for_prompts(AttentionSpec(32, 8, 128, 1.0))
    assert (wide.block_m, wide.tile, wide.warps, wide.stages) == (128, 64, 8, 3)
