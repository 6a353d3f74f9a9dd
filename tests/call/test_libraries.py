"""Arrays of other libraries, and of classes derived from theirs: read in place, results in the same namespace."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pytest
import torch

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.lang import Matrix, operator, outputs, storage

X = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)


@operator
def doubled_in_place(x: Matrix[storage]) -> Any:
    return outputs(x=x + x)


# ------------------------------------------------------------------ classes derived from NumPy's and torch's
class Derived(np.ndarray):
    pass


def mapped(values: Any) -> Any:
    with tempfile.TemporaryFile() as file:
        made = np.memmap(file, values.dtype, "w+", shape=values.shape)
    made[...] = values
    return made


SUBCLASSES = {
    "memmap": mapped, "matrix": lambda a: a.view(np.matrix), "own": lambda a: a.view(Derived),
    "record": lambda a: a.view(np.recarray),
}  # fmt: skip


@pytest.mark.parametrize("make", SUBCLASSES.values(), ids=SUBCLASSES)
def test_subclasses_of_ndarray_are_read_and_written(make: Any) -> None:
    want = ops.softmax(X)
    for made in (ops.softmax(make(X)), ops.softmax(x=make(X))):
        assert type(made) is np.ndarray and made.tobytes() == want.tobytes()
    assert ops.rms_norm(X, np.ravel(make(X[:1])))[0].shape == X.shape
    out = make(np.zeros_like(X))
    assert ops.softmax(X, out=out) is out and np.asarray(out).tobytes() == want.tobytes()
    both = make(X.copy())
    assert doubled_in_place(both) is both and (np.asarray(both) == X + X).all()
    lists = [make(X.copy())]
    assert ops.clip_global_norm(lists, max_norm=1.0)[0][0] is lists[0]


def test_masked_arrays_are_refused_by_name() -> None:
    masked = np.ma.masked_array(X, X > 0)
    for arguments in (dict(x=masked), dict(x=X, gamma=masked[0]), dict(x=X, out=(masked, None))):
        with pytest.raises(ArgumentError, match=r": a masked array; accepted: a plain one, such as x\.filled\(0\)$"):
            ops.rms_norm(**arguments)


class OfTorch(torch.Tensor):
    pass


def test_subclasses_of_tensor_are_read_and_written() -> None:
    want = ops.softmax(torch.from_numpy(X))
    for x in (torch.from_numpy(X).as_subclass(OfTorch), torch.nn.Parameter(torch.from_numpy(X), requires_grad=False)):
        for _ in range(2):  # cold and warm
            made = ops.softmax(x)
            assert isinstance(made, torch.Tensor) and torch.equal(made.as_subclass(torch.Tensor), want)
        out = torch.zeros(4, 6).as_subclass(OfTorch)
        assert ops.softmax(x, out=out) is out and torch.equal(out.as_subclass(torch.Tensor), want)


def test_tensors_whose_elements_lie_elsewhere_are_refused_by_name() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.from_numpy(X))
    with pytest.raises(ArgumentError, match=r"^x: a FakeTensor, whose elements lie elsewhere; accepted: a tensor that"):
        ops.softmax(fake)
    with pytest.raises(ArgumentError, match=r"^x: lies on meta; accepted"):
        ops.softmax(torch.from_numpy(X).to("meta"))
    with pytest.raises(ArgumentError, match=r"^x: a Tensor without memory; accepted: a tensor that holds values"):
        torch.func.vmap(ops.softmax)(torch.from_numpy(X)[None])


# ------------------------------------------------------------------ any library with a namespace
class Namespace:
    """A library of arrays that are NumPy's underneath."""

    @staticmethod
    def from_dlpack(x: Any) -> Own:
        return Own(np.from_dlpack(x))


class Own:
    def __init__(self, array: Any) -> None:
        self.array = array

    def __array_namespace__(self) -> Any:
        return Namespace

    def __dlpack__(self, **wanted: Any) -> Any:
        return self.array.__dlpack__(**wanted)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_results_come_back_through_the_namespace_of_the_array() -> None:
    for view in (X, X[::-1], X[:, ::-1], np.broadcast_to(X[:1], X.shape)):
        made = ops.softmax(Own(view))
        assert type(made) is Own and made.array.tobytes() == ops.softmax(view.copy()).tobytes()
    out = Own(np.zeros((4, 6), np.float32))
    assert ops.softmax(Own(X), out=out) is out and out.array.tobytes() == ops.softmax(X).tobytes()
    frozen = X.copy()
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match=r"^x: read-only; accepted: an array that may be written"):
        doubled_in_place(Own(frozen))


def test_a_library_that_makes_no_arrays_is_refused_before_anything_runs() -> None:
    class Bare:
        def __init__(self, array: Any) -> None:
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    with pytest.raises(ArgumentError, match="Bare, whose library makes no arrays"):
        ops.softmax(Bare(X))
