"""Attention with the accumulator fused16: bits on the CPU and the simulated device, refusals, slips that must show."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from running import same_bits

from tokitai import ops
from tokitai.backends.sim.target import SimTarget
from tokitai.errors import ArgumentError, DefinitionError, TargetMissingError
from tokitai.families import emit_cpu, make_plan
from tokitai.families.attention import step_tiling
from tokitai.formats import format_of
from tokitai.lang import Operand, Sizes, matmul, operator, outputs, round_to, storage, weighted_sum
from tokitai.meaning import bits, bounds, real
from tokitai.runtime.gpu_kernel import GpuKernel, gpu_plan
from tokitai.runtime.kernel import KernelBase, build_text
from tokitai.toolchain.build import Isa, native_isa
from tokitai.verification import cases, run
from tokitai.verification.run import run_numbers, run_structure

KINDS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
FUSED: dict[str, Any] = {"accumulator": "fused16"}
NAMES = ["attention", "attention_backward"]


def drawn(fmt: str, queries: int, keys: int, dim: int) -> tuple[Any, ...]:
    """Queries, keys, values and the gradient of the result."""
    rng = np.random.default_rng([queries, keys, dim])
    sizes = ((queries, dim), (keys, dim), (keys, dim), (queries, dim))
    return tuple(rng.standard_normal(s).astype(KINDS[fmt]) for s in sizes)


def both(q: Any, k: Any, v: Any, dy: Any, limit: Any) -> list[Any]:
    y, top, total = ops.attention(q, k, v, limit, scale=0.3, **FUSED)
    return [y, top, total, *ops.attention_backward(dy, q, k, v, top, total, limit, scale=0.3, **FUSED)]


def expected(fmt: str, q: Any, k: Any, v: Any, dy: Any, limit: Any) -> list[Any]:
    shape, made = Sizes(len(q), len(k), q.shape[1]), dict(q=q, k=k, v=v, dy=dy, limit=limit)
    made |= bits.evaluate(ops.attention.trace(fmt, None, FUSED), made, shape, dict(scale=0.3))
    made |= bits.evaluate(ops.attention_backward.trace(fmt, None, FUSED), made, shape, dict(scale=0.3))
    return [made[n] for n in ("y", "top", "total", "dq", "dk", "dv")]


@pytest.mark.parametrize(
    "size", [(5, 37, 8), (33, 16, 40), (1, 1, 1), (17, 70, 130), (3, 4100, 2), (4100, 3, 2)], ids=str
)
@pytest.mark.parametrize("fmt", KINDS)
def test_bits_are_the_definitions(fmt: str, size: tuple[int, int, int]) -> None:
    given = drawn(fmt, *size)
    limit = np.random.default_rng(1).integers(0, size[1] + 1, size[0]).astype(np.int32)
    for x, y in zip(both(*given, limit), expected(fmt, *given, limit), strict=True):
        assert same_bits(x, y.reshape(x.shape))


@pytest.mark.parametrize("fmt", KINDS)
def test_what_is_not_seen_does_not_matter(fmt: str) -> None:
    """NaN and infinities in keys, values and gradients, in steps of which other queries see a part."""
    q, k, v, dy = drawn(fmt, 20, 50, 24)
    limit = np.random.default_rng(2).integers(0, 38, 20).astype(np.int32)
    limit[7] = 0
    clean = both(q, k, v, dy, limit)
    k[37:], v[37:], dy[7] = np.nan, np.inf, np.nan
    for x, y in zip(both(q, k, v, dy, limit), clean, strict=True):
        assert same_bits(x, y)
    v[11, 3] = np.inf  # of a key that some queries see
    made = both(q, k, v, dy, limit)
    for x, y in zip(made, expected(fmt, q, k, v, dy, limit), strict=True):
        assert same_bits(x, y.reshape(x.shape))
    sees = limit > 11
    assert np.isposinf(made[0][sees, 3].astype(np.float32)).all()
    assert np.isfinite(made[0][~sees].astype(np.float32)).all()


@pytest.mark.parametrize("fmt", KINDS)
def test_a_query_has_the_bits_that_it_has_alone(fmt: str) -> None:
    q, k, v, _ = drawn(fmt, 40, 60, 16)
    limit = np.random.default_rng(3).integers(1, 61, 40).astype(np.int32)
    whole = ops.attention(q, k, v, limit, scale=0.3, **FUSED)
    for r in (0, 17, 39):
        n = int(limit[r])
        one = ops.attention(q[r : r + 1], k[:n], v[:n], scale=0.3, **FUSED)
        assert all(same_bits(a, b[r : r + 1]) for a, b in zip(one, whole, strict=True))


def test_weights_add_up_to_one() -> None:
    """The rounded weights are summed: of values that are all 1, what chain and tree differ by is far below bf16."""
    q, k, v, _ = drawn("bf16", 9, 300, 8)
    assert (ops.attention(q, k, np.ones_like(v), scale=0.3, **FUSED)[0] == 1).all()


@pytest.mark.parametrize("fmt", KINDS)
def test_errors_are_within_the_derived_bound(fmt: str) -> None:
    """Of the definition with its roundings, which f64 gives."""
    q, k, v, _ = drawn(fmt, 7, 4200, 5)
    graph = ops.attention.trace(fmt, (), FUSED)
    value, error = bounds.evaluate(graph, dict(q=q, k=k, v=v), Sizes(7, 4200, 5), dict(scale=0.3))["y"]
    exact = real.evaluate(graph, dict(q=q, k=k, v=v), Sizes(7, 4200, 5), dict(scale=0.3))["y"]
    away = np.abs(value.astype(np.float64) - exact.astype(np.float64))
    assert (away <= error).all() and (away > 0).any() and np.isfinite(error).all()


# ------------------------------------------------------------------ what is refused
def test_what_does_not_fit_is_refused() -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ArgumentError, match=r"accumulator='fused16' of f32; accepted: 'f32'"):
        ops.attention(x, x, x, scale=1.0, **FUSED)
    with pytest.raises(TargetMissingError, match="attention with fused16 on hip; accepted: cpu, cuda, sim"):
        gpu_plan(ops.attention.trace("f16", (), FUSED), "hip")

    @operator
    def wide(q: Operand[storage], k: Operand[storage]) -> Any:
        return outputs(y=weighted_sum(matmul(q, k, "NT", "fused16"), k, accumulator="fused16"))

    with pytest.raises(DefinitionError, match="accepted: weights by round_to"):
        wide.trace("f16")

    @operator
    def other(q: Operand[storage], k: Operand[storage]) -> Any:
        return outputs(y=weighted_sum(round_to(matmul(q, k, "NT"), storage), k, accumulator="fused16"))

    with pytest.raises(DefinitionError, match="beside products in fused16; accepted: all in fused16"):
        make_plan(other.trace("f16"))

    @operator
    def unknown(q: Operand[storage], k: Operand[storage]) -> Any:
        return outputs(y=weighted_sum(matmul(q, k, "NT"), k, accumulator="f64"))

    with pytest.raises(DefinitionError, match="accepted: f32, fused16"):
        unknown.trace("f16")


# ------------------------------------------------------------------ slips
SMALL = (Sizes(35, 70, 24), Sizes(9, 40, 33), Sizes(2, 4100, 3), Sizes(4100, 2, 3), Sizes(1, 300, 2, 8))
STEPS = {"steps of eight": ("UNIT_STEP = 16", "UNIT_STEP = 8")}
CPU_SLIPS = STEPS | {
    "what is not seen is a product": ("if (attended(k)) products +=", "products +="),
    "a chain of keys begins anew with every piece": ("if (c0 % CHAIN == 0) begin_tile(tile);", "begin_tile(tile);"),
    "sums of chains of queries are not joined": ("if (whole) join_chain(", "if (false) join_chain("),
    "a key more is seen by sums over keys": ("c + k < limits.limit[j]; });", "c + k <= limits.limit[j]; });"),
    "weights of another query are held back": ("panel[c * NR + k];", "panel[c * NR];"),
    "limits are those of the panel before": ("held.limit[at + k] =", "held.limit[k] ="),
}
SIM_SLIPS = STEPS | {
    "what is not seen is a product": ("const bool is = attended >> k & 1;", "const bool is = true;"),
    "fragments of weights are swapped": (
        "[j % 4 / 2 * 2 + i % 2] = weights_of",
        "[j % 4 / 2 + i % 2 * 2] = weights_of",
    ),
    "lines of a fragment are swapped": ("(SWAPPED ? high : low) * 8 + lane", "(SWAPPED ? low : high) * 8 + lane"),
    "a step is used before it has landed": ("copies.template wait<0>();", ""),
    "chains of keys and queries are not ended": ("if (terms <= CHAIN) return;", "return;"),
    "a step that is seen is passed over": ("if (c0 < found.max) return r;", "if (c0 + 8 < found.max) return r;"),
    "the next step's rows are used": ("half * COLS + column_here(j)", "(half ^ 1) * COLS + column_here(j)"),
    "hidden steps are left out of a sum": ("c0 += COLS) counter.push(step);", "c0 += COLS) (void)step;"),
}


@pytest.fixture(autouse=True)
def few_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aligned and not: `verify` takes more."""
    monkeypatch.setattr(run, "layouts", lambda *_: (run.PLAIN, run.Layout("odd", 2, offset=1, gap=3)))


