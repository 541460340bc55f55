"""``python -m opdock`` is ``opdock``."""

import sys

from opdock.cli import main

sys.exit(main())
