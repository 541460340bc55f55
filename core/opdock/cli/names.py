"""The name of a new platform package: which are possible, and how one name is written in each place."""

from __future__ import annotations

import importlib.util
import keyword
import re
from dataclasses import dataclass

from opdock.errors import ConfigError

LONGEST = 20
PREFIX = "opdock"
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*\Z")

_TAKEN = {
    **dict.fromkeys(
        ("cpu", "cuda", "rocm", "tpu", "xpu"), "an entry point of a name of vLLM's own platforms breaks vLLM"
    ),
    "ascend": "opdock has a package of its own for it",
    "native": "providers of that name are the native definitions of IR ops",
}
_DEVICES = {
    "npu": "torch_npu has a device of that name",
    "jax": "torchax has a device of that name",
    "gpu": "people take it for any GPU",
}
"""Names of devices that this PyTorch does not know, but others do."""


@dataclass(frozen=True)
class Name:
    """A name in words of lower-case letters and digits, such as ``("my", "chip")``."""

    words: tuple[str, ...]

    @property
    def snake(self) -> str:
        """For modules and torch: ``my_chip``."""
        return "_".join(self.words)

    @property
    def dashed(self) -> str:
        """For distributions and folders: ``my-chip``."""
        return "-".join(self.words)

    @property
    def upper(self) -> str:
        """For environment variables: ``MY_CHIP``."""
        return self.snake.upper()

    @property
    def camel(self) -> str:
        """For classes: ``MyChip``."""
        return "".join(word.capitalize() for word in self.words)

    def forms(self) -> tuple[str, ...]:
        """Return every way in which it is written, those of prose last."""
        prose = " ".join(self.words)
        return self.snake, self.dashed, self.upper, self.camel, prose, prose.title(), prose.capitalize()


def parse(text: str) -> Name:
    """Return the name in words.

    Raises: ConfigError for text that is no name, with the nearest one that is.
    """
    why = _malformed(text)
    if why:
        better = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-0123456789").removeprefix(PREFIX).strip("-0123456789")
        raise _refused(text, why, (better[:LONGEST].rstrip("-")) or "acme")
    return Name(tuple(re.split("[-_]", text)))


def check_free(name: Name, *, own_device: bool) -> None:
    """Refuse a name that vLLM, opdock, Python, an installed package or PyTorch has already.

    Args:
        name: to be the package's.
        own_device: whether it is to be the name of a PyTorch device too.

    Raises: ConfigError.
    """
    why = _TAKEN.get(name.snake) or _reserved_word(name) or _installed(name)
    if not why and own_device:
        why = _known_to_torch(name)
    if why:
        words = [re.sub("[0-9]", "", word) if own_device else word for word in name.words]
        raise _refused(name.dashed, why, "-".join(filter(None, [*words, "accel"])))


def _malformed(text: str) -> str:
    if "/" in text or "\\" in text:
        return "it has a path separator; --into says where the package goes"
    if not _NAME.match(text):
        return (
            "a name is lower-case letters and digits, in words joined by single dashes or underscores, a letter first"
        )
    if text.partition("-")[0].partition("_")[0] == PREFIX:
        return f"{PREFIX} is put before it: the package of acme is {PREFIX}-acme"
    return f"it has {len(text)} characters, {LONGEST} are allowed" if len(text) > LONGEST else ""


def _reserved_word(name: Name) -> str:
    return f"{name.snake} is a word of Python's" if keyword.iskeyword(name.snake) else ""


def _installed(name: Name) -> str:
    from opdock.discovery.metadata import installed_version

    for distribution in (name.dashed, f"{PREFIX}-{name.dashed}"):
        version = installed_version(distribution)
        if version is not None:
            return f"{distribution} {version} is installed"
    for module in (name.snake, f"{PREFIX}_{name.snake}"):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.loader is not None:  # a folder without code is nobody's
            return f"there is a module {module} already: {spec.origin or 'built in'}"
    return ""


def _known_to_torch(name: Name) -> str:
    if not name.snake.replace("_", "").isalpha():
        return "PyTorch allows letters and underscores in the name of a device, no digits"
    if name.snake in _DEVICES:
        return _DEVICES[name.snake]
    import torch

    try:
        torch.device(name.snake)
    except RuntimeError:
        pass
    else:
        return "PyTorch has a device of that name"
    owners = {
        "torch": torch,
        "torch.Tensor": torch.Tensor,
        "torch.nn.Module": torch.nn.Module,
        "torch.UntypedStorage": torch.UntypedStorage,
    }
    for label, owner in owners.items():
        taken = next((n for n in (name.snake, f"is_{name.snake}") if hasattr(owner, n)), None)
        if taken:
            return f"the device would hide {label}.{taken}"
    if any(op.startswith(f"{name.snake}::") for op in torch._C._dispatch_get_all_op_names()):
        return f"PyTorch has operators under {name.snake}::"
    return ""


def _refused(text: str, why: str, better: str) -> ConfigError:
    return ConfigError(f"{text!r} cannot be the name of a platform package.", why=why, remedy=f"opdock new {better}")
