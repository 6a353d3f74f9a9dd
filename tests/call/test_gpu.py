"""Operators on arrays of a GPU: everything but the driver, on the simulated device. tests/device has a GPU's part."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import STREAM, OnAnother, OnGpu, SimGpu, checked_on_gpu, installed, on_gpu

from tokitai import ops
from tokitai.arrays import gpu as arrays
from tokitai.errors import ArgumentError
from tokitai.runtime import gpu_executor, gpu_launch, launch_cache

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
X = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> SimGpu:
    return installed(monkeypatch)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of operators whose calls were checked in full."""
    return checked_on_gpu(monkeypatch)


def bits(x: Any) -> Any:
    x = x.as_subclass(torch.Tensor).contiguous()
    return x.reshape(-1).view(torch.uint8).numpy().tobytes()


def equal(got: Any, want: Any) -> bool:
    """Results of a fake GPU and of the CPU: the same shapes, dtypes and bits."""
    got, want = (r if isinstance(r, (tuple, list)) else (r,) for r in (got, want))
    return len(got) == len(want) and all(
        isinstance(a, OnGpu) and a.shape == b.shape and a.dtype == b.dtype and bits(a) == bits(b)
        for a, b in zip(got, want, strict=True)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_of_the_cpu_cold_and_warm(dtype: torch.dtype, checked: list[str]) -> None:
    x, gamma, beta = X.to(dtype), X[1].to(dtype), X[2].to(dtype)
    for eps in (1e-5, 1e-3, 1e-5):  # a scalar that is new, and one that is known
        for lead in ((6,), (2, 3)):
            y = ops.layer_norm(on_gpu(x.reshape(*lead, 40)), on_gpu(gamma), beta=on_gpu(beta), eps=eps)
            assert equal(y, ops.layer_norm(x.reshape(*lead, 40), gamma, beta, eps=eps))
    assert len(checked) == 2, "once for each shape"


@pytest.mark.parametrize("name", ["layer_norm_backward", "softmax", "swiglu", "rms_norm_backward"])
def test_workspace_and_new_values_in_the_same_recipe(name: str, checked: list[str]) -> None:
    op, rng = ops.get(name), np.random.default_rng(4)
    for _ in range(3):
        given = {
            t.name: torch.from_numpy(rng.random({"rc": (70, 24), "r": (70,), "c": (24,)}[t.space], np.float32))
            for t in op.tensors
        }
        assert equal(op(**{n: on_gpu(a) for n, a in given.items()}), op(**given))
    assert checked == [name]


def test_views_at_other_alignments_and_strides_are_other_recipes() -> None:
    base = torch.randn(8, 64, generator=torch.Generator().manual_seed(2))
    for _ in range(2):
        for view in (base[:, :40], base[:, 1:41], base[::2, 3:43], base[:1].expand(5, 64), base[:, ::2], base.T):
            assert equal(ops.softmax(on_gpu(view)), ops.softmax(view.contiguous()))
    with pytest.raises(ArgumentError, match=r"^x: strides .* need a copy; accepted with copy=False"):
        ops.softmax(on_gpu(base[:, ::2]), copy=False)


def test_views_that_are_copied_are_copied_warm_as_cold(checked: list[str]) -> None:
    """Values are those of the call, also of a row vector that broadcasts, and of the indices that are checked."""
    for seed in range(3):
        noise = torch.Generator().manual_seed(seed)
        base, rows = torch.randn(8, 64, generator=noise), torch.arange(6, dtype=torch.int32) + seed
        low, high = base[:, :48].view(4, 2, 6, 8).chunk(2, dim=-1)
        given = (low, high, rows.expand(4, 2, 6), torch.randn(4, generator=noise))
        want = ops.rotary(*(x.contiguous() for x in given))
        assert equal(ops.rotary(*map(on_gpu, given)), want)
        target = torch.randint(0, 64, (8, 3), generator=noise)[:, 1]
        assert equal(ops.cross_entropy(on_gpu(base), on_gpu(target)), ops.cross_entropy(base, target))
        target[5] = 64
        with pytest.raises(ArgumentError, match=r"^target\[5\]=64"):
            ops.cross_entropy(on_gpu(base), on_gpu(target))
    assert checked.count("rotary") == 1 and checked.count("cross_entropy") == 1


def test_out_is_the_callers_tensor(checked: list[str]) -> None:
    want = ops.rms_norm(X, X[0])
    for _ in range(2):
        y, rstd = on_gpu(torch.empty(6, 40)), on_gpu(torch.empty(6))
        got = ops.rms_norm(on_gpu(X), on_gpu(X[0]), out=(y, rstd))
        assert got[0] is y and got[1] is rstd and equal(got, want)
        got = ops.rms_norm(on_gpu(X), on_gpu(X[0]), out=(None, rstd))
        assert got[1] is rstd and got[0] is not y and equal(got, want)
    assert len(checked) == 2
    base = on_gpu(torch.full((6, 64), 7.0))
    ops.softmax(on_gpu(X), out=base[:, 3:43])
    assert bool((base[:, :3] == 7).all() and (base[:, 43:] == 7).all()) and equal(base[:, 3:43], ops.softmax(X))


def test_what_is_written_lies_apart_warm_as_cold() -> None:
    base = on_gpu(torch.randn(200))
    first, apart = base[:40].reshape(1, 40), base[100:140].reshape(1, 40)
    assert ops.softmax(first, out=apart) is apart
    near = base[32:72].reshape(1, 40)  # the same alignment as before: the recipe is there
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"^out \(y\): overlaps x; accepted: memory of its own"):
            ops.softmax(first, out=near)
    rows = on_gpu(torch.randn(12, 40))
    want = ops.softmax(rows[::2].as_subclass(torch.Tensor).clone())
    for _ in range(2):
        assert equal(ops.softmax(rows[::2], out=rows[1::2]), want), "rows between rows lie apart"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(gamma=X[0]), r"gamma: lies on cpu; accepted on the cuda target"),
        (dict(gamma=np.zeros(40, np.float32)), r"gamma: lies on a device of DLPack type 1; accepted on the cuda"),
        (dict(gamma=on_gpu(X[0], OnAnother)), r"gamma: lies on cuda:1; accepted beside x: cuda:0"),
        (dict(gamma=on_gpu(X[0][:39])), r"gamma: shape \(39,\); accepted beside x: \(40,\)"),
        (dict(gamma=on_gpu(X[0].half())), r"gamma: format f16 beside f32"),
        (dict(x=on_gpu(X.to(torch.complex64))), r"x: torch.complex64 is not a format"),
        (dict(x=on_gpu(X.clone()).requires_grad_()), r"x: requires a gradient"),
        (dict(eps="small"), r"rms_norm: eps='small'; accepted: a number"),
        (dict(eps=True), r"rms_norm: eps=True; accepted: a number"),
        (dict(weight=on_gpu(X)), r"rms_norm: unknown argument weight"),
        (dict(threads=2), r"threads=2 beside arrays of a GPU; accepted: leave it out"),
        (dict(cuda_stream="mine"), r"cuda_stream='mine'; accepted: a stream of torch"),
        (dict(out=on_gpu(torch.empty(6, 40))), r"out: 1 arrays; accepted: 2, for y, rstd"),
        (dict(out=(X, None)), r"out \(y\): lies on cpu"),
        (dict(out=(on_gpu(torch.empty(6, 39)), None)), r"out \(y\): shape \(6, 39\) of float32; accepted: \(6, 40\)"),
        (dict(out=(on_gpu(torch.empty(6, 80))[:, ::2], None)), r"out \(y\): strides"),
    ],
)
def test_what_is_refused_warm_as_cold(arguments: dict[str, Any], message: str) -> None:
    good = {"x": on_gpu(X), "gamma": on_gpu(X[0]), "eps": 1.0}
    for _ in range(2):
        ops.rms_norm(**good)  # its recipe is there, and its scalars
    for _ in range(2):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            ops.rms_norm(**{**good, **arguments})


