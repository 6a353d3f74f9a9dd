"""What torch is told of a call: which tensors were written, so that autograd sees it; and that memory stays its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import installed, on_gpu

from tokitai import ops
from tokitai.routing import permutation
from tokitai.torch.optim import AdamW, clip_grad_norm_

CHANGED = "has been modified by an inplace operation"


def adamw_step(w: torch.Tensor) -> None:
    g = torch.ones_like(w)
    ops.adamw([w.detach()], [g], [torch.zeros_like(w)], [torch.zeros_like(w)], step=1, lr=0.5)


def adamw_of_one(w: torch.Tensor) -> None:
    ops.adamw(w.detach(), torch.ones_like(w), torch.zeros_like(w), torch.zeros_like(w), step=1, lr=0.5)


def optimizer_step(w: torch.Tensor) -> None:
    w.grad = torch.ones_like(w)
    AdamW([w], lr=0.5).step()


def clipped(w: torch.Tensor) -> None:
    ops.clip_global_norm([w.detach()], max_norm=0.1)


def out_of_a_call(w: torch.Tensor) -> None:
    ops.softmax(torch.rand_like(w), out=w.detach())


def in_place(w: torch.Tensor) -> None:
    ops.linear_accumulate_weight(w.detach(), torch.ones(3, w.shape[0]), torch.ones(3, w.shape[1]))


WRITES: dict[str, Callable[[torch.Tensor], None]] = {
    "adamw on lists": adamw_step, "adamw on one tensor": adamw_of_one, "optimizer": optimizer_step, "clip": clipped,
    "out": out_of_a_call, "in place": in_place,
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_weight_that_autograd_saved_and_that_is_written_is_seen(write: Callable[[torch.Tensor], None]) -> None:
    for _ in range(3):  # cold and warm
        w, x = torch.nn.Parameter(torch.full((2, 2), 2.0)), torch.ones(2, 2, requires_grad=True)
        y = (w * x).sum()
        before = w._version
        write(w)
        assert w._version > before
        with pytest.raises(RuntimeError, match=CHANGED):
            y.backward()


def test_gradients_that_are_clipped_are_seen() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    before = p.grad._version
    clip_grad_norm_([p], 0.1)
    assert p.grad._version > before


def test_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    for _ in range(3):
        x, out = on_gpu(torch.rand(2, 8)), on_gpu(torch.zeros(2, 8))
        ops.softmax(x, out=out)
        assert (x._version, out._version) == (0, 1)
        lists = [[on_gpu(torch.ones(2, 8))] for _ in range(4)]
        ops.adamw(*lists, step=1, lr=0.5)
        assert [many[0]._version for many in lists] == [1, 0, 1, 1]


def test_tensors_of_inference_mode_are_written() -> None:
    with torch.inference_mode():
        x, out = torch.rand(2, 3), torch.zeros(2, 3)
        ops.softmax(x, out=out)
    inside = out.clone()
    for _ in range(2):
        assert ops.softmax(x, out=out) is out and np.array_equal(out.numpy(), inside.numpy())
    adamw_step(x)


# ------------------------------------------------------------------ memory of the caller's
def touched(x: torch.Tensor) -> list[Any]:
    """A call that reads a tensor, one that writes it, lists, one through a function for torch; cold and warm."""
    from tokitai.torch import functional

    made: list[Any] = []
    for _ in range(2):
        made += [ops.softmax(x), ops.softmax(x[:, :2]), ops.softmax(torch.rand_like(x), out=x), ops.global_norm([x])]
        ops.clip_global_norm([x], max_norm=1.0)
        made.append(functional.softmax(x))
        made.append(permutation((x > 2).to(torch.int32), 3).place)
        made += ops.top_k(x, k=2)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_storages_stay_resizable(dtype: torch.dtype) -> None:
    """What shards parameters (FSDP) resizes the storage of tensors that were used."""
    x = torch.rand(3, 4).to(dtype)
    made = touched(x)
    assert x.untyped_storage().resizable()
    x.untyped_storage().resize_(0)
    x.untyped_storage().resize_(3 * 4 * x.element_size())
    assert ops.softmax(x).shape == (3, 4)
    assert all(y.untyped_storage().resizable() for y in made)


def test_choices_stay_resizable() -> None:
    chosen = torch.tensor([[0, 1], [1, 2]], dtype=torch.int32)
    permutation(chosen, 3)
    assert chosen.untyped_storage().resizable()


def test_large_results_are_of_the_same_class() -> None:
    """Their memory is kept by the package when they are gone, so that they alone cannot be resized."""
    x = torch.rand(2048, 2048)
    for _ in range(2):
        assert type(ops.softmax(x)) is torch.Tensor and type(ops.softmax(x.as_subclass(Derived))) is Derived


class Derived(torch.Tensor):
    pass


def test_a_storage_that_was_resized_is_read_where_it_lies_now() -> None:
    x = torch.rand(8, 1024)
    ops.softmax(x)
    for _ in range(3):
        x.untyped_storage().resize_(0)
        torch.rand(8, 1024)
        x.untyped_storage().resize_(8 * 1024 * 4)
        x.copy_(torch.rand(8, 1024))
        assert torch.equal(ops.softmax(x), ops.softmax(x.clone()))
