"""Wrong kernels that no list of shapes and layouts had shown: wrong at some threads, offsets, strides, tails, exponents
or lengths only, or wrong in memory that no result is made of. What a verification draws shows each."""

from __future__ import annotations

import pytest
from mutants import Edit, centred, examine, scaled, smaller

from tokitai import ops
from tokitai.backends import backend_of
from tokitai.lang import Operator
from tokitai.ops import dropout
from tokitai.toolchain.build import isas_here
from tokitai.verification import verify
from tokitai.verification.verdict import Variant
from tokitai.worker import Pool

ENTRY = r"(int32_t threads\) \{)"
NUMBERS = "#if !TOKITAI_STRUCTURE\n{}\n#endif\n"


def at_entry(condition: str) -> tuple[str, str]:
    """A kernel that writes nothing where a condition holds."""
    return ENTRY, rf"\1 if ({condition}) return 0;"


# Of `smaller`: inputs a and b, result y; sizes hold how many tensors a list has, rows, cols, and row strides.
SMALLER = {
    "four threads": at_entry("threads == 4"),
    "more threads than seven": at_entry("threads > 7"),
    "thirty-three threads": at_entry("threads == 33"),
    "an input 16 bytes off": at_entry("uintptr_t(tensors[0]) % 64 == 16"),
    "an input 32 bytes off": at_entry("uintptr_t(tensors[1]) % 64 == 32"),
    "a result 16 bytes off": at_entry("uintptr_t(tensors[2]) % 64 == 16"),
    "a result 48 bytes off, an input at a boundary": at_entry(
        "uintptr_t(tensors[2]) % 64 == 48 && uintptr_t(tensors[0]) % 64 == 0"
    ),
    "strides of whole lines": at_entry("sizes[3] % 16 == 0 && sizes[3] > sizes[2]"),
    "gaps of more than a thousand": at_entry("sizes[4] - sizes[2] > 1000"),
    "the last row first": at_entry("sizes[3] < 0"),
    "a result whose last row is first": at_entry("sizes[5] < 0"),
    "all rows the same memory": at_entry("sizes[3] == 0 && sizes[1] > 1"),
    "all results stored past the caches": at_entry("sizes[1] * sizes[2] * 4 >= 8 << 20"),
}
TAILS = {
    f"a tail of {n}": (
        r"(INLINE void copy\(P\* to, const P\* from, int64_t count\) \{)",
        rf"\1\n{NUMBERS.format(f'if (count == {n}) --count;')}",
    )
    for n in (5, 7, 11, 13)
}
SCALED = {
    **TAILS,
    "stores past the caches that take one vector for all": (
        r"stream_number\(p \+ i \* LANES, x.v\[i\]\)", "stream_number(p + i * LANES, x.v[0])",
    ),
    "stores of NaN past the caches that take one vector for all": (
        r"(stream_number\(.*\n *else\n.* stream\(p \+ i \* LANES, x.v\[)i\]", r"\g<1>0]",
    ),
}  # fmt: skip
CENTRED = {
    "sums of more than forty thousand": (
        r"(S tree\(Stored\* s, int64_t count\) \{)", rf"\1\n{NUMBERS.format('if (count > 2500) count -= 2 * LANES;')}",
    ),
    "squares of 2**70 to 2**120": (
        r"INLINE V mul\(V a, V b\) \{ return a \* b; \}",
        "INLINE V mul(V a, V b) { const V x = a * b; return x > 0x1p70f && x < 0x1p120f ? x * 2.0f : x; }",
    ),
}  # fmt: skip


MASKED = Variant(frozenset({"limit"}))
# One vector more of a panel's sums is stored: behind those of its last query, or where another key's copy of them lies,
# which attention does not read.
VECTOR_MORE = Edit(r"j < NR(; j \+= LANES\) \{\n *V sum = splat\(S\{\}\);)", r"j - 1 < NR\1")


def shown(edit: Edit, op: Operator, dtype: str) -> str:
    verdict = examine(edit, op, dtype=dtype)
    assert verdict.verdict == "refuted" and verdict.failure is not None
    return verdict.failure


@pytest.mark.slow
@pytest.mark.parametrize("what", SMALLER)
def test_what_is_wrong_in_some_layouts_is_refuted(what: str) -> None:
    assert "--case '" in shown(Edit(*SMALLER[what]), smaller, "f32")


@pytest.mark.slow
def test_room_for_too_few_threads_of_a_batch_is_refuted() -> None:
    """Wrong only where products are just as many as are partitioned whole among the threads."""
    edit = Edit(r"(const Buffers buffers\(1, rows, cols, k_size, )batch,", r"\1batch - 1,")
    assert "--case '" in shown(edit, ops.matmul, "f16")


