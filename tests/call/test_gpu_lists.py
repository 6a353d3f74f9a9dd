"""Lists of tensors of a GPU: everything but the driver, on the simulated device."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from fake_gpu import OnAnother, OnGpu, SimGpu, installed, on_gpu

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.runtime import gpu_lists

SHAPES = [(3, 5), (0,), (4097,), (7,), (2, 0), (1,)]
PARAMS: dict[str, Any] = dict(step=3, lr=1e-3)
PARAMS_OF_ALL = {p.name: p.default for p in ops.adamw.params}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> SimGpu:
    return installed(monkeypatch)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each list that was checked in full."""
    seen: list[int] = []
    real = gpu_lists.prepare
    monkeypatch.setattr(gpu_lists, "prepare", lambda *rest: (seen.append(1), real(*rest))[1])
    return seen


def lists(seed: int = 1, dtype: torch.dtype = torch.float16) -> dict[str, list[Any]]:
    rng = torch.Generator().manual_seed(seed)
    kinds = {"param": dtype, "grad": dtype, "exp_avg": torch.float32, "exp_avg_sq": torch.float32}
    return {n: [torch.rand(s, generator=rng).to(k) for s in SHAPES] for n, k in kinds.items()}


def there(given: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {n: [on_gpu(x.clone()) for x in values] for n, values in given.items()}


def same(a: Any, b: Any) -> bool:
    a, b = (x.as_subclass(torch.Tensor).contiguous().reshape(-1).view(torch.uint8) for x in (a, b))
    return torch.equal(a, b)


def all_same(a: dict[str, list[Any]], b: dict[str, list[Any]]) -> bool:
    return all(same(x, y) for n in a for x, y in zip(a[n], b[n], strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_adamw_in_place_step_by_step(dtype: torch.dtype, fake: SimGpu, prepared: list[int]) -> None:
    here = lists(1, dtype)
    gpu = there(here)
    for step in range(1, 4):
        new = lists(step, dtype)["grad"]
        here["grad"], gpu["grad"] = new, [on_gpu(g.clone()) for g in new]  # new gradients elsewhere in memory
        ops.adamw(**here, step=step, lr=1e-3)
        returned = ops.adamw(**gpu, step=step, lr=1e-3)
        assert returned[0] is gpu["param"] and all_same(gpu, here)
    assert len(prepared) == 1, "formats and sizes were known"
    fake.said.clear()
    ops.adamw(**gpu, step=4, lr=1e-3)
    ops.adamw(**here, step=4, lr=1e-3)
    assert fake.said == [] and all_same(gpu, here), "the table was there already"


def test_a_step_with_a_gradient_that_is_not_finite_changes_nothing() -> None:
    here = lists()
    here["grad"][2][4000] = float("inf")
    gpu = there(here)
    for _ in range(2):
        ops.adamw(**gpu, **PARAMS)
        assert all_same(gpu, here)


def test_prepared_lists() -> None:
    here = lists()
    gpu = there(here)
    step = gpu_lists.prepare_on_gpu(ops.adamw, gpu, {})
    for i in range(1, 4):
        params = {p.name: p.default for p in ops.adamw.params} | dict(step=i, lr=1e-3)
        step(params)
        ops.adamw(**here, step=i, lr=1e-3)
        assert all_same(gpu, here)


def test_new_lists_and_single_values() -> None:
    here = lists()["exp_avg"]
    gpu = [on_gpu(x) for x in here]
    for _ in range(2):
        assert all(same(a, b) for a, b in zip(ops.silu(gpu), ops.silu(here), strict=True))
        norm = ops.global_norm(gpu)
        assert isinstance(norm, OnGpu) and norm.shape == () and same(norm, ops.global_norm(here))
        assert same(ops.global_norm(gpu[2]), ops.global_norm(here[2]))
    first = ops.global_norm(gpu)
    kept = first.as_subclass(torch.Tensor).clone()
    ops.global_norm([2 * x for x in gpu])
    assert same(first, kept)


def test_views_are_copied_or_refused() -> None:
    x = torch.randn(6, 10)
    assert same(ops.silu([on_gpu(x)[:, ::2]])[0], ops.silu([x[:, ::2]])[0])
    with pytest.raises(ArgumentError, match=r"^x\[0\]: strides .* need a copy"):
        ops.silu([on_gpu(x).T], copy=False)


def changed(name: str, i: int, value: Any) -> dict[str, list[Any]]:
    made = there(lists(dtype=torch.float32))
    made[name][i] = value
    return made


MEMORY = on_gpu(torch.ones(5000))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (changed("grad", 0, torch.ones(3, 5)), r"grad: lies on cpu; accepted on the cuda target"),
        (changed("grad", 3, on_gpu(torch.ones(7), OnAnother)), r"grad: lies on cuda:1; accepted beside param: cuda:0"),
        (changed("grad", 3, on_gpu(torch.ones(8))), r"grad\[3\]: shape \(8,\); accepted beside param\[3\]: \(7,\)"),
        (changed("grad", 3, on_gpu(torch.ones(7).half())), r"grad\[3\]: format float16; accepted beside grad\[0\]"),
        (changed("param", 0, on_gpu(torch.ones(5, 3)).T), r"param\[0\]: strides \(4, 12\) of"),
        (dict(changed("grad", 0, MEMORY), grad=[]), r"adamw: param has 6, grad has 0"),
        (dict(changed("grad", 0, MEMORY), param=[]), r"adamw: param has 0, grad has 6"),
        (changed("param", 3, on_gpu(torch.ones(7)).requires_grad_()), r"param: requires a gradient"),
    ],
)
def test_wrong_lists_are_refused_warm_as_cold(given: dict[str, list[Any]], message: str) -> None:
    ops.adamw(**there(lists(dtype=torch.float32)), **PARAMS)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=f"^{message}"):
            ops.adamw(**given, **PARAMS)


