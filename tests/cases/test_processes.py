"""Reported faults of processes: forks, warm-up with other tensors, a scalar that is baked in."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tokitai.runtime.host_executor
import tokitai.runtime.launch_cache
from tokitai import ops
from tokitai.formats import FORMATS

SECONDS = 20  # a fork that waits for threads which it does not have waits for ever

FORKING = """
import multiprocessing, sys
import numpy as np
from tokitai import ops

x = np.arange(64 * 257, dtype=np.float32).reshape(64, 257) / 1000

def child(connection):
    connection.send(ops.softmax(x, threads=4).tobytes())

want = ops.softmax(x, threads=4).tobytes()  # the parent's OpenMP threads exist from here on
context = multiprocessing.get_context(sys.argv[1])
if __name__ == "__main__":
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(there,))
    process.start()
    answered = here.poll(float(sys.argv[2]))
    assert not answered or here.recv() == want
    process.join() if answered else process.kill()
    assert ops.softmax(x, threads=4).tobytes() == want
    print("same bits" if answered else "the child does not answer")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_process_computes_after_its_parent_has(method: str, tmp_path: Any) -> None:
    """C120: a process that forks after its first parallel call leaves a child without the threads it waits for."""
    program = tmp_path / "program.py"
    program.write_text(FORKING)
    done = subprocess.run(
        [sys.executable, str(program), method, str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=3 * SECONDS,
    )
    assert done.returncode == 0 and done.stdout == "same bits\n", done.stderr


def test_one_kernel_serves_every_shape_alignment_and_scalar(monkeypatch: pytest.MonkeyPatch) -> None:
    """C122, C114: a warm-up with an aligned buffer does not cover a later view; values are baked into a binary. One
    compilation for each format, whatever comes first, and the same bits in either order."""
    made: list[str] = []
    real = tokitai.runtime.host_executor.host_kernel

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args[1])
        return real(*args, **kwargs)

    monkeypatch.setattr(tokitai.runtime.host_executor, "host_kernel", counted)
    flat = np.random.default_rng(122).standard_normal(70 * 1024 + 1).astype(np.float32)
    calls = [(flat[:-1], 32), (flat[1:], 32), (flat[:-1], 1024), (flat[1:], 1024), (flat[:1024], 1024), (flat[:35], 7)]

    def results(order: list[tuple[Any, int]]) -> dict[tuple[int, int, int, float], bytes]:
        tokitai.runtime.host_executor.kernel_here.cache_clear()
        tokitai.runtime.launch_cache.LAUNCHES.clear()
        return {
            (x.ctypes.data, x.size, cols, eps): ops.rms_norm(x.reshape(-1, cols), eps=eps, copy=False)[0].tobytes()
            for x, cols in order
            for eps in (1e-6, 0.25)
        }

    assert results(calls) == results(calls[::-1])
    assert made == ["f32", "f32"], "one for each order"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_state_is_never_narrowed_with_the_weights(dtype: str) -> None:
    """C75, C70, C78: moments, or gradients, in another format than the operator keeps are refused and named; a second
    moment of 1e-9, which f16 cannot hold, comes back with its bits."""
    kind = FORMATS[dtype].dtype
    param, grad = np.ones(3, kind), np.zeros(3, kind)
    moments = [np.zeros(3, np.float32), np.full(3, 1e-9, np.float32)]
    for i, name in enumerate(("exp_avg", "exp_avg_sq")):
        narrowed = list(moments)
        narrowed[i] = narrowed[i].astype(kind)
        with pytest.raises(tokitai.errors.ArgumentError, match=f"^{name}: format {dtype}; accepted: f32"):
            ops.adamw(param, grad, *narrowed, step=1)
    with pytest.raises(tokitai.errors.ArgumentError, match=rf"^grad: format f32 beside {dtype}; accepted: one storage"):
        ops.adamw(param, grad.astype(np.float32), *moments, step=1)
    before = moments[1].tobytes()
    ops.adamw(param, grad, *moments, step=1, beta2=1 - 2.0**-53)
    assert moments[1].tobytes() == before