A, B = torch.randn(4, 6, 40, generator=torch.Generator().manual_seed(3)), X[None].expand(4, 6, 40)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_have_the_bits_of_the_cpu_cold_and_warm(dtype: torch.dtype, checked: list[str]) -> None:
    a, b, c = A.to(dtype), A.to(dtype).transpose(1, 2).contiguous(), torch.ones(4, 6, 6, dtype=dtype)
    cases: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (ops.matmul, (a, b), dict(beta=0.0)),
        (ops.matmul, (a, b, c), dict(alpha=0.5, beta=-1.0)),
        (ops.matmul, (a, b, c), dict(alpha=0.5, beta=0.0)),
        (ops.matmul, (a, b[0]), dict(beta=0.0, accumulator="f64")),  # one matrix for all of a batch
        (ops.matmul, (a, a), dict(beta=0.0, layout="NT")),
        (ops.matmul_backward_right, (c, a), dict(alpha=2.0)),
        (ops.linear, (a, a[0], a[1, 0, :6], c), dict(activation="silu")),
        (ops.linear_swiglu, (a, a[0], a[1]), {}),
        (ops.linear_backward_weight, (a, c), {}),
    ]
    for _ in range(2):
        for op, tensors, words in cases:
            assert equal(op(*map(on_gpu, tensors), **words), op(*tensors, **words)), (op, words)
    assert len(checked) == len(cases), "once for each kind of call"
    assert equal(ops.linear_backward_bias(on_gpu(X)), ops.linear_backward_bias(X))


