"""The verifier refutes wrong kernels, says where, and its line can be replayed."""

from __future__ import annotations

import platform
import re
from typing import Any

import numpy as np
import pytest
from mutants import ALIKE, ARITHMETIC, EXPRESSION, QUICK, Edit, centred, examine, scaled, smaller

from tokitai.backends.cpu import x86
from tokitai.backends.machine_code import MachineCode
from tokitai.errors import UsageError
from tokitai.families import emit_cpu, make_plan
from tokitai.formats import FORMATS
from tokitai.runtime.kernel import Kernel, build_text
from tokitai.verification import verify
from tokitai.verification.cases import Case, to_format
from tokitai.verification.run import run_numbers, run_structure

LINE = re.compile(
    r"tokitai verify (\w+) --device cpu --dtype f\d\d --case '((?:structure|seeded|hard)/[\w ]+@\d+x\d+#0)': (.*)"
)


def some_slow(names: dict[str, Any]) -> list[Any]:
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


def assert_refuted(verdict: Any, op: Any = centred) -> tuple[str, str]:
    """One line that names operator, case, result, position, and both values by their bits."""
    assert verdict.verdict == "refuted" and verdict.exit_code == 1
    assert verdict.failure is not None and "\n" not in verdict.failure
    found = LINE.fullmatch(verdict.failure)
    assert found is not None and found[1] == op.name, verdict.failure
    assert not verdict.results[-1].equal and all(r.equal for r in verdict.results[:-1])
    return found[2], found[3]


def test_the_right_kernel_is_verified() -> None:
    verdict = verify(centred, dtype="f16")
    assert (verdict.verdict, verdict.exit_code, verdict.failure) == ("verified", 0, None)
    assert verdict.evidence == ["structure", "seeded"] and verdict.cases > 60


@pytest.mark.parametrize("name", some_slow(EXPRESSION))
def test_another_expression_is_caught_by_the_structure_run(name: str) -> None:
    edit = Edit(*EXPRESSION[name])
    case, words = assert_refuted(examine(edit))
    assert case.startswith("structure/all inputs@")
    if "past the end" in name or "before the beginning" in name:
        assert re.search(r": r: wrote outside its elements, first at element offset -?\d+$", words), words
    elif "input is changed" in name:
        assert words.endswith("w: the kernel changed this input")
    else:
        assert re.search(r": \w+\[\d+,\d+\]: got 0x[0-9a-f]{16}, want 0x[0-9a-f]{16}( \(and \d+ more\))?$", words), (
            words
        )
    again = examine(edit, case=case)
    assert again.cases == 1, "the replay runs that case alone"
    # A workspace or a position may hold other bytes next time; the case and the verdict stay.
    assert assert_refuted(again)[0] == case


