"""The platform's device and its hooks, in the child where it is active."""

from __future__ import annotations

import contextlib
import pkgutil
from typing import TYPE_CHECKING, Any

import torch

from opdock import ir
from opdock.config import CompilationConfig, OpdockConfig
from opdock.errors import OpdockError
from opdock.journal import entries
from opdock.platforms import configure
from opdock.registry.library import check_dispatch_key
from opdock.testing.check import CannotRun, Fault, check
from opdock.testing.oracle import same_bits

if TYPE_CHECKING:
    from opdock.testing.kit import Kit

_ACTIVE = ("platform.activates",)


@check("platform.activating_starts_no_driver", needs=_ACTIVE)
def activating_starts_no_driver(kit: Kit, subject: str) -> None:
    """Activating initialises no device driver: engines choose the platform before they fork."""
    from opdock.testing.asking import initialised_drivers

    found = initialised_drivers()
    if found:
        raise Fault(
            f"torch.{', torch.'.join(found)} is initialised once the platform is active.",
            remedy="let the hooks load libraries and register; the first tensor may start the driver.",
        )


@check("platform.activating_changes_nothing_else", needs=_ACTIVE)
def activating_changes_nothing_else(kit: Kit, subject: str) -> None:
    """Activating leaves torch's defaults, the random state and the interpreter's hooks as they are."""
    if kit.activation.get("changed"):
        raise Fault(
            "Activating changes what belongs to the program.",
            why=kit.activation["changed"],
            remedy="set what the device needs where it is needed, in a context that is left again.",
        )


@check("platform.device_works", needs=_ACTIVE)
def device_works(kit: Kit, subject: str) -> str:
    """Tensors go to the device and come back bit for bit, and arithmetic on it agrees with the CPU."""
    device = kit.require_device()
    try:
        return _use(kit, device)
    except Fault:
        raise
    except Exception as err:
        raise Fault(
            f"The device cannot do what every model does: {type(err).__name__}.",
            who=f"tried: {kit.last_input}",
            why=str(err).splitlines()[:1],
            remedy="register the aten ops that make, view and copy tensors, and a fallback to the CPU for the others "
            "(docs: A PyTorch device of its own).",
        ) from err


def _use(kit: Kit, device: str) -> str:
    value = torch.randn(5, 7)
    kit.trying("copying a tensor to the device (_copy_from)")
    there = value.to(device)
    if there.device.type != torch.device(device).type:
        raise Fault(f'tensor.to("{device}") is on {there.device}.', remedy="set device_type to the device's type.")
    if not same_bits(there.cpu(), value):
        raise Fault("A tensor comes back from the device with other bits.")
    kit.trying("copying a strided view back")
    if not same_bits(there[1:4, ::2].cpu(), value[1:4, ::2]):
        raise Fault("A strided view comes back from the device with other bits.", remedy="copy by strides.")
    kit.trying("matmul and add of float32, which the fallback may serve")
    product = (there @ there.t() + 1.0).cpu()
    if not torch.allclose(product, value @ value.t() + 1.0, rtol=1e-4, atol=1e-4):
        raise Fault("A product computed on the device is wrong.", why="matmul of 5x7 by 7x5 in float32, and one added")
    kit.trying("writing a row")
    there[2].fill_(3.0)
    if not bool((there.cpu()[2] == 3.0).all()):
        raise Fault("Writing a row on the device does not show in the tensor.")
    return str(there.device)


@check("platform.tensors_have_the_dispatch_key", needs=("platform.device_works",))
def tensors_have_the_dispatch_key(kit: Kit, subject: str) -> str:
    """A tensor of the device carries the platform's dispatch key: an op registered under it runs."""
    platform, device = kit.require_platform(), kit.require_device()
    if kit.settings.device:
        raise CannotRun(f"tensors are made on {device} by request, which is not the platform's device")
    check_dispatch_key(platform.dispatch_key, None)
    keys = torch._C._dispatch_keys(torch.empty(1, device=device))
    key = getattr(torch._C.DispatchKey, platform.dispatch_key)
    if not keys.has(key):
        raise Fault(
            f"Tensors on {device} do not carry dispatch key {platform.dispatch_key}.",
            why=f"they carry {keys}",
            remedy="set dispatch_key to the device's backend key, for example PrivateUse1.",
        )
    return platform.dispatch_key


@check("platform.dtypes", needs=("platform.dispatch_key",))
def dtypes(kit: Kit, subject: str) -> str:
    """supported_dtypes is a list of dtypes, the default first."""
    platform = kit.require_platform()
    try:
        found: Any = platform.supported_dtypes
    except Exception as err:
        if kit.has_device:
            raise
        raise CannotRun(f"supported_dtypes asks the device, which is not here: {type(err).__name__}") from err
    if not isinstance(found, (list, tuple)) or not found or not all(isinstance(d, torch.dtype) for d in found):
        raise Fault(
            f"supported_dtypes is {found!r}.", remedy="a property that returns a list of dtypes, the default first."
        )
    return ", ".join(str(d) for d in found)


