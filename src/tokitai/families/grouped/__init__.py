"""Grouped GEMM: a product for each group of rows, or with the K dimension in groups."""

from __future__ import annotations

from .family import Grouped

FAMILY = Grouped()
