"""Dropout's counter-based bits, and rotary positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from bounded import hold, limits
from running import BF16, F16, F32, array, run, same_bits

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.lang import Cols, Matrix, Outputs, Rows, f32, operator, outputs, u32
from tokitai.meaning import bits
from tokitai.ops.dropouts import philox_reference, philox_words

# kat_vectors of Random123: philox4x32, 10 rounds: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def within_chance(count: int, n: int, rate: float) -> bool:
    """Whether `count` of `n` independent events of this rate lie where Hoeffding's inequality leaves 2**-40 beyond."""
    return abs(count / n - rate) <= math.sqrt(41 * math.log(2) / (2 * n))


@operator
def philox_traced(
    c0: Matrix[u32], c1: Matrix[u32], c2: Rows[u32], c3: Rows[u32], k0: Cols[u32], k1: Cols[u32], x: Matrix[f32]
) -> Outputs:
    """The words as the definition makes them, beside an x that makes it an operator."""
    words = philox_words((c0, c1, c2, c3), (k0, k1))
    return outputs(x=x, **{f"word{i}": w for i, w in enumerate(words)})


def kept(x: Any, **scalars: Any) -> Any:
    return ops.dropout(x, **scalars).astype(np.float32) != 0


# ------------------------------------------------------------------ dropout
@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_philox_has_its_known_answers(counter: str, key: str, want: str) -> None:
    words = [tuple(int(w, 16) for w in text.split()) for text in (counter, key, want)]
    assert philox_reference(words[0], words[1]) == words[2]  # type: ignore[arg-type]


@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_the_definition_of_philox_has_the_known_answers(counter: str, key: str, want: str) -> None:
    c, k, w = ([np.array([int(v, 16)], np.uint32) for v in text.split()] for text in (counter, key, want))
    given = dict(c0=c[0].reshape(1, 1), c1=c[1].reshape(1, 1), c2=c[2], c3=c[3], k0=k[0], k1=k[1])
    graph = philox_traced.trace("f32")
    got = bits.evaluate(graph, given | dict(x=np.ones((1, 1), np.float32)), (1, 1), {})
    assert [int(got[f"word{i}"].item()) for i in range(4)] == [int(v[0]) for v in w]


def test_the_kernel_draws_the_known_answer() -> None:
    """The first element of seed 0 has the bits 6627e8d5: it is kept up to p = that / 2**32, and not beyond."""
    x = np.ones((1, 1), np.float32)
    for p, is_kept in ((0x6627E8D4, True), (0x6627E8D5, True), (0x6627E8D6, False)):
        assert kept(x, p=p / 2**32, seed=0)[0, 0] == is_kept


@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (1, 0), (0, 1), (0xA4093822, 0x299F31D0), (2**32 - 1, 2**32 - 1)])
def test_the_mask_is_philox_at_every_place(seed: int, stream: int) -> None:
    """Place by place, against Python integers; however rows and columns are laid out, and over how many threads."""
    x = np.ones((30, 41), np.float32)
    want = [philox_reference((i, 0, 0, 0), (seed, stream))[0] >= 2**30 for i in range(x.size)]
    for threads in (1, 2, 7):
        for shape in ((30, 41), (1, 1230), (1230, 1), (5, 6, 41)):
            scalars: dict[str, Any] = dict(p=0.25, seed=seed, stream=stream, threads=threads)
            assert kept(x.reshape(shape), **scalars).ravel().tolist() == want
            assert (ops.dropout_backward(x.reshape(shape), **scalars) != 0).ravel().tolist() == want


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_keep_rate_and_the_mean(p: float, seed: int) -> None:
    n = 1 << 18
    y = ops.dropout(np.ones((512, 512), np.float32), p=p, seed=seed)
    assert within_chance(int((y != 0).sum()), n, 1 - p)
    assert set(np.unique(y)) == {np.float32(0), np.float32(1) * np.float32(1 / (1 - p))}
    for scalars in (dict(seed=seed + 100), dict(seed=seed, stream=1)):
        both = (y != 0) & kept(np.ones_like(y), p=p, **scalars)  # independent: the product of the rates
        assert within_chance(int(both.sum()), n, (1 - p) ** 2)


