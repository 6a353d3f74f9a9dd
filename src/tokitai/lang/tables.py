"""Tables: entries that rows choose by an index, and sums of rows over the entries that they choose."""

from __future__ import annotations

from .origin import refuse
from .values import Number, Value, floating, make


def gather(table: Value, index: Value) -> Value:
    """table[index[r]] for each row r; exact. Every index must be that of an entry: a call checks them beforehand."""
    node = floating(table, "gather")
    if node.op != "input" or node.space != "t":
        refuse(f"gather from {table}", "an input of the kind Table[...]")
    return Value(make("gather", node, _index("gather", index).node, space="rc", type=node.type))


def scatter_sum(values: Value, index: Value, entries: Number) -> Value:
    """For each entry the sum of the rows whose index it is, +0 where there is none: entries x cols.

    The contributions to one entry are added in the order of the rows: a chain inside blocks of 32 of them, by their
    rank, then the balanced tree over the blocks. ``entries`` is an `int` parameter.
    """
    node = floating(values, "scatter_sum")
    if node.space != "rc":
        refuse(f"scatter_sum of {values}", "a rows x cols value")
    if not isinstance(entries, Value) or entries.node.op != "param" or not entries.node.exact:
        refuse(f"scatter_sum over {entries!r} entries", "an int parameter of the operator")
    count = make("round", entries.node, type="i64", exact=True)
    return Value(make("scatter_sum", node, _index("scatter_sum", index).node, count, space="t", type=node.type))


def row_first(condition: Value) -> Value:
    """The first column of each row in which a condition on floating-point values holds, as an f32 whole number; the
    number of columns where it holds in none."""
    node = condition.node if isinstance(condition, Value) else None
    if node is None or node.type != "bool" or node.space != "rc" or node.exact:
        refuse(f"row_first({condition!r})", "a rows x cols condition on floating-point values")
    return Value(make("row_first", node, space="r", exact=False))


def slots(*values: Value) -> Value:
    """Values of each row side by side: a result of rows x slots."""
    nodes = [floating(v, "slots") for v in values]
    if not nodes or any(n.space not in ("r", "s") or n.type != nodes[0].type for n in nodes):
        refuse(f"slots({', '.join(map(str, values))})", "values of one type with one element a row")
    return Value(make("slots", *nodes, space="r", type=nodes[0].type))


def _index(name: str, index: Value) -> Value:
    if not isinstance(index, Value) or index.node.type not in ("i32", "i64") or index.node.space != "r":
        refuse(f"{name} with the index {index}", "an i32 or i64 value, one a row")
    return index
