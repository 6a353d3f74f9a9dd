"""Arrays of device memory: what other libraries say about theirs, and what this package hands out."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tokitai.arrays import capsule, device_array
from tokitai.arrays.capsule import export, opened
from tokitai.arrays.device_array import DeviceArray, as_device, dense, empty_like, handed_out
from tokitai.arrays.dlpack import CPU
from tokitai.backends.cuda.device import current_stream, open_device
from tokitai.errors import ArgumentError
from tokitai.formats import FORMATS, format_of


class Owner:
    pass


class Speaker:
    """Something that speaks DLPack of an address that nobody reads."""

    requires_grad = False

    def __init__(self, shape: tuple[int, ...] = (3, 5), fmt: str = "f32", device: tuple[int, int] = (2, 1)) -> None:
        self.shape, self.fmt, self.device, self.owner = shape, format_of(fmt), device, Owner()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: int | None = None) -> Any:
        return export(4096, self.shape, self.fmt, self.device[1], self.owner)


class Interfaced:
    def __init__(self, **changes: Any) -> None:
        base = {"shape": (3, 5), "typestr": "<f4", "data": (4096, False), "strides": None, "version": 3}
        self.__cuda_array_interface__ = {**base, **changes}


@pytest.fixture
def located(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory lies, without a driver to ask."""
    monkeypatch.setattr(device_array, "_device_of", lambda name, address: 0)


@pytest.mark.parametrize("fmt", FORMATS)
def test_dlpack_says_where_an_array_lies(fmt: str) -> None:
    speaker = Speaker((2, 3, 4), fmt)
    view = as_device("x", speaker)
    assert (view.address, view.shape, view.strides, view.format) == (4096, (2, 3, 4), (12, 4, 1), fmt)
    assert (view.device, view.read_only, view.contiguous) == (1, False, True)


def test_a_view_keeps_the_memory() -> None:
    speaker = Speaker()
    alive = weakref.ref(speaker.owner)
    view = as_device("x", speaker)
    del speaker.owner  # only the capsule holds it now
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None and not capsule._handed_out


def test_a_consumer_lets_go_of_the_memory() -> None:
    """torch takes a capsule over and calls its deleter; its device says host memory, so that torch takes it here."""
    torch = pytest.importorskip("torch")
    values = np.arange(15, dtype=np.float32)
    made = export(values.ctypes.data, (3, 5), format_of("f32"), 0, values, kind=CPU[0])
    tensor = torch.utils.dlpack.from_dlpack(made)
    del made
    gc.collect()
    assert len(capsule._handed_out) == 1 and tensor.tolist() == values.reshape(3, 5).tolist()
    del tensor
    gc.collect()
    assert not capsule._handed_out


def test_versioned_capsules_and_strides() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(24, dtype=torch.int32).reshape(4, 6)[1:, ::2]
    found = opened("x", tensor)
    assert (found.address, found.shape, found.strides) == (tensor.data_ptr(), (3, 3), (6, 2))
    assert found.format == "i32" and found.read_only is False
    frozen = np.arange(4, dtype=np.float32)
    frozen.flags.writeable = False
    assert opened("x", frozen).read_only is True, "NumPy says so in the flags of version 1"