@pytest.mark.parametrize("p", [1 - 2.0**-8, 1 - 2.0**-20, 1 - 2.0**-32])
def test_almost_everything_is_dropped(p: float) -> None:
    """Exactly the places whose bits are p 2**32 or more stay, scaled by the power of two that 1/(1 - p) is."""
    rows, cols, scalars = 256, 1024, dict[str, Any](p=p, seed=9, stream=4)
    places = np.arange(rows * cols, dtype=np.uint64)
    zero = np.uint64(0)
    want = (philox_reference((places, zero, zero, zero), (9, 4))[0] >= round(p * 2**32)).reshape(rows, cols)
    assert within_chance(int(want.sum()), want.size, 1 - p)
    for op in (ops.dropout, ops.dropout_backward):
        assert same_bits(op(np.ones((rows, cols), np.float32), **scalars), (want / (1 - p)).astype(np.float32))
    assert want.any() == (p < 1 - 2.0**-20), "some places stay at the first p, so that the mask is seen"


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_backward_drops_what_forward_dropped(dtype: Any) -> None:
    x = array(np.random.default_rng(1).standard_normal((9, 77)), dtype)
    scalars: dict[str, Any] = dict(p=0.5, seed=5, stream=2)
    y, dx = ops.dropout(x, **scalars), ops.dropout_backward(x, **scalars)
    assert same_bits(y, dx) and (y == 0).any()
    assert same_bits(y, np.where(y != 0, x + x, array(0, dtype)).astype(dtype)), "1/(1 - p) is 2"
    nothing = {**scalars, "p": 0.0}
    assert same_bits(ops.dropout(x, **nothing), x) and same_bits(ops.dropout_backward(x, **nothing), x)
    bad = np.full_like(x, np.nan)
    assert (np.isnan(ops.dropout(bad, **scalars).astype(np.float32)) == (y != 0)).all(), "dropped NaN is 0"


@pytest.mark.parametrize(("scalar", "value"), [
    ("p", 1.0), ("p", -0.1), ("p", math.nan), ("seed", -1), ("seed", 2**32), ("seed", 0.5), ("stream", 2**32),
])  # fmt: skip
def test_scalars_out_of_range_are_refused(scalar: str, value: float) -> None:
    with pytest.raises(ArgumentError, match=rf"^dropout: {scalar}=.*; accepted: "):
        ops.dropout(np.ones((2, 2), np.float32), **{"p": 0.5, "seed": 1, scalar: value})


# ------------------------------------------------------------------ rotary positions
def heads(rows: int, half: int, dtype: Any, seed: int, top: int = 4096) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return dict(
        x1=array(rng.standard_normal((rows, half)), dtype), x2=array(rng.standard_normal((rows, half)), dtype),
        position=rng.integers(-top, top, rows).astype(np.int32),
        frequency=(10000.0 ** -(np.arange(half) / half)).astype(np.float32),
    )  # fmt: skip


