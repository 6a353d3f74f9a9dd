"""The shapes for which sources and launches are recorded."""

from __future__ import annotations

from collections.abc import Sequence

from tokitai.lang import OPERANDS, Graph, Operator, Sizes, shape_text

Point = tuple[str, Sequence[tuple[int, int]], bool]  # a launch by name: its shapes, and whether accesses can be wide


def points(operator: Operator, graph: Graph, flat: bool) -> list[Point]:
    """Launches that together take every schedule, the most telling first: large, long, small, uneven, empty; the last
    is misaligned. ``flat``: whether it is element-wise, and takes lists."""
    spaces, used = {t.space for t in graph.inputs}, {n.op for n in graph.nodes}
    if graph.ragged:
        several = [(1856, 1848, 4104, 8), (656, 648, 64, 3), (25, 33, 12, 3), (9, 8, 16, 2), (70, 40, 13000, 5),
                   (0, 3, 4, 2)]  # fmt: skip
        sides = several if graph.ragged == "r" else [(inner, c, r, groups) for r, c, inner, groups in several]
        return _named([Sizes(*s, graph.ragged) for s in sides])
    if "weighted_sum" in used:
        walks = [(12800, 12800, 64), (65, 70, 64), (5, 7, 8), (12800, 256, 136), (4101, 9000, 40, 2), (33, 0, 8)]
        return _named([Sizes(*s) for s in walks])
    if spaces & OPERANDS:
        some = [
            (1856, 1848, 4104), (650, 640, 72), (4, 1000, 1000), (64, 192, 128), (656, 1004, 1004), (8, 8, 13000),
            (3, 5, 8193), (256, 13000, 16), (2, 3, 0), (0, 3, 4),
        ]  # fmt: skip
        some += [(7, 16, 32, 3), (130, 256, 64, 40)] if operator.contract.batched else []
        return _named([Sizes(*s) for s in some])
    if "scatter_sum" in used:
        return _named([(1100, 1024), (5, 8), (70, 33), (2**31, 16), (300_000, 200), (0, 5)])
    most, low = operator.contract.max_rows, operator.contract.min_cols
    if flat:
        lists = [[(1, 5), (1, 4096), (1, 0), (1, 12289)], [(1, 8)] * 40]
        one = _named([(min(r, most), c) for r, c in ((64, 1024), (3, 5), (9, 1004), (3, 4097), (1, 1 << 29), (0, 5))])
        return [one[0], *((f"list of {len(many)}", many, True) for many in lists), *one[1:]]
    rows = [(64, 8192), (4, 1000), (3, 5), (130, 64), (2, 4096), (70, 300), (9, 1004), (8, 2048), (3, 12290),
            (5, 16392), (2, 32768), (3, 50257), (3, 0), (0, 5)]  # fmt: skip
    return _named([(min(r, most), c) for r, c in rows if low <= c])


def _named(shapes: Sequence[tuple[int, int]]) -> list[Point]:
    """One tensor of each name in these shapes, and in the first one misaligned as well."""
    aligned: list[Point] = [(shape_text(s), [s], True) for s in shapes]
    return [*aligned, (f"{shape_text(shapes[0])} misaligned", [shapes[0]], False)]
