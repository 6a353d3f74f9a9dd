"""Tensors of torch in and out, by DLPack."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tokitai import ops
from tokitai.arrays.dlpack import as_numpy, like
from tokitai.errors import ArgumentError
from tokitai.lang import Matrix, Rows, i32, operator, outputs, storage

DTYPES = {
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
}
TORCH = list(DTYPES)


def tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float32).to(dtype)


def bits_of(t: torch.Tensor) -> Any:
    return t.detach().contiguous().view(torch.int32 if t.dtype == torch.float32 else torch.int16).numpy()


@pytest.mark.parametrize("dtype", TORCH)
def test_results_are_tensors_of_the_same_kind_and_bits(dtype: torch.dtype) -> None:
    x = tensor(dtype, 2, 5, 33)
    y, rstd = ops.rms_norm(x, tensor(dtype, 33))
    assert isinstance(y, torch.Tensor) and y.dtype == dtype and y.shape == x.shape
    assert rstd.dtype == torch.float32 and rstd.shape == (2, 5)
    want, _ = ops.rms_norm(as_numpy("x", x).copy(), as_numpy("w", tensor(dtype, 33)).copy())
    assert want.dtype == DTYPES[dtype] and (bits_of(y) == want.view(bits_of(y).dtype)).all()


@pytest.mark.parametrize("dtype", TORCH)
def test_tensors_are_read_in_place(dtype: torch.dtype) -> None:
    x = tensor(dtype, 6, 40)
    view = as_numpy("x", x)
    assert view.dtype == DTYPES[dtype] and view.ctypes.data == x.data_ptr()
    part = x[::2, 8:24]
    assert as_numpy("x", part).ctypes.data == part.data_ptr()
    assert as_numpy("x", part).strides == (80 * view.itemsize, view.itemsize)
    assert (bits_of(ops.softmax(part, copy=False)) == bits_of(ops.softmax(part.clone()))).all()
    assert (bits_of(ops.softmax(x.T)) == bits_of(ops.softmax(x.T.contiguous()))).all()
    expanded = x[:1].expand(6, 40)
    assert (bits_of(ops.softmax(expanded, copy=False)) == bits_of(ops.softmax(expanded.clone()))).all()


def test_a_view_keeps_its_memory_alive() -> None:
    view = as_numpy("x", torch.full((1000, 1000), 3.0))
    noise = [torch.zeros(1000, 1000) for _ in range(5)]
    assert (view == 3).all() and len(noise) == 5


@pytest.mark.parametrize("dtype", TORCH)
def test_out_is_the_callers_tensor(dtype: torch.dtype) -> None:
    x, y = tensor(dtype, 4, 9), torch.empty(4, 9, dtype=dtype)
    assert ops.softmax(x, out=y) is y
    assert (bits_of(y) == bits_of(ops.softmax(x))).all()


@operator
def doubled(x: Matrix[storage]) -> Any:
    return outputs(x=x + x)


@pytest.mark.parametrize("dtype", TORCH)
def test_results_in_place(dtype: torch.dtype) -> None:
    x = tensor(dtype, 4, 9)
    want = bits_of(x + x)
    assert doubled(x) is x and (bits_of(x) == want).all()


@operator
def integers_first(ids: Rows[i32], x: Matrix[storage]) -> Any:
    return x * 2.0


@pytest.mark.parametrize("dtype", TORCH)
def test_the_first_tensor_need_not_have_the_format_of_the_result(dtype: torch.dtype) -> None:
    x = tensor(dtype, 4, 9)
    y = integers_first(torch.zeros(4, dtype=torch.int32), x)
    assert y.dtype == dtype and y.shape == x.shape and (bits_of(y) == bits_of(x * 2)).all()


def test_a_gradient_would_be_lost() -> None:
    x = tensor(torch.float32, 2, 3).requires_grad_()
    with pytest.raises(
        ArgumentError, match=r"^x: requires a gradient, which this call would lose; accepted: x\.detach\(\)"
    ):
        ops.softmax(x)
    assert ops.softmax(x.detach()).shape == (2, 3)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (2, 0, 4)])
@pytest.mark.parametrize("dtype", TORCH)
def test_empty_tensors(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    y = ops.softmax(torch.zeros(shape, dtype=dtype))
    assert isinstance(y, torch.Tensor) and y.shape == shape and y.dtype == dtype


def test_formats_that_are_none() -> None:
    for x, message in [
        (torch.zeros(2, 2, dtype=torch.complex64), "x: torch.complex64 is not a format of this package"),
        (torch.zeros(2, 2, dtype=torch.float64), "x: format f64; accepted: f16, bf16, f32"),
        (torch.zeros(2, 2, dtype=torch.bool), "x: format bool; accepted: f16, bf16, f32"),
    ]:
        with pytest.raises(ArgumentError, match=f"^{message}"):
            ops.softmax(x)


def test_other_devices_are_refused() -> None:
    class Elsewhere:
        def __dlpack__(self) -> Any:
            raise AssertionError("the memory must not be asked for")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 10, 0  # kDLROCM

    with pytest.raises(
        ArgumentError, match=r"^x: lies on a device of DLPack type 10; accepted on the cpu target: host memory"
    ):
        ops.softmax(Elsewhere())


def test_numpy_results_stay_numpy() -> None:
    array = np.zeros((2, 2), np.float32)
    assert like(array, np.zeros(1)) is array and like(array, 3.0) is array


def test_numpy_and_torch_may_be_mixed() -> None:
    x = tensor(torch.float32, 3, 4)
    y, _ = ops.rms_norm(x, np.ones(4, np.float32))
    assert isinstance(y, torch.Tensor)


def test_what_the_caller_gave_comes_back_as_it_is() -> None:
    """Cold and warm, of torch and NumPy side by side; new results are of the first argument's library."""
    x, weight = tensor(torch.bfloat16, 4, 16), as_numpy("w", tensor(torch.bfloat16, 16)).copy()
    for _ in range(3):
        y, rstd = torch.empty_like(x), np.empty(4, np.float32)
        made = ops.rms_norm(x, weight, out=(y, None))
        assert made[0] is y and isinstance(made[1], torch.Tensor)
        assert ops.rms_norm(x, weight, out=[None, rstd])[1] is rstd
        assert (bits_of(made[1]) == rstd.view(np.int32)).all()
        assert isinstance(ops.rms_norm(as_numpy("x", x), torch.ones(16, dtype=torch.bfloat16))[0], np.ndarray)


