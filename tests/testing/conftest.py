"""What the tests of the kit share: they import the packages that they check it with, ``package`` and ``negative``."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
