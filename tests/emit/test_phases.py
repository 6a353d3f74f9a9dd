"""Totals over lists of tensors: phases of one launch, on the simulated device and as they are laid out for a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from tokitai.backends.sim.device import build_sim, load
from tokitai.emit.gpu_text import headers
from tokitai.errors import KernelFaultError
from tokitai.families import make_plan
from tokitai.families.elementwise import schedule as layout
from tokitai.families.elementwise.gpu import GpuFlatEmitter
from tokitai.families.elementwise.plan import FlatPlan
from tokitai.families.elementwise.schedule import (
    MOST_RUN,
    TILE,
    flat_steps,
    flat_workspace_elements,
    run_of,
    schedule_flat,
    units_of,
)
from tokitai.ops import get
from tokitai.toolchain.build import Source
from tokitai.toolchain.compilers import find_compiler
from tokitai.verification import verify


def plan_of(name: str, dtype: str = "f16", present: frozenset[str] | None = None) -> FlatPlan:
    plan = make_plan(get(name).trace(dtype, present) if present is not None else get(name).trace(dtype))
    assert isinstance(plan, FlatPlan)
    return plan


@pytest.mark.parametrize("tensors", [0, 1, 2, 808])
def test_adamw_is_one_launch_whatever_the_number_of_tensors(tensors: int) -> None:
    shapes = [(1, 3 * TILE + 1), *[(1, 0)] * (tensors > 1), *[(1, 5)] * (tensors - 2)][:tensors]
    filled = sum(c > 0 for _, c in shapes)
    tiles = sum(-(-c // TILE) for _, c in shapes)
    for dtype in ("f16", "bf16", "f32"):
        for present in (frozenset[str](), frozenset({"master"})):
            (step,) = flat_steps(plan_of("adamw", dtype, present), shapes)
            assert (step.name, step.grid, step.cleared) == ("work", tiles + filled + 1 + tiles, layout.COUNTERS)
    assert [s.name for s in flat_steps(plan_of("global_norm"), shapes)] == ["totals"]
    assert [s.name for s in flat_steps(plan_of("clip_global_norm"), shapes)] == ["totals", "work"][: 1 + (tiles > 0)]
    assert [s.name for s in flat_steps(plan_of("silu"), shapes)] == ["work"][: tiles > 0]


def test_runs_of_tiles_are_nodes_of_the_tree() -> None:
    assert [run_of(layout.MANY_UNITS * k) for k in (0, 1, 2, 3, 4, 15, 16, 10**6)] == [1, 1, 2, 2, 4, 8, 16, MOST_RUN]
    tiles = 16 * layout.MANY_UNITS
    shapes = [(1, tiles * TILE), (1, 1), (3, 16 * TILE + 1)]
    assert units_of(shapes) == layout.MANY_UNITS + 1 + 3 * 2, "no run goes on in the next tensor or row"
    plan = plan_of("global_norm")
    assert flat_workspace_elements(plan, shapes) == 2 + units_of(shapes) + 3 + 1
    assert flat_workspace_elements(plan_of("silu"), shapes) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("adamw", "bf16"), ("global_norm", "f16"), ("clip_global_norm", "f32")])
def test_long_runs_have_the_same_bits_and_structure(name: str, dtype: str) -> None:
    assert run_of(2, layout.SIM_UNITS) == 2 and run_of(40, layout.SIM_UNITS) == MOST_RUN
    verdict = verify(get(name), device="sim", dtype=dtype)
    assert (verdict.verdict, verdict.failure) == ("verified", None)
    assert {"structure", "list"} <= set(verdict.evidence)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adamw", "clip_global_norm"])
def test_a_total_that_is_not_waited_for_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Turns in another order: elements before their totals."""

    def edit(text: str) -> str:
        return text.replace("const int64_t turn = take_turn(", "const int64_t turn = ends[2] - take_turn(")

    plan = plan_of(name)
    assert "turn = take_turn(" in GpuFlatEmitter(plan, 8, schedule_flat(plan)).text()
    assert verify(get(name), device="sim", dtype="f16", edit=edit).verdict == "refuted"


TURNS = r"""
#include "rows.h"
using namespace tokitai;
struct Call { uint32_t* counters; int64_t* y; int64_t ends[3]; };
KERNEL(turns, 128, 1) {
  SHARED(uint32_t, cell, 1);
  const uint32_t ends[3] = {uint32_t(call.ends[0]), uint32_t(call.ends[1]), uint32_t(call.ends[2])};
  const int64_t turn = take_turn(call.counters, ends, cell);
  call.y[block_index() * block_size() + thread_index()] = turn;
  if (turn < ends[2] && thread_index() == 0) count_done(call.counters + 1);
}
"""


@pytest.mark.parametrize("hip", [False, True])
def test_turns(hip: bool) -> None:
    kernels = load(build_sim(Source(TURNS, headers(), "turns"), find_compiler(), hip=hip))
    counters, y = np.zeros(2, np.uint32), np.empty((7, 128), np.int64)

    def run(*ends: int) -> None:
        call = np.array([counters.ctypes.data, y.ctypes.data, *ends], np.int64).tobytes()
        kernels.launch("turns", len(y), 128, call)

    run(3, 5, 6)
    assert (y == np.arange(7)[:, None]).all() and counters.tolist() == [7, 6]
    with pytest.raises(KernelFaultError, match="thread 0 is waiting for a later block for ever"):
        counters[:] = 3, 0  # as if blocks had begun that never end
        run(3, 5, 6)
