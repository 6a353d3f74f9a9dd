"""``python -m tokitai`` is the command ``tokitai``."""

import sys

from .cli import main

sys.exit(main())