def turned(a: Any, b: Any, position: Any, frequency: Any, sign: int = 1) -> tuple[Any, Any]:
    """By torch, as complex numbers in f64, at the angle that f32 gives."""
    angle = torch.tensor((position.astype(np.float32)[:, None] * frequency[None, :]).astype(np.float64))
    z = torch.complex(torch.tensor(a.astype(np.float64)), torch.tensor(b.astype(np.float64)))
    z = z * torch.polar(torch.ones_like(angle), sign * angle)
    return z.real.numpy(), z.imag.numpy()


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize(("rows", "half", "top"), [(1, 1, 2), (7, 33, 4096), (40, 64, 1 << 20)])
def test_rotary_is_a_turn_of_complex_numbers(rows: int, half: int, top: int, dtype: Any) -> None:
    given = heads(rows, half, dtype, rows, top)
    y1, y2 = turned(*given.values())
    hold(ops.rotary, given, dict(y1=y1, y2=y2))
    back = dict(dy1=given["x1"], dy2=given["x2"], position=given["position"], frequency=given["frequency"])
    dx1, dx2 = turned(*given.values(), sign=-1)
    hold(ops.rotary_backward, back, dict(dx1=dx1, dx2=dx2))
    if dtype == F32:  # sharper than the bound, which lets the angle err: sine and cosine to 2 ulp, two roundings
        got = run(ops.rotary, **given)
        assert max(np.abs(got["y1"] - y1).max(), np.abs(got["y2"] - y2).max()) <= 16 * 2.0**-24 * 4


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_turning_back_gives_the_input(dtype: Any) -> None:
    given = heads(20, 32, dtype, 3, top=64)
    places = dict(position=given["position"], frequency=given["frequency"])
    y = run(ops.rotary, **given)
    back = dict(dy1=y["y1"], dy2=y["y2"], **places)
    x, first, second = run(ops.rotary_backward, **back), limits(ops.rotary, given), limits(ops.rotary_backward, back)
    carried = first["y1"] + first["y2"]  # a turn makes at most this of the first pass's errors
    for name, was in (("dx1", "x1"), ("dx2", "x2")):
        away = np.abs(x[name].astype(np.float64) - given[was].astype(np.float64))
        assert (away <= second[name] + carried).all()


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_a_turn_keeps_the_length_of_every_pair(dtype: Any) -> None:
    """Whatever the angle: a pair's length changes by no more than the lengths of its two results' errors. The angle's
    own share of the bound moves a pair along its circle; it is left in, so that the limit is a little wide."""
    given = heads(20, 32, dtype, 6, top=1 << 20)
    got, allowed = run(ops.rotary, **given), limits(ops.rotary, given)
    before, after = (
        np.hypot(a.astype(np.float64), b.astype(np.float64))
        for a, b in ((given["x1"], given["x2"]), (got["y1"], got["y2"]))
    )
    error = np.hypot(allowed["y1"], allowed["y2"])
    assert (np.abs(after - before) <= error).all()
    assert error[given["position"] == given["position"][0]].max() < before.max(), "the bound says something"


def test_neighbouring_positions_near_the_largest_are_told_apart() -> None:
    """At frequency 1 the angles 2**20 - k are exact in f32: one position further is one radian more."""
    positions = np.arange(2**20 - 40, 2**20 + 1, dtype=np.int32)
    given = dict(
        x1=np.ones((41, 1), np.float32), x2=np.zeros((41, 1), np.float32), position=positions,
        frequency=np.ones(1, np.float32),
    )  # fmt: skip
    got, (c, s) = run(ops.rotary, **given), (f(positions.astype(np.float64))[:, None] for f in (np.cos, np.sin))
    for have, want in ((got["y1"], c), (got["y2"], s)):  # the kernel's only errors: 2 ulp of sine and cosine
        assert (np.abs(have - want) <= 2 * np.spacing(np.abs(want).astype(np.float32))).all()


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_halves_of_a_head_are_read_and_written_in_place(dtype: Any) -> None:
    given = heads(12, 16, dtype, 4)
    whole = np.concatenate([given["x1"], given["x2"]], axis=1)
    out = np.zeros_like(whole)
    places = (given["position"], given["frequency"])
    ops.rotary(whole[:, :16], whole[:, 16:], *places, copy=False, out=(out[:, :16], out[:, 16:]))
    y1, y2 = ops.rotary(given["x1"], given["x2"], *places)
    assert same_bits(out[:, :16].copy(), y1) and same_bits(out[:, 16:].copy(), y2)


def test_position_zero_turns_nothing_and_far_angles_are_nan() -> None:
    given = heads(3, 5, F32, 1) | dict(position=np.zeros(3, np.int32))
    y = run(ops.rotary, **given)
    assert same_bits(y["y1"], given["x1"]) and same_bits(y["y2"], given["x2"])
    far = given | dict(position=np.array([2**21, 2**20, 1], np.int32), frequency=np.ones(5, np.float32))
    y = run(ops.rotary, **far)
    assert np.isnan(y["y1"][0]).all() and np.isfinite(y["y1"][1:]).all()
