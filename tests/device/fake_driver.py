"""A driver of NVIDIA's that is none, and a text with kernels for one."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pytest

from tokitai.backends.cuda.device import LaunchConfig

driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

CALL = "struct Call { void* tensors[4]; long long sizes[6]; float scalars[2]; void* workspace; };\n"
TEXT = (
    CALL
    + """
extern "C" __global__ void __launch_bounds__(256) scale(const __grid_constant__ Call call) {
  long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i < call.sizes[0])
    static_cast<float*>(call.tensors[1])[i] = static_cast<const float*>(call.tensors[0])[i] * call.scalars[1];
}
extern "C" __global__ void __launch_bounds__(256) ranks(const __grid_constant__ Call call) {
#if __CUDA_ARCH__ >= 900
  unsigned rank, size;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0) static_cast<int*>(call.tensors[1])[blockIdx.x] = size * 100 + rank;
#endif
}
extern "C" __global__ void wild(const __grid_constant__ Call call) {
  static_cast<volatile float*>(call.tensors[1])[1LL << 40] = 1;
}
"""
)


def bytes_of(tensors: list[int], size: int, scalar: float = 0.0) -> bytes:
    return struct.pack("4Q6q2fQ", *(tensors + [0] * 4)[:4], size, 0, 0, 0, 0, 0, 0.0, scalar, 0)


class Fake:
    """A driver that keeps what it is called with. `status` maps functions to the status that they return."""

    CUresult = driver.CUresult
    CUlaunchAttribute, CUlaunchConfig, CUstream = driver.CUlaunchAttribute, driver.CUlaunchConfig, driver.CUstream
    CUlaunchAttributeID, CUfunction_attribute = driver.CUlaunchAttributeID, driver.CUfunction_attribute
    CUdevice_attribute, CUpointer_attribute = driver.CUdevice_attribute, driver.CUpointer_attribute
    CUDA_MEMCPY2D, CUmemorytype = driver.CUDA_MEMCPY2D, driver.CUmemorytype

    def __init__(self, major: int = 9, current: int = 7) -> None:
        self.status: dict[str, int] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.current, self.major, self.gpus = current, major, 1
        self.struct = b""
        kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
        self.native = kind(self.launch)  # what cuGetProcAddress gives
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p)
        self.memset = kind(self.clear)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def run(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, arguments))
            status = driver.CUresult(self.status.get(name, 0))
            if status:
                return (status, None)[: 1 if name.startswith(("cuInit", "cuLaunch", "cuCtx", "cuMemcpy")) else 2]
            return (status, *self.answer(name, arguments))

        return run

    def launch(self, config: int, function: int, parameters: int, extra: int | None) -> int:
        """cuLaunchKernelEx itself."""
        self.struct = ctypes.string_at(ctypes.c_void_p.from_address(parameters).value or 0, len(bytes_of([], 0)))
        c = LaunchConfig.from_address(config)
        about = function, c.grid, c.grid_y, c.grid_z, c.block, c.block_y, c.block_z, c.shared, c.stream, extra
        self.calls.append(("native", (*about, c.attributes, c.attribute_count)))
        return self.status.get("native", 0)

    def clear(self, address: int, value: int, words: int, stream: int | None) -> int:
        """cuMemsetD32Async itself."""
        self.calls.append(("memset", (address, value, words, stream)))
        return self.status.get("memset", 0)

    def answer(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if name in ("cuLaunchKernel", "cuLaunchKernelEx"):
            (pointer,) = struct.unpack("P", memoryview(arguments[-2]).cast("B"))
            self.struct = ctypes.string_at(pointer, len(bytes_of([], 0)))
        if name == "cuDeviceGetAttribute":
            return (self.major if "MAJOR" in arguments[0].name else 0,)
        wanted = self.memset if arguments[:1] == (b"cuMemsetD32Async",) else self.native
        return {
            "cuGetProcAddress": (ctypes.cast(wanted, ctypes.c_void_p).value, 0),
            "cuDeviceGetCount": (self.gpus,), "cuDeviceGet": (0,), "cuDeviceGetName": (b"Fake GPU\0\0",),
            "cuDeviceTotalMem": (1 << 30,), "cuDevicePrimaryCtxRetain": (7,), "cuCtxGetCurrent": (self.current,),
            "cuMemAlloc": (4096,), "cuModuleLoadData": (11,), "cuModuleGetFunction": (12,),
            "cuFuncGetParamInfo": (0, len(bytes_of([], 0))), "cuGetErrorString": (b"as told",),
            "cuDriverGetVersion": (13000,), "cuEventCreate": (1,),
            "cuEventElapsedTime": (0.5,), "cuCtxPopCurrent": (7,), "cuPointerGetAttribute": (0,),
        }.get(name, ())  # fmt: skip

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]
