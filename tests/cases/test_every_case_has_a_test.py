"""The reported faults that concern norms, softmax, losses, embedding, routing, optimizers, products, conversions,
builds, calls, and wrong kernels that pass a test: each has a test that carries its number, in its name or docstring."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
GROUPS = {
    "norms": "01 02 04 06 07 08 09 11 14 15 17 18 19 20 21 23 24",
    "softmax and cross-entropy": "26 27 29 30 32 34 35 37 38 39 41 42 44",
    "embedding": "45 47 49 50 51 53 54 56 57",
    "routing": "140 142 143 145 147 148 150 151 153 154",
    "AdamW and lists": "58 60 61 62 64 66 67 69 70 71 73 75 77 78",
    "conversions": "94 95 97 99 100 101 103 104",
    "products": "80 82 84 85 86 88 89 91 92",
    "builds, cache, processes": "106 107 109 110 111 112 114 116 117 119 120 122 123",
    "kernels that pass where they should not": "124 126 127 129 130 132 134 137 139",
}
FOUND = {
    int(number)
    for path in TESTS.rglob("test_*.py")
    if path != Path(__file__)
    for pair in re.findall(r"\bC(\d{2,3})\b|\btest_c(\d{2,3})_", path.read_text())
    for number in pair
    if number
}


@pytest.mark.parametrize("group", GROUPS)
def test_every_case_has_a_test(group: str) -> None:
    assert [n for n in map(int, GROUPS[group].split()) if n not in FOUND] == []


def test_every_case_is_described() -> None:
    rows = re.findall(r"^\| C(\d+) \| \S", (Path(__file__).parent / "README.md").read_text(), re.MULTILINE)
    assert sorted(map(int, rows)) == sorted(int(n) for numbers in GROUPS.values() for n in numbers.split())
