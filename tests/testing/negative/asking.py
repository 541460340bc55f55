"""Packages that do the wrong thing while they are asked whether their device is there."""

from __future__ import annotations

from negative.base import ABSENT, ACTIVE, Edit, Negative

INIT = "__init__.py"


def _probe(body: str) -> tuple[Edit, ...]:
    """Return the edit that gives the probe another body."""
    return ((INIT, 'return "no device"', body.replace("\n", "\n    ")),)


def _doing(body: str) -> tuple[Edit, ...]:
    """Return the edit that makes the probe do something before it answers."""
    return _probe(f'{body}\nreturn "no device"')


def _at_import(text: str) -> tuple[Edit, ...]:
    return ((INIT, "import opdock\n", f"import opdock\n\n{text}\n"),)


def _register(body: str) -> tuple[Edit, ...]:
    """Return the edit that defines a register() of its own."""
    old = 'register = opdock.platform_plugin("opdock_good.platform:GoodPlatform", probe=probe)'
    return ((INIT, old, "def register():\n    " + body.replace("\n", "\n    ")),)


PATH = '"opdock_good.platform:GoodPlatform"'
UNTIL_KILLED = "import threading\nthreading.Event().wait()"

NEGATIVES = (
    Negative(
        "import fails",
        "platform.answers",
        "libgood.so",
        "a driver library that is loaded at the top of the module, on a machine that has none",
        ABSENT,
        _at_import('import ctypes\nctypes.CDLL("libgood.so")'),
    ),
    Negative(
        "register raises",
        "platform.answers",
        "no driver, error 35",
        "a count of devices that raises where there is no driver",
        ABSENT,
        _probe('raise RuntimeError("no driver, error 35")'),
    ),
    Negative(
        "register returns a class",
        "platform.answers",
        "expected a class path or None",
        "a function that returns the class itself",
        ABSENT,
        _register("return RuntimeError"),
    ),
    Negative(
        "probe returns a number",
        "platform.answers",
        "returned 0: expected None or True",
        "a probe that returns how many devices there are",
        ABSENT,
        _probe("return 0"),
    ),
    Negative(
        "register returns a quoted path",
        "platform.answers",
        "expected a class path or None",
        "a path that went through repr",
        ABSENT,
        _register(f"return repr({PATH})"),
    ),
    Negative(
        "sys.exit",
        "platform.answers",
        "SystemExit: 3",
        "a command-line helper that exits where the driver is missing",
        ABSENT,
        _doing("import sys\nsys.exit(3)"),
    ),
    Negative(
        "os._exit",
        "platform.answers",
        "exit code 3",
        "a runtime that ends the process on an error of its own",
        ABSENT,
        _doing("import os\nos._exit(3)"),
    ),
    Negative(
        "probe hangs",
        "platform.answers",
        "no answer within 3 s",
        "a driver that waits for a device that another process holds",
        ABSENT,
        _doing(UNTIL_KILLED),
        timeout=3.0,
    ),
    Negative(
        "probe crashes",
        "platform.answers",
        "SIGSEGV",
        "a driver library of another version",
        ABSENT,
        _doing("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"),
    ),
    Negative(
        "imports torch",
        "platform.asking_is_light",
        "imports torch",
        "the platform's class in the module that the entry point names",
        ABSENT,
        _doing("import torch"),
    ),
    Negative(
        "starts a driver",
        "platform.asking_starts_no_driver",
        "initialises torch.cpu_like",
        "torch.cuda.is_available() in the probe, and with it a context that no fork survives",
        ABSENT,
        _doing(
            "import types, torch\n"
            'torch.cpu_like = types.ModuleType("torch.cpu_like")\n'
            "torch.cpu_like.is_initialized = lambda: True"
        ),
    ),
    Negative(
        "sets an environment variable",
        "platform.no_side_effects",
        "environment variables: GOOD_VISIBLE_DEVICES",
        "a default that is exported to every process, whatever platform it uses",
        ABSENT,
        _at_import('import os\nos.environ["GOOD_VISIBLE_DEVICES"] = "0"'),
    ),
    Negative(
        "handles a signal",
        "platform.no_side_effects",
        "SIGTERM",
        "a runtime that wants to clean up",
        ABSENT,
        _doing("import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)"),
    ),
    Negative(
        "changes the folder",
        "platform.no_side_effects",
        "the current folder",
        "a library that is looked for beside its own files",
        ABSENT,
        _doing('import os\nos.chdir("/")'),
    ),
    Negative(
        "changes sys.path",
        "platform.no_side_effects",
        "sys.path",
        "a compiled extension outside of the package",
        ABSENT,
        _at_import('import sys\nsys.path.append("the-driver-s-folder")'),
    ),
    Negative(
        "changes a builtin",
        "platform.no_side_effects",
        "builtins: print",
        "debug output that every process then has",
        ABSENT,
        _at_import("import builtins\nbuiltins.print = lambda *a, **k: None"),
    ),
    Negative(
        "leaves a file behind",
        "platform.no_side_effects",
        "good.log",
        "a log in the current folder",
        ABSENT,
        _doing('open("good.log", "w").close()'),
    ),
    Negative(
        "leaves a thread running",
        "platform.no_side_effects",
        "good-monitor",
        "a monitor of the device",
        ABSENT,
        _doing(
            "import threading\n"
            'threading.Thread(target=threading.Event().wait, name="good-monitor", daemon=True).start()'
        ),
    ),
    Negative(
        "leaves a process running",
        "platform.no_side_effects",
        "processes that still run",
        "a tool of the vendor that is asked for the devices and not waited for",
        ABSENT,
        _doing('import subprocess\nglobal tool\ntool = subprocess.Popen(["sleep", "30"])'),
    ),
    Negative(
        "prints",
        "platform.asking_is_silent",
        "prints 23 bytes",
        "a banner in the output of every program",
        ABSENT,
        _doing('print("good driver 1.2 loaded")'),
    ),
    Negative(
        "prints from C",
        "platform.asking_is_silent",
        "prints",
        "a driver that writes to the descriptor itself",
        ABSENT,
        _doing('import os\nos.write(2, b"\\xff\\x00 no device\\n")'),
    ),
    Negative(
        "declines without a reason",
        "platform.decline_reason",
        "gave no reason",
        "return None, as it is done for vLLM",
        ABSENT,
        _register("return None"),
    ),
    Negative(
        "answers otherwise the second time",
        "platform.answers_again",
        "another answer the second time",
        "a lock that the first call takes",
        ABSENT,
        _probe('asked.append(1)\nreturn "no device" if len(asked) == 1 else None') + _at_import("asked = []"),
    ),
    Negative(
        "answers otherwise in a fork",
        "platform.answers_in_a_fork",
        "in the child 'opdock_good.platform:GoodPlatform'",
        "a handle of the driver that belongs to one process",
        ABSENT,
        _probe('import os\nreturn "no device" if os.getpid() == here else None')
        + _at_import("import os\nhere = os.getpid()"),
    ),
    Negative(
        "answers other hosts",
        "platform.silent_to_other_hosts",
        "vLLM reads the same entry points",
        "a register() of its own, as it is written for vLLM",
        ACTIVE,
        _register(f"return {PATH}"),
    ),
    Negative(
        "names a class that is not there",
        "platform.class_loads",
        "has no attribute 'BadPlatform'",
        "a class that was renamed",
        ACTIVE,
        ((INIT, ":GoodPlatform", ":BadPlatform"),),
    ),
    Negative(
        "names a class of somebody else",
        "platform.class_loads",
        "outside of opdock-good",
        "a platform that is borrowed from another package",
        ACTIVE,
        ((INIT, "opdock_good.platform:GoodPlatform", "opdock.platforms.cpu:CpuPlatform"),),
    ),
)
