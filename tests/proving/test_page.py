"""The page of obligations is what the command gives, apart from seconds; and what ``tokitai prove`` prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.command import Command
from tokitai.ops import registry
from tokitai.proving.prove import TARGETS, covers
from tools.obligations import PAGE, page, proofs, row


@pytest.fixture
def command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, capfd)


def counted(line: str) -> str:
    """A line of the table without its seconds."""
    return re.sub(r"[\d.]+ \|$", "|", line)


def test_the_page_has_the_rows_that_are_made() -> None:
    lines = [counted(line) for line in PAGE.read_text().splitlines()]
    made = list(proofs([registry()[name] for name in ("embedding", "part_top")], 20.0))
    assert made and all(counted(row(p)) in lines for p in made)


def test_the_page_has_a_row_for_every_operator_that_is_covered_and_names_the_others() -> None:
    text = PAGE.read_text()
    for operator in registry().values():
        for target in TARGETS:
            found = re.search(rf"^\| `{operator.name}` \| \w+ \| {target} \|", text, re.MULTILINE)
            assert bool(found) == covers(operator, target), (operator.name, target)
    assert text.partition("## Not stated")[2] == page([]).partition("## Not stated")[2]


def test_at_most_two_percent_are_undecided_and_none_is_refuted() -> None:
    total = re.search(r"^\| all \| \| \| (\d+) \| (\d+) \| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert total is not None
    proved, refuted, undecided = map(int, total.groups())
    assert refuted == 0 and undecided <= 0.02 * (proved + undecided)


def test_json_has_a_status_and_seconds_for_every_obligation(command: Command) -> None:
    done = command("prove", "part_top", "--json")
    made = done.object
    assert done.code == 0 and made["status"] == "proved" and made["obligations"]
    assert all(o["status"] == "proved" and o["seconds"] >= 0 and o["name"] for o in made["obligations"])


def test_a_kernel_without_statements_is_undecided(command: Command) -> None:
    done = command("prove", "attention", "--json")
    (one,) = done.object["obligations"]
    assert done.code == 3 and one["status"] == "undecided" and "no obligations are stated" in one["reason"]


@pytest.mark.parametrize(
    "wrong", [("embedding", "--target", "tpu"), ("embedding", "--isa", "mmx"), ("nothing",), ("--dtype", "f16")]
)
def test_wrong_usage_names_what_is_accepted(command: Command, wrong: tuple[str, ...]) -> None:
    done = command("prove", *wrong)
    assert done.code == 2 and "accepted" in done.err
