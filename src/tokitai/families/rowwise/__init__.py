"""Row-wise kernels: element-wise work, reductions of rows, and sums over the rows of a column."""

from __future__ import annotations

from .family import Rowwise

FAMILY = Rowwise()
