"""A step without waiting, on a stand-in for a GPU: skipped steps, several lists, scalars of replays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.call.fake_gpu import OnGpu, SimGpu, installed
from tokitai import ops
from tokitai.arrays import device_array
from tokitai.arrays.libraries import place_of_torch
from tokitai.errors import ArgumentError
from tokitai.experts import Experts, expert_layer
from tokitai.runtime import gpu_lists
from tokitai.torch import assertions, dispatch, functional, graphs, operators, optim
from tokitai.torch.optim import AdamW

SIZES = ((33,), (4, 5), (7,))


class There(OnGpu):
    """A tensor that says it lies on a GPU, and to torch that it does not."""

    device = Tensor.device


def on_gpu(x: Tensor) -> Any:
    return x.as_subclass(There)


def view(name: str, x: Any) -> device_array.DeviceView:
    address, fmt = place_of_torch(name, x)
    return device_array.DeviceView(address, tuple(x.shape), x.stride(), fmt, 0, False, x)


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> SimGpu:
    monkeypatch.setattr(dispatch, "PLAIN", {*dispatch.PLAIN, There})
    monkeypatch.setattr(device_array, "_of_torch", view)
    return installed(monkeypatch)


def weights() -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(*s, generator=draw) for s in SIZES]


def trained(there: bool, broken: int | None, groups: int = 2, **words: Any) -> tuple[AdamW, list[Tensor]]:
    """Three steps of weights in so many groups; the gradient of one weight is infinite in step ``broken``."""
    params = [(on_gpu(w) if there else w).requires_grad_() for w in weights()]
    optimizer = AdamW([{"params": params[i::groups], "lr": 1e-2 / (i + 1)} for i in range(groups)], **words)
    for step in range(3):
        for i, p in enumerate(params):
            grad = torch.full(p.shape, float(i + step + 1))
            if step == broken and i == 1:
                grad.view(-1)[3] = math.inf
            p.grad = on_gpu(grad) if there else grad
        optimizer.step()
    return optimizer, params


def bits(x: Any) -> bytes:
    return np.asarray(x.detach().as_subclass(Tensor)).tobytes()


@pytest.mark.parametrize("broken", [None, 0, 1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_lists_see_gradients_of_each_other(broken: int | None, groups: int) -> None:
    here, mine = trained(False, broken, groups)
    there, moved = trained(True, broken, groups)
    assert list(map(bits, moved)) == list(map(bits, mine))
    assert there.skipped == here.skipped == int(broken is not None)
    assert [there.state[p]["step"] for p in moved] == [here.state[p]["step"] for p in mine] == [3 - there.skipped] * 3


def test_a_skipped_step_is_taken_back_by_whoever_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    class Late(optim.Pending):
        def __bool__(self) -> bool:
            looked.append(1)
            return super().__bool__()

    monkeypatch.setattr(optim, "Pending", Late)
    optimizer, params = trained(True, 2)
    assert len(looked) == 2, "each step looks at the one before"
    other = optimizer.state_dict()
    assert len(looked) == 3 and other["param_groups"][0]["skipped"] == 1
    assert {s["step"] for s in other["state"].values()} == {2}
    assert optimizer.state[params[0]]["step"] == 2 and len(looked) == 3


def test_a_replay_has_the_options_and_the_number_of_steps_of_now(monkeypatch: pytest.MonkeyPatch, fake: SimGpu) -> None:
    """The launches of a captured step, run with the scalars of later steps, are those steps."""
    workspace = on_gpu(torch.zeros(1 << 16, dtype=torch.uint8))  # a graph's own, which nothing else gets
    monkeypatch.setattr(gpu_lists, "torch_workspace", lambda example, nbytes: lambda: workspace)
    with gpu_lists.capture_expected():
        optimizer, params = trained(True, None, groups=1)
    alone, mine = trained(False, None, groups=1)
    fake.recording = True
    with gpu_lists.captured_launches() as launches:
        capture = graphs.Capture(launches)
        graphs._going_on.append(capture)
        try:
            before = [optimizer.state[p]["step"] for p in params]
            optimizer.step()
            with pytest.raises(ArgumentError, match="AdamW: weights of the host"):
                alone.step()
        finally:
            graphs._going_on.remove(capture)
    (step,) = capture.steps
    assert [optimizer.state[p]["step"] for p in params] == before, "a capture runs nothing"
    fake.recording = False
    alone.step()
    for p in params:
        optimizer.state[p]["step"] += 1  # the stand-in has run what it recorded
    for o in (optimizer, alone):
        for group in o.param_groups:
            group["lr"] *= 0.5
    scalars = step.scalars()
    assert [(s["step"], s["lr"]) for _, s in scalars] == [(5, 5e-3)]
    for launch, given in scalars:
        for one in launch.ready.steps:
            launch.ready.program.launch(one, launch.with_scalars(given), 0, 0)
    step.done()
    alone.step()
    assert list(map(bits, params)) == list(map(bits, mine))
    assert [optimizer.state[p]["step"] for p in params] == [5] * 3
    optimizer.state[params[0]]["exp_avg"] = optimizer.state[params[0]]["exp_avg"].clone()
    with pytest.raises(ArgumentError, match="weights or moments in other memory than when the step was captured"):
        step.scalars()


def test_indices_are_asserted_where_they_lie(monkeypatch: pytest.MonkeyPatch, fake: SimGpu) -> None:
    """No value is read back; torch's assertion says what is wrong, here at once."""
    logits, target = on_gpu(torch.randn(3, 5)), torch.tensor([0, -100, 4])
    want = functional.cross_entropy(torch.randn(3, 5) * 0 + logits.as_subclass(Tensor), target)
    assert bits(functional.cross_entropy(logits, on_gpu(target))) == bits(want)
    table = on_gpu(torch.randn(4, 6))
    for call, message in (
        (lambda: functional.cross_entropy(logits, on_gpu(torch.tensor([0, 5, 1]))), "cross_entropy: target: an index"),
        (lambda: functional.embedding(on_gpu(torch.tensor([4])), table), r"embedding: input: .* accepted: 0 to 3"),
        (lambda: operators.router(on_gpu(torch.tensor([[1.0, math.nan, 2.0]])), k=2), "router: logits holds NaN"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call()
    assert not [said for said in fake.said if said[0] in ("read", "wait")]


def test_a_token_with_logits_of_nan_gets_nan(fake: SimGpu) -> None:
    draw = torch.Generator().manual_seed(2)
    x, *layer = (torch.randn(*s, generator=draw) for s in ((5, 6), (3, 6), (3, 8, 6), (3, 6, 4)))
    want, _ = expert_layer(x, Experts(*layer), k=2)
    x[2, 1] = math.nan
    y, saved = expert_layer(on_gpu(x), Experts(*map(on_gpu, layer)), k=2)
    y = y.as_subclass(Tensor)
    assert y[2].isnan().all() and torch.equal(y[[0, 1, 3, 4]], want[[0, 1, 3, 4]])
    assert int(saved.experts.min()) >= 0 and int(saved.experts.max()) < 3
    assert not [said for said in fake.said if said[0] in ("read", "wait")]


def test_what_cannot_be_captured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    x = torch.randn(3, 8)
    for call, message in (
        (lambda: functional.dropout(x, seed=torch.tensor(3)), "dropout: seed in a tensor while a CUDA graph"),
        (lambda: AdamW([x.clone().requires_grad_()]).step(), r"AdamW.step: .*accepted: tokitai.torch.graphed"),
        (lambda: assertions.refuse_capture("a", "b", "c"), "a: b while a CUDA graph is captured; accepted: c"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
    assert ops.dropout(x, p=0.5, seed=3) is not None


def test_tensors_of_a_gpu_are_what_graphed_takes() -> None:
    with pytest.raises(ArgumentError, match=r"graphed: cpu; accepted: tensors of one CUDA device"):
        graphs.graphed(lambda x: x)(torch.ones(3))
