"""For every operator: wrong kernels, all of which must be refuted. One that survives fails the test."""

from __future__ import annotations

import random
import re

import pytest

from tests.mutants import attention
from tests.mutants.graphs import mutants
from tests.mutants.products import shapes, slipped, slips
from tokitai import ops
from tokitai.errors import DefinitionError
from tokitai.families import emit_cpu, make_plan
from tokitai.families.attention.plan import AttentionPlan
from tokitai.families.matmul.plan import ProductPlan
from tokitai.lang import Graph, Operator
from tokitai.runtime.kernel import Kernel, build_text
from tokitai.runtime.shapes import allowed
from tokitai.toolchain.build import Isa, native_isa
from tokitai.verification import cases, run

AT_LEAST = 6
SAMPLE = 4  # of each operator's mutants; another seed draws others
SEED = 20261127


# The blocks of products follow from the lanes: those of eight and of sixteen are tried on every processor. These
# operators have each slip with both; the others, which work with the same headers, with one of them in turn.
BLOCKED_BY: tuple[Isa, ...] = ("avx2", "avx512")
BY_BOTH = ("linear_swiglu", "grouped_linear", "attention")

# Slips in the text itself, as (pattern, replacement); in the kernel's own text, or in the header that it works with.
KERNEL = {
    "elements are read one off": (r"(load\(in_\w+(?: \+ int64_t\(\w+\) \* \w+)?) \+ c,", r"\1 + c + 1,"),
    "a result is not stored": (r"store1?\(out_[^;]*;|store1\(static_cast[^;]*;", ";"),
    "rows are taken twice": (r"\+ r \* (?=\w+_stride|shape\[)", "+ (r - (r > 0)) * "),
}
HEADER = {
    "a tail is left out": (r"if \(c < end\) at\(c, Part\{end - c\}\);", ""),
    "a tail is not padded": (r"V pad\(V x, S neutral, Part part\) \{", "V pad(V x, S neutral, Part part) { return x;"),
    "the sum is not the tree": (r"half<D, 1>\(a, b\)", "half<D, 1>(b, b)"),
}


def text_mutants(operator: Operator, graph: Graph) -> list[tuple[str, Kernel]]:
    """Kernels whose text or headers have a slip that can matter: with vectors, as the slips are about their tails."""
    plan = make_plan(graph)
    text = emit_cpu(plan)
    made = []
    if isinstance(plan, AttentionPlan | ProductPlan):
        if isinstance(plan, AttentionPlan):
            wrong = {w: attention.slipped(text, w) for w in attention.slips(operator.backward_of is not None)}
        else:
            wrong = {w: slipped(text, w) for w in slips(str(plan.products[0].data[0]), graph.ragged)}
        turn = sorted(ops.registry()).index(operator.name)
        for i, (what, slip) in enumerate(wrong.items(), turn):
            for isa in BLOCKED_BY if operator.name in BY_BOTH else BLOCKED_BY[i % 2 :][:1]:
                kernel = build_text(operator, graph, plan, slip.text, slip.headers, isa=isa, structure=True)
                made.append((f"{what} ({isa})", kernel))
        return made
    for what, (pattern, replacement) in {**KERNEL, **HEADER}.items():
        one_row = operator.contract.lists and "rows" in what
        no_sum = "row_sums" not in text.text and ("tree" in what or "padded" in what)
        if one_row or no_sum:
            continue
        own = re.sub(pattern, replacement, text.text, count=1) if what in KERNEL else text.text
        rows = (
            re.sub(pattern, replacement, text.headers["rows.h"], count=1) if what in HEADER else text.headers["rows.h"]
        )
        assert (own, rows) != (text.text, text.headers["rows.h"]), f"{what}: the text has nothing like it"
        headers = {**text.headers, "rows.h": rows}
        made.append((what, build_text(operator, graph, plan, own, headers, isa=native_isa(), structure=True)))
    return made


def wrong_kernels(name: str, dtype: str) -> list[tuple[str, Kernel]]:
    """Structure builds of a sample of an operator's mutants: the graph they claim is the right one."""
    operator = ops.get(name)
    options = {o.name: True for o in operator.options if o.accepted == (False, True)}
    graph = operator.trace(dtype, options=options)
    every = list(mutants(graph))
    random.Random(f"{SEED} {name}").shuffle(every)
    built = text_mutants(operator, graph)
    texts = len(built)
    for what, wrong in every:
        if len(built) == texts + SAMPLE:
            break
        try:
            plan = make_plan(wrong)
        except DefinitionError:
            continue  # such a kernel cannot be made
        text = emit_cpu(plan)
        built.append((what, build_text(operator, graph, plan, text.text, text.headers, isa="scalar", structure=True)))
    return built


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ops.registry()))
def test_every_mutant_is_refuted(name: str) -> None:
    operator = ops.get(name)
    made = wrong_kernels(name, "f16")
    assert len(made) >= AT_LEAST, f"{name}: only {len(made)} mutants"
    survivors = [what for what, kernel in made if not refuted(operator, kernel)]
    assert not survivors


def refuted(operator: object, kernel: Kernel) -> bool:
    """Whether a structure run at any of a few shapes shows that a kernel evaluates something else."""
    assert isinstance(operator, Operator)
    usual = ((3, 5), (2, 101), (35, 9), (1, 101), (1, 16401))
    if isinstance(kernel.plan, AttentionPlan):
        tried = attention.SHAPES
    else:
        tried = shapes(kernel.graph.ragged) if isinstance(kernel.plan, ProductPlan) else usual
    for shape in tried:
        if not allowed(operator, shape):
            continue
        integers = {
            t.name: cases.draw(operator, t, "normal", shape, 0)
            for t in kernel.graph.inputs
            if str(t.format) in ("i32", "i64", "u32")
        }
        params = cases.drawn_scalars(operator, kernel.graph, shape)
        # Another seed for each kernel: what an earlier one left on a thread's stack must not look right.
        seed = int(kernel.fingerprint[:8], 16)
        if run.run_structure(kernel, shape, integers, params, seed).failure:
            return True
    return False


@pytest.mark.parametrize(
    "name",
    ["layer_norm", "matmul", "grouped_linear", "grouped_linear_backward_weight", "attention", "attention_backward"],
)
def test_the_right_kernel_survives(name: str) -> None:
    operator = ops.get(name)
    graph = operator.trace("f16")
    plan = make_plan(graph)
    text = emit_cpu(plan)
    kernel = build_text(operator, graph, plan, text.text, text.headers, isa="scalar", structure=True)
    assert not refuted(operator, kernel)
