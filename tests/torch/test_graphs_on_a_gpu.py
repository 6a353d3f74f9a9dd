"""A training step as one CUDA graph on an NVIDIA GPU: the bits of the step, over steps that differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.mixture.model import Mixture, Shape
from tokitai import ops
from tokitai.errors import ArgumentError
from tokitai.torch import functional, graphed
from tokitai.torch.experts import experts
from tokitai.torch.nn import Dropout, Linear
from tokitai.torch.optim import AdamW, clip_grad_norm_

pytestmark = pytest.mark.gpu

SHAPE = Shape(vocabulary=64, features=64, layers=2, heads=4, key_heads=2, experts=4, hidden=32)
STEPS = 6


def batch(step: int) -> Tensor:
    """Tokens of which each step has others, so that experts have other loads."""
    draw = torch.Generator().manual_seed(step)
    return torch.randint(0, 8 * (step + 1), (2, 17), generator=draw).cuda()


class Training:
    """A model and what trains it, in lists of one or several groups."""

    def __init__(self, groups: int, rounding: Any = "nearest") -> None:
        self.model = Mixture(SHAPE, torch.bfloat16, "cuda")
        self.weights = list(self.model.parameters())
        split = [{"params": self.weights[i::groups], "weight_decay": 0.1 * i} for i in range(groups)]
        self.optimizer = AdamW(split, lr=1e-3, rounding=rounding)

    def step(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        total, loss = self.model.loss(tokens)
        total.backward()  # type: ignore[no-untyped-call]
        norm = clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, norm

    def run(self, step: Callable[[Tensor], tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Steps with a learning rate that changes; what each returns, and weights and moments at the end."""
        found: list[Tensor] = []
        for i in range(STEPS):
            for group in self.optimizer.param_groups:
                group["lr"] = 1e-3 / (i + 1)
            found += step(batch(i))
        states = [self.optimizer.state[p] for p in self.weights]
        assert [s["step"] for s in states] == [STEPS] * len(states)
        return [*found, *self.weights, *(s[n] for s in states for n in s if n != "step")]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_replayed_steps_have_the_bits_of_the_step(groups: int, rounding: str) -> None:
    eager, replayed = Training(groups, rounding), Training(groups, rounding)
    want = eager.run(eager.step)
    step = graphed(replayed.step)
    found = replayed.run(step)
    assert step.graph is not None
    assert same([x.detach() for x in found], [x.detach() for x in want])


def test_a_skipped_step_is_not_counted() -> None:
    """A gradient that is infinite in one replay: the next has the number and the bits of a run without that step."""
    made = []
    for wrap in (lambda f: f, graphed):
        weight = torch.nn.Parameter(torch.ones(8, 8, device="cuda"))
        other = torch.nn.Parameter(torch.ones(3, device="cuda"))
        optimizer = AdamW([{"params": [weight]}, {"params": [other], "lr": 1e-2}], lr=1e-3)

        def step(x: Tensor, weight: Any = weight, other: Any = other, optimizer: Any = optimizer) -> Tensor:
            loss = (weight * x).sum() + other.sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        call = wrap(step)
        for i in range(STEPS):
            x = torch.full((8, 8), float(i + 1), device="cuda")
            if i == 4:
                x[1, 1] = torch.inf
            call(x)
        assert optimizer.skipped == 1 and optimizer.state[weight]["step"] == STEPS - 1
        made.append([weight.detach(), other.detach(), optimizer.state[weight]["exp_avg"]])
    assert same(*made)


def test_loads_of_experts_change_between_replays() -> None:
    weights = [torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((4, 16), (4, 24, 16), (4, 16, 12))]

    def layer(x: Tensor) -> tuple[Tensor, Tensor]:
        y, _, chosen = experts(x, *weights, k=2)
        return y, chosen

    step, loads = graphed(layer), set()
    for i in range(5):
        x = torch.randn(40, 16, device="cuda", dtype=torch.bfloat16) + i
        y, chosen = step(x)
        want, chosen_eager = layer(x)
        assert torch.equal(y, want) and torch.equal(chosen, chosen_eager)
        loads.add(tuple(chosen.reshape(-1).bincount(minlength=4).tolist()))
    assert len(loads) > 1


