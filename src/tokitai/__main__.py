"""``python -m tokitai`` is the command ``tokitai``."""

from .cli import main

main()
