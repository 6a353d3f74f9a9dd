"""Wrong kernels: one small operator, and edits of its emitted text and headers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tokitai.lang import (
    Cols,
    Matrix,
    Operator,
    Rows,
    col_sum,
    columns,
    f32,
    fma,
    operator,
    outputs,
    row_sum,
    sqrt,
    storage,
    where,
)
from tokitai.verification import Verdict, verify
from tokitai.verification.verdict import Variant


@operator
def centred(x: Matrix[storage], w: Cols[storage], *, eps: float = 0.1) -> Any:
    """Sums along rows and down columns, a root, a product that is rounded at the store."""
    d = x - row_sum(x) / columns(x)
    r = 1 / sqrt(row_sum(d * d) / columns(x) + eps)
    return outputs(y=d * r * w, r=r, total=col_sum(d))


@operator
def scaled(x: Matrix[storage], a: Rows[f32]) -> Any:
    """Element by element, in one pass without sums."""
    return fma(x, a, x)


@operator
def smaller(a: Matrix[storage], b: Matrix[storage]) -> Any:
    """Elements are chosen and not computed: a NaN goes through as it came."""
    return outputs(y=where(a < b, a, b))


# Those that every run tries; the others are slow, as each is compiled twice.
QUICK = ("the tail of a row is dropped", "a write lands past the end", "flush to zero")


@dataclass
class Edit:
    """Replaces a pattern in the text or the headers, and knows whether it found any."""

    pattern: str
    replacement: str
    found: int = field(default=0, compare=False)

    def __call__(self, text: str) -> str:
        text, count = re.subn(self.pattern, self.replacement, text)
        self.found += count
        return text


def examine(edit: Callable[[str], str], op: Operator = centred, **arguments: Any) -> Verdict:
    """Verify a kernel made from the edited text. The edit must have changed something."""
    arguments.setdefault("dtype", "f16")
    verdict = verify(op, edit=edit, variant=Variant(frozenset()), **arguments)
    assert not isinstance(edit, Edit) or edit.found, f"{edit.pattern!r} is not in the text"
    return verdict


# Each is caught by the structure run: the expression, or where it is evaluated, is another one.
EXPRESSION = {
    "the tail of a row is dropped": (r"if \(c < end\) at\(c, Part\{end - c\}\);", ""),
    "padding is not neutral": (r"pad\((v\d+), NEUTRAL_SUM, lanes\)", r"\1"),
    "eps stands outside the root": (
        r"const S (v\d+) = add\((v\d+), (v\d+)\);\n( *)const S (v\d+) = sqrt\(\1\);",
        r"const S \5 = add(sqrt(\2), \3);",
    ),
    "eps is left out": (r"= sqrt\(v\d+\);", "= sqrt(v9);"),
    "the operands of a difference are swapped": (r"= sub\((v\d+), (splat\(v\d+\))\)", r"= sub(\2, \1)"),
    "a column sum is kept in f16": (
        r"add\(load\((block_v\d+ \+ c), lanes\), (v\d+)\)", r"round_to_f16(add(load(\1, lanes), \2))",
    ),
    "a product is rounded before the weight": (r"mul\((v15), (v16)\)", r"mul(round_to_f16(\1), \2)"),
    "a result is rounded twice": (r"store\((out_y_row \+ c), (v\d+), lanes", r"store(\1, round_to_bf16(\2), lanes"),
    "products associate the other way": (
        r"const auto v15 = mul\(v5, (splat\(v14\))\);([^;]*;)\s*const auto v17 = mul\(v15, v16\);",
        r"\2 const auto v17 = mul(v5, mul(\1, v16));",
    ),
    "the last block of rows is left out": (r"tree_over\(blocks, ", "tree_over(blocks - (blocks > 1), "),
    "a column sum starts from what was there": (r"each\(0, cols[^\n]*splat\(NEUTRAL_SUM\)[^\n]*\n", "\n"),
    "a result is never written": (r"store1\(out_r \+ r, v\d+\);", ""),
    "a column is written twice, its neighbour never": (r"store\(out_total \+ c,", "store(out_total + (c ? c - 1 : 0),"),
    "every second row is read twice": (
        r"in_x_row = in_x \+ r \* in_x_stride", "in_x_row = in_x + r / 2 * 2 * in_x_stride",
    ),
    "row strides are ignored": (r"in_x_row = in_x \+ r \* in_x_stride", "in_x_row = in_x + r * cols"),
    "a write lands past the end": (r"(store1\(out_r \+) r, (v\d+)\);", r"\1 r, \2); \1 rows, \2);"),
    "a write lands before the beginning": (r"(store1\(out_r) \+ r, (v\d+)\);", r"\1 + r, \2); \1 - 1, \2);"),
    "an input is changed": (
        r"const auto v16 = load\(wide_w \+ c, lanes\);",
        "const auto v16 = load(wide_w + c, lanes);"
        "if (c == 0) store1(const_cast<f16*>(in_w), add(load1(in_w), load1(in_w)));",
    ),
}  # fmt: skip

# The expression is right, the arithmetic beneath it is not: hashes cannot see it, numbers do.
ARITHMETIC = {
    "a quotient by the reciprocal": (
        r"INLINE (\w) div\(\w a, \w b\) \{ return a / b; \}", r"INLINE \1 div(\1 a, \1 b) { return a * (1.0f / b); }",
    ),
    "a root rounded in another way": (r"return __builtin_sqrtf\(a\);", "return float(__builtin_sqrt(a)) * 1.0000001f;"),
    "a padding of +0": (r"NEUTRAL_SUM = -0\.0f", "NEUTRAL_SUM = 0.0f"),
    "flush to zero": (r"__builtin_ia32_ldmxcsr\(0x1F80\)", "__builtin_ia32_ldmxcsr(0x9FC0)"),
    "rounding toward zero": (r"__builtin_ia32_ldmxcsr\(0x1F80\)", "__builtin_ia32_ldmxcsr(0x7F80)"),
}  # fmt: skip

# Of `smaller`: right wherever tensors lie alike and NaN are canonical.
ALIKE = {
    "a result has an input's row stride": (r"\+ r \* shape\[4\]", "+ r * shape[2]", ": drawn "),
    "nothing is stored where only an input is aligned": (
        r"(int32_t threads\) \{)",
        r"\1 if (uintptr_t(tensors[0]) % 64 == 0 && uintptr_t(tensors[2]) % 64) return 0;",
        ": drawn ",
    ),
    "nothing is stored where only a result is aligned": (
        r"(int32_t threads\) \{)",
        r"\1 if (uintptr_t(tensors[0]) % 64 && uintptr_t(tensors[2]) % 64 == 0) return 0;",
        ": drawn ",
    ),
    "a NaN is stored as it came": (
        r"where\(ne\(x, x\), splat\(NOT_A_NUMBER\), x\)|x != x \? NOT_A_NUMBER : x",
        "x", "seeded/nans@",
    ),
}  # fmt: skip
