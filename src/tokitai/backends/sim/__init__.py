"""The simulated device: the source of GPU kernels on this machine's processor, every thread a fiber."""
