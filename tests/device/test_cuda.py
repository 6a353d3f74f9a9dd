"""The CUDA device: what can be tested without a GPU, and (marked gpu) what a GPU does."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.device.fake_driver import TEXT, Fake, bytes_of
from tokitai.backends.cuda import device as cuda
from tokitai.backends.cuda import driver as cuda_driver
from tokitai.backends.cuda.device import Device, Module, open_device, probe
from tokitai.backends.cuda.nvrtc import build
from tokitai.backends.cuda.target import CudaProgram
from tokitai.errors import (
    ArgumentError,
    DeviceError,
    DeviceLostError,
    DeviceMissingError,
    DeviceOutOfMemoryError,
    IllegalAddressError,
    UnknownNameError,
)
from tokitai.lower.gpu import Step
from tokitai.toolchain.build import Source

driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(cuda_driver, "bindings", lambda: made)
    for found in ("launcher", "clearer"):
        monkeypatch.setattr(cuda, found, getattr(cuda, found).__wrapped__)
    return made


@pytest.fixture
def loaded(fake: Fake) -> Module:
    module = Device().load(build(Source(TEXT), "sm_90"))
    fake.calls.clear()
    return module


def test_importing_the_package_imports_no_cuda() -> None:
    program = (
        "import sys, tokitai, tokitai.backends.cuda.device, tokitai.arrays.device_array, tokitai.backends.cuda.nvrtc; "
        "print([m for m in sys.modules if m.partition('.')[0] in ('cuda', 'torch', 'cupy', 'jax')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("status", "kind", "goes_on"),
    [
        (2, DeviceOutOfMemoryError, True),
        (700, IllegalAddressError, False),
        (716, IllegalAddressError, False),
        (719, IllegalAddressError, False),
        (214, DeviceLostError, False),
        (709, DeviceLostError, False),
        (1, DeviceError, True),
        (701, DeviceError, True),
    ],
)
def test_a_status_is_an_error_that_says_how_to_go_on(
    fake: Fake, status: int, kind: type[DeviceError], goes_on: bool
) -> None:
    fake.status["cuCtxSynchronize"] = status
    with pytest.raises(DeviceError) as caught:
        cuda_driver.call("cuCtxSynchronize", about="device cuda:0")
    message = str(caught.value)
    assert type(caught.value) is kind and caught.value.can_go_on is goes_on
    assert "device cuda:0: cuCtxSynchronize" in message and f"({status})" in message and "as told" in message
    assert ("the process can go on" in message) is goes_on
    assert ("start a new one" in message) is not goes_on


def test_why_there_is_no_gpu(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert probe() is None
    for status, word in {100: "no CUDA device", 3: "forked", 34: "stub", 999: "999"}.items():
        fake.status["cuInit"] = status
        assert word in str(probe())
        with pytest.raises(DeviceMissingError, match="cuda:0"):
            Device()

    def nothing() -> Any:
        raise DeviceMissingError("the Python package cuda-bindings is missing")

    monkeypatch.setattr(cuda_driver, "bindings", nothing)
    assert "cuda-bindings" in str(probe())


def test_no_device_of_that_number(fake: Fake) -> None:
    with pytest.raises(DeviceMissingError, match=r"cuda:1: this process sees one CUDA device; accepted: cuda:0$"):
        Device(1)
    fake.gpus = 3
    with pytest.raises(DeviceMissingError, match=r"cuda:3: .* sees 3 CUDA devices; accepted: cuda:0 to cuda:2$"):
        Device(3)
    assert Device(2).index == 2


def test_a_launch_hands_over_the_bytes(fake: Fake, loaded: Module) -> None:
    call = bytes_of([1, 2, 3, 4], 77, 1.5)
    loaded.launch("scale", 5, 256, call, stream=9)
    assert fake.struct == call
    (launch,) = [arguments for name, arguments in fake.calls if name == "cuLaunchKernel"]
    assert launch[:9] == (12, 5, 1, 1, 256, 1, 1, 0, 9) and launch[10] == 0
    fake.calls.clear()
    loaded.launch("scale", 5, 256, call)
    assert fake.names() == ["cuCtxGetCurrent", "cuLaunchKernel"], "a warm launch is two calls"


def test_a_bound_launch_is_the_same(fake: Fake, loaded: Module) -> None:
    """One native call, which reads what the parameter holds then."""
    call = (ctypes.c_char * len(bytes_of([], 0)))()
    launch = loaded.bound("scale", 5, 256, call)
    fake.calls.clear()
    for size in (77, 78):
        call[:] = bytes_of([1, 2], size, 1.5)
        launch(9)
        assert fake.struct == bytes_of([1, 2], size, 1.5)
    launch(0)
    assert fake.names() == ["native"] * 3
    assert [stream for _, (*_, stream, _, _, _) in fake.calls] == [9, 9, None]
    assert fake.calls[0][1] == (12, 5, 1, 1, 256, 1, 1, 0, 9, None, None, 0)


@pytest.mark.parametrize("bound", [False, True])
def test_a_workspace_is_cleared_ahead_of_its_launch(fake: Fake, loaded: Module, bound: bool) -> None:
    """In the same stream and in the GPU's own context, also where the driver would do without."""
    packed = bytes_of([1, 2], 77, 1.5)[:-8] + (4096).to_bytes(8, "little")
    call, step, program = (ctypes.c_char * len(packed))(), Step("scale", 5, 256, cleared=8), CudaProgram(loaded)
    call[:] = packed
    launch = program.bound(step, call) if bound else lambda stream: program.launch(step, packed, 0, stream)
    for current, status in ((7, 0), (0, 0), (7, 2), (7, 700)):
        fake.calls.clear()
        fake.current, fake.status["memset"] = current, status
        if status:
            kind = DeviceOutOfMemoryError if status == 2 else IllegalAddressError
            with pytest.raises(kind, match="8 bytes at 0x1000: cuMemsetD32Async"):
                launch(9)
            assert not {"native", "cuLaunchKernel"} & set(fake.names())
            continue
        launch(9)
        names = [n for n in fake.names() if n not in ("cuGetProcAddress", "cuModuleGetFunction", "cuFuncGetParamInfo")]
        assert ("memset", (4096, 0, 2, 9)) in fake.calls
        assert names.index("memset") < names.index("native" if bound else "cuLaunchKernel")
        assert names[: names.index("memset")] == ["cuCtxGetCurrent", "cuCtxPushCurrent"][: 1 + (current == 0)]


