"""Definitions as users may write them, for what emitters print that no operator of the package asks for."""

from __future__ import annotations

from tokitai.lang import (
    Cols,
    Groups,
    Matrix,
    Operand,
    Operator,
    Outputs,
    Rows,
    Value,
    bf16,
    col_sum,
    column_index,
    columns,
    convert,
    element_word,
    f32,
    fma,
    function,
    grouped_matmul,
    i32,
    i64,
    matmul,
    maximum,
    operator,
    outputs,
    round_stochastic,
    row_index,
    row_sum,
    rows,
    storage,
    tensor_index,
    total_max,
    total_sum,
    u32,
    where,
)


@function
def quotient(x: Value, y: Value) -> Value:
    """x / (1 + y^2)."""
    return x / fma(y, y, 1.0)


@operator
def totals_over_rows(x: Matrix[storage], w: Matrix[bf16]) -> Outputs:
    """Totals of terms that know their place, and elements that know the totals."""
    term = where(convert(element_word(0), f32) < 100, x * w, 1 / x)
    mean = total_sum(x) / (rows(x) * columns(x))
    return outputs(y=x - mean, total=total_sum(term), most=total_max(term), mean=mean)


@operator
def indexed_elements(x: Matrix[storage]) -> Outputs:
    """Element-wise, with the number of the tensor and a function that divides."""
    return outputs(y=quotient(x, convert(tensor_index(), f32)) + rows(x))


@operator
def whole_numbers(a: Matrix[i32], b: Matrix[i32]) -> Outputs:
    """Nothing but whole numbers."""
    return outputs(y=where(a < b, a + 1, b), z=convert(a, u32))


@operator
def whole_columns(a: Matrix[i32], c: Cols[i32]) -> Outputs:
    """Whole numbers of columns."""
    return outputs(y=a + c + column_index())


@operator
def sums_of_all_kinds(x: Matrix[storage], s: Rows[f32], c: Cols[storage], *, share: float = 0.5) -> Outputs:
    """Sums along rows, down columns and of both; values that know their row, column and element."""
    place = convert(row_index(), f32) + convert(column_index(), f32)
    drawn = where(convert(element_word(1), f32) < 100, x, quotient(x, c))
    return outputs(
        by_row=row_sum(drawn) + s * share, by_column=c + col_sum(x * c), of_both=col_sum(row_sum(x) + s),
        y=drawn * place + row_sum(x) * c,
    )  # fmt: skip


@operator
def finished_product(
    a: Operand[storage], b: Operand[storage], s: Rows[f32], c: Cols[storage], *, share: float = 0.5
) -> Outputs:
    """A product that is finished with values of rows, columns and elements, rounded at random."""
    y = quotient(matmul(a, b, "NT"), c) * (s * s + share * 3)
    place = convert(row_index(), f32) + convert(column_index(), f32)
    return outputs(y=round_stochastic(maximum(y, place), element_word(0), bf16))


@operator
def finished_groups(
    x: Operand[storage], weight: Operand[storage], offsets: Groups[i64], s: Rows[f32], *, share: float = 0.5
) -> Outputs:
    """A grouped product, finished with values of rows and a scalar."""
    return outputs(y=grouped_matmul(x, weight, offsets, "NT") * (s + share * 3))


OWN: tuple[Operator, ...] = (
    totals_over_rows, indexed_elements, whole_numbers, whole_columns, sums_of_all_kinds, finished_product,
    finished_groups,
)  # fmt: skip
