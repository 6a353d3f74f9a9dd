"""Where kernels join pending sums: of definitions that their sources name and include, and no others."""

from __future__ import annotations

import pytest

from tokitai.emit.counters import COUNTERS, digest, sums_of
from tokitai.emit.cpp import KernelText
from tokitai.families import emit_cpu, make_plan
from tokitai.lang import FIXED_BITS
from tokitai.ops import get

TREE, CHAIN = "cpu/rows.h tree_over", "cpu/products.h join_chain"


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("silu", set()), ("softmax", set()), ("global_norm", {TREE}), ("layer_norm_backward", {TREE}),
        ("embedding_backward", {TREE}), ("matmul", {CHAIN}), ("grouped_linear", {CHAIN}),
        ("attention", {CHAIN, "cpu/attention.h RowSum"}),
    ],
)  # fmt: skip
def test_places_that_a_source_reaches(name: str, places: set[str]) -> None:
    text = emit_cpu(make_plan(get(name).trace("f32")))
    assert sums_of(text).keys() == places
    for header, source in text.headers.items():
        assert sums_of(KernelText(text.text, {**text.headers, header: f"// another comment\n{source}"})) == sums_of(
            text
        )


def test_a_product_in_fixed_point_joins_as_others_do_on_a_cpu() -> None:
    for accumulator in FIXED_BITS:
        plan = make_plan(get("matmul").trace("f32", options={"accumulator": accumulator}))
        assert sums_of(emit_cpu(plan)).keys() == {CHAIN}


def test_a_name_counts_through_definitions_and_macros_and_an_include_through_headers() -> None:
    (tree,) = (c for c in COUNTERS if c.id == TREE)
    begin = tree.definitions[0]
    held = f"namespace tokitai {{\n{begin}int n) {{\n  return n;\n}}\n}}  // namespace tokitai\n"
    between = "template <class F, int N = 1> INLINE int sums(const F& f) { return tree_over(f); }\n#define MINE 1\n"
    headers = {"rows.h": held, "other.h": f'#include "rows.h"\n{between}'}
    whole = f"{begin}int n) {{\n  return n;\n}}"

    def of(text: str, **more: str) -> dict[str, str]:
        return sums_of(KernelText(text, {**headers, **{f"{n}.h": t for n, t in more.items()}}))

    assert of('#include "other.h"\nsums(1);') == {TREE: digest(whole)}
    assert of('#include "other.h"\nsum(1);') == {}
    assert of('#include "last.h"\nsums(1);', last="") == {}
    assert of('#include "last.h"\nADD(1);', last='#include "rows.h"\n#define ADD(n) tree_over(n)\n') == of(
        '#include "rows.h"\ntree_over(1);'
    )
    changed = of('#include "other.h"\nsums(1);', rows=held.replace("return n;", "return n + 1;"))
    assert changed.keys() == {TREE} and changed[TREE] != digest(whole)
