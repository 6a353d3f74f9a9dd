"""Element-wise operators on lists of tensors: what is accepted, what is refused, what is written where."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.runtime import host_executor
from tokitai.runtime.host_executor import prepare_lists
from tokitai.runtime.launch_cache import LAUNCHES

BF16 = ml_dtypes.bfloat16
PARAMS = dict(step=3, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.1, loss_scale=1.0, seed=0)
SHAPES = [(3, 5), (0,), (7,), (2, 0, 3), (1, 1, 4), ()]


def noise(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> Any:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def adam(shapes: list[tuple[int, ...]], dtype: Any = np.float32) -> dict[str, list[Any]]:
    return dict(
        param=[noise(s, i, dtype) for i, s in enumerate(shapes)],
        grad=[noise(s, 9 + i, dtype) for i, s in enumerate(shapes)],
        exp_avg=[noise(s, 20 + i) for i, s in enumerate(shapes)],
        exp_avg_sq=[np.asarray(np.abs(noise(s, 30 + i))) for i, s in enumerate(shapes)],
    )


def copied(lists: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {n: [a.copy() for a in arrays] for n, arrays in lists.items()}


def same(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


# ------------------------------------------------------------------ results
@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32])
def test_new_results_have_the_shapes_and_bits_of_single_calls(dtype: Any) -> None:
    xs = [noise(s, i, dtype) for i, s in enumerate(SHAPES) if s != ()]
    for kind in (list, tuple):
        got = ops.gelu_erf(kind(xs))
        assert isinstance(got, list) and all(same(y, ops.gelu_erf(x)) for x, y in zip(xs, got, strict=True))


def test_several_results_are_several_lists() -> None:
    gate, up, dy = ([noise((4, i), i + k) for i in range(3)] for k in (0, 5, 10))
    dgate, dup = ops.swiglu_backward(dy, gate, up)
    for i in range(3):
        want = ops.swiglu_backward(dy[i], gate[i], up[i])
        assert same(dgate[i], want[0]) and same(dup[i], want[1])


def test_results_in_place_are_the_callers_lists() -> None:
    lists = adam(SHAPES)
    inside = {n: list(a) for n, a in lists.items()}
    singles = copied(lists)
    returned = ops.adamw(**lists, **PARAMS)
    assert [r is lists[n] for r, n in zip(returned, ("param", "exp_avg", "exp_avg_sq"), strict=True)] == [True] * 3
    for i in range(len(SHAPES)):
        ops.adamw(**{n: a[i] for n, a in singles.items()}, **PARAMS)
        for n in ("param", "exp_avg", "exp_avg_sq"):
            assert lists[n][i] is inside[n][i] and same(lists[n][i], singles[n][i])


def test_one_tensor_without_a_list() -> None:
    lists = adam([(3, 5)])
    one = {n: a[0].copy() for n, a in lists.items()}
    returned = ops.adamw(**one, **PARAMS)
    ops.adamw(**lists, **PARAMS)
    assert returned[0] is one["param"] and same(one["param"], lists["param"][0])
    norm = ops.global_norm(one["grad"])
    assert norm.shape == () and norm == ops.global_norm([one["grad"]])
    grad, norm = ops.clip_global_norm(one["grad"], max_norm=0.5)
    assert grad is one["grad"] and norm.shape == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tensors_of_torch_are_written_in_place(dtype: torch.dtype) -> None:
    param = [torch.randn(5, 3).to(dtype), torch.randn(0).to(dtype), torch.randn(17).to(dtype)]
    rest = [[torch.rand(p.shape) for p in param] for _ in "mv"]
    grad = [torch.randn(p.shape).to(dtype) for p in param]
    places = [p.data_ptr() for p in param]
    stored = BF16 if dtype == torch.bfloat16 else np.float16 if dtype == torch.float16 else np.float32
    plain = [[a.to(torch.float32).numpy().astype(stored) for a in some] for some in (param, grad)]
    plain += [[a.numpy().copy() for a in some] for some in rest]
    returned = ops.adamw(param, grad, *rest, **PARAMS)
    ops.adamw(*plain, **PARAMS)
    assert returned[0] is param and [p.data_ptr() for p in param] == places
    for i in range(3):
        assert (param[i].to(torch.float32).numpy() == plain[0][i].astype(np.float32)).all()
        assert same(rest[0][i].numpy(), plain[2][i]) and same(rest[1][i].numpy(), plain[3][i])
    new = ops.gelu_erf(param)
    for y, p in zip(new, param, strict=True):
        assert isinstance(y, torch.Tensor) and y.dtype == dtype and y.shape == p.shape


def test_empty_lists() -> None:
    assert ops.gelu_erf([]) == [] and ops.adamw([], [], [], [], **PARAMS) == ([], [], [])
    for op, scalars in ((ops.global_norm, {}), (ops.clip_global_norm, dict(max_norm=1.0))):
        with pytest.raises(ArgumentError, match=rf"^{op.name}: an empty list; accepted: at least one tensor"):
            op([], **scalars)
    assert ops.global_norm([np.zeros(0, np.float32)]) == 0


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_change_no_bit(threads: int) -> None:
    shapes = [(16384,), (3,), (16385,), (0,), (50000,)]
    want, got = adam(shapes, np.float16), adam(shapes, np.float16)
    ops.adamw(**want, **PARAMS, threads=1)
    ops.adamw(**got, **PARAMS, threads=threads)
    assert all(same(a, b) for n in want for a, b in zip(want[n], got[n], strict=True))
    assert same(ops.global_norm(want["grad"], threads=1), ops.global_norm(want["grad"], threads=threads))


def test_lists_from_several_threads_at_once() -> None:
    want = adam([(1000,), (7,)])
    states = [copied(want) for _ in range(6)]
    ops.adamw(**want, **PARAMS)
    start = threading.Barrier(6)

    def work(state: dict[str, list[Any]]) -> None:
        start.wait()
        ops.adamw(**state, **PARAMS, threads=2)

    threads = [threading.Thread(target=work, args=(s,)) for s in states]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(same(a, b) for s in states for n in want for a, b in zip(s[n], want[n], strict=True))


# ------------------------------------------------------------------ prepared lists
def test_prepared_lists_may_be_run_again() -> None:
    lists = adam([(33,), (0,), (2, 5)])
    loop = copied(lists)
    prepared = prepare_lists(ops.adamw, lists, {})
    for step in range(1, 4):
        scalars = {**PARAMS, "step": step}
        returned = prepared(scalars, 2)
        ops.adamw(**loop, **scalars)
        assert returned[0] is lists["param"]
        for i, g in enumerate(lists["grad"]):  # new gradients in the same memory
            g[...] = noise(g.shape, 100 * step + i)
            loop["grad"][i][...] = g
    assert all(same(a, b) for n in lists for a, b in zip(lists[n], loop[n], strict=True))


def test_prepared_values_are_not_overwritten() -> None:
    grad = [noise((50,), 1)]
    prepared = prepare_lists(ops.global_norm, dict(grad=grad), {})
    first = prepared({}, 1)
    grad[0] *= 2
    second = prepared({}, 1)
    assert second == 2 * first and second == ops.global_norm(grad)


# ------------------------------------------------------------------ refusals, before anything is written
def changed(n: str, i: int, value: Any) -> dict[str, list[Any]]:
    lists = adam([(3, 5), (7,)])
    lists[n][i] = value
    return lists


def read_only(shape: tuple[int, ...]) -> Any:
    array = np.ones(shape, np.float32)
    array.flags.writeable = False
    return array


def misaligned(count: int) -> Any:
    array = np.zeros(4 * count + 1, np.uint8)[1:].view(np.float32)
    array[:] = 1
    return array


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (changed("grad", 1, np.ones(7, np.float16)), r"grad\[1\]: format float16; accepted beside grad\[0\]: "),
        (changed("exp_avg", 1, np.ones(7)), r"exp_avg\[1\]: format float64; accepted beside "),
        (changed("grad", 0, noise((5, 3), 1)), r"grad\[0\]: shape \(5, 3\); accepted beside param\[0\]: \(3, 5\)"),
        (changed("grad", 1, np.ones(8, np.float32)), r"grad\[1\]: shape \(8,\); accepted beside param\[1\]: \(7,\)"),
        (changed("grad", 1, np.ones(0, np.float32)), r"grad\[1\]: shape \(0,\)"),
        (changed("param", 0, read_only((3, 5))), r"param\[0\]: read-only; accepted: an array that may be written"),
        (changed("param", 0, np.ones((5, 3), np.float32).T), r"param\[0\]: strides .* accepted for a result"),
        (changed("exp_avg", 1, np.ones(14, np.float32)[::2]), r"exp_avg\[1\]: strides \(8,\) of"),
        (changed("param", 1, misaligned(7)), r"param\[1\]: strides \(4,\) of .* aligned arrays"),
        (changed("grad", 1, [1.0] * 7), r"grad: list; accepted: a NumPy array"),
        (dict(adam([(3,)]), grad=adam([(3,)])["grad"][0]), r"grad: ndarray beside lists; accepted: a list of tensors"),
        (dict(adam([(3,)]), grad=[]), r"adamw: param has 1, grad has 0, exp_avg has 1, exp_avg_sq has 1; accepted:"),
        (dict(adam([(3,)]), grad=adam([(3,)] * 2)["grad"]), r"adamw: param has 1, grad has 2, "),
    ],
)  # fmt: skip
def test_wrong_lists_are_refused(lists: dict[str, Any], message: str) -> None:
    arrays = [a for some in lists.values() for a in some if isinstance(a, np.ndarray)]
    before = [a.tobytes() for a in arrays]
    with pytest.raises(ArgumentError, match=f"^{message}"):
        ops.adamw(**lists, **PARAMS)
    assert [a.tobytes() for a in arrays] == before


MEMORY = np.ones(100, np.float32)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (("param", 0, MEMORY[:10]), ("grad", 0, MEMORY[9:19]), r"grad\[0\]: overlaps param\[0\]; accepted: memory of"),
        (("param", 0, MEMORY[:10]), ("param", 1, MEMORY[5:15]), r"param\[1\]: overlaps param\[0\]"),
        (("exp_avg", 0, MEMORY[:10]), ("exp_avg_sq", 1, MEMORY[:10]), r"exp_avg\w*\[\d\]: overlaps exp_avg\w*\[\d\]"),
        (("param", 0, MEMORY[20:30]), ("grad", 1, MEMORY[10:21].copy()[:10]), None),
        (("grad", 0, MEMORY[:10]), ("grad", 1, MEMORY[5:15]), None),  # only read
        (("param", 0, MEMORY[:10]), ("param", 1, MEMORY[10:20]), None),  # side by side
    ],
)  # fmt: skip
def test_what_is_written_lies_apart(first: Any, second: Any, message: str | None) -> None:
    lists = adam([(10,), (10,)])
    for name, i, array in (first, second):
        lists[name][i] = array
    if message is None:
        ops.adamw(**lists, **PARAMS)
        return
    before = MEMORY.copy()
    with pytest.raises(ArgumentError, match=f"^{message}"):
        ops.adamw(**lists, **PARAMS)
    assert same(MEMORY, before)


def test_a_wide_tensor_that_is_read_overlaps_one_that_is_not_its_neighbour() -> None:
    """Sorted by address, a long range may reach over a short one into a third."""
    whole = np.ones(100, np.float32)
    lists = adam([(100,), (5,), (5,)])
    lists["grad"][0], lists["grad"][1], lists["param"][2] = whole, whole[10:15], whole[50:55]
    with pytest.raises(ArgumentError, match=r"overlaps .*; accepted: memory of its own"):
        ops.adamw(**lists, **PARAMS)


@pytest.mark.parametrize("name", ["layer_norm", "softmax", "rms_norm"])
def test_operators_on_rows_take_no_lists(name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^{name}: works on rows; accepted: one tensor, lists for element-wise"):
        ops.get(name)([np.ones((2, 3), np.float32)])


def test_out_is_refused_beside_lists() -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(ArgumentError, match=r"^gelu_erf: out beside lists; accepted: results in place or new ones"):
        ops.gelu_erf([x], out=[x.copy()])
    with pytest.raises(ArgumentError, match=r"^global_norm: out; accepted: results in place or new ones"):
        ops.global_norm(x, out=x.copy())


def test_copies_are_made_only_where_they_are_allowed() -> None:
    x = noise((6, 10), 1)
    for view in (x[:, ::2], x.T, misaligned(7)):
        plain = np.array(view, order="C")
        assert same(ops.gelu_erf([view])[0], ops.gelu_erf(plain)) and ops.global_norm([view]) == ops.global_norm(plain)
        with pytest.raises(ArgumentError, match=r"^x\[0\]: strides .* need a copy; accepted with copy=False: contig"):
            ops.gelu_erf([view], copy=False)
        with pytest.raises(ArgumentError, match=r"^grad\[0\]: strides .* need a copy"):
            ops.global_norm(view, copy=False)
    assert same(ops.gelu_erf([x], copy=False)[0], ops.gelu_erf(x))


# ------------------------------------------------------------------ lists like those of an earlier call
def test_lists_of_torch_are_checked_in_full_once(monkeypatch: pytest.MonkeyPatch) -> None:
    LAUNCHES.clear()
    here = copied(given := adam([s for s in SHAPES if 0 not in s]))
    lists = {n: [torch.from_numpy(a) for a in arrays] for n, arrays in given.items()}
    checked, prepare = [], host_executor.prepare
    monkeypatch.setattr(host_executor, "prepare", lambda *a: (checked.append(a), prepare(*a))[1])
    for step in range(1, 4):
        here["grad"] = [noise(a.shape, 40 * step + i) for i, a in enumerate(here["grad"])]
        lists["grad"] = [torch.from_numpy(a.copy()) for a in here["grad"]]  # elsewhere in memory
        version = lists["param"][0]._version
        returned = ops.adamw(**lists, step=step, lr=1e-3)
        assert returned[0] is lists["param"] and lists["param"][0]._version == version + 1
        norms = [ops.global_norm(values) for values in (lists["grad"], [2 * g for g in lists["grad"]])]
        ops.adamw(**here, step=step, lr=1e-3)
        assert all(same(a.numpy(), b) for n in here for a, b in zip(lists[n], here[n], strict=True))
        assert same(norms[0].numpy(), np.asarray(ops.global_norm(here["grad"])))
        assert norms[1] == 2 * norms[0], "each a result of its own"
    assert sum(isinstance(a[1]["grad"][0], torch.Tensor) for a in checked) == 2, "adamw, and global_norm"
    for name, i, value, message in (
        ("grad", 1, lists["grad"][1][1:], "shape"), ("grad", 1, lists["grad"][1].half(), "format"),
        ("grad", 1, lists["param"][1], "overlaps"), ("exp_avg", 1, lists["param"][1], "overlaps"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            ops.adamw(**lists | {name: [value if k == i else x for k, x in enumerate(lists[name])]}, step=4, lr=1e-3)
    assert all(same(a.numpy(), b) for n in here for a, b in zip(lists[n], here[n], strict=True))