def test_what_is_written_lies_apart_warm_as_cold(prepared: list[int]) -> None:
    gpu = there(lists(dtype=torch.float32))
    ops.adamw(**gpu, **PARAMS)
    gpu["grad"][2], gpu["exp_avg"][2] = MEMORY[:4097], MEMORY[5:4102]
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"overlaps .*; accepted: memory of its own for what is written"):
            ops.adamw(**gpu, **PARAMS)
    assert len(prepared) == 3


def test_no_tensor_is_kept() -> None:
    gpu = there(lists())
    ops.adamw(**gpu, **PARAMS)
    ops.adamw(**gpu, **PARAMS)
    alive = [weakref.ref(x) for values in gpu.values() for x in values]
    del gpu
    gc.collect()
    assert [ref() for ref in alive] == [None] * len(alive)


def test_captured_lists_are_those_that_ran_before(fake: SimGpu) -> None:
    here = lists()
    gpu = there(here)
    fake.recording = True
    with pytest.raises(ArgumentError, match=r"^adamw: a stream that is being captured; accepted: lists that were run"):
        ops.adamw(**gpu, **PARAMS)
    assert all_same(gpu, here)
    fake.recording = False
    ops.adamw(**gpu, **PARAMS)
    before = len(gpu_lists._recorded)
    fake.recording = True
    for _ in range(2):
        ops.adamw(**gpu, **PARAMS)
    assert len(gpu_lists._recorded) == before + 1, "a graph reads its table whenever it is replayed"
    for _ in range(3):
        ops.adamw(**here, **PARAMS)
    assert all_same(gpu, here)


def test_lists_in_other_memory_are_captured_with_a_table_of_their_own(fake: SimGpu) -> None:
    first, here = lists(), lists()
    with gpu_lists.capture_expected():
        ops.adamw(**there(first), **PARAMS)
    gpu = there(here)
    fake.recording = True
    with gpu_lists.captured_launches() as launches:
        ops.adamw(**gpu, **PARAMS)
    ops.adamw(**here, **PARAMS)
    assert all_same(gpu, here)
    (launch,) = launches
    assert launch.with_scalars(dict(PARAMS_OF_ALL | PARAMS)) == launch.parameter
    assert launch.with_scalars(dict(PARAMS_OF_ALL | PARAMS | {"step": 9})) != launch.parameter
    with pytest.raises(ArgumentError, match="a stream that is being captured"):
        ops.adamw(**there(lists()), **PARAMS)
    assert not gpu_lists._captured and not gpu_lists._expected
