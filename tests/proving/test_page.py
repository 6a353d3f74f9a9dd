"""The page of obligations is what the command gives, apart from seconds; and what ``tokitai prove`` prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.command import Command
from tokitai.backends.cuda.device import MOST_BLOCKS
from tokitai.families.elementwise.plan import FlatPlan
from tokitai.families.elementwise.schedule import flat_steps
from tokitai.ops import registry
from tokitai.proving.prove import CODES, TARGETS, WALKS, covers, plan_of, prove
from tools.obligations import PAGE, drawn, kept, page, proofs, row, sample


@pytest.fixture
def command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, capfd)


def counted(line: str) -> str:
    """A line of the table without its seconds."""
    return re.sub(r"[\d.]+ \|$", "|", line)


def test_the_page_has_the_rows_that_are_made() -> None:
    lines = [counted(line) for line in PAGE.read_text().splitlines()]
    made = list(proofs([registry()["silu"]], 20.0, ("cuda",)))
    made += proofs([registry()["embedding"], registry()["part_top"]], 20.0, ("cpu",))
    assert made and all(counted(row(p)) in lines for p in made)


@pytest.mark.slow
def test_the_page_has_the_rows_of_kernels_of_rows_on_gpus() -> None:
    lines = [counted(line) for line in PAGE.read_text().splitlines()]
    made = list(proofs([registry()["embedding"]], 20.0, ("cuda", "hip")))
    assert len(made) == 2 and all(p.status == "proved" and counted(row(p)) in lines for p in made)


def test_the_page_has_a_row_for_every_operator_that_is_covered_and_names_the_others() -> None:
    text = PAGE.read_text()
    for operator in registry().values():
        for target in TARGETS:
            found = re.search(rf"^\| `{operator.name}` \| \w+ \| {target} \|", text, re.MULTILINE)
            assert bool(found) == covers(operator, target), (operator.name, target)


@pytest.mark.slow
def test_the_page_says_what_is_known_of_sums_and_what_is_not_stated() -> None:
    text = PAGE.read_text()
    rows, left = kept(text, [])
    assert [counted(line) for line in page(rows, left).splitlines()] == [counted(line) for line in text.splitlines()]


def test_at_most_two_percent_are_undecided() -> None:
    total = re.search(r"^\| all \| \| \| (\d+) \| (\d+) \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert total is not None
    proved, refuted, undecided = map(int, total.groups())
    assert undecided <= 0.02 * (proved + refuted + undecided)


def test_what_is_refuted_is_the_grid_of_as_many_rows_as_a_contract_allows_at_most() -> None:
    """The launch plan at the sizes that the page names: a block more than `Module.launch` accepts."""
    lines = [line for line in PAGE.read_text().splitlines() if ": refuted, " in line]
    assert lines and all("elementwise" in line and "at rows=2147483648, cols=" in line for line in lines)
    plan = plan_of(registry()["silu"], "f16")
    assert isinstance(plan, FlatPlan)
    assert [s.grid for s in flat_steps(plan, [(2**31, 1)])] == [MOST_BLOCKS + 1]
    assert [s.grid for s in flat_steps(plan, [(2**31 - 1, 1)])] == [MOST_BLOCKS]


def test_a_sample_of_the_page_takes_as_long_as_it_says() -> None:
    text = PAGE.read_text()
    took = {
        (m[1], m[2]): float(m[3]) for m in re.finditer(r"^\| `(\w+)` \| \w+ \| (\w+) \|.* ([\d.]+) \|$", text, re.M)
    }
    for seed in range(5):
        for seconds in (0.3, 30):
            chosen = drawn(text, seconds, seed, ["cpu", "cuda"])
            assert chosen == drawn(text, seconds, seed, ["cpu", "cuda"]) and len(set(chosen)) == len(chosen) > 0
            assert sum(took[c] for c in chosen) <= seconds + 0.01 and {target for _, target in chosen} <= {
                "cpu",
                "cuda",
            }
    assert drawn(text, 30, 0, ["cpu"]) != drawn(text, 30, 1, ["cpu"])


def test_a_sample_fails_where_the_page_does_not_name_what_is_refuted(capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text()
    chosen = [("silu", "cuda"), ("part_top", "cpu")]
    assert sample(text, chosen, 20.0) == []
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2 and said.err == ""
    (name,) = sample(text.replace("- silu (elementwise, cuda)", "- gone"), chosen, 20.0)
    assert name.startswith("silu (elementwise, cuda)") and ": refuted, " in capsys.readouterr().err


def test_json_has_a_status_and_seconds_for_every_obligation(command: Command) -> None:
    done = command("prove", "part_top", "--json")
    made = done.object
    assert done.code == 0 and made["status"] == "proved" and made["obligations"]
    assert all(o["status"] == "proved" and o["seconds"] >= 0 and o["name"] for o in made["obligations"])


def test_a_kernel_without_statements_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(WALKS, "attention")
    proof = prove(registry()["attention"], "f16")
    (one,) = proof.obligations
    assert CODES[proof.status] == 3 and one.status == "undecided" and "no obligations are stated" in one.reason


WRONG = [
    ("embedding", "--target", "tpu"), ("embedding", "--isa", "mmx"), ("nothing",), ("--dtype", "f16"),
    ("embedding", "--sums"),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_usage_names_what_is_accepted(command: Command, wrong: tuple[str, ...]) -> None:
    done = command("prove", *wrong)
    assert done.code == 2 and "accepted" in done.err
