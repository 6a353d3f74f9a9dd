"""Kernels to build in tests, and how to read them back. Imports no pytest: tests also use it in other processes."""

from __future__ import annotations

import numpy as np

from tokitai.backends.cpu import device as cpu
from tokitai.toolchain.build import Artifact, Source

HEAD = """
#include <cstdint>
#define EXPORT extern "C" __attribute__((visibility("default")))
#define ARGUMENTS void* const* tensors, const int64_t* sizes, const void* scalars, void* workspace, int32_t threads
"""


def scaling(factor: str, before: str = "") -> Source:
    """A kernel that multiplies its `sizes[0]` floats by `factor`, a C++ expression; `before` stands above it."""
    body = f"""
    EXPORT int32_t tokitai_kernel(ARGUMENTS) {{
        float* x = static_cast<float*>(tensors[0]);
        for (int64_t i = 0; i < sizes[0]; ++i) x[i] *= {factor};
        return 0;
    }}
    """
    return Source(f"{before}\n{HEAD}{body}")


def scale_of(artifact: Artifact) -> float:
    """The factor that a kernel made by `scaling` really multiplies by."""
    x = np.ones(5, np.float32)
    assert cpu.load(artifact)([x.ctypes.data], [x.size], threads=1) == 0
    assert (x == x[0]).all()
    return float(x[0])