Q, KEYS = A.reshape(2, 2, 6, 40), A[:2].reshape(2, 1, 6, 40).flip(2)  # two heads share keys
LIMIT = torch.arange(1, 7, dtype=torch.int32)


@pytest.mark.slow
def test_attention_has_the_bits_of_the_cpu_cold_and_warm(checked: list[str]) -> None:
    """A limit of every head is read where it lies; one that broadcasts is copied."""
    for limit in (LIMIT.expand(2, 2, 6).contiguous(), LIMIT, None):
        del checked[:]
        for _ in range(2):
            given = (Q, KEYS, KEYS) if limit is None else (Q, KEYS, KEYS, limit)
            want = ops.attention(*given, scale=0.2)
            assert all(map(equal, ops.attention(*map(on_gpu, given), scale=0.2), want)), limit
        assert len(checked) == 1
    y, top, total = ops.attention(Q.half(), KEYS.half(), KEYS.half(), LIMIT, scale=0.2)
    given = (y, Q.half(), KEYS.half(), KEYS.half(), top, total, LIMIT)
    want = ops.attention_backward(*given, scale=0.2)
    out = tuple(on_gpu(torch.full_like(x, 7)) for x in want)
    got = ops.attention_backward(*map(on_gpu, given), scale=0.2, out=out)
    assert all(a is b for a, b in zip(got, out, strict=True)) and all(map(equal, got, want))


def test_attention_that_cannot_be_is_refused_as_on_the_cpu() -> None:
    for given, says in (
        ((Q, KEYS[:1], KEYS), r"k: shape \(1, 1, 6, 40\); accepted beside q"),
        ((Q, KEYS, KEYS, torch.full((6,), 7, dtype=torch.int32)), r"limit\[0\]=7 \(.*\); accepted: 0 to 6"),
        ((Q, KEYS, KEYS, LIMIT[:5]), r"limit: shape \(5,\); accepted: \(6,\), of queries alone"),
    ):
        for place in (on_gpu, torch.Tensor.clone):
            with pytest.raises(ArgumentError, match=f"^{says}"):
                ops.attention(*map(place, given), scale=1.0)
    with pytest.raises(ArgumentError, match=r"^v: strides .* need a copy"):
        turned = KEYS.transpose(2, 3).contiguous().transpose(2, 3)
        ops.attention(on_gpu(Q), on_gpu(KEYS), on_gpu(turned), scale=1.0, copy=False)


def test_products_into_memory_of_the_callers(checked: list[str]) -> None:
    want = ops.matmul(A, B, beta=0.0, layout="NT")
    base = on_gpu(torch.full((4, 6, 16), 7.0))
    for _ in range(2):
        out = base[:, :, 3:9]
        assert ops.matmul(on_gpu(A), on_gpu(B), beta=0.0, layout="NT", out=out) is out and equal(out, want)
        assert bool((base[:, :, :3] == 7).all() and (base[:, :, 9:] == 7).all())
    assert len(checked) == 1
    total, host = on_gpu(torch.ones(6, 40)), torch.ones(6, 40)
    for _ in range(2):
        assert ops.linear_accumulate_weight(total, on_gpu(A[:, :, :6].half()), on_gpu(A.half())) is total
        ops.linear_accumulate_weight(host, A[:, :, :6].half(), A.half())
        assert equal(total, host)


