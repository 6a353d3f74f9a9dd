"""Arrays of JAX in host memory: read in place, results of JAX, never written; traced ones are refused.

`test_jax` runs these tests in a process of their own: JAX starts threads, which tests that fork would meet.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.lang import Matrix, operator, outputs, storage
from tokitai.routing import permutation

jax = pytest.importorskip("jax")

X = np.random.default_rng(5).standard_normal((4, 6)).astype(np.float32)


@operator
def doubled_in_place(x: Matrix[storage]) -> Any:
    return outputs(x=x + x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_arrays_of_jax_in_and_out(dtype: Any) -> None:
    x, gamma = X.astype(dtype), np.ones(6, dtype)
    y, rstd = ops.rms_norm(jax.numpy.asarray(x), jax.numpy.asarray(gamma))
    want = ops.rms_norm(x, gamma)
    for made, expected in zip((y, rstd), want, strict=True):
        assert isinstance(made, jax.Array) and made.dtype == expected.dtype
        assert np.asarray(made).tobytes() == expected.tobytes()
    assert np.asarray(y + 1).shape == (4, 6), "JAX computes with it"


def test_integers_scalars_and_empty_arrays_of_jax() -> None:
    logits, target = jax.numpy.asarray(X), jax.numpy.asarray([0, 5, 2, 1])
    loss, _ = ops.cross_entropy_with_grad(logits, target)
    assert isinstance(loss, jax.Array) and loss.shape == ()
    assert float(loss) == float(ops.cross_entropy_with_grad(X, np.array([0, 5, 2, 1]))[0])
    values, columns = ops.top_k(logits, k=2)
    assert isinstance(columns, jax.Array) and columns.dtype == np.int32 and values.shape == (4, 2)
    with pytest.raises(ArgumentError, match=r"^target\[1\]=6 "):
        ops.cross_entropy(logits, jax.numpy.asarray([0, 6, 2, 1]))
    assert ops.softmax(jax.numpy.zeros((0, 6))).shape == (0, 6)
    assert isinstance(ops.global_norm([logits, logits]), jax.Array)


def test_arrays_of_jax_are_not_written() -> None:
    x = jax.numpy.asarray(X)
    says = "an array of JAX, which nobody may write; accepted: one of NumPy, torch or CuPy$"
    with pytest.raises(ArgumentError, match=rf"^x: {says}"):
        doubled_in_place(x)
    with pytest.raises(ArgumentError, match=rf"^out \(y\): {says}"):
        ops.softmax(X, out=jax.numpy.zeros((4, 6)))
    state = [jax.numpy.zeros((4, 6))]
    with pytest.raises(ArgumentError, match=rf"^param\[0\]: {says}"):
        ops.adamw(state, state, state, state, step=1, lr=1e-3)
    assert np.asarray(x).tobytes() == X.tobytes()


def test_traced_functions_are_refused_and_a_callback_works() -> None:
    x = jax.numpy.asarray(X)
    for traced in (jax.jit(ops.softmax), jax.vmap(ops.softmax), jax.jit(lambda a: ops.rms_norm(X, gamma=a[0])[0])):
        with pytest.raises(ArgumentError, match=r"holds no elements while JAX traces .* through jax\.pure_callback"):
            traced(x)
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    called = jax.jit(lambda a: jax.pure_callback(lambda b: np.asarray(ops.softmax(np.asarray(b))), like, a))
    assert np.asarray(called(x)).tobytes() == ops.softmax(X).tobytes()


def test_places_of_choices_of_jax() -> None:
    chosen = np.array([[0, 1], [1, 2], [2, 0]], np.int32)
    made, want = (permutation(x, 3) for x in (jax.numpy.asarray(chosen), chosen))
    assert isinstance(made.place, jax.Array) and (np.asarray(made.place) == want.place).all()
    rows = ops.dispatch(jax.numpy.asarray(X[:3]), made.order)
    assert np.asarray(rows).tobytes() == ops.dispatch(X[:3], want.order).tobytes()
