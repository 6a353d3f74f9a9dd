"""Everything that needs PyTorch: imported by nothing else before it is asked for."""

from .accumulators import accumulate
from .graphs import graphed
from .replacement import replace, restore
from .warming import Warmed, warm

__all__ = ["Warmed", "accumulate", "graphed", "replace", "restore", "warm"]