@pytest.mark.parametrize("shape", [(0, 40, 3), (3, 0, 40), (3, 4, 0)])
def test_empty_products(shape: tuple[int, int, int]) -> None:
    rows, cols, inner = shape
    a, b = torch.zeros(rows, inner), torch.zeros(cols, inner)
    for _ in range(2):
        assert equal(ops.linear(on_gpu(a), on_gpu(b)), ops.linear(a, b))


def test_products_that_cannot_be_are_refused_as_on_the_cpu() -> None:
    words: dict[str, Any] = dict(beta=0.0, layout="NT")
    wide = torch.randn(6, 80)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((X, X[:, :39]), {}, r"b: shape \(6, 39\), 39 along inner; accepted beside a: 40"),
        ((X[0], X), {}, r"a: shape \(40,\); accepted: 2 dimensions or more"),
        ((A, A[:3]), {}, r"b: shape \(3, 6, 40\); accepted beside a: \(4,\) ahead"),
        ((X, X.half()), {}, r"b: format f16 beside f32"),
        ((wide[:, ::2], X), dict(copy=False), r"a: strides .* need a copy; accepted with copy=False"),
        ((X, X), dict(accumulator="f16"), r"matmul: accumulator='f16'; accepted: 'f32', 'f64'"),
        ((X, X), dict(alpha="one"), r"matmul: alpha='one'; accepted: a number"),
    ]
    for tensors, more, message in wrong:
        for place in (lambda x: x, on_gpu):
            with pytest.raises(ArgumentError, match=f"^{message}"):
                ops.matmul(*map(place, tensors), **{**words, **more})
    assert equal(ops.matmul(on_gpu(wide[:, ::2]), on_gpu(X), **words), ops.matmul(wide[:, ::2], X, **words))
    a = on_gpu(torch.randn(6, 6))
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"^out \(y\): overlaps a; accepted: memory of its own"):
            ops.matmul(a, on_gpu(torch.randn(6, 6)), out=a, **words)
        with pytest.raises(ArgumentError, match=r"^out \(y\): shape \(6, 5\) of float32; accepted: \(6, 6\) of f32"):
            ops.matmul(on_gpu(X), on_gpu(X), out=on_gpu(torch.empty(6, 5)), **words)
        with pytest.raises(ArgumentError, match=r"^out \(y\): strides .* so that elements share memory"):
            ops.matmul(on_gpu(A), on_gpu(A), out=on_gpu(torch.empty(6, 6)).expand(4, 6, 6), **words)


def test_host_arrays_take_no_stream() -> None:
    for words in (dict(cuda_stream=3), dict(check=False)):
        with pytest.raises(ArgumentError, match=r"^softmax: (cuda_stream=3|check=False) beside arrays in host memory"):
            ops.softmax(X, **words)
    with pytest.raises(ArgumentError, match=r"^gamma: lies on a device of DLPack type 2"):
        ops.rms_norm(X, Elsewhere())


class Elsewhere:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self) -> Any:
        raise AssertionError("its memory must not be asked for")