@pytest.mark.parametrize("status", [201, 400])
def test_a_bound_launch_in_another_context_is_tried_in_its_own(fake: Fake, loaded: Module, status: int) -> None:
    launch = loaded.bound("scale", 5, 256, (ctypes.c_char * len(bytes_of([], 0)))())
    fake.calls.clear()
    fake.current, fake.status["native"] = 0, status
    with pytest.raises(DeviceError, match=rf"kernel scale \(grid 5, block 256\): .*\({status}\)"):
        launch(9)
    assert fake.names()[:5] == ["native", "cuCtxGetCurrent", "cuCtxPushCurrent", "native", "cuCtxPopCurrent"]
    fake.calls.clear()
    fake.current = 7  # the kernel's own: nothing to be tried
    with pytest.raises(DeviceError, match="kernel scale"):
        launch(9)
    assert fake.names()[:2] == ["native", "cuCtxGetCurrent"] and fake.names().count("native") == 1
    fake.status["native"] = 700
    with pytest.raises(IllegalAddressError, match=r"kernel scale \(grid 5, block 256\)"):
        launch(9)


def test_a_launch_in_clusters(fake: Fake, loaded: Module) -> None:
    loaded.launch("ranks", 32, 128, bytes_of([], 0), stream=9, cluster=16)
    assert "cuFuncSetAttribute" in fake.names(), "more than 8 need leave"
    (config, function, _, extra) = next(arguments for name, arguments in fake.calls if name == "cuLaunchKernelEx")
    assert (function, extra, config.numAttrs, int(config.hStream)) == (12, 0, 1, 9)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (32, 1, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes) == (128, 1, 1, 0)
    (attribute,) = config.attrs
    assert attribute.id == driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    shape = attribute.value.clusterDim
    assert (shape.x, shape.y, shape.z) == (16, 1, 1)


