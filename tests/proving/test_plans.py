"""Launch plans on unknown sizes: proved as they are, refuted once a plan or the header that uses it is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import z3

from tokitai.emit.cpp import KernelText
from tokitai.families import make_plan
from tokitai.families.attention import tiling as walks
from tokitai.families.attention.gpu_kernels import emit_attention
from tokitai.families.matmul import tiling as products
from tokitai.families.matmul.tiling import Tiling
from tokitai.families.rowwise import schedule as rowwise
from tokitai.lang import FIXED_BITS, Sizes
from tokitai.lower.gpu import Step
from tokitai.ops import registry
from tokitai.proving import attention_plans, plans, product_plans
from tokitai.proving.choice import Choice
from tokitai.proving.prove import plan_of
from tokitai.proving.symbolic import every_path, one_term, term_of, whole

ROOM = "the workspace has room for pending partials and parts"
GRID = "every launch has 1 to 2^31 - 1 blocks"
TILES = "every tile of every group has a block"
ALONE = "a launch of blocks with one tile each has all of them"


def of_product(tiles: int) -> dict[str, tuple[str, dict[str, int]]]:
    """What became of each statement about one tiling of a product with so many tiles."""
    plan: Any = plan_of(registry()["linear"], "f32")
    tiling = next(products.offered(plan, 8))
    inner = z3.Int("inner")
    return answers(Choice("one tiling", [inner >= 0, inner <= 2**31], product_plans._products(plan, tiling, tiles, 1)))


def answers(choice: Choice) -> dict[str, tuple[str, dict[str, int]]]:
    """What became of each statement about a choice, and where it is wrong."""
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for what, answer in plans.limits(choice, "cuda", 20.0):
        if found.get(what, ("proved",))[0] == "proved":
            found[what] = answer.status, dict(answer.at)
    return found


def of_groups(name: str, chosen: str) -> dict[str, tuple[str, dict[str, int]]]:
    """The same of a choice of a grouped product's first tiling."""
    operator = registry()[name]
    every = plans.choices(operator, plan_of(operator, "f32"), "cuda")
    return answers(next(c for c in every if c.name.endswith(chosen)))


def of_attention() -> dict[str, tuple[str, dict[str, int]]]:
    """The same of attention's first tiling."""
    operator = registry()["attention"]
    return answers(next(iter(plans.choices(operator, plan_of(operator, "f32"), "cuda"))))


