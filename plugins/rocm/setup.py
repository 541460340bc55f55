"""The part of the build that setup.cfg cannot say: the kernels, compiled where OPDOCK_ROCM_BUILD=1 asks for it.

Else the package is pure Python, and Triton's kernels serve.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent))
import build_kernels

if os.environ.get("OPDOCK_ROCM_BUILD", "0") == "1":
    setup(
        ext_modules=[build_kernels.EXTENSION],
        cmdclass={"build_ext": build_kernels.BuildKernels},
        options={"bdist_wheel": {"py_limited_api": "cp310"}},
    )
else:
    setup()