def test_another_context_is_the_current_one_again(fake: Fake, loaded: Module) -> None:
    fake.current = 0
    fake.status["cuLaunchKernel"] = 1
    with pytest.raises(DeviceError, match=r"kernel scale \(grid 5, block 256\)"):
        loaded.launch("scale", 5, 256, bytes_of([], 0))
    assert fake.names()[-4:-1] == ["cuCtxPushCurrent", "cuLaunchKernel", "cuCtxPopCurrent"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"grid": 0}, "grid=0"), ({"grid": 2**31}, "grid=2147483648"), ({"block": 0}, "block=0"),
        ({"block": 1025}, "block=1025"), ({"call": b"short"}, "5 bytes of parameters"),
        ({"cluster": 3}, "cluster=3 for 4 CTAs"), ({"cluster": 17}, "cluster=17"), ({"cluster": 0}, "cluster=0"),
    ],
)  # fmt: skip
def test_a_wrong_launch_is_refused(loaded: Module, fake: Fake, change: dict[str, Any], said: str) -> None:
    arguments = {"name": "scale", "grid": 4, "block": 256, "call": bytes_of([], 0), **change}
    with pytest.raises(ArgumentError, match=said):
        loaded.launch(**arguments)
    assert not [name for name in fake.names() if name.startswith("cuLaunch")]


def test_no_kernel_of_that_name(loaded: Module) -> None:
    with pytest.raises(UnknownNameError, match=r"no kernel named 'scales'; did you mean scale"):
        loaded.launch("scales", 1, 1, b"")


