"""Arrays of the simulated device: views, copies, and operators on them by the path that a GPU's arrays take."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.arrays.device_array import DeviceArray, as_device, device_named, empty_like
from tokitai.arrays.dlpack import on_gpu
from tokitai.arrays.gpu import copied
from tokitai.backends.sim import device as sim
from tokitai.backends.sim.device import POISON, SIM, open_sim
from tokitai.errors import ArgumentError, UnknownNameError
from tokitai.formats import FORMATS, format_of

VALUES = np.random.default_rng(5).standard_normal((3, 4, 6, 8)).astype(np.float32)
DEVICES = ["sim", pytest.param("cuda", marks=pytest.mark.gpu)]

VIEWS: dict[str, Callable[[Any], Any]] = {
    "heads": lambda x: x.swapaxes(1, 2),
    "heads and back": lambda x: x.swapaxes(1, 2).reshape(3, 6, -1),
    "columns apart": lambda x: x.swapaxes(2, 3),
    "the last first": lambda x: x.swapaxes(0, -1),
    "some rows": lambda x: x[1:],
    "every other": lambda x: x[::2].swapaxes(1, 2),
    "none": lambda x: x[3:],
    "flat": lambda x: x.reshape(-1),
    "rows in rows": lambda x: x[:2].reshape(2, 24, 8)[1:].swapaxes(0, 1),
    "a vector": lambda x: x.reshape(-1)[::3],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fmt", ["f32", "bf16", "i64"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_hold_what_those_of_numpy_hold(view: Callable[[Any], Any], fmt: str, device: str) -> None:
    values = (100 * VALUES).astype(FORMATS[fmt].dtype)
    want, got = view(values), view(DeviceArray.of(values, device_named(device)))
    assert isinstance(got, DeviceArray) and got.shape == want.shape and got.nbytes == want.nbytes
    assert got.numpy().tobytes() == want.tobytes()
    dense = got.copy()
    assert dense.contiguous and dense.numpy().tobytes() == want.tobytes()
    assert dense.address != got.address or not want.size
    if want.base is values and want.size:  # NumPy shares the memory here
        assert as_device("x", got).strides == tuple(s // want.itemsize for s in want.strides)


def test_rows_that_overlap_are_copied_one_by_one() -> None:
    array = DeviceArray.of(VALUES.reshape(-1)[:8], open_sim())
    spread = array._view((3, 5), (1, 1))
    assert np.array_equal(spread.copy().numpy(), np.stack([VALUES.reshape(-1)[i : i + 5] for i in range(3)]))
    assert np.array_equal(array._view((3, 2), (0, 1)).numpy(), np.stack([VALUES.reshape(-1)[:2]] * 3))
    scalar = array._view((), ())
    assert scalar.copy().numpy() == VALUES.reshape(-1)[0]


def test_broadcast_dimensions_are_repeated() -> None:
    array = DeviceArray.of(VALUES[:, :1, :1, 0], open_sim())
    spread = array.broadcast_to((2, 3, 4, 6))
    assert spread.numpy().tobytes() == np.broadcast_to(VALUES[:, :1, :1, 0], (2, 3, 4, 6)).tobytes()
    got = copied("limit", array, (3, 4, 6))
    assert got.contiguous and got.numpy().tobytes() == np.broadcast_to(VALUES[:, :1, :1, 0], (3, 4, 6)).tobytes()
    for wrong in ((4, 6), (2, 1, 1), (3, 1, 0, 1)):
        with pytest.raises(ArgumentError, match=r"shape \(3, 1, 1\); accepted: what broadcasts to"):
            array.broadcast_to(wrong)


def test_what_is_no_view_is_refused() -> None:
    array = DeviceArray.of(VALUES, open_sim())
    for wrong in (2, slice(None, None, -1), (slice(1), slice(1))):
        with pytest.raises(ArgumentError, match="accepted: a slice of the first dimension"):
            array[wrong]  # type: ignore[index]
    for sizes in ((5, -1), (-1, -1), (3, 4), (-2, 288)):
        with pytest.raises(ArgumentError, match="accepted: as many elements, at most one -1"):
            array.reshape(*sizes)


def test_new_and_freed_memory_is_poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []  # outlives its owner
    real = sim.aligned_empty
    monkeypatch.setattr(sim, "aligned_empty", lambda *words: (kept.append(real(*words)), kept[-1])[1])
    fresh = DeviceArray((2, 3), "f32", open_sim())
    assert np.isnan(fresh.numpy()).all() and fresh.numpy().tobytes() == bytes([POISON]) * 24
    view = DeviceArray.of(np.zeros((2, 3), np.float32), open_sim())[1:]
    gc.collect()
    assert not kept[-1].any(), "a view keeps the memory"
    del view
    gc.collect()
    assert (kept[-1] == POISON).all()


def test_only_this_package_takes_its_memory_for_a_devices() -> None:
    array = DeviceArray.of(VALUES, open_sim())
    assert (
        on_gpu(array)
        and as_device("x", array).device == SIM
        and repr(array) == ("<DeviceArray f32 [3, 4, 6, 8] on sim>")
    )
    with pytest.raises(BufferError, match="numpy"):
        array.__dlpack__()
    assert not hasattr(array, "__cuda_array_interface__")
    with pytest.raises(ArgumentError, match=r"^gamma: lies on a device of DLPack type 12; accepted on the cpu target"):
        ops.rms_norm(VALUES[0, 0], DeviceArray.of(VALUES[0, 0, 0], open_sim()))
    with pytest.raises(ArgumentError, match=r"^gamma: lies on a device of DLPack type 1; accepted on the cuda target"):
        ops.rms_norm(DeviceArray.of(VALUES[0, 0], open_sim()), VALUES[0, 0, 0])
    made = empty_like(array, (2, 5), "f16")
    assert isinstance(made, DeviceArray) and made.device is open_sim() and made.format is format_of("f16")


def test_devices_by_their_names() -> None:
    assert device_named("sim") is open_sim()
    for wrong in ("cpu", "hip", "cuda:", "cuda:-1", "cuda:x", "sim:0"):
        with pytest.raises(UnknownNameError, match="cuda:N"):
            device_named(wrong)


# ------------------------------------------------------------------ operators
def rand(*shape: int) -> Any:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float16)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_operators_have_the_bits_of_the_cpu(device: str) -> None:
    where = device_named(device)
    ids = np.array([[4, 0, 2], [1, 1, 3]])
    x, heads, rstd = rand(2, 3, 24), rand(2, 5, 3, 8), np.ones((2, 3), np.float32)
    calls: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (ops.softmax, dict(x=x), {}),
        (ops.embedding, dict(table=rand(5, 24), ids=ids), {}),
        (ops.linear, dict(x=x, weight=rand(9, 24), bias=rand(9), residual=rand(2, 3, 9)), dict(activation="gelu")),
        (ops.layer_norm_backward, dict(dy=x, x=x, gamma=rand(24), mean=np.float32(x[..., 0]), rstd=rstd), {}),
        (ops.matmul, dict(a=rand(2, 1, 3), b=x, c=rand(1, 24)), {}),
    ]
    for op, given, words in calls:
        want = op(**given, **words)
        got = op(**{n: DeviceArray.of(a, where) for n, a in given.items()}, **words)
        pairs = zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want)), strict=True)
        assert all(isinstance(a, DeviceArray) and a.numpy().tobytes() == b.tobytes() for a, b in pairs), op
    apart = DeviceArray.of(heads, where).swapaxes(1, 2)
    assert ops.softmax(apart).numpy().tobytes() == ops.softmax(heads.swapaxes(1, 2)).tobytes()
    with pytest.raises(ArgumentError, match=r"^x: strides .* need a copy; accepted with copy=False"):
        ops.softmax(apart, copy=False)
    with pytest.raises(ArgumentError, match=r"ids\[1\]=7 .*accepted: 0 to 4"):
        ops.embedding(DeviceArray.of(rand(5, 24), where), DeviceArray.of(np.array([0, 7]), where))
