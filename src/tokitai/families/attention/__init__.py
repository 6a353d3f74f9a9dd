"""Attention: products of queries and keys, what is made of them along each row, and weighted sums."""

from __future__ import annotations

from .family import Attention

FAMILY = Attention()