def test_clusters_need_sm_90(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Fake(major=8)
    monkeypatch.setattr(cuda_driver, "bindings", lambda: made)
    module = Device().load(build(Source(TEXT), "sm_80"))
    with pytest.raises(ArgumentError, match=r"cluster=2 \(accepted on sm_80: 1\)"):
        module.launch("scale", 2, 32, bytes_of([], 0), cluster=2)
    with pytest.raises(DeviceMissingError, match="built for sm_90"):
        Device().load(build(Source(TEXT), "sm_90"))


def test_a_module_is_loaded_once(fake: Fake) -> None:
    device, artifact = Device(), build(Source(TEXT), "sm_90")
    assert device.load(artifact) is device.load(artifact)
    assert fake.names().count("cuModuleLoadData") == 1


def test_a_driver_older_than_the_compiler(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = fake.answer
    monkeypatch.setattr(fake, "answer", lambda name, a: (12040,) if "DriverGetVersion" in name else answer(name, a))
    with pytest.raises(DeviceMissingError, match="runs CUDA 12; install a newer driver"):
        Device().load(build(Source(TEXT), "sm_90"))


def test_memory_goes_with_its_object(fake: Fake) -> None:
    device = Device()
    memory = device.allocate(100)
    assert memory.address == 4096 and "cuMemFree" not in fake.names()
    del memory
    gc.collect()
    assert ("cuMemFree", (4096,)) in fake.calls
    assert device.allocate(0).address == 0
    with pytest.raises(ArgumentError, match="nbytes=-1"):
        device.allocate(-1)
    fake.status["cuMemAlloc"] = 2
    with pytest.raises(DeviceOutOfMemoryError, match="100 bytes on device 0"):
        device.allocate(100)


def test_copies_wait_and_want_contiguous_arrays(fake: Fake) -> None:
    device, values = Device(), np.arange(6, dtype=np.float32).reshape(2, 3)
    fake.calls.clear()
    device.upload(values, 4096)
    assert fake.calls[-2:] == [("cuCtxSynchronize", ()), ("cuMemcpyHtoD", (4096, values.ctypes.data, 24))]
    device.download(4096, values)
    assert fake.calls[-1] == ("cuMemcpyDtoH", (values.ctypes.data, 4096, 24))
    with pytest.raises(ArgumentError, match="C-contiguous"):
        device.upload(values.T, 4096)
    values.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        device.download(4096, values)


def test_a_gpu_describes_itself(fake: Fake) -> None:
    found = Device().describe()
    assert (found["name"], found["arch"], found["capability"]) == ("Fake GPU", "sm_90", "9.0")
    assert "CUDA 13.0" in found["driver"]
    assert Device().time_ms(lambda: None) == 0.5


@pytest.mark.gpu
def test_kernels_on_a_gpu() -> None:
    device = open_device()
    module = device.load(build(Source(TEXT), device.arch))
    x = np.random.default_rng(1).standard_normal(1003, dtype=np.float32)
    source, target = device.allocate(x.nbytes), device.allocate(x.nbytes)
    device.upload(x, source.address)
    device.fill(target.address, 0xA5, x.nbytes)
    call = bytes_of([source.address, target.address], len(x) - 3, 1.7)
    assert device.time_ms(lambda: module.launch("scale", 4, 256, call)) > 0
    y = np.empty_like(x)
    device.download(target.address, y)
    assert (y[:-3] == x[:-3] * np.float32(1.7)).all()
    assert set(y[-3:].tobytes()) == {0xA5}
    with pytest.raises(ArgumentError, match="bytes of parameters"):
        module.launch("scale", 4, 256, call[:-1])
    with pytest.raises(DeviceOutOfMemoryError, match="can go on"):
        device.allocate(1 << 50)
    module.launch("scale", 4, 256, call)
    device.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("cluster", [1, 2, 8, 16])
def test_clusters_on_a_gpu(cluster: int) -> None:
    device = open_device()
    if device.capability < (9, 0):
        pytest.skip(f"{device.name} is {device.arch}; clusters need sm_90")
    module, ranks = device.load(build(Source(TEXT), device.arch)), np.zeros(32, np.int32)
    target = device.allocate(ranks.nbytes)
    module.launch("ranks", 32, 64, bytes_of([0, target.address], 0), cluster=cluster)
    device.download(target.address, ranks)
    assert ranks.tolist() == [100 * cluster + i % cluster for i in range(32)]


@pytest.mark.gpu
def test_another_thread_launches() -> None:
    device = open_device()
    module, y = device.load(build(Source(TEXT), device.arch)), np.zeros(8, np.float32)
    memory = device.allocate(64)

    def work() -> None:
        device.upload(np.ones(8, np.float32), memory.address)
        module.launch("scale", 1, 256, bytes_of([memory.address, memory.address], 8, 3.0))
        device.download(memory.address, y)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert y.tolist() == [3.0] * 8


@pytest.mark.gpu
def test_an_illegal_address_takes_the_context() -> None:
    """In a process of its own, which cannot use the GPU afterwards."""
    program = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_cuda import *
device = open_device()
module = device.load(build(Source(TEXT), device.arch))
memory = device.allocate(64)
module.launch("wild", 1, 1, bytes_of([0, memory.address], 0))
for _ in range(2):
    try:
        device.synchronize()
    except IllegalAddressError as error:
        print("caught", error.can_go_on)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["caught False"] * 2, done.stderr
    assert done.returncode == 0


def test_rows_are_copied_on_the_gpu_in_the_order_of_a_stream(fake: Fake) -> None:
    device = Device()
    fake.calls.clear()
    device.copy_rows(4096, 96, 8192, 32, 5, stream=3)
    ((what, stream),) = [arguments for name, arguments in fake.calls if name == "cuMemcpy2DAsync"]
    assert (int(what.srcDevice), what.srcPitch, int(what.dstDevice), what.dstPitch) == (4096, 96, 8192, 32)
    assert (what.WidthInBytes, what.Height, stream) == (32, 5, 3)
    assert what.srcMemoryType == what.dstMemoryType == fake.CUmemorytype.CU_MEMORYTYPE_DEVICE
    assert "cuCtxSynchronize" not in fake.names()
    fake.status["cuMemcpy2DAsync"] = 1
    with pytest.raises(DeviceError, match=r"5 rows of 32 bytes at 0x1000: cuMemcpy2DAsync returned"):
        device.copy_rows(4096, 96, 8192, 32, 5)


def test_a_process_knows_whether_it_used_cuda(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_driver.in_use()
    fake.status["cuDeviceGetCount"] = 3  # not initialised
    assert not cuda_driver.in_use()

    def without() -> Any:
        raise DeviceMissingError("no bindings")

    monkeypatch.setattr(cuda_driver, "bindings", without)
    assert not cuda_driver.in_use()
