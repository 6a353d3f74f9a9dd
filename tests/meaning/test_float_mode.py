"""The oracle refuses to work in a thread whose floating-point mode a library has changed."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

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
FLUSH_RESULTS, FLUSH_OPERANDS, DOWN, UP, TOWARD_ZERO = 0x8000, 0x0040, 0x2000, 0x4000, 0x6000


@pytest.fixture(scope="module")
def mode(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("mode")
    (folder / "mode.cpp").write_text(TEXT)
    library = folder / "mode.so"
    compiler = find_compiler()
    subprocess.run([compiler.path, "-shared", "-fPIC", "-o", library, folder / "mode.cpp"], check=True)
    return ctypes.CDLL(str(library))


@contextmanager
def switched(mode: ctypes.CDLL, flags: int) -> Iterator[None]:
    before = mode.get_mode()
    mode.set_mode(before | flags)
    try:
        yield
    finally:
        mode.set_mode(before)


def in_a_thread(work: Callable[[], None]) -> BaseException | None:
    """What `work` raises in a thread of its own: the mode of this one stays as it is."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0] if raised else None


@pytest.mark.parametrize("flags", [FLUSH_RESULTS, FLUSH_OPERANDS, DOWN, UP, TOWARD_ZERO])
def test_another_mode_is_refused(mode: ctypes.CDLL, flags: int) -> None:
    def work() -> None:
        with switched(mode, flags):
            bits.check_float_mode()

    error = in_a_thread(work)
    assert isinstance(error, FloatModeError), f"mode {flags:#x} passed"
    assert "Accepted: the default IEEE 754 mode" in str(error)
    bits.check_float_mode()


def test_the_default_mode_passes(mode: ctypes.CDLL) -> None:
    assert in_a_thread(bits.check_float_mode) is None


def test_evaluation_refuses_too(mode: ctypes.CDLL) -> None:
    from tokitai import ops

    graph = ops.softmax.trace("f32")

    def work() -> None:
        with switched(mode, FLUSH_RESULTS):
            bits.evaluate(graph, dict(x=np.zeros((1, 2), np.float32)), (1, 2), {})

    assert isinstance(in_a_thread(work), FloatModeError)