@pytest.mark.parametrize("name", some_slow(ARITHMETIC))
def test_other_arithmetic_is_caught_by_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In f32, whose subnormal numbers the arithmetic meets; without a look at the machine code, which shows some."""
    monkeypatch.setattr(x86, "read", lambda artifact: MachineCode(artifact.digest, "", missing="it was not asked for"))
    edit = Edit(*ARITHMETIC[name])
    if "mxcsr" in edit.pattern and platform.machine() != "x86_64":
        pytest.skip("edits MXCSR, a register of x86-64")
    verdict = examine(edit, dtype="f32")
    case, words = assert_refuted(verdict)
    assert not case.startswith("structure/")
    assert all(r.equal for r in verdict.results if r.kind == "structure"), "hashes do not see it"
    assert re.search(r"(: |batches: )\w+\[\d+,\d+\]: got 0x[0-9a-f]+ \(\S+\), want 0x[0-9a-f]+ \(\S+\)", words), words
    again = examine(edit, dtype="f32", case=case)
    assert again.cases == 1 and assert_refuted(again) == (case, words)


@pytest.mark.slow
def test_a_race_between_rows_is_caught() -> None:
    """Threads share one scratch row. Which ones meet is chance, that some of a thousand runs do is not: on a machine
    whose processors are busy elsewhere, threads may well take turns for the length of one verification."""
    for seed in range(10):
        verdict = examine(Edit(r"thread_number\(\) \* ", "0 * "), seed=seed)
        if verdict.failure:
            break
    assert verdict.verdict == "refuted"  # its replay is left to chance as well


@pytest.mark.slow
def test_an_element_by_element_kernel() -> None:
    assert_refuted(examine(Edit(r"if \(c < end\) at\(c, Part\{end - c\}\);", ""), scaled), scaled)
    assert_refuted(examine(Edit(r"fma\((v\d+), (\S+), (v\d+)\)", r"add(mul(\1, \2), \3)"), scaled), scaled)


@pytest.mark.parametrize("name", ALIKE)
def test_what_shows_only_where_tensors_lie_apart_or_a_nan_is_odd(name: str) -> None:
    pattern, replacement, where = ALIKE[name]
    case, words = assert_refuted(examine(Edit(pattern, replacement), smaller, dtype="f32"), smaller)
    assert where in f"{case}: {words}"


# ------------------------------------------------------------------ inputs that hide mistakes
def pair(edit: Edit) -> tuple[Kernel, Kernel]:
    """The edited kernel over numbers and over hashes."""
    plan = make_plan(centred.trace("f16"))
    text = emit_cpu(plan)
    headers = {n: edit(t) for n, t in text.headers.items()}
    numbers, hashes = (
        build_text(centred, plan.graph, plan, edit(text.text), headers, structure=s) for s in (False, True)
    )
    assert edit.found
    return numbers, hashes


def case_of(kernel: Kernel, x: Any, w: Any) -> Case:
    formats = {t.name: t.format for t in kernel.graph.inputs}
    tensors = {"x": to_format(x, FORMATS[str(formats["x"])]), "w": to_format(w, FORMATS[str(formats["w"])])}
    return Case("yours", "hiding", np.shape(x), 0, tensors, dict(eps=0.1))


SHAPE = (3, 300)
ONE_HOT = np.zeros(SHAPE)
ONE_HOT[:, 7] = 1
HIDING = {
    "zeros": ("the tail of a row is dropped", np.zeros(SHAPE)),
    "zeros hide padding": ("padding is not neutral", np.zeros(SHAPE)),
    "equal values": ("every second row is read twice", np.full(SHAPE, 0.5)),
    "rows that are alike": ("every second row is read twice", np.tile(np.arange(300) / 64, (3, 1))),
    "zeros hide a rounding": ("a column sum is kept in f16", np.zeros(SHAPE)),
    "few rows hide a block": ("the last block of rows is left out", np.random.default_rng(0).standard_normal(SHAPE)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HIDING)
def test_inputs_that_hide_a_mistake_do_not_hide_it_from_hashes(name: str) -> None:
    mutant, x = HIDING[name]
    numbers, hashes = pair(Edit(*EXPRESSION[mutant]))
    case = case_of(numbers, x, np.ones(SHAPE[1]))
    tail_is_read_back = mutant == "the tail of a row is dropped"
    if not tail_is_read_back:  # a dropped store leaves poison, which any input shows
        shown = run_numbers(numbers, case, None, threads=2)
        assert shown.equal, shown.failure
    shape = SHAPE if "block" not in name else (40, 9)
    assert not run_structure(hashes, shape, {}, case.params, seed=0).equal


def test_a_sum_in_another_order_passes_on_zeros_and_one_hot_rows() -> None:
    """The tree adds vectors of a block in another order: the sums of zeros and of one-hot rows are the same."""
    mutant = Edit(r"return at\(c, Full\{\}\);", "return at(c / BLOCK * BLOCK + (c + LANES) % BLOCK, Full{});")
    numbers, hashes = pair(mutant)
    for x in (np.zeros(SHAPE), ONE_HOT, np.full(SHAPE, 0.25)):
        assert run_numbers(numbers, case_of(numbers, x, np.ones(SHAPE[1])), None, threads=1).equal
    noise = np.random.default_rng(1).standard_normal((40, 300)) * 2.0 ** np.random.default_rng(2).integers(
        -8, 8, (40, 300)
    )
    assert not run_numbers(numbers, case_of(numbers, noise, np.ones(300)), None, threads=1).equal
    assert not run_structure(hashes, SHAPE, {}, dict(eps=0.1), seed=0).equal


# ------------------------------------------------------------------ what cannot be verified
def test_an_unknown_case_is_an_error() -> None:
    for case in ("seeded/normal@3x3#0 and more", "nonsense", "structure/all inputs@3x3#x", ""):
        with pytest.raises(UsageError, match="accepted: an id as a failure prints it, KIND/NAME@ROWSxCOLS#SEED"):
            examine(lambda text: text, case=case)


def test_a_text_that_does_not_compile_is_undecided() -> None:
    verdict = examine(Edit(r"return 0;", "return this is no C++;"))
    assert (verdict.verdict, verdict.exit_code) == ("undecided", 3)
    assert verdict.failure and "error" in verdict.failure
