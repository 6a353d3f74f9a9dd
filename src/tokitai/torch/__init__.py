"""Everything that needs PyTorch: imported by nothing else before it is asked for."""

from .warming import Warmed, warm

__all__ = ["Warmed", "warm"]