def test_what_is_refused_by_dlpack() -> None:
    with pytest.raises(ArgumentError, match="x: lies on a device of DLPack type 1"):
        as_device("x", Speaker(device=(1, 0)))
    with pytest.raises(ArgumentError, match=r"x: requires a gradient.*x\.detach\(\)"):
        speaker = Speaker()
        speaker.requires_grad = True
        as_device("x", speaker)
    torch = pytest.importorskip("torch")
    with pytest.raises(ArgumentError, match="x: lies on cpu"):
        as_device("x", torch.zeros(3))
    with pytest.raises(ArgumentError, match="type code 5 with 64 bits"):
        opened("x", torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(ArgumentError, match="x: list"):
        as_device("x", [1.0])
    with pytest.raises(ArgumentError, match="x: lies on a device of DLPack type 1"):
        as_device("x", np.zeros(3, np.float32))


@pytest.mark.usefixtures("located")
def test_the_interface_says_where_an_array_lies() -> None:
    view = as_device("x", Interfaced())
    assert (view.address, view.shape, view.strides, view.format) == (4096, (3, 5), (5, 1), "f32")
    view = as_device("x", Interfaced(typestr="<f2", strides=(40, 4), data=(64, True)))
    assert (view.strides, view.format, view.read_only, view.contiguous) == ((20, 2), "f16", True, False)
    assert as_device("x", Interfaced(typestr="|b1")).format == "bool"
    assert as_device("x", Interfaced(shape=(0, 5), data=(0, False))).contiguous


@pytest.mark.usefixtures("located")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"typestr": "<c8"}, "'<c8' is not a format"), ({"typestr": ">f4"}, "'>f4'"), ({"typestr": "<V2"}, "'<V2'"),
        ({"strides": (20, 3)}, "multiples of 4"), ({"mask": Interfaced()}, "has a mask"),
    ],
)  # fmt: skip
def test_what_is_refused_by_the_interface(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        as_device("x", Interfaced(**changes))


def test_contiguous_means_dense_where_it_matters() -> None:
    assert dense((2, 3, 4)) == (12, 4, 1) and dense(()) == ()
    for shape, strides, want in [((3, 5), (5, 1), True), ((1, 5), (99, 1), True), ((3, 1), (1, 7), True),
                                 ((3, 5), (6, 1), False), ((0, 5), (9, 9), True), ((), (), True)]:  # fmt: skip
        view = device_array.DeviceView(0, shape, strides, "f32", 0, False, None)
        assert view.contiguous is want, (shape, strides)


def test_streams_without_a_library() -> None:
    assert current_stream() == current_stream(np.zeros(3)) == 0


VALUES = np.random.default_rng(3).standard_normal((5, 7)).astype(np.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("fmt", FORMATS)
def test_own_arrays(fmt: str) -> None:
    device, values = open_device(), VALUES.astype(format_of(fmt).dtype)
    array = DeviceArray.of(values, device)
    assert array.numpy().tobytes() == values.tobytes()
    assert as_device("x", array).contiguous and array.__dlpack_device__() == (2, 0)
    assert opened("x", array).format == fmt
    if fmt == "bf16":
        with pytest.raises(AttributeError, match="bf16"):
            _ = array.__cuda_array_interface__
    else:
        assert array.__cuda_array_interface__["data"] == (array.address, False)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int32", "int64", "bool"])
def test_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(60, device="cuda").reshape(6, 10).to(getattr(torch, name))[::2, 1:]
    view = as_device("x", x)
    assert (view.address, view.shape, view.strides) == (x.data_ptr(), (3, 9), (20, 1))
    assert view.format == format_of(name if name != "bool" else "bool").name and view.device == 0
    made = empty_like(x, (2, 3), "bf16")
    assert made.dtype is torch.bfloat16 and made.is_cuda and handed_out(made, x) is made
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert current_stream(x) == stream.cuda_stream
    assert current_stream(x) == torch.cuda.current_stream().cuda_stream
    own = DeviceArray.of(VALUES.astype(ml_dtypes.bfloat16), open_device())
    assert torch.equal(torch.from_dlpack(own).cpu(), torch.from_numpy(VALUES).bfloat16())
    if name == "float32":
        with pytest.raises(ArgumentError, match="requires a gradient"):
            as_device("x", torch.nn.Parameter(torch.zeros(3, device="cuda")))


@pytest.mark.gpu
def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    x = cupy.asarray(VALUES)[:, ::2]
    view = as_device("x", x)
    assert (view.address, view.shape, view.strides, view.format) == (x.data.ptr, (5, 4), (7, 2), "f32")
    made = empty_like(x, (2, 3), "f16")
    assert isinstance(made, cupy.ndarray) and made.dtype == np.float16
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        assert current_stream(x) == stream.ptr
    assert cupy.asnumpy(cupy.from_dlpack(DeviceArray.of(VALUES, open_device()))).tobytes() == VALUES.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("fmt", ["f16", "bf16", "f32", "i32"])
def test_jax(fmt: str) -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this jax has no CUDA")
    values = VALUES.astype(format_of(fmt).dtype)
    x = jax.numpy.asarray(values)
    view = as_device("x", x)
    assert (view.shape, view.strides, view.format, view.read_only) == ((5, 7), (7, 1), fmt, True)
    back = np.empty_like(values)
    open_device().download(view.address, back)
    assert back.tobytes() == values.tobytes()
    made = empty_like(x, values.shape, fmt)
    assert isinstance(made, DeviceArray)
    open_device().upload(values, made.address)
    theirs = handed_out(made, x)
    assert isinstance(theirs, jax.Array) and np.asarray(theirs).tobytes() == values.tobytes()
