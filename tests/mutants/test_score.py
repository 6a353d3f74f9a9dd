"""Wrong programs are made as they should be, and a sample of them is refuted. `make mutants` runs all."""

from __future__ import annotations

import json
import random
import re
from bisect import bisect_right
from itertools import accumulate, pairwise

import pytest

from tests.mutants.equivalent import why_equivalent
from tests.mutants.program import Mutant, alone, schemata
from tests.mutants.score import FOLDER, results, score, table
from tests.mutants.subjects import disproved, made
from tokitai import ops
from tokitai.evidence import archive
from tokitai.families import emit_cpu, make_plan

SOURCE = """#include "rows.h"
namespace tokitai {
template <int N> void pass(int64_t rows, const int64_t* sizes) {
  const int64_t cols = sizes[0], blocks = (rows + 31) / 32;
  constexpr int64_t FOUR = 4;
  int64_t begin;
  find(rows, begin);
  #pragma omp for schedule(static)
  for (int64_t block = 0; block < blocks; ++block) {
    store(out + block * cols, N);
    barrier();
  }
}
}
"""


def test_numbers_and_calls_are_found_by_what_they_are() -> None:
    made_of, mutants = schemata(SOURCE)
    named = [str(m) for m in mutants]
    assert [n for n in named if n.startswith("left out")] == [
        "left out: find(rows, begin);", "left out: store(out + block * cols, N);", "left out: barrier();",
    ]  # fmt: skip
    changed = {n.split()[0] for n in named if not n.startswith("left out")}
    assert changed == {"rows", "cols", "blocks", "block"}, "no constant, nothing that a call writes to, no template's"
    assert "for (int64_t block = 0; block < (blocks + MUTATED(" in made_of, "the form of a shared loop is prescribed"
    assert len({m.number for m in mutants}) == len(mutants)


def test_an_array_is_no_number() -> None:
    """Not even where another name of a number is the same."""
    source = "void f(int64_t y, int64_t z) {\n  float x[4], y[4];\n  g(y[z], y);\n}\n"
    assert {str(m).split()[0] for m in schemata(source)[1]} == {"z", "left"}


def test_a_mutant_alone_is_one_change() -> None:
    _, mutants = schemata(SOURCE)
    for m in mutants:
        wrong = alone(SOURCE, m.number).splitlines()
        changed = [line for line, other in zip(SOURCE.splitlines(), wrong, strict=True) if line != other]
        assert [line.strip() for line in changed] == [m.line]
    (barrier,) = [m for m in mutants if m.line == "barrier();"]
    assert "if (false) barrier();" in alone(SOURCE, barrier.number)


GRAPH = ops.softmax.trace("f16")


def test_what_is_equivalent_is_known_by_name() -> None:
    for device, what, line, known in (
        ("cpu", "left out", "prefetch(in_x_next + c);", True),
        ("cpu", "left out", "store(out_y_row + c, v7, lanes, out_y_streams);", False),
        ("sim", "left out", "barrier();", False),
    ):
        assert (why_equivalent(device, Mutant(0, what, line, 0), line, ops.softmax, GRAPH) is not None) == known


def test_a_value_that_nothing_reads_may_be_any() -> None:
    source = """{
  const int64_t blocks = (rows + 1) / 2, r = rows + 3;
  const f16* const row = in_x + r * 2;
  store(out + blocks);
}
"""
    first = next(m for m in schemata("void f(int64_t rows)" + source)[1] if m.what == "rows + 1")
    assert why_equivalent("sim", first, "void f(int64_t rows)" + source, ops.softmax, GRAPH) is None
    _, mutants = schemata("void f(int64_t rows)" + source)
    found = {
        str(m): why_equivalent("sim", m, "void f(int64_t rows)" + source, ops.softmax, GRAPH) is not None
        for m in mutants if "store" not in m.line
    }  # fmt: skip
    line = source.splitlines()[1].strip()
    assert found == {
        f"rows + 1: {line}": True, f"rows - 1: {line}": True,  # of the second one, which is told last
        **{f"r {sign} 1: {source.splitlines()[2].strip()}": True for sign in "+-"},
    }  # fmt: skip


def test_a_value_is_used_nowhere_where_only_such_values_are_made_of_it() -> None:
    head, source = (
        "void f(int64_t rows, int c0)",
        """{
  load_chunk<WIDTH, FIT>(col_weight, in_weight + rows * 8, cols - c0);
  UNROLL for (int e = 0; e < 8; ++e) {
    const int c = c0 + e;
    (void)c;
    const S v4 = element(col_weight, e);%s
  }
}
""",
    )
    for used, known in (("", True), ("\n    const S v5 = mul(v4, v4);", True), ("\n    out[e] = v4;", False)):
        whole = head + source % used
        mutant = next(m for m in schemata(whole)[1] if m.what == "rows + 1")
        assert (why_equivalent("sim", mutant, whole, ops.softmax, GRAPH) is not None) == known