def test_a_call_on_tensors_is_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tensor(torch.float16, 4, 16)
    want = ops.softmax(x)
    monkeypatch.setattr("tokitai.runtime.call.call_with", None)  # what a call that is not known goes through
    assert torch.equal(ops.softmax(x.clone()), want)


class Shaped:
    """An array of some other library that has an attribute of torch's tensors."""

    is_cuda = False

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_what_is_not_plain_goes_through_dlpack_or_is_named() -> None:
    x = torch.tensor([1.0, -2.0])
    assert (as_numpy("x", Shaped(x.numpy())) == x.numpy()).all()
    with pytest.raises(ArgumentError, match=r"^x: torch\.uint8 is not a format of this package"):
        as_numpy("x", torch.tensor([3, 4], dtype=torch.uint8))
    turned = torch.complex(x, x).conj().imag  # a view with a bit that says: minus
    assert turned.is_neg()
    with pytest.raises(ArgumentError, match=r"signs are turned; accepted: x.resolve_neg\(\)"):
        ops.softmax(turned)
    assert (as_numpy("x", turned.resolve_neg()) == [-1.0, 2.0]).all()
    assert as_numpy("x", x > 0).tolist() == [True, False]
    with pytest.raises(ArgumentError, match=r"^x: layout torch.sparse_coo; accepted: a dense tensor \(x.to_dense"):
        as_numpy("x", x.to_sparse())
