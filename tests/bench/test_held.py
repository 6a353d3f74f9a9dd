"""What is timed is what was checked, against the derived bound; rates that memory does not allow are flagged."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pytest

import tokitai.runtime.call
import tokitai.torch.peers
from tokitai import ops
from tokitai.backends.cpu import device as cpu
from tokitai.bench import held, measure, report, timing, workload
from tokitai.errors import ArgumentError
from tokitai.torch.peers import TorchPeer


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call a block: nobody looks at these times."""
    monkeypatch.setattr(timing, "BLOCK_SECONDS", 0.0)


def shapes_of(name: str) -> tuple[tuple[int, int], ...]:
    return ((1, 300), (1, 41)) if name == "adamw" else ((40, 96),)


def timed(name: str, dtype: str = "f32", against: str | None = "torch") -> dict[str, Any]:
    return measure.measure(ops.get(name), dtype, shapes_of(name), 1, 2, against)


def altered(monkeypatch: pytest.MonkeyPatch, call: Callable[[TorchPeer], Callable[[], Any]]) -> None:
    """Every counterpart's timed call is another one."""
    real = tokitai.torch.peers.peer

    def other(*args: Any) -> TorchPeer:
        peer = real(*args)
        return TorchPeer(call(peer), peer.results, peer.look, peer.given, peer.version)

    monkeypatch.setattr(tokitai.torch.peers, "peer", other)


# ------------------------------------------------------------------ counterparts
def scaled(by: float) -> Callable[[TorchPeer], Callable[[], Any]]:
    def make(peer: TorchPeer) -> Callable[[], Any]:
        def call() -> Any:
            made = peer.call()
            if peer.look is not None:  # its results are its state
                for some in peer.look():
                    for t in some:
                        t.detach().mul_(by)
                return made
            return tuple(t if t is None else t * by for t in made) if isinstance(made, tuple) else made * by

        return call

    return make


@pytest.mark.parametrize("name", ["softmax", "layer_norm_backward", "gelu_tanh", "adamw"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("by", [1.2, 0.8])
def test_a_counterpart_that_is_a_fifth_away_is_refused(
    name: str, dtype: str, by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered(monkeypatch, scaled(by))
    with pytest.raises(
        ArgumentError, match=rf"^{name}: \w+ of the timed call of the counterpart is .* accepted: the same"
    ):
        timed(name, dtype)


@pytest.mark.parametrize("by", [1 + 2.0**-14, 1 - 2.0**-14])
def test_in_f32_far_less_is_refused(by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    altered(monkeypatch, scaled(by))
    with pytest.raises(ArgumentError, match="softmax: y of the timed call"):
        timed("softmax")


@pytest.mark.parametrize("name", ["softmax", "adamw"])
def test_a_counterpart_that_does_nothing_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    altered(monkeypatch, lambda peer: lambda: None)
    with pytest.raises(ArgumentError, match=r"the timed call of the counterpart (gives no y|is)"):
        timed(name)


def test_a_counterpart_that_is_right_only_when_it_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers the first call rightly; what is timed is held after the timing."""

    def make(peer: TorchPeer) -> Callable[[], Any]:
        first = peer.call()
        calls: list[int] = []

        def call() -> Any:
            calls.append(1)
            return first if len(calls) == 1 else first * 0

        return call

    altered(monkeypatch, make)
    with pytest.raises(ArgumentError, match="softmax: y of the timed call"):
        timed("softmax")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_counterparts_of_coarser_arithmetic_are_flagged(dtype: str) -> None:
    """PyTorch's fused AdamW keeps 16-bit moments: the weights are as ours, the moments are rounded once more."""
    record = timed("adamw", dtype)
    assert record["share_of_bound"]["param"] <= 1
    far = {n for n, share in record["share_of_bound"].items() if share > 1}
    assert far == (set() if dtype == "f32" else {"exp_avg", "exp_avg_sq"})
    assert sum("times the rounding-error bound" in flag for flag in record["flags"]) == len(far)


# ------------------------------------------------------------------ our own calls
@pytest.mark.parametrize("name", ["softmax", "adamw"])
def test_a_kernel_that_does_nothing_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu.LoadedKernel, "prepared", lambda *_: 0)
    with pytest.raises(ArgumentError, match=rf"{name}: the timed kernel is wrong: .* accepted: the definition's bits"):
        timed(name, against=None)


@pytest.mark.parametrize("after", [1, 3])
def test_a_call_that_goes_wrong_later_is_noticed(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of calling are held, and after the timing as well."""
    real, calls = cpu.LoadedKernel.prepared, []

    def later_nothing(self: Any, *args: Any) -> int:
        calls.append(1)
        status = real(self, *args)
        if len(calls) > after:
            ctypes.c_uint32.from_address(struct.unpack("2P", args[0])[1]).value ^= 1  # y[0,0]
        return status

    monkeypatch.setattr(cpu.LoadedKernel, "prepared", later_nothing)
    with pytest.raises(ArgumentError, match=r"softmax: the timed (kernel|call) is wrong: y\[0,0\]"):
        timed("softmax", against=None)
    assert len(calls) > after


@pytest.mark.parametrize(
    "name", ["global_norm", "linear", "embedding", "dropout", "layer_norm_backward", "top_k", "router"]
)
def test_operators_of_every_kind_are_held(name: str) -> None:
    shapes = ((1, 300), (1, 0), (1, 41)) if name == "global_norm" else ((64, 96),)
    record = measure.measure(ops.get(name), "f16", shapes, 2, 1, None)
    assert record["not_held"] == {} and record["share_of_bound"] == {}


def test_rows_of_a_large_tensor_are_held_and_what_is_not_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    work = workload.workload(ops.layer_norm_backward, "f32", ((100, 40),))
    found, left_out = held.wanted(work, work.tensors, {})
    assert {w.name: None if w.rows is None else len(w.rows) for w in found} == {"dx": 8, "dgamma": None, "dbeta": None}
    assert left_out == {}
    monkeypatch.setattr(held, "WHOLE", 3999)
    found, left_out = held.wanted(work, work.tensors, {})
    assert {w.name for w in found} == {"dx"} and left_out.keys() == {"dgamma", "dbeta"}
    assert left_out["dgamma"] == "4000 elements or steps are more than 3999"


# ------------------------------------------------------------------ rates
def test_a_rate_that_memory_does_not_allow_is_flagged() -> None:
    times = {n: timing.Times((s,), 1) for n, s in (("kernel", 1e-3), ("call", 9e-4), ("torch", 1e-6), ("copy", 1e-3))}
    assert held.flags(times, 5_243_000, {"y": 0.5}) == [
        "torch: 5243 GB/s, 1000.00 times the rate of a copy of as many bytes"
    ]
    assert held.flags({**times, "torch": times["call"]}, 10**6, {}) == []


def test_flags_stand_below_the_table() -> None:
    record = timed("softmax")
    record["flags"] = ["torch: 5243 GB/s, 1000.00 times the rate of a copy of as many bytes"]
    text = report.table([record], head="")
    assert "* softmax f32 40x96: torch: 5243 GB/s" in text
    assert "GB/s, 1000" not in report.table([{k: v for k, v in record.items() if k != "flags"}], head="")
