"""Each family, on the processor and on the simulated device: the replies hold the bits of the definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from host import F16, F32, Array, adamw_bytes, floats, framed, frames, here, lines, patterns, process, words

from tokitai.meaning import bits
from tokitai.ops import get

DEVICES = pytest.mark.parametrize("device", ["cpu", "sim"])
HEAD = ["DEVICE_NAME", "GFX"]
FIGURES = ["GRID", "BLOCK", "KERNEL_TIME_MS"]
SHAPES = [(1, 1), (3, 17), (2, 64), (0, 5), (5, 100)]


def drawn(seed: int, *shape: int, dtype: Any = F16) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def expected(name: str, shape: tuple[int, int], tensors: dict[str, Array], **params: float) -> dict[str, Array]:
    """What the oracle computes, on arrays of rows x cols."""
    op = get(name)
    given = {p.name: params.get(p.name, p.default) for p in op.params}
    return bits.evaluate(op.trace("f16", set(tensors)), tensors, shape, given)


def same(got: Array, want: Array) -> bool:
    return got.dtype == want.dtype and got.size == want.size and got.tobytes() == want.tobytes()


def check_head(reply: dict[str, str], device: str, empty: bool, sizes: dict[str, int], arrays: list[str]) -> None:
    assert list(reply) == [*HEAD, *sizes, *FIGURES, *arrays]
    assert {key: int(reply[key]) for key in sizes} == sizes
    assert reply["DEVICE_NAME"] and (reply["GFX"] == "sim") is (device == "sim")
    grid, block, taken = int(reply["GRID"]), int(reply["BLOCK"]), float(reply["KERNEL_TIME_MS"])
    assert taken >= 0
    if not empty:
        assert (grid, block) == (1, 1) if device == "cpu" else grid >= 1 and block >= 32
        assert taken > 0


@DEVICES
@pytest.mark.parametrize("shape", SHAPES)
def test_layernorm_forward(device: str, shape: tuple[int, int]) -> None:
    x, gamma, beta = drawn(1, *shape), drawn(2, shape[1]), drawn(3, shape[1])
    done = here("layernorm", words(1, *shape, 64, "1e-05", gamma, beta, x), device=device)
    assert done.code == 0, done.out
    reply = lines(done.out)
    check_head(reply, device, shape[0] == 0, dict(ROWS=shape[0], COLS=shape[1]), ["OUTPUT", "MEAN", "RSTD"])
    want = expected("layer_norm", shape, dict(x=x, gamma=gamma, beta=beta), eps=1e-5)
    assert same(patterns(reply["OUTPUT"]), want["y"])
    assert same(floats(reply["MEAN"]), want["mean"]) and same(floats(reply["RSTD"]), want["rstd"])


@DEVICES
@pytest.mark.parametrize("shape", SHAPES)
def test_layernorm_backward(device: str, shape: tuple[int, int]) -> None:
    dy, x, gamma, beta = drawn(4, *shape), drawn(1, *shape), drawn(2, shape[1]), drawn(3, shape[1])
    mean, rstd = drawn(5, shape[0], dtype=F32), np.abs(drawn(6, shape[0], dtype=F32))
    narrow = np.zeros(2 * shape[0], F16)  # read and not used
    payload = words(2, *shape, 64, "1e-05", 128, gamma, beta, dy, x, narrow, mean, rstd, separator="\n")
    done = here("layernorm", payload, device=device)
    assert done.code == 0, done.out
    reply, sizes = lines(done.out), dict(ROWS=shape[0], COLS=shape[1])
    check_head(reply, device, False, sizes, ["GRAD_INPUT", "GRAD_GAMMA", "GRAD_BETA"])
    want = expected("layer_norm_backward", shape, dict(dy=dy, x=x, gamma=gamma, mean=mean, rstd=rstd))
    for key, name in (("GRAD_INPUT", "dx"), ("GRAD_GAMMA", "dgamma"), ("GRAD_BETA", "dbeta")):
        assert same(patterns(reply[key]), want[name]), key


@DEVICES
@pytest.mark.parametrize("shape", SHAPES)
def test_softmax(device: str, shape: tuple[int, int]) -> None:
    x, dy, sizes = drawn(1, *shape), drawn(2, *shape), dict(ROWS=shape[0], COLS=shape[1])
    done = here("softmax", words(0, *shape, x, separator=" \t\r\n"), device=device)
    assert done.code == 0, done.out
    reply = lines(done.out)
    check_head(reply, device, shape[0] == 0, sizes, ["OUTPUT"])
    y = expected("softmax", shape, dict(x=x))["y"]
    assert same(patterns(reply["OUTPUT"]), y)
    done = here("softmax", words(1, *shape, dy, y), device=device)
    assert done.code == 0, done.out
    reply = lines(done.out)
    check_head(reply, device, shape[0] == 0, sizes, ["GRAD_INPUT"])
    assert same(patterns(reply["GRAD_INPUT"]), expected("softmax_backward", shape, dict(dy=dy, y=y))["dx"])


@DEVICES
@pytest.mark.parametrize("n", [0, 1, 17, 4099])
def test_adamw_as_text_and_as_bytes(device: str, n: int) -> None:
    theta, m, v, grad = drawn(1, n), drawn(2, n, dtype=F32), np.abs(drawn(3, n, dtype=F32)), drawn(4, n)
    scalars = ("0.001", "0.9", "0.999", "1e-08", "0.01")
    short = [float(F32(text)) for text in scalars]
    done = here("adamw", words(n, *scalars, 3, theta, m, v, grad), device=device)
    assert done.code == 0, done.out
    reply = lines(done.out)
    check_head(reply, device, n == 0, dict(N=n), ["THETA", "M", "V"])
    given = dict(param=theta, grad=grad, exp_avg=m, exp_avg_sq=v)
    named = dict(zip(("lr", "beta1", "beta2", "eps", "weight_decay"), short, strict=True))
    want = expected("adamw", (1, n), {k: a.reshape(1, n) for k, a in given.items()}, step=3, **named)
    assert same(patterns(reply["THETA"]), want["param"])
    assert same(floats(reply["M"]), want["exp_avg"]) and same(floats(reply["V"]), want["exp_avg_sq"])
    done = here("adamw", adamw_bytes(theta, m, v, grad, short), device=device)
    assert done.code == 0 and len(done.out) == 16 + 10 * n
    status, count = np.frombuffer(done.out, "<u4", 2)
    (taken,) = np.frombuffer(done.out, "<f4", 1, 8)
    assert (int(status), int(count), bool(taken >= 0), done.out[12:16]) == (0, n, True, bytes(4))
    assert done.out[16:] == b"".join(want[name].tobytes() for name in ("param", "exp_avg", "exp_avg_sq"))


@DEVICES
@pytest.mark.parametrize("which", [1, 2])
@pytest.mark.parametrize("sizes", [(3, 5, 7), (1, 1, 1), (2, 3, 0), (0, 2, 3), (2, 0, 3)])
def test_gemm_bw(device: str, which: int, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    values = np.random.default_rng(0)
    grad, a, b = (values.integers(-8, 9, shape).astype(F16) for shape in ((m, n), (m, k), (k, n)))
    done = here("gemm-bw", words(which, m, n, k, grad, b if which == 1 else a), device=device)
    assert done.code == 0, done.out
    reply = lines(done.out)
    empty = k * (m if which == 1 else n) == 0
    check_head(reply, device, empty, dict(M=m, N=n, K=k), ["RESULTS"])
    # Small whole numbers: every order of summation gives the same.
    want = np.einsum("mn,kn->mk", grad, b) if which == 1 else np.einsum("mk,mn->kn", a, grad)
    assert same(patterns(reply["RESULTS"], " "), want + F16(0))


@pytest.mark.parametrize("sizes", [(4, 3, 5), (1, 1, 1), (0, 3, 4), (100, 2, 3)])
def test_embedding(sizes: tuple[int, int, int]) -> None:
    queries, dim, vocab = sizes
    ids = np.random.default_rng(0).integers(0, vocab, queries)
    table = np.random.default_rng(1).integers(-8, 9, (vocab, dim)).astype(F16)
    grad = np.random.default_rng(2).integers(-8, 9, (queries, dim)).astype(F16)
    for op, values in ((0, table), (1, grad)):
        done = here("embedding", words(*sizes, op, *ids.tolist(), values))
        assert done.code == 0, done.out
        reply = lines(done.out)
        check_head(reply, "cpu", False, dict(QUERIES=queries, DIM=dim, VOCAB=vocab), ["RESULTS"])
        want = np.zeros((vocab, dim), F16)
        np.add.at(want, ids, grad)
        assert same(patterns(reply["RESULTS"], " "), table[ids] if op == 0 else want)


def test_a_server_answers_each_frame_in_turn() -> None:
    values = [drawn(seed, 2, 5 + seed) for seed in range(4)]
    requests = b"".join(framed(words(0, *x.shape, x)) for x in values)
    done = process("softmax", requests, "--server")
    assert (done.code, done.err) == (0, "")
    for x, reply in zip(values, frames(done.out), strict=True):
        assert same(patterns(lines(reply)["OUTPUT"]), expected("softmax", x.shape, dict(x=x))["y"])  # type: ignore[arg-type]


def test_one_request_without_frames() -> None:
    x = drawn(1, 3, 7)
    for device in ("cpu", "sim"):
        done = process("softmax", words(0, 3, 7, x), "--device", device)
        assert (done.code, done.err) == (0, "")
        assert same(patterns(lines(done.out)["OUTPUT"]), expected("softmax", (3, 7), dict(x=x))["y"])
