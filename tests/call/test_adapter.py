"""What a call asks of array libraries, of each implementation alike: views, new arrays, copies, integers, values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import OnAnother, OnGpu, installed, on_gpu

from tokitai.arrays.adapter import Arrays
from tokitai.arrays.gpu import DeviceArrays
from tokitai.arrays.host import HostArrays
from tokitai.errors import ArgumentError

F32 = np.dtype(np.float32)
LIBRARIES: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Arrays]]] = {
    "NumPy": (np.ndarray, lambda a: a, HostArrays),
    "torch": (torch.Tensor, torch.from_numpy, HostArrays),
    "torch on a GPU": (OnGpu, on_gpu, lambda x: DeviceArrays("x", x)),
}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    return LIBRARIES[request.param]


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_view_is_the_callers_memory(library: Any) -> None:
    _, of, arrays_of = library
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = arrays_of(of(x)).view("x", of(x)[1:, ::2])
    assert address(view) == address(x) + 16 and view.shape == (2, 2) and view.strides == (16, 8)


def test_new_arrays_are_of_the_callers_library(library: Any) -> None:
    kind, of, arrays_of = library
    arrays = arrays_of(of(np.zeros(2, np.float16)))
    made = arrays.empty("y", (2, 3), F32)
    assert made.array.shape == (2, 3) and made.array.dtype == F32
    value = arrays.returned(made)
    assert type(value) is kind and tuple(value.shape) == (2, 3)
    assert address(arrays.view("y", value)) == address(made.array)
    assert arrays.copies == []


def test_a_copy_is_contiguous_and_noted(library: Any) -> None:
    _, of, arrays_of = library
    x = of(np.arange(12, dtype=np.float32).reshape(3, 4))[:, 1:2]
    arrays = arrays_of(x)
    made = arrays.copied("x", x, arrays.view("x", x), (3, 5))
    assert made.shape == (3, 5) and made.flags.c_contiguous and len(arrays.copies) == 1
    assert made.tolist() == [[v] * 5 for v in (1.0, 5.0, 9.0)]


def test_integers_are_converted_exactly_or_refused(library: Any) -> None:
    _, of, arrays_of = library
    i32, x = np.dtype(np.int32), of(np.array([1, -2, 2**31 - 1]))
    arrays = arrays_of(x)
    _, made = arrays.as_integers("ids", x, arrays.view("ids", x), i32, True)
    assert made.dtype == i32 and made.tolist() == [1, -2, 2**31 - 1] and len(arrays.copies) == 1
    wrong = of(np.array([0, 2**31]))
    with pytest.raises(ArgumentError, match=r"^ids\[1\]=2147483648 \(1 such\); accepted: -2147483648 to 2147483647"):
        arrays.as_integers("ids", wrong, arrays.view("ids", wrong), i32, True)


def test_a_separate_value_shares_no_memory(library: Any) -> None:
    kind, of, arrays_of = library
    arrays = arrays_of(of(np.zeros(2, np.float32)))
    made = arrays.empty("norm", (), F32)
    made.array[...] = 7
    value = arrays.separate(made)
    made.array[...] = 8
    assert type(value) is kind and float(value) == 7


def test_arrays_of_two_devices_are_refused() -> None:
    arrays = DeviceArrays("x", on_gpu(np.zeros(2)))
    with pytest.raises(ArgumentError, match=r"^y: lies on cuda:1; accepted beside x: cuda:0"):
        arrays.view("y", on_gpu(np.zeros(2), OnAnother))
