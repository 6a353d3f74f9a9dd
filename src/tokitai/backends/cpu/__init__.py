"""This machine's processor."""

from __future__ import annotations

from .backend import CpuBackend

BACKEND = CpuBackend()
