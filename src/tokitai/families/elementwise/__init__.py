"""Element-wise kernels over one tensor, or over a list of any number of them."""

from __future__ import annotations

from .family import Elementwise

FAMILY = Elementwise()
