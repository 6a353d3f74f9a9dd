"""Operators on arrays of an NVIDIA GPU, called as users call them: bits, streams, graphs, faults, host time."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.arrays.device_array import DeviceArray
from tokitai.backends import backend_of
from tokitai.backends.cuda.device import open_device
from tokitai.backends.cuda.target import CudaTarget
from tokitai.errors import ArgumentError, DeviceOutOfMemoryError
from tokitai.runtime.gpu_lists import prepare_on_gpu

torch = pytest.importorskip("torch", reason="torch is not installed")

pytestmark = pytest.mark.gpu


def noise(*shape: int, dtype: Any = None, seed: int = 1) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype or torch.float16)


def bits(x: Any) -> Any:
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def equal(got: Any, want: Any) -> bool:
    got, want = (r if isinstance(r, (tuple, list)) else (r,) for r in (got, want))
    return len(got) == len(want) and all(
        a.is_cuda and a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))
        for a, b in zip(got, want, strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("cols", [1, 33, 1024, 40_000])
def test_bits_cold_and_warm(dtype: Any, cols: int) -> None:
    for seed in range(3):
        x, gamma, beta = noise(17, cols, dtype=dtype, seed=seed), noise(cols, dtype=dtype), noise(cols, dtype=dtype)
        want = ops.layer_norm(x, gamma, beta, eps=1e-5)
        got = ops.layer_norm(x.cuda(), gamma.cuda(), beta.cuda(), eps=1e-5)
        assert equal(got, want)
        back = dict(dy=x, x=x, gamma=gamma, mean=want[1], rstd=want[2])
        gpu = {n: a.cuda() for n, a in back.items()}
        assert equal(ops.layer_norm_backward(**gpu), ops.layer_norm_backward(**back))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("accumulator", ["f32", "f64"])
def test_bits_of_products(dtype: Any, accumulator: str) -> None:
    """Small and large tiles, chains that are partitioned and chains in one block, batches, misaligned operands."""
    words: dict[str, Any] = dict(beta=0.0, accumulator=accumulator)
    for m, n, k in ((3, 5, 7), (650, 643, 19), (1300, 2600, 33), (2, 3, 12300), (2000, 2300, 4100)):
        a, b = noise(m, k, dtype=dtype), noise(k, n, dtype=dtype)
        for _ in range(2):
            assert equal(ops.matmul(a.cuda(), b.cuda(), **words), ops.matmul(a, b, **words))
        assert equal(ops.matmul(a.cuda()[:, 1:], b.cuda()[1:], **words), ops.matmul(a[:, 1:], b[1:], **words))
    a, b = noise(5, 33, 40, dtype=dtype), noise(5, 17, 40, dtype=dtype)
    assert equal(ops.matmul(a.cuda(), b.cuda(), layout="NT", **words), ops.matmul(a, b, layout="NT", **words))


def test_matrix_units_of_hopper_add_up_in_order() -> None:
    target = backend_of("cuda").open("cuda")
    assert isinstance(target, CudaTarget)
    assert target.matrix_units or target.device.arch != "sm_90"


def test_views() -> None:
    base = noise(64, 200)
    there = base.cuda()
    for cut in (np.s_[:, :128], np.s_[:, 1:129], np.s_[::3, 5:70], np.s_[:, ::2], np.s_[:0]):
        for _ in range(2):
            assert equal(ops.softmax(there[cut]), ops.softmax(base[cut].contiguous()))
    assert equal(ops.softmax(there.T), ops.softmax(base.T.contiguous()))
    assert equal(ops.softmax(there[:1].expand(7, 200)), ops.softmax(base[:1].expand(7, 200).contiguous()))
    with pytest.raises(ArgumentError, match="need a copy"):
        ops.softmax(there.T, copy=False)


def test_results_are_on_the_same_device_and_stream() -> None:
    """The input is written by slow work in the same stream: reading it too early would show."""
    x = torch.zeros(4096, 4096, device="cuda", dtype=torch.float16)
    want = ops.softmax(torch.full((4096, 4096), 2.0, dtype=torch.float16)[:1])
    ops.softmax(x)
    for stream in (torch.cuda.Stream(), torch.cuda.Stream()):
        x.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)
            x.fill_(float("-inf"))
            x[:, :].fill_(2.0)
            y = ops.softmax(x)
        stream.synchronize()
        assert torch.equal(bits(y[:1]), bits(want)) and torch.equal(y, y[:1].expand_as(y))


@pytest.mark.parametrize("kind", ["object", "handle"])
def test_an_explicit_stream(kind: str) -> None:
    stream, x = torch.cuda.Stream(), noise(300, 500)
    there = x.cuda()
    torch.cuda.synchronize()
    for _ in range(2):
        y = ops.softmax(there, cuda_stream=stream if kind == "object" else stream.cuda_stream)
        stream.synchronize()
        assert equal(y, ops.softmax(x))


def test_two_streams_share_no_partial_sums() -> None:
    """Backward passes in two streams at once, from two threads, many times: each has its own workspace."""
    cases = []
    for seed in (1, 2):
        x, dy, gamma = noise(2000, 768, seed=seed), noise(2000, 768, seed=seed + 10), noise(768, seed=seed)
        _, mean, rstd = ops.layer_norm(x, gamma, gamma, eps=1e-5)
        given = dict(dy=dy, x=x, gamma=gamma, mean=mean, rstd=rstd)
        cases.append(({n: a.cuda() for n, a in given.items()}, ops.layer_norm_backward(**given)))
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(i: int) -> None:
        given, want = cases[i % 2]
        with torch.cuda.stream(torch.cuda.Stream()):
            made = [ops.layer_norm_backward(**given) for _ in range(50)]
            torch.cuda.current_stream().synchronize()
        wrong.extend([i] * sum(not equal(m, want) for m in made))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_out_and_what_may_not_overlap() -> None:
    x = noise(20, 64)
    there, y = x.cuda(), torch.empty(20, 64, device="cuda", dtype=torch.float16)
    for _ in range(2):
        assert ops.softmax(there, out=y) is y and equal(y, ops.softmax(x))
        with pytest.raises(ArgumentError, match=r"out \(y\): overlaps x"):
            ops.softmax(there, out=there)
    with pytest.raises(ArgumentError, match=r"out \(y\): lies on cpu"):
        ops.softmax(there, out=x)


def test_what_is_refused() -> None:
    x = noise(4, 8, dtype=torch.float32).cuda()
    for gamma, said in ((x[0].cpu(), "gamma: lies on cpu"), (x[0].half(), "gamma: format f16 beside f32")):
        with pytest.raises(ArgumentError, match=said):
            ops.rms_norm(x, gamma)
    with pytest.raises(ArgumentError, match=r"gamma: lies on cuda:0; accepted on the cpu target"):
        ops.rms_norm(x.cpu(), x[0])
    with pytest.raises(ArgumentError, match="requires a gradient"):
        ops.softmax(torch.nn.Parameter(x))
    if torch.cuda.device_count() > 1:
        with pytest.raises(ArgumentError, match="gamma: lies on cuda:1; accepted beside x: cuda:0"):
            ops.rms_norm(x, x[0].to("cuda:1"))


def test_the_second_gpu() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU alone")
    x = noise(30, 700)
    for _ in range(2):
        y = ops.softmax(x.to("cuda:1"))  # while cuda:0 is the current one
        assert y.device.index == 1 and equal(y, ops.softmax(x))


def test_targets() -> None:
    x, target = noise(6, 40), torch.tensor([0, 39, -100, 5, 6, 7])
    want = ops.cross_entropy(x, target)
    for check in (True, False, True, False):
        assert equal(ops.cross_entropy(x.cuda(), target.cuda(), check=check), want)
    target[2], target[4] = 40, -1
    with pytest.raises(ArgumentError) as here:
        ops.cross_entropy(x, target)
    with pytest.raises(ArgumentError) as there:
        ops.cross_entropy(x.cuda(), target.cuda())
    assert str(there.value) == str(here.value)


# ------------------------------------------------------------------ other speakers
class Plain:
    """Device memory known by one protocol alone."""

    def __init__(self, x: Any, protocol: str) -> None:
        self.x = x
        if protocol == "dlpack":
            self.__class__ = Dlpack
        else:
            self.__cuda_array_interface__ = x.__cuda_array_interface__


class Dlpack(Plain):
    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()

    def __dlpack__(self, stream: int | None = None) -> Any:
        return self.x.__dlpack__(stream=stream)


@pytest.mark.parametrize("protocol", ["dlpack", "interface"])
def test_arrays_by_a_protocol_alone(protocol: str) -> None:
    x, gamma = noise(70, 33), noise(33)
    torch.cuda.synchronize()
    want = ops.rms_norm(x, gamma)
    y, rstd = ops.rms_norm(Plain(x.cuda(), protocol), Plain(gamma.cuda(), protocol))
    assert isinstance(y, DeviceArray)
    assert equal((torch.from_dlpack(y), torch.from_dlpack(rstd)), want)
    _, mean, rstd = ops.layer_norm(x, gamma, gamma)
    back = dict(dy=x, x=x, gamma=gamma, mean=mean, rstd=rstd)
    there = {n: a.cuda() for n, a in back.items()}
    torch.cuda.synchronize()
    got = ops.layer_norm_backward(**{n: Plain(a, protocol) for n, a in there.items()})
    assert equal([torch.from_dlpack(a) for a in got], ops.layer_norm_backward(**back)), "workspace of the driver's pool"


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    x = noise(9, 100, dtype=torch.float32)
    for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
        with stream:
            y = ops.softmax(cupy.asarray(x.numpy()))
            assert isinstance(y, cupy.ndarray) and cupy.asnumpy(y).tobytes() == ops.softmax(x).numpy().tobytes()


# ------------------------------------------------------------------ graphs
def test_a_captured_graph_replays() -> None:
    x, gamma = noise(64, 1000), noise(1000)
    sx, sg = x.cuda(), gamma.cuda()

    def step() -> Any:
        y = ops.layer_norm(sx, sg, sg)
        return (*y, *ops.layer_norm_backward(dy=sx, x=sx, gamma=sg, mean=y[1], rstd=y[2]))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = step()
    for seed in (5, 6):
        new = noise(64, 1000, seed=seed)
        sx.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        y, m, r = ops.layer_norm(new, gamma, gamma)
        assert equal(made, (y, m, r, *ops.layer_norm_backward(dy=new, x=new, gamma=gamma, mean=m, rstd=r)))


def test_a_first_call_under_capture_is_refused_and_the_capture_goes_on() -> None:
    x = noise(5, 77, dtype=torch.float32).cuda()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ArgumentError, match="softmax: a stream that is being captured; accepted: "):
            ops.softmax(x)
        y = x + 1
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, x + 1)


# ------------------------------------------------------------------ lists
def adam(shapes: list[tuple[int, ...]], dtype: Any) -> dict[str, list[Any]]:
    kinds = {"param": dtype, "grad": dtype, "exp_avg": torch.float32, "exp_avg_sq": torch.float32}
    return {n: [noise(*s, dtype=k, seed=i).abs() for i, s in enumerate(shapes)] for n, k in kinds.items()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_adamw(dtype: Any) -> None:
    here = adam([(3, 5), (0,), (4097,), (7,), (100, 1000)], dtype)
    there = {n: [x.cuda() for x in values] for n, values in here.items()}
    for step in range(1, 5):
        if step > 2:  # gradients elsewhere in memory
            there["grad"] = [g.clone() for g in there["grad"]]
        if step == 4:
            here["grad"][2][5] = there["grad"][2][5] = float("nan")
        returned = ops.adamw(**there, step=step, lr=1e-3)
        ops.adamw(**here, step=step, lr=1e-3)
        assert returned[0] is there["param"]
        assert all(equal(there[n], here[n]) for n in here)
    prepared = prepare_on_gpu(ops.adamw, there, {})
    here["grad"][2][5] = there["grad"][2][5] = 0.5
    prepared({p.name: p.default for p in ops.adamw.params} | dict(step=5, lr=1e-3))
    ops.adamw(**here, step=5, lr=1e-3)
    assert all(equal(there[n], here[n]) for n in here)


def test_a_list_in_a_graph() -> None:
    here = adam([(33,), (5000,)], torch.float32)
    there = {n: [x.cuda() for x in values] for n, values in here.items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ops.adamw(**there, step=1, lr=1e-3)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        ops.adamw(**there, step=1, lr=1e-3)
        graph.capture_end()
    graph.replay()
    torch.cuda.synchronize()
    for _ in range(2):
        ops.adamw(**here, step=1, lr=1e-3)
    assert all(equal(there[n], here[n]) for n in here)


# ------------------------------------------------------------------ what goes wrong
def test_out_of_memory_and_the_process_goes_on() -> None:
    device = open_device()
    with pytest.raises(DeviceOutOfMemoryError, match="the process can go on") as caught:
        DeviceArray((1 << 45,), "f32", device)
    assert caught.value.can_go_on
    x = noise(3, 5)
    assert equal(ops.softmax(x.cuda()), ops.softmax(x))


def test_a_wrong_target_that_nobody_checked_takes_the_process() -> None:
    """In a process of its own: the error is typed, says that only a new process can go on, and stays."""
    program = """
import torch
from tokitai import ops
from tokitai.backends.cuda.device import open_device
from tokitai.errors import DeviceError
x, target = torch.zeros(4, 40, device="cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
target[1] = 1 << 46
for call in (lambda: ops.cross_entropy(x, target, check=False), open_device().synchronize, lambda: ops.softmax(x)):
    try:
        call()
    except DeviceError as error:
        print(type(error).__name__, error.can_go_on, "start a new one" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert lines and set(lines) == {"IllegalAddressError False True"}, (done.stdout, done.stderr)
