"""What activating the package came to, judged from what the child told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdock.testing.check import FACTS, CannotRun, Fault, check

if TYPE_CHECKING:
    from opdock.testing.session import Session

CLASS, DEVICE = "load platform class", "device"
_HOOKS = ("import_kernels", "import_ir_kernels", "register_oot")
_ORDER = (CLASS, *_HOOKS, DEVICE, "activation")
_REMEDY = (
    "fix what it raises; a hook runs once, when the platform is chosen, and everything that it registered is undone."
)


def _require_step(session: Session, step: str) -> None:
    """Raise Fault if the activation ended in this step."""
    told = session.activation
    if told["status"] in ("activated", "declined", "never"):
        return
    if step_of(told) == step:
        verb = {"timeout": "hangs", "exited": "ends the process"}.get(told["status"], "fails")
        what = step if step != CLASS or session.target.is_platform else "importing the hooks"
        raise Fault(
            f"{what} {verb}: {told['error'].splitlines()[0]}",
            why=[*told["error"].splitlines()[1:], *told["trace"].splitlines()[-8:]],
            remedy=_REMEDY,
        )
    if _ORDER.index(step_of(told)) < _ORDER.index(step):
        raise CannotRun(f"the package was not activated: {told['error'].splitlines()[0]}")


def step_of(told: dict[str, str]) -> str:
    """Return the step in which the activation ended: a hook, the class, or the device after the hooks."""
    if told["step"] in (*_HOOKS, CLASS):
        return told["step"]
    said = told["error"].lower()
    return DEVICE if any(text in said for text in ("dispatch key", "dispatch_key", "device type")) else "activation"


_ASKED = ("platform.requires_opdock", "platform.entry_point_name", "platform.answers")


@check("platform.class_loads", where=FACTS, needs=_ASKED)
def class_loads(session: Session) -> None:
    """The class that register() names can be imported, is a Platform, and fits this host's interface."""
    _require_step(session, CLASS)


@check("platform.class_has_no_faults", where=FACTS, needs=("platform.class_loads",))
def class_has_no_faults(session: Session) -> None:
    """No method of the class is a misspelt or removed hook."""
    faults = session.activation.get("class_faults", ())
    if faults:
        raise Fault("Methods of the class are never called.", why=faults, remedy="rename or delete them.")


@check("registration.import_kernels", where=FACTS, needs=("platform.class_loads",))
def import_kernels(session: Session) -> None:
    """import_kernels ends, without an error."""
    _require_step(session, "import_kernels")
    _require_done(session, "import_kernels")


@check("registration.import_ir_kernels", where=FACTS, needs=("registration.import_kernels",))
def import_ir_kernels(session: Session) -> None:
    """import_ir_kernels ends, and all that it registers is accepted."""
    _require_step(session, "import_ir_kernels")
    _require_done(session, "import_ir_kernels")


@check("registration.register_oot", where=FACTS, needs=("registration.import_ir_kernels",))
def register_oot(session: Session) -> None:
    """register_oot ends, and all that it registers is accepted."""
    _require_step(session, "register_oot")
    _require_done(session, "register_oot")


def _require_done(session: Session, phase: str) -> None:
    told = session.activation
    if told["status"] == "declined" and phase not in told.get("done", ()):
        raise CannotRun(told.get("hooks", "it was not run"))


@check("platform.dispatch_key", where=FACTS, needs=("registration.register_oot",))
def dispatch_key(session: Session) -> None:
    """dispatch_key is a key of torch.library, and the one of the device's tensors."""
    _require_step(session, DEVICE)


@check("platform.activates", where=FACTS, needs=("platform.dispatch_key",))
def activates(session: Session) -> str:
    """Forced by name, the platform becomes the one of the process."""
    _require_step(session, "activation")
    told = session.activation
    if told["status"] == "declined":
        raise CannotRun(f"declined: {told['error']}")
    return f"platform {told.get('platform', 'as it was')}" if session.target.is_platform else ""