@pytest.mark.parametrize("shape", [(0, 40), (3, 0), (2, 0, 4)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    for _ in range(2):
        assert equal(ops.softmax(on_gpu(torch.zeros(shape))), ops.softmax(torch.zeros(shape)))
        assert equal(ops.rms_norm(on_gpu(torch.zeros(shape))), ops.rms_norm(torch.zeros(shape)))


# ------------------------------------------------------------------ targets
def test_targets_are_checked_as_on_the_cpu(fake: SimGpu, checked: list[str]) -> None:
    target = torch.tensor([0, 39, -100, 5, 6, 7])
    want = ops.cross_entropy(X, target)
    assert equal(ops.cross_entropy(on_gpu(X), on_gpu(target)), want)
    assert fake.said == [("read", STREAM)], "read in the caller's stream"
    bad = torch.tensor([0, 39, 40, 5, -1, 7])
    for _ in range(2):
        with pytest.raises(ArgumentError) as here:
            ops.cross_entropy(X, bad)
        with pytest.raises(ArgumentError) as there:
            ops.cross_entropy(on_gpu(X), on_gpu(bad))
        assert str(there.value) == str(here.value) and "target[2]=40 (2 such rows)" in str(here.value)
    fake.said.clear()
    checked.clear()
    for _ in range(3):
        assert equal(ops.cross_entropy(on_gpu(X), on_gpu(target), check=False), want)
    assert fake.said == [] and checked == [], "nothing is waited for"


def test_options_that_follow_from_scalars_are_other_recipes() -> None:
    target = torch.tensor([0, 39, -100, 5, 6, 7])
    for smoothing in (0.0, 0.1, 0.0, 0.2):
        got = ops.cross_entropy(on_gpu(X), on_gpu(target), label_smoothing=smoothing, check=False)
        assert equal(got, ops.cross_entropy(X, target, label_smoothing=smoothing))


# ------------------------------------------------------------------ streams
def test_captured_calls_are_those_that_ran_before(fake: SimGpu) -> None:
    want = ops.softmax(X)
    fake.recording = True
    with pytest.raises(ArgumentError, match=r"^softmax: a stream that is being captured; accepted: a call on tensors"):
        ops.softmax(on_gpu(X))
    fake.recording = False
    ops.softmax(on_gpu(X))
    fake.recording = True
    assert equal(ops.softmax(on_gpu(X)), want)


@pytest.mark.parametrize("name", ["softmax", "silu", "top_k", "router", "masked_softmax", "rotary", "linear"])
def test_what_is_kept_of_a_call_holds_none_of_its_tensors(name: str, checked: list[str]) -> None:
    """Nor, with them, the graph that autograd has of them."""
    op, shapes = ops.get(name), {"rc": (6, 8), "rk": (6, 8), "ck": (8, 8), "r": (6,), "c": (8,)}
    formats = {"i32": torch.int32}
    given = [
        torch.ones(shapes[t.space], dtype=formats.get(t.format, torch.float32)) for t in op.tensors if not t.optional
    ]
    tensors = [on_gpu(x) for x in given]
    held = [weakref.ref(x) for x in tensors]
    op(*tensors)
    assert checked == [name]
    del tensors
    gc.collect()
    assert [r() for r in held] == [None] * len(held)
    op(*map(on_gpu, given))
    assert checked == [name], "the call was kept"


def test_handles_of_streams() -> None:
    class Core:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 5

    class Torch:
        cuda_stream = 6

    class CuPy:
        ptr = 7

    assert [arrays.handle_of(s) for s in (0, 4, Core(), Torch(), CuPy())] == [0, 4, 5, 6, 7]
    for wrong in (True, -1, 1.5, None, "x"):
        with pytest.raises(ArgumentError, match="cuda_stream="):
            arrays.handle_of(wrong)


def test_kernels_are_launched_into_the_stream(monkeypatch: pytest.MonkeyPatch, fake: SimGpu) -> None:
    used: list[int] = []
    real = gpu_executor.launch_all

    def launch(ready: Any, call: bytes, workspace: int, stream: int) -> None:
        used.append(stream)
        real(ready, call, workspace, stream)

    monkeypatch.setattr(gpu_executor, "launch_all", launch)
    monkeypatch.setattr(arrays, "within", lambda *_: nullcontext())
    ops.softmax(on_gpu(X))
    ops.softmax(on_gpu(X), cuda_stream=9)
    assert used == [STREAM, 9]


def test_a_tensor_that_lost_its_memory_is_refused_warm_as_cold() -> None:
    x = torch.randn(6, 40)
    ops.softmax(on_gpu(x))
    gone = on_gpu(x.clone())
    gone.untyped_storage().resize_(0)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"^x: a OnGpu without memory; accepted: a tensor that holds values"):
            ops.softmax(gone)


def test_a_parameter_is_kept_for_each_set_of_scalars_and_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that runs while another of its kind does has a parameter of its own."""
    made = []
    real = gpu_launch.Frame
    monkeypatch.setattr(gpu_launch, "Frame", lambda *rest: (made.append(1), real(*rest))[1])
    for eps in (1e-5, 1e-3, 1e-5, 1e-3):
        ops.rms_norm(on_gpu(X), on_gpu(X[0]), eps=eps)
    assert len(made) == 2
    (replay,) = (r for r in launch_cache.LAUNCHES._found.values() if r.on_device)
    taken = [scalars.free.pop() for scalars in replay.scalars.values()]
    assert equal(ops.rms_norm(on_gpu(X), on_gpu(X[0]), eps=1e-3), ops.rms_norm(X, X[0], eps=1e-3))
    assert len(made) == 3 and len(taken) == 2
