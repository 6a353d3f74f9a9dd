"""The headers of kernels for GPUs, and for the CPU's fibers that stand in for one.

One source serves CUDA and the simulated device, numbers as well as hashes: the headers decide.
"""

from __future__ import annotations

from .files import read

OWN = ("threads.h", "lanes.h", "numbers.h", "rows.h", "quotients.h", "sim.h", "hip.h")
OF_PRODUCTS = ("accumulators.h", "matrix_unit.h", "work.h", "products.h")
SHARED = ("integers.h", "hashes.h")  # with the cpu target


def headers(of_products: bool = False) -> dict[str, str]:
    """The headers of GPU kernels, by the name under which a kernel includes them."""
    return read("gpu", OWN + OF_PRODUCTS * of_products) | read("cpu", SHARED)


def warpgroup_headers() -> dict[str, str]:
    """The headers of Hopper's warpgroups, by name."""
    return gpu_own("warpgroup.h", "pipeline.h")


def gpu_own(*names: str) -> dict[str, str]:
    """Headers of one family's kernels, by name."""
    return read("gpu", names)
