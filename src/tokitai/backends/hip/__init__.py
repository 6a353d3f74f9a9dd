"""AMD GPUs: clang compiles and inspects kernels for them; none is run yet."""

from __future__ import annotations

from .backend import HipBackend

BACKEND = HipBackend()
