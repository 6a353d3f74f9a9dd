"""A caller whose thread flushes subnormals or rounds another way: a kernel's results are right, and the caller's mode
is what it was. (A library built with -ffast-math switches the thread that loads it.)"""

from __future__ import annotations

import ctypes
import platform
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokitai import ops
from tokitai.backends.cpu.device import check_float_mode
from tokitai.errors import FloatModeError
from tokitai.meaning import bits
from tokitai.toolchain.compilers import find_compiler

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="MXCSR is a register of x86-64; this is " + platform.machine()
)

TEXT = """#include <xmmintrin.h>
extern "C" unsigned get_mode() { return _mm_getcsr(); }
extern "C" void set_mode(unsigned mode) { _mm_setcsr(mode); }
"""
FLAGS = 0x3F  # sticky exception flags: a kernel may raise some
MODES = {"FTZ": 0x8000, "DAZ": 0x0040, "FTZ and DAZ": 0x8040, "down": 0x2000, "up": 0x4000, "toward zero": 0x6000}


@pytest.fixture(scope="module")
def mode(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("mode")
    (folder / "mode.cpp").write_text(TEXT)
    library = folder / "mode.so"
    subprocess.run([find_compiler().path, "-shared", "-fPIC", "-o", library, folder / "mode.cpp"], check=True)
    return ctypes.CDLL(str(library))


def in_mode(mode: ctypes.CDLL, flags: int, work: Callable[[], Any]) -> tuple[Any, int, int]:
    """What `work` returns or raises in a thread of its own with these bits of MXCSR, and the mode before and after."""
    seen: list[Any] = []

    def run() -> None:
        mode.set_mode(mode.get_mode() | flags)
        before = mode.get_mode()
        try:
            result = work()
        except Exception as error:
            result = error
        seen.extend([result, before, mode.get_mode()])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return seen[0], seen[1], seen[2]


RNG = np.random.default_rng(5)
TINY = (RNG.standard_normal((9, 77)) * 1e-39).astype(np.float32)  # subnormal in f32
X = RNG.standard_normal((9, 77)).astype(np.float32)
FAR = (X * 30).astype(np.float32)  # a softmax with subnormal results
GRAD = X * np.float32(1e-20)
HALF = (X * 2.0**-16).astype(np.float16)  # subnormal in f16


def adam() -> Any:
    state = [TINY.copy(), GRAD.copy(), TINY.copy(), np.abs(TINY)]
    ops.adamw(*([a] for a in state), step=3, threads=3)
    return state


WORK: dict[str, Callable[[], Any]] = {
    "softmax": lambda: ops.softmax(FAR, threads=3),
    "scale": lambda: ops.scale(TINY, factor=0.37, threads=3),
    "layer norm": lambda: ops.layer_norm(TINY, eps=1e-30, threads=3),
    "gelu in f16": lambda: ops.gelu_erf(HALF, threads=1),
    "adamw over a list": adam,
}


def as_bytes(results: Any) -> list[bytes]:
    return [a.tobytes() for a in (results if isinstance(results, (tuple, list)) else (results,))]


FLUSHING = ["FTZ", "DAZ", "FTZ and DAZ"]
ROUNDING = ["down", "up", "toward zero"]
WITH_SCALARS = {"scale", "layer norm", "adamw over a list"}


def hold(mode: ctypes.CDLL, name: str, modes: list[str]) -> None:
    want = as_bytes(WORK[name]())
    for which in modes:
        flags = MODES[which]
        got, before, after = in_mode(mode, flags, WORK[name])
        assert not isinstance(got, Exception), f"{which}: {got!r}"
        assert before & flags == flags and before | FLAGS == after | FLAGS, f"{which}: {before:#x} became {after:#x}"
        assert as_bytes(got) == want, f"{which}: other bits"
    assert as_bytes(WORK[name]()) == want and mode.get_mode() & 0xE040 == 0


@pytest.mark.parametrize("name", sorted(WORK))
def test_flushing_is_kept_out_of_results_and_kept_for_the_caller(mode: ctypes.CDLL, name: str) -> None:
    hold(mode, name, FLUSHING)


@pytest.mark.parametrize("name", sorted(set(WORK) - WITH_SCALARS))
def test_another_rounding_is_kept_out_of_results_and_kept_for_the_caller(mode: ctypes.CDLL, name: str) -> None:
    hold(mode, name, ROUNDING)


@pytest.mark.parametrize("name", ["scale", "adamw over a list"])
def test_another_rounding_is_kept_out_of_host_scalars(mode: ctypes.CDLL, name: str) -> None:
    hold(mode, name, ROUNDING)


def test_these_results_would_differ(mode: ctypes.CDLL) -> None:
    """The inputs above see the mode: the same arithmetic in NumPy has other bits under each."""
    for flags in MODES.values():
        got, _, _ = in_mode(mode, flags, lambda: (TINY * np.float32(0.37)).tobytes())
        assert got != (TINY * np.float32(0.37)).tobytes()


@pytest.mark.parametrize("which", sorted(MODES))
def test_the_oracle_refuses(mode: ctypes.CDLL, which: str) -> None:
    graph = ops.softmax.trace("f32")
    got, _, _ = in_mode(mode, MODES[which], lambda: bits.evaluate(graph, dict(x=X), X.shape, {}))
    assert isinstance(got, FloatModeError) and "Accepted: the default IEEE 754 mode" in str(got)
    listed, _, _ = in_mode(mode, MODES[which], lambda: bits.evaluate_tensors(graph, [dict(x=X)], [X.shape], {}))
    assert isinstance(listed, FloatModeError)
    found, _, _ = in_mode(mode, MODES[which], check_float_mode)
    assert isinstance(found, str) and check_float_mode() is None
