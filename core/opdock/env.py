"""Every environment variable that opdock reads: a constant, what it means, and its reader.

Each is read when it is used, never at import, so that a change in the process takes effect at once.
"""

from __future__ import annotations

import os
from typing import Any

from opdock.errors import ConfigError

VLLM_PLUGINS = "VLLM_PLUGINS"
"""Names of the plugins that may run, separated by commas; blanks around a name do not count.
Unset: all. Empty: none. The same list filters every entry-point group. Example: ``opdock_cuda,my_ops``."""

VLLM_TARGET_DEVICE = "VLLM_TARGET_DEVICE"
"""``cpu``: the CPU platform, and no platform plugin is asked. ``empty``: native methods only unless an
out-of-tree platform is active. Anything else, and unset: the platform is detected."""

OPDOCK_PLATFORM = "OPDOCK_PLATFORM"
"""The one platform to use, by entry-point name, by distribution name or by first-party alias
(``cuda`` for ``opdock_cuda``), or ``cpu``. No other plugin is imported; if it cannot be had, an error
says why. Unset or empty: the platform is detected."""

OPDOCK_STRICT = "OPDOCK_STRICT"
"""``1``: registrations also run the checks that call plugin code (predicates on fake tensors, mutation).
Default ``0``. Meant for development and CI."""

OPDOCK_PROBE_TIMEOUT = "OPDOCK_PROBE_TIMEOUT"
"""Seconds that one plugin may take when it is examined in a child process. Default ``20``."""

VLLM_BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
"""``1``: only what declares ``batch_invariant`` is chosen, so that a request has the same bits in any batch; what runs
all the same and cannot promise that is an error. Default ``0``."""

VLLM_DISABLED_KERNELS = "VLLM_DISABLED_KERNELS"
"""Classes of linear kernels that are not chosen, separated by commas; blanks around a name do not count."""

TRITON_INTERPRET = "TRITON_INTERPRET"
"""Triton's own: ``1`` runs its kernels in an interpreter, on CPU tensors. Set before Triton is imported."""

_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"", "0", "false", "no", "off"}


def flag(name: str) -> bool:
    """Return the truth of an on/off variable; ``ConfigError`` if it is neither."""
    value = os.environ.get(name, "").strip().lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ConfigError(f"{name}={value!r} is neither on nor off.", remedy=f"set {name}=1 or {name}=0.")


def plugin_filter() -> tuple[str, ...] | None:
    """Return the names in ``VLLM_PLUGINS``, without blanks and repeats; None when it is unset."""
    value = os.environ.get(VLLM_PLUGINS)
    if value is None:
        return None
    return tuple(dict.fromkeys(name for part in value.split(",") if (name := part.strip())))


def disabled_kernels() -> tuple[str, ...]:
    """Return the names in ``VLLM_DISABLED_KERNELS``, without blanks."""
    return tuple(name for part in os.environ.get(VLLM_DISABLED_KERNELS, "").split(",") if (name := part.strip()))


def target_device() -> str | None:
    """Return ``VLLM_TARGET_DEVICE`` in lower case, None when unset or empty."""
    return os.environ.get(VLLM_TARGET_DEVICE, "").strip().lower() or None


def forced_platform() -> str | None:
    """Return the name in ``OPDOCK_PLATFORM``, None when unset or empty."""
    return os.environ.get(OPDOCK_PLATFORM, "").strip() or None


def probe_timeout() -> float:
    """Return the seconds that one candidate may take in a child process."""
    value = os.environ.get(OPDOCK_PROBE_TIMEOUT, "").strip() or "20"
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(
            f"{OPDOCK_PROBE_TIMEOUT}={value!r} is not a number of seconds above 0.",
            remedy=f"set {OPDOCK_PROBE_TIMEOUT}=20.",
        )
    return seconds


def torchdynamo_disabled() -> bool:
    """Return whether ``TORCHDYNAMO_DISABLE=1`` is set, which torch looks at and no configuration shows."""
    return os.environ.get("TORCHDYNAMO_DISABLE") == "1"


# A layer asks at each call, and os.environ encodes the name each time, which takes longer than the layer's other work.
_SET: Any = getattr(os.environ, "_data", os.environ)
_BATCH_INVARIANT: Any = getattr(os.environ, "encodekey", str)(VLLM_BATCH_INVARIANT)


def batch_invariant() -> bool:
    """Return whether ``VLLM_BATCH_INVARIANT`` is on, as it stands now."""
    return _BATCH_INVARIANT in _SET and flag(VLLM_BATCH_INVARIANT)


def triton_interpreted() -> bool:
    """Return whether Triton reads ``TRITON_INTERPRET`` as on: its own rule, which raises for nothing."""
    return os.environ.get(TRITON_INTERPRET, "0").lower() in ("1", "true", "on", "yes", "y")


def strict() -> bool:
    """Return whether ``OPDOCK_STRICT`` is on, as it stands now."""
    return flag(OPDOCK_STRICT)


def in_force() -> dict[str, str]:
    """Return the variables above that are set, with their values."""
    names = (
        VLLM_PLUGINS, VLLM_TARGET_DEVICE, OPDOCK_PLATFORM, OPDOCK_STRICT, OPDOCK_PROBE_TIMEOUT, VLLM_BATCH_INVARIANT,
    )  # fmt: skip
    return {name: os.environ[name] for name in names if name in os.environ}
