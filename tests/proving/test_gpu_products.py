"""Kernels of matrix products for GPUs: proved as they are, refuted where an index is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tokitai.emit.cpp import KernelText
from tokitai.ops import registry
from tokitai.proving.gpu_products import product_cases
from tokitai.proving.prove import plan_of

SMALLEST = "tiles of 32 x 32"
# What is changed, in the source or a header; the launch in which it is wrong; and the statement that is refuted.
WRONG = [
    ("if (r >= work.rows || c >= work.cols) continue;", "if (r >= work.rows) continue;", "work, one slice", "inside"),
    ("(line < lines ? left - k : 0)", "(line <= lines ? left - k : 0)", "work, one slice", "in_a is accessed inside"),
    ("step = ALONG_K ? DEPTH :", "step = ALONG_K ? 2 * DEPTH :", "work, one slice", "in_a is accessed inside"),
    ("rest >= DEPTH)", "rest >= DEPTH - 8)", "work, one slice", "in_b is accessed inside"),
    ("r0 = unit % work.down * ROWS,", "r0 = unit % work.down * (ROWS - 1),", "work, one slice", "written twice"),
    ("line % DOWN * BELOW + i % BELOW", "line % DOWN * BELOW", "work, one slice", "is written"),
    ("e < LINE * COLS; e += THREADS", "e < LINE * COLS - THREADS; e += THREADS", "work, one slice", "is written"),
    ("int(min(CHAIN, work.k_size - k0))", "int(CHAIN)", "work, one slice", "in_a is accessed inside"),
    ("* batch + item) * rows + r)", "* batch) * rows + r)", "work, several", "workspace"),
    ("r = e / cols % rows, c = e % cols", "r = e / cols % rows, c = 0", "finish", "is written"),
]  # fmt: skip


def statements(name: str, was: str = "", becomes: str = "", of: str = "matmul") -> Iterator[tuple[str, str]]:
    """The statements of a launch that begins with a name, of the smallest tiling, and what became of each."""
    operator = registry()[of]
    plan = plan_of(operator, "f16")

    def changed(text: KernelText) -> KernelText:
        assert not was or sum(t.count(was) for t in (text.text, *text.headers.values())) == 1, was
        headers = {k: v.replace(was, becomes) for k, v in text.headers.items()} if was else text.headers
        return KernelText(text.text.replace(was, becomes) if was else text.text, headers)

    cases = product_cases(operator, plan.family.gpu.plan(plan, "cuda"), 32, "cuda", 20.0, changed)
    case, *_ = [c for c in cases if c.name.startswith(name) and SMALLEST in c.name]
    return ((o.name.removeprefix(": "), o.status) for o in case.walked().obligations(""))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["work, one slice", "work, several", "finish"])
def test_a_product_is_proved(name: str) -> None:
    found = dict(statements(name))
    assert set(found.values()) == {"proved"}, found
    assert "index arithmetic fits its types" in found
    assert ("every element of out_y is written" in found) == (name != "work, several")


@pytest.mark.slow
@pytest.mark.parametrize(("was", "becomes", "name", "refuted"), WRONG, ids=[w[1] for w in WRONG])
def test_a_wrong_index_is_refuted(was: str, becomes: str, name: str, refuted: str) -> None:
    assert any(refuted in what and status == "refuted" for what, status in statements(name, was, becomes))


# Of products whose groups partition the rows, and the K dimension.
GROUPED = [
    ("grouped_linear", "r = group.begin + row;", "r = row;", "work, one slice", "written"),
    ("grouped_linear_backward_weight", "int(min(CHAIN, work.k_size - k0))", "int(CHAIN)", "work, several", "in_dy"),
    ("grouped_linear_backward_weight", "in_dy + group.begin", "in_dy + (group.begin + 1)", "work, one slice", "in_dy"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "was", "becomes", "launch", "refuted"), GROUPED, ids=[f"{w[0]} {w[2]}" for w in GROUPED]
)
def test_a_grouped_product_is_proved_and_refuted_where_it_is_wrong(
    name: str, was: str, becomes: str, launch: str, refuted: str
) -> None:
    found = dict(statements(launch, of=name))
    assert set(found.values()) == {"proved"} and any(refuted in what for what in found), found
    wrong = statements(launch, was, becomes, of=name)
    assert any(refuted in what and status == "refuted" for what, status in wrong)