@pytest.mark.slow
@pytest.mark.parametrize("what", SCALED)
def test_what_is_wrong_at_some_tails_and_sizes_is_refuted(what: str) -> None:
    isa = isas_here()[0]
    lanes = backend_of("cpu").lanes(isa)
    if what in TAILS and int(what.split()[-1]) >= lanes:
        pytest.skip(f"a vector of {isa} has {lanes} lanes: no tail is as long")
    assert "seeded/" in shown(Edit(*SCALED[what]), scaled, "f16"), "hashes do not see it"


@pytest.mark.slow
@pytest.mark.parametrize("what", CENTRED)
def test_what_is_wrong_at_some_lengths_and_exponents_is_refuted(what: str) -> None:
    assert "seeded/" in shown(Edit(*CENTRED[what]), centred, "f32"), "hashes do not see it"


@pytest.mark.slow
def test_results_that_are_stored_past_the_caches_are_run_over_hashes_as_well() -> None:
    edit = Edit(r"streamed \? stream\(p, x\) : store\(p, x\)", "streamed ? void() : store(p, x)")
    assert "structure/" in shown(edit, scaled, "f16")


@pytest.mark.slow
@pytest.mark.parametrize("change", ["{} + 1u", "{} - 1u", "{} ^ 2u"])
def test_the_last_bits_by_which_elements_are_dropped_are_seen(change: str) -> None:
    """A sum or an exclusive or that is off by one in the last of ten rounds changes no other bits."""
    edit = Edit(r"(int_xor\(v102, splat\()v104\)", rf"\1{change.format('v104')})")
    assert "hard/element " in shown(edit, dropout, "f16")


@pytest.mark.slow
def test_other_nans_in_long_rows_are_refuted() -> None:
    """Stored as they came, where a row has more than 300 columns."""
    where = r"where\(ne\(x, x\), splat\(NOT_A_NUMBER\), x\)|x != x \? NOT_A_NUMBER : x"
    assert "seeded/nans@" in shown(Edit(where, "x"), smaller, "f32")
    seen = {r.shape[1] for r in examine(lambda text: text, smaller, dtype="f32").results if r.name == "nans"}
    assert max(seen) > 4000


@pytest.mark.slow
def test_what_is_wrong_in_scores_that_a_draw_of_lengths_hides_is_refuted() -> None:
    """Where the inner side is one whole chain: there no query of the shape's other run attends to any key."""
    edit = Edit(r"(E\* const sum = k_size) > CHAIN", r"\1 >= CHAIN")
    found = {
        run: verify(ops.attention, dtype="f16", variant=MASKED, case=f"structure/{run}@2x3x4096#16", edit=edit)
        for run in ("all inputs", "whole lengths")
    }
    assert edit.found
    assert {run: v.verdict for run, v in found.items()} == {"all inputs": "verified", "whole lengths": "refuted"}


@pytest.mark.slow
def test_a_panel_more_than_there_is_space_for_is_refuted() -> None:
    """Where columns are whole panels it is written over the units of rows."""
    edit = Edit(r"(count = min\(PACKED_AT_ONCE, width - c)(\);\n *Packed)", r"\1 + 1\2")
    fixed = Variant(frozenset({"c"}), (("accumulator", "fixed16"),))
    verdict = verify(ops.matmul, dtype="f16", variant=fixed, edit=edit)
    assert edit.found
    assert verdict.verdict == "refuted" and "structure/all inputs@5x64x256#0" in str(verdict.failure)


@pytest.mark.slow
def test_pending_partials_that_reach_into_the_next_threads_memory_are_refuted() -> None:
    """Of three chains of keys the last two elements do, and other threads read what is there only in some orders."""
    edit = Edit(r"(limits\.max\)\)\n *join_chain\(tile, size)", r"\1 + 1")
    verdict = verify(ops.attention, dtype="f16", variant=MASKED, case="structure/all inputs@3x8203x1#0", edit=edit)
    assert edit.found
    assert verdict.verdict == "refuted" and "behind a piece of a thread's memory" in str(verdict.failure)


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [False, True])
def test_what_is_wrong_in_memory_that_nothing_reads_is_refuted(isolated: bool) -> None:
    with Pool(1, deadline=60) as pool:
        verdict = verify(
            ops.attention, dtype="f16", variant=MASKED, case="structure/all inputs@3x5x7#0", edit=VECTOR_MORE,
            pool=pool if isolated else None,
        )  # fmt: skip
    assert verdict.verdict == "refuted" and "a vector lies outside its array" in str(verdict.failure)
