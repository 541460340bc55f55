"""Small random checkpoints of mixtures, saved by transformers, and steps of experts with their float64 results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import opdock
from opdock.nn.loading import build_model
from opdock.nn.models.checkpoint import check_header, checkpoint_plan, load_weights
from opdock.nn.models.loader_hf import HFCheckpoint

os.environ.setdefault("HF_HUB_OFFLINE", "1")

_COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_QWEN = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
_DEEPSEEK = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24,
    "v_head_dim": 20,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "qwen2_moe": (
        "Qwen2Moe",
        {**_QWEN, "shared_expert_intermediate_size": 48, "mlp_only_layers": [1], "norm_topk_prob": False},
    ),
    "qwen3_moe": ("Qwen3Moe", {**_QWEN, "head_dim": 32, "norm_topk_prob": True, "decoder_sparse_step": 2}),
    "deepseek_v2": ("DeepseekV2", {**_DEEPSEEK, "topk_method": "group_limited_greedy"}),
    "deepseek_v2_greedy": ("DeepseekV2", {**_DEEPSEEK, "q_lora_rank": None, "attention_bias": True}),
    "deepseek_v3": ("DeepseekV3", _DEEPSEEK),
    "deepseek_v2_yarn": ("DeepseekV2", {**_DEEPSEEK, "rope_parameters": _YARN}),
    "deepseek_v3_yarn": ("DeepseekV3", {**_DEEPSEEK, "rope_parameters": {**_YARN, "mscale": 1.0}}),
    "qwen3_moe_yarn": (
        "Qwen3Moe",
        {**_QWEN, "head_dim": 32, "rope_parameters": {k: v for k, v in _YARN.items() if "scale" not in k}},
    ),
    "deepseek_v3_neox": ("DeepseekV3", {**_DEEPSEEK, "rope_interleave": False, "q_lora_rank": None}),
}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config() -> Iterator[Any]:
    """A configuration in force, so that layers can be built."""
    with opdock.set_current_config() as current:
        yield current


@pytest.fixture(scope="session")
def mixtures(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """Return a function: name of a kind -> (folder, the model that transformers saved there)."""
    transformers = pytest.importorskip("transformers", reason="needs transformers to compare with")
    made: dict[str, tuple[Path, Any]] = {}

    def get(kind: str) -> tuple[Path, Any]:
        if kind not in made:
            family, changes = KINDS[kind]
            torch.manual_seed(len(kind))
            settings = getattr(transformers, f"{family}Config")(**{**_COMMON, **changes})
            model = getattr(transformers, f"{family}ForCausalLM")(settings).eval()
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                if name.endswith(("norm.weight", ".bias", "correction_bias")):  # ones and zeros otherwise
                    torch.nn.init.normal_(tensor, 1.0 if "norm" in name else 0.0, 0.2)
            folder = tmp_path_factory.mktemp(kind)
            model.save_pretrained(folder)
            made[kind] = (folder, model)
        return made[kind]

    return get


@pytest.fixture
def load() -> Callable[..., Any]:
    """Return a function: (folder, dtype) -> our model with the weights of that checkpoint."""

    def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
        checkpoint = HFCheckpoint(folder)
        plan = checkpoint_plan(checkpoint.config)
        check_header(plan, checkpoint.shapes(), checkpoint.config, checkpoint.source)
        model = build_model(checkpoint.config, dtype, torch.device("cpu"))
        load_weights(model, plan, checkpoint)
        return model

    return load


@dataclass
class Step:
    """The inputs of a step of experts."""

    x: Tensor
    w13: Tensor
    w2: Tensor
    weights: Tensor
    ids: Tensor
    expert_map: Tensor | None = None

    @property
    def args(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The tensors in the order of the functions' parameters."""
        return self.x, self.w13, self.w2, self.weights, self.ids

    def exact(self) -> Tensor:
        """Return the result in float64, computed token by token."""
        out = torch.zeros(self.x.shape, dtype=torch.float64)
        inner = self.w2.shape[2]
        for t in range(self.x.shape[0]):
            for s in range(self.ids.shape[1]):
                e = int(self.ids[t, s])
                e = e if self.expert_map is None else int(self.expert_map[e])
                if e >= 0:
                    made = self.w13[e].double() @ self.x[t].double()
                    made = F.silu(made[:inner]) * made[inner:]
                    out[t] += self.weights[t, s].double() * (self.w2[e].double() @ made)
        return out


@pytest.fixture(scope="session")
def make_step() -> Callable[..., Step]:
    """Return a function that makes a step; with ``ranks`` > 1 only the experts of one rank are there."""

    def make(
        tokens: int = 9,
        experts: int = 8,
        top_k: int = 3,
        hidden: int = 48,
        inner: int = 32,
        dtype: torch.dtype = torch.float32,
        ranks: int = 1,
        rank: int = 0,
    ) -> Step:
        made = torch.Generator().manual_seed(tokens * 7 + experts)
        local = experts // ranks
        w13 = torch.randn(experts, 2 * inner, hidden, generator=made).mul(hidden**-0.5).to(dtype)
        w2 = torch.randn(experts, hidden, inner, generator=made).mul(inner**-0.5).to(dtype)
        x = torch.randn(tokens, hidden, generator=made).to(dtype)
        scores, ids = torch.rand(tokens, experts, generator=made).topk(top_k, dim=-1)
        table = None
        if ranks > 1:
            table = torch.full((experts,), -1, dtype=torch.int32)
            table[rank * local : (rank + 1) * local] = torch.arange(local, dtype=torch.int32)
        here = slice(rank * local, (rank + 1) * local)
        return Step(x, w13[here].contiguous(), w2[here].contiguous(), scores, ids.int(), table)

    return make
