"""Builds the library from csrc/ where PyTorch and a C++ compiler are there; setup.cfg has the rest."""

from __future__ import annotations

import sys

from setuptools import setup


def say(what: str) -> None:
    """Write a line that pip shows with -v."""
    print(f"opdock-demo-accel: {what}", file=sys.stderr)


def library() -> dict[str, object]:
    """Return what setup() needs to build opdock_demo_accel/_C.so; nothing without PyTorch."""
    try:
        from torch.utils.cpp_extension import BuildExtension, CppExtension
    except ImportError as err:
        say(f"the library is not built: {err}")
        return {}

    class Build(BuildExtension):
        """The package installs without a compiler too; its probe then says what is missing."""

        def run(self) -> None:
            try:
                super().run()
            except Exception as err:  # noqa: BLE001 - whatever the compiler said
                say(f"the library is not built: {err}")

    extension = CppExtension(
        "opdock_demo_accel._C",
        ["csrc/device.cpp", "csrc/kernels.cpp"],
        depends=["csrc/host.h"],
        extra_compile_args=["-O1", "-g0"],
        optional=True,
    )
    # The library holds torch ops and no Python module, so one file name fits every Python.
    return {
        "ext_modules": [extension],
        "cmdclass": {"build_ext": Build.with_options(no_python_abi_suffix=True)},
    }


setup(**library())
