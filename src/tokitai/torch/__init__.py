"""Everything that needs PyTorch: imported by nothing else before it is asked for."""

from .replacement import replace, restore
from .warming import Warmed, warm

__all__ = ["Warmed", "replace", "restore", "warm"]
