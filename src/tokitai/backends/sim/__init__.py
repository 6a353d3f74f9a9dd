"""The simulated device: the source of GPU kernels on this machine's processor, every thread a fiber."""

from __future__ import annotations

from .backend import SimBackend

BACKEND = SimBackend()
