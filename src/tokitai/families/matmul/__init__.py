"""Matrix products with element-wise work on their result."""

from __future__ import annotations

from .family import Matmul

FAMILY = Matmul()
