"""The platform methods that an engine built on opdock calls; opdock itself calls none of them.

They are here because backends written for vLLM override them: a ported class keeps them under the same names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class EngineHooks:
    """Methods for engines; every default is the one that plugin authors know."""

    ray_device_key: str = ""
    ray_noset_device_env_vars: list[str] = []  # noqa: RUF012 - plugin authors override it as a plain list
    additional_env_vars: list[str] = []  # noqa: RUF012 - the same

    @classmethod
    def pre_register_and_update(cls, parser: Any = None) -> None:
        """Register quantisation methods or add options before an engine is configured."""

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return the marketing name of a device."""
        raise NotImplementedError(f"{cls.__name__}.get_device_name")

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        """Return the unique id of a device."""
        raise NotImplementedError(f"{cls.__name__}.get_device_uuid")

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return the memory of a device in bytes."""
        raise NotImplementedError(f"{cls.__name__}.get_device_total_memory")

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """Return the memory in use on ``device`` in bytes."""
        raise NotImplementedError(f"{cls.__name__}.get_current_memory_usage")

    @classmethod
    def set_device(cls, device: Any) -> None:
        """Make ``device`` the current one of this process."""
        raise NotImplementedError(f"{cls.__name__}.set_device")

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Seed the generators of all devices."""
        raise NotImplementedError(f"{cls.__name__}.manual_seed_all")

    @classmethod
    def check_if_supports_dtype(cls, dtype: Any) -> None:
        """Raise if the device cannot run models in ``dtype``."""

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Return whether host memory can be pinned."""
        return True

    @classmethod
    def use_custom_op_collectives(cls) -> bool:
        """Return whether collectives go through torch ops."""
        return False

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return the class path of the communicator; "" leaves it to the engine."""
        return ""

    @classmethod
    def get_punica_wrapper(cls) -> str:
        """Return the class path of the LoRA wrapper."""
        raise NotImplementedError(f"{cls.__name__}.get_punica_wrapper")

    @classmethod
    def get_static_graph_wrapper_cls(cls) -> str:
        """Return the class path of the graph wrapper; "" leaves it to the engine."""
        return ""

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        """Return whether graphs can be captured and replayed."""
        return False

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Return whether layers may have caches of different shapes."""
        return False

    @classmethod
    def update_block_size_for_backend(cls, config: Any) -> None:
        """Set the block size of the KV cache after the model is loaded."""

    @classmethod
    def register_custom_kv_cache_specs(cls, config: Any) -> None:
        """Register KV cache layouts."""

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Raise if the request cannot be served."""

    @classmethod
    def set_additional_forward_context(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return what is added to the context of a forward."""
        return {}

    @classmethod
    def use_all_gather(cls) -> bool:
        """Return whether logits are gathered by all-gather."""
        return True

    @classmethod
    def use_custom_allreduce(cls) -> bool:
        """Return whether the custom all-reduce is used."""
        return False

    @classmethod
    def can_update_inplace(cls) -> bool:
        """Return whether tensors can be written in place."""
        return True

    @classmethod
    def use_sync_weight_loader(cls) -> bool:
        """Return whether weights are moved one by one and waited for."""
        return False

    @classmethod
    def make_synced_weight_loader(cls, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``original`` with a wait after each weight."""
        return original

    @classmethod
    def get_infinity_values(cls, dtype: Any) -> tuple[float, float]:
        """Return what stands for minus and plus infinity in ``dtype``."""
        return float("-inf"), float("inf")

    @classmethod
    def log_warnings(cls) -> None:
        """Log warnings about the process's settings."""

    @classmethod
    def verify_model_arch(cls, model_arch: str) -> None:
        """Raise if the platform cannot run the architecture."""

    @classmethod
    def check_max_model_len(cls, max_model_len: int) -> int:
        """Return the longest context that the device can hold."""
        return max_model_len

    @classmethod
    def is_integrated_gpu(cls, device_id: int = 0) -> bool:
        """Return whether the device shares the host's memory."""
        return False

    @classmethod
    def support_deep_gemm(cls) -> bool:
        """Return whether DeepGEMM runs here."""
        return False

    @classmethod
    def get_nixl_supported_devices(cls) -> dict[str, tuple[str, ...]]:
        """Return the devices between which NIXL moves caches."""
        return {}

    @classmethod
    def get_nixl_memory_type(cls) -> str | None:
        """Return NIXL's name of the device memory."""
        return None

    def is_sleep_mode_available(self) -> bool:
        """Return whether device memory can be given back while idle."""
        return False

    def get_max_output_tokens(self, prompt_len: int) -> int:
        """Return how many tokens may follow a prompt of ``prompt_len``."""
        return sys.maxsize
