"""The loss of a linear layer whose logits are not in memory: beside the two functions, to the bit, and its memory."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.meaning.sums import tree
from tokitai.torch import functional, init, nn
from tokitai.torch.ranks import Arrangement, Gradients

FEATURES, CLASSES, PRODUCT, LEAF = 24, 50, 256, 4096


def tensors(rows: int, dtype: Any = torch.float32) -> list[Tensor]:
    shapes = dict(x=(rows, FEATURES), weight=(CLASSES, FEATURES), bias=(CLASSES,))
    return [init.normal_(torch.empty(s, dtype=dtype), seed=1, name=n).requires_grad_() for n, s in shapes.items()]


def target(rows: int) -> Tensor:
    """Every seventh row is ignored."""
    place = torch.arange(rows)
    return torch.where(place % 7 == 3, -100, place * 31 % CLASSES)


def fused(count: int, given: list[Tensor], **words: Any) -> list[Tensor]:
    x, weight, *bias = given
    loss = functional.linear_cross_entropy(x, weight, target(count), *bias, **words)
    return results(loss, given)


def apart(rows: int, given: list[Tensor], weight: Tensor | None = None, **words: Any) -> list[Tensor]:
    return results(functional.cross_entropy(functional.linear(*given), target(rows), weight, **words), given)


def results(loss: Tensor, given: list[Tensor]) -> list[Tensor]:
    slope = torch.linspace(0.5, 2, loss.numel()).reshape(loss.shape)
    return [loss.detach(), *torch.autograd.grad(loss, given, slope)]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    """The same bits: zeros have signs."""
    return all(x.dtype == y.dtype and torch.equal(bits(x), bits(y)) for x, y in zip(a, b, strict=True))


def bits(x: Tensor) -> Tensor:
    return x.detach().contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)


OPTIONS = [
    dict(reduction="mean"), dict(reduction="sum", label_smoothing=0.1), dict(reduction="none", z_loss=0.01),
    dict(reduction="mean", label_smoothing=0.2, z_loss=0.001, weight=torch.linspace(0, 2, CLASSES)),
    dict(reduction="mean", ignore_index=5, weight=torch.zeros(CLASSES)),
]  # fmt: skip


@pytest.mark.parametrize("words", OPTIONS, ids=lambda w: " ".join(f"{n}" for n in w))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_up_to_a_block_all_bits_are_those_of_both_functions(words: dict[str, Any], dtype: Any) -> None:
    words = dict(words)
    if words.get("ignore_index") == 5:
        rows = 3  # of classes 0, 31 and 12: none is ignored, and all weights are 0
    else:
        rows = 100
    given = tensors(rows, dtype)
    assert same(fused(rows, given, **words), apart(rows, given, **words))


@pytest.mark.parametrize("rows", [3 * PRODUCT + 77, 5 * LEAF + 300])
def test_beyond_a_product_weights_are_summed_in_chains_and_a_tree(rows: int) -> None:
    """Beside the rule of sums in NumPy; the bias has the bits of `linear` for any number of rows."""
    given = tensors(rows)
    found, want = fused(rows, given), apart(rows, given)
    assert same([*found[:2], found[3]], [*want[:2], want[3]])
    x, weight, bias = (t.detach() for t in given)
    dlogits = torch.autograd.grad(
        functional.cross_entropy(logits := functional.linear(x, weight, bias).requires_grad_(), target(rows)),
        logits,
        torch.tensor(0.5),
    )[0]
    leaves = []
    for first in range(0, rows, LEAF):
        leaves.append(np.full(weight.shape, -0.0, np.float32))
        for here in (slice(i, min(i + PRODUCT, rows)) for i in range(first, min(first + LEAF, rows), PRODUCT)):
            leaves[-1] += ops.linear_backward_weight(dlogits[here].numpy(), x[here].numpy())
    assert same([found[2]], [torch.from_numpy(tree(np.stack(leaves), np.add, axis=0)[0].copy())])
    assert not torch.equal(found[2], want[2]), "in another order than that of one product"


@pytest.mark.parametrize("splits", [1, 2, 3, 4])
def test_blocks_of_a_batch_have_the_bits_of_one_call(splits: int) -> None:
    """Of 4,096 rows each, and of twice as many."""
    for of_each in (LEAF, 2 * LEAF):
        rows = splits * of_each
        x, weight, bias = (t.detach() for t in tensors(rows))
        model, classes = nn.LinearCrossEntropyLoss(FEATURES, CLASSES, bias=True, reduction="sum"), target(rows)
        model.load_state_dict(dict(weight=weight, bias=bias))
        found = []
        for blocks in (1, splits):
            gradients = Gradients(model, Arrangement(blocks))
            for block in gradients.blocks():
                loss = model(block.of(x), block.of(classes))
                (loss / rows).backward()
                block.record(loss=loss)
            found.append([gradients.totals["loss"], *(p.grad for p in model.parameters() if p.grad is not None)])
        assert len(found[0]) == 3 and same(*found), of_each


def test_signs_of_zeros_are_those_of_both_functions() -> None:
    for rows in (0, 4):
        given = [-torch.rand(rows, FEATURES).requires_grad_(), *tensors(rows)[1:]]
        words: dict[str, Any] = dict(ignore_index=5, reduction="sum")
        ignored = torch.full((rows,), 5)
        x, weight, bias = given
        found = results(functional.linear_cross_entropy(x, weight, ignored, bias, **words), given)
        assert same(found, results(functional.cross_entropy(functional.linear(*given), ignored, **words), given)), rows


def test_no_bit_depends_on_the_rows_in_memory() -> None:
    rows = 5 * PRODUCT + 1
    for dtype, bias in itertools.product((torch.float32, torch.bfloat16), (True, False)):
        given = tensors(rows, dtype)[: 3 if bias else 2]
        first, *others = (fused(rows, given, rows=n * PRODUCT) for n in (1, 2, 8))
        assert all(same(first, other) for other in others)


def test_shapes_frozen_weights_and_no_rows() -> None:
    x, weight, bias = tensors(60)
    loss = functional.linear_cross_entropy(
        x.view(3, 20, FEATURES), weight, target(60).view(3, 20), bias, reduction="none"
    )
    assert loss.shape == (3, 20) and torch.equal(
        loss.flatten(), functional.linear_cross_entropy(x, weight, target(60), bias, reduction="none")
    )
    frozen = functional.linear_cross_entropy(x, weight.detach(), target(60).int())
    (dx,) = torch.autograd.grad(frozen, x, torch.tensor(0.5))
    assert torch.equal(dx, fused(60, [x, weight])[1])
    none = functional.linear_cross_entropy(x[:0], weight, target(0))
    assert none == 0 and all(not g.any() for g in torch.autograd.grad(none, (x, weight)))
    ignored = functional.linear_cross_entropy(x, weight, torch.full((60,), -100))
    assert ignored == 0 and all(not g.any() for g in torch.autograd.grad(ignored, (x, weight)))


def test_module_shares_its_weight() -> None:
    table, head = nn.Embedding(CLASSES, FEATURES), nn.LinearCrossEntropyLoss(FEATURES, CLASSES, z_loss=0.5, rows=512)
    head.weight = table.weight
    ids = torch.arange(8)
    loss = head(table(ids), ids)
    assert torch.equal(loss, functional.cross_entropy(head.logits(table(ids)), ids, z_loss=0.5))
    loss.backward()
    assert table.weight.grad is not None
    assert repr(head) == "LinearCrossEntropyLoss(in_features=24, out_features=50, bias=False, z_loss=0.5, rows=512)"
    assert list(head.state_dict()) == ["weight"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(rows=100), "rows=100; accepted: a multiple of 256"),
        (dict(reduction="max"), "reduction='max'; accepted: 'mean', 'sum', 'none'"),
        (dict(label_smoothing=1.5), "label_smoothing=1.5; accepted: "),
        (dict(weight=torch.ones(3)), r"weight of \(3,\) of torch.float32; accepted: \(50,\) of floats"),
        (dict(linear_weight=torch.ones(50, 3)), r"linear_weight of \(50, 3\); accepted"),
        (dict(target=torch.zeros(4)), "of torch.float32; accepted: .* of int32 or int64"),
        (dict(target=torch.tensor([0, 1, 50, 2])), "50"),
        (
            dict(input=torch.ones(4, FEATURES, dtype=torch.bfloat16)),
            "torch.bfloat16 beside torch.float32; accepted: one of",
        ),
    ],
)
def test_wrong_calls_name_what_is_accepted(change: dict[str, Any], message: str) -> None:
    given = dict(input=torch.ones(4, FEATURES), linear_weight=torch.ones(CLASSES, FEATURES), target=torch.arange(4))
    with pytest.raises(ArgumentError, match=message):
        functional.linear_cross_entropy(**(given | change))


# ------------------------------------------------------------------ memory
TOKENS, VOCABULARY = 2048, 16384
PROGRAM = """
import re, sys, torch
from pathlib import Path
from tokitai.torch import functional
def most():  # of this program alone: what getrusage tells begins with the most of the process that started it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
tokens, vocabulary = int(sys.argv[2]), int(sys.argv[3])
def step(rows):
    x, target = torch.randn(rows, 16, requires_grad=True), torch.arange(rows)
    if sys.argv[1] == "fused":
        functional.linear_cross_entropy(x, weight, target, rows=256).backward()
    else:
        torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, weight), target).backward()
torch.set_num_threads(1)
weight = torch.randn(vocabulary, 16, requires_grad=True)
step(2)
before = most()
step(tokens)
print((most() - before) * 1024)
"""


def growth(which: str) -> int:
    """By how many bytes a step grows what the process had at most before it."""
    command = [sys.executable, "-c", PROGRAM, which, str(TOKENS), str(VOCABULARY)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the most memory of a process on Linux alone")
def test_logits_are_never_in_memory_as_a_whole() -> None:
    """torch has all logits and their gradient; here there is no room for half of the logits."""
    whole = TOKENS * VOCABULARY * 4
    here, torchs = growth("fused"), growth("torch")
    print(f"{TOKENS} x {VOCABULARY}: {here >> 20} MB; torch {torchs >> 20} MB")
    assert here < whole / 2 and torchs >= 2 * whole
