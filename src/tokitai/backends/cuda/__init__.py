"""NVIDIA GPUs: NVRTC, the driver, and what the device is checked for."""

from __future__ import annotations

from .backend import CudaBackend

BACKEND = CudaBackend()