def test_sums_of_blocks_that_there_are_not_lie_where_nothing_reads() -> None:
    """Of `segments.h`: with segments of 32 rows taken for long ones, or an empty block behind a segment, the same sums
    stand in the places that are read."""

    def block(place: int, starts: list[int], more: tuple[int, int]) -> tuple[int, int] | None:
        first = place // 2 * 32
        entry = bisect_right(starts, first) - 1
        start, stop = starts[entry], starts[entry + 1]
        begin = start + -(-(first - start) // 32) * 32
        return (begin, min(begin + 32, stop)) if stop + more[0] - start > 32 and begin < stop + more[1] else None

    rng = random.Random(0)
    extra = 0
    for _ in range(300):
        starts = [0, *accumulate(rng.choice((1, 31, 32, 33, 63, 64, 65, 96, 100)) for _ in range(9))]
        long = [(a, b) for a, b in pairwise(starts) if b - a > 32]
        read = {2 * (a // 32 + n) + (n == 0 and a % 32 != 0) for a, b in long for n in range(-(-(b - a) // 32))}
        for place in range(0, starts[-1] // 32 * 2, 2):
            right = block(place, starts, (0, 0))
            for more in ((1, 0), (0, 1)):
                wrong = block(place, starts, more)
                assert right == wrong or place not in read
                extra += right != wrong
    assert extra > 100


def test_how_many_rows_there_are_in_all_decides_no_place() -> None:
    """Of `sort_by_entry` of `segments.h`, with memory that holds anything."""

    def sorted_rows(entry_of: list[int], entries: int, cleared: int, added: int) -> tuple[list[int], list[int]]:
        memory = [rng.randrange(1000) for _ in range(entries + 2 + len(entry_of) + 1)]  # starts, then the order of rows
        for e in range(entries + cleared):
            memory[e] = 0
        for entry in entry_of:
            memory[entry + 2] += 1
        behind = memory[entries + 2 :]
        for e in range(entries + added):
            memory[e + 2] += memory[e + 1]
        assert entry_of or cleared < 2 or memory[entries + 2 :] == behind, "nothing is added where there are no rows"
        for r, entry in enumerate(entry_of):
            memory[entries + 2 + memory[entry + 1]] = r
            memory[entry + 1] += 1
        return memory[: entries + 1], memory[entries + 2 : entries + 2 + len(entry_of)]

    rng = random.Random(0)
    for entries in (1, 2, 7):
        for rows in (0, 1, 20):
            chosen = [rng.randrange(entries) for _ in range(rows)]
            right = sorted_rows(chosen, entries, 2, 0)
            assert right == sorted_rows(chosen, entries, 1, 0) == sorted_rows(chosen, entries, 2, 1)
            assert rows * entries < 100 or right != sorted_rows(chosen, entries, 2, -2)


def test_pieces_of_memory_that_are_larger_fit_or_do_not() -> None:
    graph = ops.attention.trace("f16")
    source = emit_cpu(make_plan(graph)).text
    wrong = source.replace("round_up(cols, MR) * k_size", "round_up(cols, MR) * k_size * 3")
    assert source != wrong
    for text, known in ((source, True), (wrong, False)):
        taken = [m for m in schemata(text)[1] if m.what == "k_size + 1" and "round_up(k_size, MR) * cols" in m.line]
        assert [why_equivalent("cpu", m, text, ops.attention, graph) is not None for m in taken] == [known]


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_the_right_program_is_not_refuted(device: str) -> None:
    subject = made("silu", device)
    trials = subject.run_all(subject.trials(True), True, 20)
    reached = frozenset().union(*(t.reached for t in trials))
    assert reached and all(t.seconds for t in trials)
    never = [s for s in subject.slips() if not subject.reaching(s, trials)][:2]
    assert [said for _, said in results(subject, True, trials, never)] == [None] * len(never), "no case reaches it"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "device"), [("silu", "cpu"), ("matmul", "cpu"), ("embedding_backward", "cpu"), ("softmax", "sim")]
)
def test_a_sample_is_refuted(name: str, device: str) -> None:
    """But for what is equivalent, with its reason."""
    found = score(name, device, 12, 120)
    assert found["run"] == 12 and found["refuted"] >= 3
    assert found["refuted"] + len(found["equivalent"]) + len(found["survivors"]) == 12


def test_what_is_wrong_beyond_all_cases_is_refuted_by_the_solver() -> None:
    """The upper word of an element's number is that of its neighbour's but for one element in 2^32."""
    subject = made("dropout", "cpu")
    (wrong,) = [s for s in subject.slips() if re.match(r"place \+ 1: .*element_word<1>", str(s))]
    (same,) = [s for s in subject.slips() if re.match(r"tiles \+ 1: .*filled", str(s))]
    said = disproved(subject, wrong)
    assert said is not None and "out_y is made of word 1 of its own elements" in said
    assert disproved(subject, same) is None


def test_a_program_that_ends_its_process_is_refuted() -> None:
    subject = made("silu", "cpu")
    trials = subject.run_all(subject.trials(True)[:3], True, 20)
    slip = next(s for s in subject.slips() if re.match(r"tensor \+ 1: .*in_x", str(s)))
    ((_, said),) = results(subject, True, trials, [slip])
    assert said is not None


def test_what_is_kept_is_a_table_of_every_operator_that_ran_on_a_gpu() -> None:
    found = json.loads((FOLDER / "mutants.json").read_text())
    assert (FOLDER / "mutants.md").read_text() == table(found)
    assert {key.partition(" ")[0].partition("/")[0] for key in found} <= ops.registry().keys()
    ran = [path.name for path in archive.members(FOLDER.parents[1] / "evidence" / "cuda")]
    assert ran
    for name in (name.partition(".")[0] for name in ran if name.endswith(".f16.cuda.json")):
        assert {f"{name} cpu", f"{name} sim"} <= found.keys(), f"{name}: make mutants"
