"""NVIDIA GPUs: NVRTC, the driver, and what the device is checked for."""
