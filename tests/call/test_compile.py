"""`tokitai.compile` for every device, on a machine without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

import tokitai
from tokitai import Kernel, ops
from tokitai.backends.cuda import driver as cuda_driver
from tokitai.backends.cuda import nvrtc
from tokitai.backends.hip import clang as hip
from tokitai.errors import ArgumentError, DeviceMissingError, TokitaiError, UnknownNameError

needs_nvrtc = pytest.mark.skipif(nvrtc.missing() is not None, reason=f"no NVRTC: {nvrtc.missing()}")
needs_hip = pytest.mark.skipif(hip.missing() is not None, reason=f"no clang for AMD GPUs: {hip.missing()}")
SHAPES: dict[str, dict[str, int]] = {
    "layer_norm": dict(rows=64, cols=1000), "silu": dict(rows=3, cols=5000), "global_norm": dict(rows=1, cols=5000),
    "embedding_backward": dict(rows=64, cols=40), "linear": dict(rows=64, cols=40, inner=24),
    "grouped_linear": dict(rows=64, cols=40, inner=24, batch=4), "attention": dict(rows=64, cols=80, inner=32),
}  # fmt: skip


def test_the_cpu_is_the_default() -> None:
    kernel = tokitai.compile(ops.softmax, dtype="f16")
    assert isinstance(kernel, Kernel) and kernel.fingerprint == tokitai.compile(ops.softmax, "cpu", "f16").fingerprint


LONG = ("attention", "embedding_backward")  # sources that take NVRTC seconds


@needs_nvrtc
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in SHAPES])
def test_every_kind_of_kernel_is_compiled_for_a_named_architecture(name: str) -> None:
    made = tokitai.compile(getattr(ops, name), device="cuda", dtype="f16", shape=SHAPES[name], arch="sm_90")
    assert made.artifact.arch == "sm_90" and made.schedule
    launched = {step.partition(":")[0] for step in made.launches}
    assert launched and launched <= set(made.artifact.resources)  # the kernels that are launched are in the binary
    assert "KERNEL(" in made.source and len(made.fingerprint) == 64
    other = tokitai.compile(getattr(ops, name), device="cuda", dtype="f16", shape=SHAPES[name], arch="sm_80")
    assert other.fingerprint != made.fingerprint and other.source == made.source


@needs_nvrtc
def test_the_shape_decides_on_the_schedule() -> None:
    short, long = (
        tokitai.compile(ops.layer_norm, device="cuda", shape=dict(rows=8, cols=c), arch="sm_90") for c in (64, 8192)
    )
    assert short.schedule != long.schedule and short.shape == (8, 64)


@needs_hip
def test_it_compiles_for_amd() -> None:
    made = tokitai.compile(ops.silu, device="hip", dtype="bf16", arch="gfx942")
    assert made.artifact.arch == "gfx942" and made.artifact.resources


WRONG: list[tuple[dict[str, Any], type[TokitaiError], str]] = [
    (dict(device="tpu"), UnknownNameError, "cpu, cuda, hip"),
    (dict(device="cuda", arch="sm_1"), UnknownNameError, "sm_90"),
    (dict(device="hip", arch="gfx1"), UnknownNameError, "gfx942"),
    (dict(device="hip"), ArgumentError, "gfx942"),
    (dict(arch="sm_90"), ArgumentError, "arch='sm_90' does not go with the device cpu"),
    (dict(shape=dict(rows=1, cols=1)), ArgumentError, "does not go with the device cpu"),
    (dict(device="cuda", isa="avx2"), ArgumentError, "isa='avx2' does not go with the device cuda"),
    (dict(device="cuda", compiler="g++"), ArgumentError, "does not go with the device cuda"),
    (dict(device="cuda", arch="sm_90", shape=dict(rows=1)), ArgumentError, "accepted: rows and cols"),
    (dict(device="cuda", arch="sm_90", dtype="f8"), TokitaiError, "f8"),
]


@pytest.mark.parametrize(("given", "error", "said"), WRONG, ids=[",".join(w[0]) for w in WRONG])
def test_wrong_arguments_are_named(given: dict[str, Any], error: type[TokitaiError], said: str) -> None:
    with pytest.raises(error, match=said):
        tokitai.compile(ops.softmax, **given)


def test_a_name_is_no_operator() -> None:
    for call in (tokitai.compile, tokitai.verify):
        with pytest.raises(ArgumentError, match=r"'softmax'; accepted: an operator, such as tokitai.ops.softmax"):
            call("softmax")  # type: ignore[operator]


def test_without_a_gpu_an_architecture_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(index: int) -> None:
        raise DeviceMissingError("no GPU")

    monkeypatch.setattr("tokitai.backends.cuda.backend.open_device", none)
    with pytest.raises(DeviceMissingError, match="no GPU; without one, name the architecture: arch='sm_90'"):
        tokitai.compile(ops.softmax, device="cuda")


@pytest.mark.gpu
def test_on_a_gpu_its_architecture_is_taken() -> None:
    made = tokitai.compile(ops.softmax, device="cuda", dtype="f16")
    assert made.artifact.arch.startswith("sm_") and cuda_driver.in_use()
