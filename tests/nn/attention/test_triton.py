"""The Triton backend: in the interpreter, ahead of time, and how its work is cut."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from opdock.nn.attention import AttentionSelectorConfig, AttentionSpec
from opdock.nn.attention.backends.triton import TritonAttentionBackend
from opdock.nn.kernels import triton as kernels
from opdock.platforms.enums import DeviceCapability

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(bool(kernels.why_not()), reason=f"needs Triton: {kernels.why_not()}")
SPEC = AttentionSpec(num_heads=32, num_kv_heads=8, head_size=128, scale=1.0)


@needs_triton
@pytest.mark.slow
def test_results_in_the_interpreter() -> None:
    """It is chosen when a kernel is defined, so it needs a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    ended = subprocess.run(
        [*command, str(HERE / "interpreted.py")],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout


def test_what_it_takes_needs_no_triton() -> None:
    config = AttentionSelectorConfig(128, torch.bfloat16, "auto", 16)
    assert TritonAttentionBackend.validate_configuration(config) == []
    for change, reason in (
        ({"head_size": 260}, "head_size not supported"),
        ({"head_size": 20}, "head_size not supported"),
        ({"dtype": torch.float64}, "dtype not supported"),
        ({"block_size": 24}, "block_size not supported"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype not supported"),
    ):
        assert TritonAttentionBackend.validate_configuration(config._replace(**change)) == [reason]
    assert TritonAttentionBackend.why_not_here("cpu") == "no kernels for cpu tensors"
    eight = config._replace(kv_cache_dtype="fp8_e4m3")
    assert TritonAttentionBackend.validate_configuration(eight, DeviceCapability(8, 9)) == []
    (reason,) = TritonAttentionBackend.validate_configuration(eight, DeviceCapability(8, 0))
    assert reason == "Triton reads e4m3 from compute capability 8.9 on, and this is 8.0"


@needs_triton
@pytest.mark.parametrize("requests", [1, 3, 8, 64, 256, 1000])
@pytest.mark.parametrize("longest", [1, 16, 512, 4096, 32768, 131072])
def test_splits_fill_the_device_and_no_more(requests: int, longest: int) -> None:
    from opdock.nn.kernels.triton.attention_tuning import tuning_for_single

    found = tuning_for_single(SPEC, requests, longest, 132)
    assert found.block_m == 16
    assert 1 <= found.splits <= 128
    assert found.span == 0
    assert (found.splits - 1) * found.tile < -(-longest // 64) * 64  # steps of lengths so rounded are cut alike
    if requests >= 256:
        assert found.splits == 1


@needs_triton
def test_invariant_splits_depend_on_no_batch() -> None:
    import dataclasses

    from opdock.nn.kernels.triton.attention_tuning import INVARIANT_SPAN, tuning_for_single

    spec = dataclasses.replace(SPEC, batch_invariant=True)
    cuts = {
        (t.tile, t.span, t.warps, t.block_m)
        for requests in (1, 7, 256)
        for longest in (1, 5000, 131072)
        for t in [tuning_for_single(spec, requests, longest, 132)]
    }
    assert len(cuts) == 1
    assert tuning_for_single(spec, 4, 5 * INVARIANT_SPAN, 132).splits == 5


POINTERS = dict.fromkeys(("table_ptr", "starts_ptr", "lens_ptr"), "*i32")
NUMBERS = dict.fromkeys(("scale", "soft_cap"), "fp32") | dict.fromkeys(
    (
        "requests", "rows", "splits", "elsewhere", "table_stride", "out_stride", "out_head_stride", "query_stride",
        "query_head_stride", "key_block_stride", "key_slot_stride", "key_head_stride", "value_block_stride",
        "value_slot_stride", "value_head_stride",
    ),
    "i32",
)  # fmt: skip
UNKNOWN = ("requests", "rows", "splits")  # may be any number; the others divide by 16


def _build(
    target: tuple[str, int | str, int],
    *,
    single: bool,
    fp8: str = "",
    head: int = 128,
    requests: int = 1,
    memory: int = 227 * 1024,
    **features: Any,
) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from opdock.nn.kernels.triton.attention import attend_paged
    from opdock.nn.kernels.triton.attention_tuning import tuning_for_prompts, tuning_for_single

    spec = AttentionSpec(num_heads=32, num_kv_heads=8, head_size=head, scale=1.0)
    t = tuning_for_single(spec, requests, 4096, 132, memory=memory) if single else tuning_for_prompts(spec)
    types = POINTERS | NUMBERS | dict.fromkeys(("out_ptr", "query_ptr"), "*bf16")
    types |= dict.fromkeys(("key_ptr", "value_ptr"), f"*{fp8}" if fp8 else "*bf16")
    if single:
        types |= {"partial_ptr": "*fp32", "lse_ptr": "*fp32", "counter_ptr": "*i32"}
    if fp8:
        types |= {"key_scale_ptr": "*fp32", "value_scale_ptr": "*fp32"}
    for name, pointer in (("ALIBI", "slopes_ptr"), ("SINKS", "sinks_ptr")):
        if features.get(name):
            types[pointer] = "*fp32"
    constants: dict[str, Any] = {
        "GROUP": 4, "HEAD": head, "HEAD_PAD": triton.next_power_of_2(head), "BLOCK_SIZE": 16, "BLOCK_M": t.block_m,
        "BLOCK_Q": 1 if single else t.block_m // 4, "TILE": t.tile, "SPLIT": single, "SPAN": 0, "SINGLE": single,
        "SKIP_SINGLE": not single, "WINDOW": 0, "SOFT_CAP": False, "ALIBI": False, "SINKS": False,
        "QUANTISED": bool(fp8), "MERGE": single, "PRECISION": "ieee", "GROUP_PAD": 4, "CHUNK": 16,
        "DEPENDENT": target[0] == "cuda" and int(target[1]) >= 90,
        **features,
    }  # fmt: skip
    names = attend_paged.arg_names
    constants |= {n: None for n in names if n not in types and n not in constants}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(names)
        if types.get(n, "fp32") != "fp32" and n not in UNKNOWN
    }
    signature = {n: types.get(n, "constexpr") for n in names}
    source = ASTSource(fn=attend_paged, signature=signature, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=GPUTarget(*target), options={"num_warps": t.warps, "num_stages": t.stages})


@needs_triton
@pytest.mark.slow
@pytest.mark.skipif(kernels.interpreted(), reason="kernels that are interpreted are not compiled")
@pytest.mark.parametrize("single", [True, False], ids=["single", "prompts"])
@pytest.mark.parametrize(
    "target", [("cuda", 80, 32), ("cuda", 90, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)], ids=lambda t: str(t[1])
)
def test_kernels_build_for_gpus_of_both_vendors(target: tuple[str, int | str, int], single: bool) -> None:
    built = _build(target, single=single)
    if target[0] == "cuda":
        code = built.asm["ptx"]
        assert "cp.async.cg.shared.global" in code
        assert ("mma.sync" in code) or ("wgmma.mma_async" in code) or ("tcgen05.mma" in code)
        assert ".local" not in code
    else:
        assert "v_mfma" in built.asm["amdgcn"]


@needs_triton
@pytest.mark.slow
@pytest.mark.skipif(kernels.interpreted(), reason="kernels that are interpreted are not compiled")
@pytest.mark.parametrize("single", [True, False], ids=["single", "prompts"])
def test_kernels_with_every_feature_build(single: bool) -> None:
    target = ("cuda", 90, 32)
    features = {"WINDOW": 100, "SOFT_CAP": True, "ALIBI": True, "SINKS": True}
    assert "ret;" in _build(target, single=single, fp8="fp8e4nv", **features).asm["ptx"]
    assert "ret;" in _build(target, single=single, head=256).asm["ptx"]
    assert "ret;" in _build(target, single=single, head=80).asm["ptx"]


@needs_triton
@pytest.mark.slow
@pytest.mark.skipif(kernels.interpreted(), reason="kernels that are interpreted are not compiled")
@pytest.mark.parametrize("head", [64, 128, 256])
@pytest.mark.parametrize("requests", [1, 8, 16, 64])
@pytest.mark.parametrize("memory", [96 * 1024, 160 * 1024], ids=["consumer's", "A100's"])
def test_a_program_fits_into_the_shared_memory_of_its_gpu(memory: int, requests: int, head: int) -> None:
    built = _build(("cuda", 80, 32), single=True, head=head, requests=requests, memory=memory)
    assert 0 < built.metadata.shared <= memory
