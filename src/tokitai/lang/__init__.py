"""Write a definition: symbolic values, primitives, tracing, graph."""

from .graph import (
    COL_SUM_BLOCK,
    PRIMITIVES,
    ROW_REDUCTIONS,
    TOTALS,
    Function,
    Graph,
    Node,
    Output,
    TensorSpec,
    topological,
)
from .operator import Contract, HardInput, Index, Operator, Outputs, operator, outputs, stored
from .primitives import (
    bit_and,
    bit_xor,
    col_sum,
    column_index,
    columns,
    convert,
    element_word,
    exponent,
    fma,
    function,
    maximum,
    minimum,
    multiply_high,
    power_of_two,
    round_even,
    round_stochastic,
    round_to,
    row_index,
    row_max,
    row_sum,
    rows,
    shift_right,
    significand,
    sqrt,
    take_column,
    tensor_index,
    total_max,
    total_sum,
    where,
)
from .tables import gather, row_first, scatter_sum, slots
from .values import Cols, Matrix, Number, Rows, Slots, Table, Value, bf16, f16, f32, f64, i32, i64, storage, u32

__all__ = [
    "COL_SUM_BLOCK", "PRIMITIVES", "ROW_REDUCTIONS", "TOTALS", "Cols", "Contract", "Function", "Graph", "HardInput",
    "Index", "Matrix", "Node", "Number", "Operator", "Output", "Outputs", "Rows", "Slots", "Table", "TensorSpec",
    "Value", "bf16", "bit_and",
    "bit_xor", "col_sum", "column_index", "columns", "convert", "element_word", "exponent", "f16", "f32", "f64",
    "fma", "function", "gather", "i32", "i64", "maximum", "minimum", "multiply_high", "operator", "outputs",
    "power_of_two",
    "round_even", "round_stochastic", "round_to", "row_first", "row_index", "row_max", "row_sum", "rows", "scatter_sum",
    "shift_right",
    "significand", "slots", "sqrt", "storage", "stored", "take_column", "tensor_index", "topological", "total_max",
    "total_sum", "u32", "where",
]  # fmt: skip
