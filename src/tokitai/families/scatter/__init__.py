"""Sums of rows over the entries of a table that they choose."""

from __future__ import annotations

from .family import Scatter

FAMILY = Scatter()