def test_a_graph_of_torch_without_an_optimizer() -> None:
    layer = Linear(16, 16, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(8, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    called = torch.cuda.make_graphed_callables(layer, (x,))
    for seed in range(2):
        noise = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).cuda().bfloat16().requires_grad_()
        called(noise).sum().backward()
        found = noise.grad.clone()  # type: ignore[union-attr]
        assert torch.equal(called(noise), ops.linear(noise.detach(), layer.weight.detach(), layer.bias.detach()))
        assert torch.equal(found, ops.linear_backward_input(torch.ones_like(noise.detach()), layer.weight.detach()))


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("dropout", lambda x: Dropout()(x), "dropout: seed in a tensor while a CUDA graph is captured"),
        ("capacity", lambda x: experts(x, x[:4], x[:16].view(4, 4, 16), x[:8].view(4, 16, 2), k=1, capacity=8)[0],
         "experts: a capacity or padding"),
        ("mask", lambda x: functional.scaled_dot_product_attention(
            x, x, x, torch.ones(32, 32, dtype=torch.bool, device="cuda")), "attn_mask while a CUDA graph"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)  # fmt: skip
def test_what_cannot_be_captured_is_refused_by_name(name: str, call: Any, message: str) -> None:
    x = torch.randn(32, 16, device="cuda")
    step = graphed(call)
    for _ in range(2):
        step(x)
    with pytest.raises(ArgumentError, match=message):
        step(x)
    torch.cuda.synchronize()
    assert torch.isfinite(x.sum())


def test_an_optimizer_in_a_plain_capture_is_refused() -> None:
    weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
    optimizer = AdamW([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    refused = pytest.raises(ArgumentError, match=r"AdamW.step: .* accepted: tokitai.torch.graphed")
    with refused, torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()
    optimizer.step()
    assert optimizer.state[weight]["step"] == 2


def test_other_arguments_are_refused() -> None:
    step = graphed(lambda x, factor=1.0: x * factor)
    x = torch.ones(4, device="cuda")
    assert torch.equal(step(x, factor=2.0), 2 * x)
    for args, words, message in (
        ((torch.ones(5, device="cuda"),), {"factor": 2.0}, r"a tensor of \(5,\)"),
        ((x,), {"factor": 3.0}, "3.0; accepted, as in the first call: 2.0"),
        ((x,), {}, "graphed: arguments"),
    ):
        with pytest.raises(ArgumentError, match=message):
            step(*args, **words)


def test_nothing_waits_in_a_step() -> None:
    """torch raises where its own operations would wait; ours are counted by the driver's calls that do."""
    training = Training(2)
    for i in range(3):
        training.step(batch(i))
    waits: list[str] = []
    tokens = batch(3)
    from tokitai.runtime import gpu_device

    real = gpu_device.CudaGpu.wait
    gpu_device.CudaGpu.wait = lambda self, stream: (waits.append("wait"), real(self, stream))[1]  # type: ignore
    torch.cuda.set_sync_debug_mode("error")
    try:
        training.step(tokens)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        gpu_device.CudaGpu.wait = real  # type: ignore[method-assign]
    assert not waits


def test_an_index_out_of_range_is_asserted_on_the_gpu() -> None:
    """In a process of its own, which loses the GPU."""
    import subprocess
    import sys

    code = (
        "import torch\nfrom tokitai.errors import IllegalAddressError\nfrom tokitai.torch import functional\n"
        "ids = torch.tensor([1, 9], device='cuda')\n"
        "try:\n    functional.embedding(ids, torch.ones(8, 4, device='cuda'))\n    torch.cuda.synchronize()\n"
        "except (RuntimeError, IllegalAddressError):\n    print('raised')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "raised\n" and "embedding: input: an index out of range" in done.stderr