def test_functions_run_on_unknown_numbers_on_every_path() -> None:
    n = z3.Int("n")
    paths = every_path(lambda: max(whole(n), 3) // 2, [n >= 0, n <= 9])
    assert len(paths) == 2
    term = one_term(lambda: -(-max(whole(n), 3) // 2), [n >= 0, n <= 9])
    assert [z3.simplify(z3.substitute(term, (n, z3.IntVal(k)))).as_long() for k in (0, 4, 9)] == [2, 2, 5]


def test_bits_of_an_unknown_number() -> None:
    n = z3.Int("n")
    ((taken, bits),) = every_path(lambda: whole(n).bit_length(), [n == 1000])
    solver = z3.Solver()
    solver.add(n == 1000, *taken, term_of(bits) != (1000).bit_length())
    assert solver.check() == z3.unsat


def test_workspaces_of_products_have_room() -> None:
    found = of_product(300)
    assert found[ROOM][0] == "proved" and found[GRID][0] == "proved"


@pytest.mark.slow
@pytest.mark.parametrize("accumulator", FIXED_BITS)
def test_launches_by_warpgroups_in_fixed_point_have_room(accumulator: str) -> None:
    """Shared memory, blocks, and sums that wait; not the digits, which lie ahead of these."""
    plan: Any = make_plan(registry()["linear"].trace("bf16", (), {"accumulator": accumulator}))
    (tiling,) = (t for t in product_plans.tilings(plan, "cuda") if t.stages)
    inner = z3.Int("inner")
    for tiles in product_plans.TILES:
        made = product_plans._products(plan, tiling, tiles, 1)
        found = answers(Choice("one tiling", [inner >= 0, inner <= 2**31], made))
        assert {status for status, _ in found.values()} == {"proved"} and ROOM in found, found


def test_a_workspace_one_element_short_at_three_chains_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = products._workspace

    def short(tiling: Tiling, sizes: Sizes, most: int) -> int:
        return asked(tiling, sizes, most) - (products.chains_of(sizes) == 3)

    monkeypatch.setattr(products, "_workspace", short)
    status, at = of_product(300)[ROOM]
    assert status == "refuted" and -(-at["inner"] // 4096) == 3
    # The plan at these sizes, run: it asks for an element less than the kernel's header uses.
    plan: Any = plan_of(registry()["linear"], "f32")
    tiling = next(products.offered(plan, 8))
    sizes = Sizes(300 * tiling.rows - 1, tiling.cols, at["inner"])
    assert short(tiling, sizes, products.MOST_UNITS) == asked(tiling, sizes, products.MOST_UNITS) - 1


def test_levels_of_pending_partials_that_are_one_too_few_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a part with a last chain that is not whole: only where chains are one more than a power of two."""
    units = products._units

    def fewer(tiling: Tiling, sizes: Sizes, most: int) -> tuple[int, int, int]:
        parts, count, levels = units(tiling, sizes, most)
        return parts, count, levels - (products.chains_of(sizes) == 2**17 + 1)

    monkeypatch.setattr(products, "_units", fewer)
    status, at = of_product(300)[ROOM]
    assert status == "refuted" and -(-at["inner"] // 4096) == 2**17 + 1


def test_more_blocks_than_a_launch_takes_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows each of which has a block: only where there are 2^31 of them."""
    planned = rowwise.row_steps

    def single(plan: Any, schedule: Any, rows: int, cols: int) -> list[Step]:
        return [Step(s.name, rows, s.block) if s.name == "work" else s for s in planned(plan, schedule, rows, cols)]

    plan = plan_of(registry()["part_top"], "f16")
    found = {o.name: o for o in plans.obligations(registry()["part_top"], plan, "cuda", "part_top", 20.0)}
    assert all(o.status == "proved" for o in found.values())
    monkeypatch.setattr(rowwise, "row_steps", single)
    wrong = {o.name: o for o in plans.obligations(registry()["part_top"], plan, "cuda", "part_top", 20.0)}
    assert wrong[f"part_top: {GRID}"].status == "refuted" and wrong[f"part_top: {GRID}"].sizes["rows"] == 2**31


@pytest.mark.parametrize("name", ["grouped_linear", "grouped_linear_backward_weight"])
def test_groups_have_blocks_and_room(name: str) -> None:
    more, several = of_groups(name, "one group more"), of_groups(name, "300 of them of 7 groups")
    assert more[TILES][0] == "proved" and more[ALONE][0] == "proved" and several[ROOM][0] == "proved"


def test_blocks_that_lack_at_one_number_of_groups_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = products.tiles_of
    monkeypatch.setattr(products, "tiles_of", lambda t, s: counted(t, s) - (s.batch == 2**20 + 1))
    status, at = of_groups("grouped_linear", "one group more")[TILES]
    assert status == "refuted" and at["groups"] == 2**20
    # At these sizes, each of whose groups has a row and a tile at least: a block less than there are tiles.
    tiling = next(products.offered(plan_of(registry()["grouped_linear"], "f32"), 8))  # type: ignore[arg-type]
    sizes = Sizes(2**20 + 1, 1, 1, 2**20 + 1, "r")
    assert products.tiles_of(tiling, sizes) == 2**20


def test_blocks_with_one_tile_each_that_are_more_than_a_launch_takes_are_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A launch has 2^31 - 1 blocks at most, so that tiles beyond would be lost, were each block to have one alone."""
    chosen = products.tiling_of
    monkeypatch.setattr(products, "tiling_of", lambda *given: products.replace(chosen(*given), once=True))
    status, at = of_groups("grouped_linear", "one group more")[ALONE]
    plan: Any = plan_of(registry()["grouped_linear"], "f32")
    sizes = Sizes(at["rows"] + at["more"], next(products.offered(plan, 8)).cols, 1, at["groups"] + 1, "r")
    assert status == "refuted" and max(products.tiles_of(t, sizes) for t in products.offered(plan, 8)) > 2**31 - 1
    assert not chosen(plan, sizes, 8).once


@pytest.mark.slow
def test_attention_has_blocks_and_room() -> None:
    assert {status for status, _ in of_attention().values()} == {"proved"}


@pytest.mark.slow
def test_a_workspace_of_attention_that_is_short_at_three_chains_of_keys_is_refuted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = walks.workspace_bytes

    def short(plan: Any, tiling: Any, sizes: Sizes, structure: bool) -> int:
        return asked(plan, tiling, sizes, structure) - 4 * (-(-sizes[1] // 4096) == 3)

    monkeypatch.setattr(walks, "workspace_bytes", short)
    status, at = of_attention()[ROOM]
    assert status == "refuted" and -(-at["cols"] // 4096) == 3


@pytest.mark.slow
def test_partials_of_attention_that_its_source_does_not_hold_apart_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own expression, changed to twice the pending partials of a sum."""

    def wide(plan: Any, tiling: Any) -> KernelText:
        made = emit_attention(plan, tiling)
        assert "1 * PIECES * pending_size" in made.text
        return KernelText(made.text.replace("1 * PIECES * pending_size", "2 * PIECES * pending_size"), made.headers)

    monkeypatch.setattr(attention_plans, "emit_attention", wide)
    assert of_attention()[ROOM][0] == "refuted"