@check("platform.dtypes_compute", needs=("platform.dtypes", "platform.device_works"))
def dtypes_compute(kit: Kit, subject: str) -> None:
    """The device has every dtype of supported_dtypes: tensors of it are made and computed with."""
    for dtype in kit.require_platform().supported_dtypes:
        try:
            (torch.ones(4, device=kit.require_device(), dtype=dtype) + 1).cpu()
        except Exception as err:
            raise Fault(
                f"supported_dtypes has {dtype}, and the device cannot add in it: {type(err).__name__}: {err}",
                remedy="leave it out of supported_dtypes.",
            ) from err


@check("platform.configures", needs=("platform.dispatch_key",))
def configures(kit: Kit, subject: str) -> str:
    """A default configuration is prepared twice with the same outcome; what the user sets is kept, or refused."""
    kit.require_platform()
    told = []
    for _ in range(2):
        config = OpdockConfig()
        with configure.set_current_config(config):
            compilation = config.compilation_config
            priorities = {name: tuple(config.kernel_config.ir_op_priority[name]) for name in ir.registry}
            told.append((compilation.mode, compilation.backend, tuple(compilation.custom_ops), priorities))
    if told[0] != told[1]:
        raise Fault(
            "A second default configuration comes out differently.",
            why=[f"first {told[0][:3]}", f"then {told[1][:3]}"],
            remedy="let the configuration hooks set values, not add to lists.",
        )
    _require_users_word(kit)
    return f"backend {told[0][1]}, custom_ops {', '.join(told[0][2])}"


def _require_users_word(kit: Kit) -> None:
    """Raise Fault where a configuration comes out without the switches and the backend that the user set."""
    backend = "aot_eager" if kit.require_platform().get_compile_backend() != "aot_eager" else "eager"
    switches = ["all", "-rms_norm"]
    config = OpdockConfig(compilation_config=CompilationConfig(custom_ops=list(switches), backend=backend))
    try:
        with configure.set_current_config(config):
            compilation = config.compilation_config
            left = [f"custom_ops {', '.join(compilation.custom_ops)}"] * (not {*switches} <= {*compilation.custom_ops})
            left += [f"backend {compilation.backend}"] * (compilation.backend != backend)
    except OpdockError:
        return  # a platform may refuse what it cannot do, and says so
    if left:
        raise Fault(
            "A configuration hook overrides what the user set.",
            why=[f"set: custom_ops {', '.join(switches)}, backend {backend}", *(f"then {each}" for each in left)],
            remedy="fill in what is not set, and raise ConfigError for what the platform cannot do.",
        )


@check("platform.hooks_run_again", needs=("platform.configures",))
def hooks_run_again(kit: Kit, subject: str) -> None:
    """import_kernels and the other hooks run a second time without an error and register nothing new."""
    platform = kit.require_platform()
    if not kit.target.is_platform:
        raise CannotRun("the package's hooks belong to the host's hook manager")
    if kit.activation["status"] == "declined" and kit.activation.get("hooks"):
        raise CannotRun(kit.activation["hooks"])
    before = len(entries())
    for hook in ("import_kernels", "import_ir_kernels", "register_oot"):
        try:
            getattr(platform, hook)()
        except Exception as err:
            raise Fault(
                f"{hook} cannot run a second time: {type(err).__name__}: {str(err).splitlines()[0]}",
                remedy="define classes and functions in a module that the hook imports, not inside the hook.",
            ) from err
    if len(entries()) != before:
        raise Fault(
            f"A second run of the hooks makes {len(entries()) - before} registrations more.",
            why=[f"{entry.kind} {entry.name}  {entry.where()}" for entry in entries()[before:][:4]],
            remedy="define classes and functions in a module that the hook imports, not inside the hook.",
        )


@check("platform.paths", needs=("platform.dispatch_key",))
def paths(kit: Kit, subject: str) -> str:
    """Class paths and the backend that hooks return are there, and inference_mode is a context manager."""
    platform, found = kit.require_platform(), []
    nothing = (None, None)  # no selected backend, no wishes
    for hook, given in (
        ("get_device_communicator_cls", ()),
        ("get_static_graph_wrapper_cls", ()),
        ("get_attn_backend_cls", nothing),
    ):
        path = getattr(platform, hook)(*given)
        if path:
            _resolve(hook, path)
            found.append(path)
    backend = platform.get_compile_backend()
    if backend not in torch._dynamo.list_backends(exclude_tags=None):
        raise Fault(
            f"get_compile_backend returns {backend!r}, which torch.compile does not know.",
            remedy="register it under the entry-point group torch_dynamo_backends, or name one that torch has.",
        )
    with platform.inference_mode():
        pass
    with contextlib.suppress(NotImplementedError):
        name = platform.get_device_name() if kit.has_device else ""
        if not isinstance(name, str):
            raise Fault(f"get_device_name returned {name!r}.", remedy="return the device's marketing name.")
    return ", ".join(found)


def _resolve(hook: str, path: object) -> None:
    try:
        pkgutil.resolve_name(path)  # type: ignore[arg-type]
    except Exception as err:
        raise Fault(f"{hook} returns {path!r}, which cannot be imported: {err}") from err