def kernel_of(name: str, device: str, slip: tuple[str, str], isa: Isa | None = None) -> tuple[KernelBase, list[int]]:
    """A structure build with a slip, and at how many places of each source it was made."""
    places: list[int] = []

    def edit(text: str) -> str:
        places.append(text.count(slip[0]))
        return text.replace(*slip)

    op = ops.get(name)
    graph = op.trace("f16", None, FUSED)
    plan = make_plan(graph)
    if device == "sim":
        return GpuKernel(op, graph, plan, True, SimTarget(), edit), places
    text = emit_cpu(plan)
    headers = {n: edit(t) for n, t in text.headers.items()}
    made = build_text(op, graph, plan, edit(text.text), headers, isa=isa or native_isa(), structure=True)
    return made, places


def wrong(k: KernelBase, size: Sizes) -> str | None:
    if not k.structure:
        return run_numbers(k, cases.seeded(k.operator, k.graph, "normal", size, 2), None, 2).failure
    integers = {
        t.name: cases.draw(k.operator, t, "normal", size, 5)
        for t in k.graph.inputs
        if not format_of(str(t.format)).is_float
    }
    return run_structure(k, size, integers, cases.drawn_scalars(k.operator, k.graph, size), seed=5).failure


@pytest.mark.slow
@pytest.mark.parametrize("what", CPU_SLIPS)
def test_slips_are_refuted_on_the_cpu(what: str) -> None:
    name = "attention" if "keys" in what else "attention_backward"
    isa: Isa | None = "scalar" if "panel before" in what else None  # whose panels have few queries
    made, places = kernel_of(name, "cpu", CPU_SLIPS[what], isa)
    assert sum(places), f"{CPU_SLIPS[what][0]!r} stands nowhere"
    assert any(wrong(made, size) for size in SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("what", SIM_SLIPS)
def test_slips_are_refuted_on_the_simulated_device(what: str) -> None:
    slip = SIM_SLIPS[what]
    name = "attention" if "hidden" in what else "attention_backward"
    made, places = kernel_of(name, "sim", slip)
    assert any(wrong(made, size) for size in SMALL)
    assert sum(places), f"{slip[0]!r} stands nowhere"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [128, 64, 32])
def test_tilings_on_the_simulated_device(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size of a tile; slabs of a part of a head."""
    monkeypatch.setattr(run, "layouts", lambda *_: (run.PLAIN,))
    op = ops.get(name)
    graph = op.trace("bf16", None, FUSED)

    def schedule(plan: Any, sizes: Sizes, width: int) -> step_tiling.StepTiling:
        every = {t.rows: t for t in step_tiling.offered(plan, sizes.inner, width, False)}
        return every.get(rows) or every[64]

    for size, structure in ((Sizes(70, 37, 9), True), (Sizes(20, 70, 33, 2), False), (Sizes(9, 12, 140), True)):
        kernel = GpuKernel(op, graph, make_plan(graph), structure, SimTarget(), schedule=schedule)
        assert wrong(kernel, size) is None, size
