"""Everything that needs PyTorch: imported by nothing else before it is asked for."""

from .accumulators import accumulate
from .replacement import replace, restore
from .warming import Warmed, warm

__all__ = ["Warmed", "accumulate", "replace", "restore", "warm"]
