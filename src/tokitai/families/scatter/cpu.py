"""C++ for the CPU: the source of a sum over the entries that rows choose, from its plan.

Rows are sorted by entry on one thread, by counting: that takes far less than moving them. Then threads share the blocks
of long segments, and the entries with short ones.
"""

from __future__ import annotations

from ...emit.cpp import IN_THREADS
from ...emit.text import POINTER, Printer
from .plan import ScatterPlan

TILE = 512  # columns whose chain is kept in the first-level cache
PIECE = 64  # columns of a long segment's tree that one thread takes


class ScatterEmitter(Printer):
    """Prints one kernel."""

    includes = ("rows.h", "segments.h")

    def __init__(self, plan: ScatterPlan) -> None:
        super().__init__(plan.graph)
        self.plan = plan

    def body(self) -> None:
        """What stands between the braces of the kernel."""
        self.open(IN_THREADS)
        self.line("const FloatMode mode;")
        self.arguments()
        for n in self.plan.uniform:
            self.declare(n, self.expression(n, False, self.name), vector=False)
        self.open("const auto entry_of = [&](int64_t r) INLINE_LAMBDA")
        for n in self.plan.of_index:
            self.row_value(n)
        self.line(f"return int64_t({self.name[self.plan.total.args[1]]});")
        self.close("};")
        self.line("const auto entry_at = [&](int64_t i) INLINE_LAMBDA { return entry_of(order[i]); };")
        self.line("#pragma omp single")
        self.line("sort_by_entry(rows, entries, entry_of, starts, order);")
        self.chain()
        self.finish()
        self.long_blocks()
        self.short_segments()
        self.long_segments()
        self.line("finish_stores();")
        self.close("});")

    def arguments(self) -> None:
        self.line("const int64_t rows = sizes[0], cols = sizes[1];")
        self.line("const Stored* const scalars = static_cast<const Stored*>(scalar_table);")
        taken = self.pointers_of_tensors()
        self.line(f"const int64_t* const integers = sizes + {taken};")
        self.line(f"const int64_t entries = integers[{self.whole_slot[self.plan.total.args[2]]}];")
        for o in self.graph.outputs:
            streams = "false" if o.inplace else f"streams(out_{o.name}, out_{o.name}_stride, entries, cols)"
            self.line(f"const bool out_{o.name}_streams = {streams};")
        self.line("int64_t* const starts = static_cast<int64_t*>(workspace);")
        self.line("int64_t* const order = starts + entries + 2;")
        self.line("Stored* const sums = reinterpret_cast<Stored*>(order + rows);")
        self.line("(void)scalars;")

    def chain(self) -> None:
        """The chain over sorted rows, for columns from c0 to c1."""
        self.open("const auto chain = [&](int64_t begin, int64_t end, int64_t c0, int64_t c1, Stored* acc)")
        self.open("for (int64_t i = begin; i < end; ++i)")
        self.line("const int64_t r = order[i];")
        for t in self.graph.inputs:
            if t.space == "rc":
                kind = POINTER[str(t.format)]
                self.line(f"const {kind}* const in_{t.name}_row = in_{t.name} + r * in_{t.name}_stride;")
        for n in self.plan.of_row:
            self.row_value(n)
        self.open("each(c0, c1, [&](int64_t c, auto lanes) INLINE_LAMBDA")
        for n in self.plan.compute:
            self.column_value(n)
        term = self.vector(self.plan.total.args[0])
        self.line(f"if (i == begin) store(acc + c - c0, add(splat(NEUTRAL_SUM), {term}), lanes);")
        self.line(f"else store(acc + c - c0, add(load(acc + c - c0, lanes), {term}), lanes);")
        self.close("});")
        self.close()
        self.close("};")

    def finish(self) -> None:
        """What is made of an entry's complete sum, and stored."""
        self.open("const auto finish = [&](int64_t entry, int64_t c0, int64_t c1, const auto& sum) INLINE_LAMBDA")
        for t in self.graph.inputs:
            if t.space == "t":
                kind = POINTER[str(t.format)]
                self.line(f"const {kind}* const in_{t.name}_row = in_{t.name} + entry * in_{t.name}_stride;")
        self.open("each(c0, c1, [&](int64_t c, auto lanes) INLINE_LAMBDA")
        self.declare(self.plan.total, "sum(c, lanes)", vector=True)
        for n in self.plan.finish:
            self.column_value(n)
        for o in self.graph.outputs:
            place = f"out_{o.name} + entry * out_{o.name}_stride + c"
            self.line(f"store({place}, {self.vector(o.node)}, lanes, out_{o.name}_streams);")
        self.close("});")
        self.close("};")

    def long_blocks(self) -> None:
        self.line("#pragma omp for schedule(dynamic) nowait")
        self.open("for (int64_t slot = 0; slot < 2 * windows_of(rows); ++slot)")
        self.line("int64_t begin, end;")
        self.line("if (!long_block(slot, rows, starts, entry_at, begin, end)) continue;")
        self.line("chain(begin, end, 0, cols, sums + slot * cols);")
        self.close()

    def short_segments(self) -> None:
        self.line("#pragma omp for schedule(dynamic, 16)")
        self.open("for (int64_t entry = 0; entry < entries; ++entry)")
        self.line("const int64_t begin = starts[entry], end = starts[entry + 1];")
        self.line("if (end - begin > CHAIN) continue;")
        self.open(f"for (int64_t c0 = 0; c0 < cols; c0 += {TILE})")
        self.line(f"const int64_t c1 = min(cols, c0 + {TILE});")
        self.line(f"Stored acc[{TILE}];")
        self.open("if (begin == end)")
        self.line("finish(entry, c0, c1, [&](int64_t, auto) INLINE_LAMBDA { return constant(0.0f, V{}); });")
        self.close("} else {")
        self.depth += 1
        self.line("chain(begin, end, c0, c1, acc);")
        summed = "return load(acc + c - c0, lanes);"
        self.line(f"finish(entry, c0, c1, [&](int64_t c, auto lanes) INLINE_LAMBDA {{ {summed} }});")
        self.close()
        self.close()
        self.close()

    def long_segments(self) -> None:
        """The tree over the blocks of each long segment. The loop above ends in a barrier."""
        self.open("for (int64_t window = 0; window < windows_of(rows); ++window)")
        self.line("int64_t entry;")
        self.line("const int64_t start = long_segment(window, rows, starts, entry_at, entry);")
        self.line("if (start < 0) continue;  // the same in all threads")
        self.line("const int64_t blocks = windows_of(starts[entry + 1] - start);")
        self.line("#pragma omp for schedule(static) nowait")
        self.open(f"for (int64_t c0 = 0; c0 < cols; c0 += {PIECE})")
        self.open(f"finish(entry, c0, min(cols, c0 + {PIECE}), [&](int64_t c, auto lanes) INLINE_LAMBDA")
        part = "[&](int64_t block) { return load(sums + slot_of(start, block) * cols + c, lanes); }"
        self.line(f"return tree_over(blocks, splat(S{{}}), {part});")
        self.close("});")
        self.close()
        self.close()
