"""C++ for the CPU: the source of a row-wise kernel, from its plan."""

from __future__ import annotations

from ...emit.cpp import IN_THREADS
from ...emit.text import POINTER, Printer, streamed
from ...lang import Node
from .plan import Pass, RowPlan


class RowEmitter(Printer):
    """Prints one kernel."""

    def __init__(self, plan: RowPlan) -> None:
        super().__init__(plan.graph)
        self.plan = plan
        self.private = [f"{plan.scratch_rows} * cols"] * bool(plan.scratch_rows)  # workspace of each thread
        self.private += [f"{plan.most_sums} * partial_capacity(cols)"] * bool(plan.most_sums)
        self.streamed = streamed(plan.graph)
        if plan.has_firsts:
            self.includes = ("rows.h", "first.h")

    def body(self) -> None:
        """What stands between the braces of the kernel."""
        self.open(IN_THREADS)
        self.line("const FloatMode mode;")
        self.arguments()
        for n in self.plan.uniform:
            self.declare(n, self.expression(n, False, self.name), vector=False)
        self.early_sums()
        self.blocks()
        self.column_results()
        self.line("finish_stores();")
        self.close("});")

    def arguments(self) -> None:
        self.line("const int64_t rows = sizes[0], cols = sizes[1];")
        self.line("const Stored* const scalars = static_cast<const Stored*>(scalar_table);")
        self.line("(void)rows, (void)cols, (void)scalars, (void)workspace;")
        taken = self.pointers_of_tensors()
        for o in self.streamed:
            self.line(f"const bool out_{o.name}_streams = streams(out_{o.name}, out_{o.name}_stride, rows, cols);")
        self.line(f"const int64_t* const integers = sizes + {taken};")
        self.line("(void)integers;")
        self.line(f"const int64_t blocks = (rows + {self.plan.block - 1}) / {self.plan.block};")
        used = "static_cast<Stored*>(workspace)"
        for n in self.plan.col_sums:
            self.line(f"Stored* const sum_{self.name[n]} = {used};")
            used = f"sum_{self.name[n]} + blocks{' * cols' if n.space == 'c' else ''}"
        if self.private:
            self.line(f"Stored* const private_space = {used};")

    def pointers(self, row: str, following: str | None = None) -> None:
        for t in self.graph.inputs:
            for end, index in (("row", row), ("next", following)):
                if t.space == "rc" and index:
                    kind = f"const {POINTER[str(t.format)]}*"
                    self.line(f"{kind} const in_{t.name}_{end} = in_{t.name} + {index} * in_{t.name}_stride;")
        for o in self.graph.outputs:
            if o.space == "rc":
                self.line(f"{POINTER[o.format]}* const out_{o.name}_row = out_{o.name} + {row} * out_{o.name}_stride;")

    def early_sums(self) -> None:
        """Column sums that the rows need: over blocks of rows, then, behind a barrier, the tree over blocks."""
        if not self.plan.early:
            return
        self.line("#pragma omp for schedule(static)")
        self.open("for (int64_t block = 0; block < blocks; ++block)")
        for n in self.plan.early:
            self.line(f"S block_{self.name[n]} = NEUTRAL_SUM;")
        self.open(f"for (int64_t r = block * {self.plan.block}; r < min(rows, (block + 1) * {self.plan.block}); ++r)")
        for n in self.plan.under_early:
            self.row_value(n)
        for n in self.plan.early:
            self.line(f"block_{self.name[n]} = add(block_{self.name[n]}, {self.name[n.args[0]]});")
        self.close()
        for n in self.plan.early:
            self.line(f"store1(sum_{self.name[n]} + block, block_{self.name[n]});")
        self.close()
        for n in self.plan.early:
            self.tree_over_blocks(n)
        for n in self.plan.after_early:
            self.declare(n, self.expression(n, False, self.name), vector=False)

    def tree_over_blocks(self, n: Node) -> None:
        source = f"sum_{self.name[n]}"
        self.declare(n, f"tree_over(blocks, S{{}}, [&](int64_t i) {{ return load1({source} + i); }})", vector=False)

    def blocks(self) -> None:
        plan = self.plan
        if self.private:
            self.line(f"Stored* const scratch = private_space + thread_number() * ({' + '.join(self.private)});")
        if plan.most_sums:
            self.line(f"Stored* const partial = scratch{f' + {plan.scratch_rows} * cols' * bool(plan.scratch_rows)};")
        for i, n in enumerate(plan.widened):
            self.line(f"Stored* const wide_{n.data[0]} = scratch + {plan.kept_rows + i} * cols;")
            widen = f"store(wide_{n.data[0]} + c, load(in_{n.data[0]} + c, lanes), lanes);"
            self.line(f"each(0, cols, [&](int64_t c, auto lanes) INLINE_LAMBDA {{ {widen} }});")
        self.line("#pragma omp for schedule(static)")
        self.open("for (int64_t block = 0; block < blocks; ++block)")
        self.line(f"const int64_t end = min(rows, (block + 1) * {plan.block});")
        for n in plan.running:
            if n.space == "s":
                self.line(f"S block_{self.name[n]} = NEUTRAL_SUM;")
            else:
                self.line(f"Stored* const block_{self.name[n]} = sum_{self.name[n]} + block * cols;")
                clear = f"store(block_{self.name[n]} + c, splat(NEUTRAL_SUM), lanes);"
                self.line(f"each(0, cols, [&](int64_t c, auto lanes) INLINE_LAMBDA {{ {clear} }});")
        self.open(f"for (int64_t r = block * {plan.block}; r < end; ++r)")
        self.row()
        self.close()
        for n in plan.running:
            if n.space == "s":
                self.line(f"store1(sum_{self.name[n]} + block, block_{self.name[n]});")
        self.close()

    def row(self) -> None:
        """All that is computed from one row on its own."""
        self.pointers("r", "min(r + 1, rows - 1)" if self.plan.most_sums else None)
        for n in self.plan.before:
            self.row_value(n)
        loaded: set[Node] = set()
        for p in self.plan.passes:
            self.one_pass(p, loaded)
            loaded |= set(p.keep)
            for n in p.after:
                self.row_value(n)
        for o in self.graph.outputs:
            if o.space == "r":
                for line in self.row_stores(o):
                    self.line(line)
        for n in self.plan.running:
            if n.space == "s":
                self.line(f"block_{self.name[n]} = add(block_{self.name[n]}, {self.name[n.args[0]]});")

    def compute(self, p: Pass, loaded: set[Node]) -> None:
        for n in (n for n in p.compute if n in loaded):  # before anything is stored: another value may take its row
            self.declare(n, f"load({self.scratch(n)} + c, lanes)", vector=True)
        for n in (n for n in p.compute if n not in loaded):
            if n in self.plan.widened:
                self.declare(n, f"load(wide_{n.data[0]} + c, lanes)", vector=True)
            else:
                self.column_value(n)
            if n in p.keep:
                self.line(f"store({self.scratch(n)} + c, {self.name[n]}, lanes);")

    def scratch(self, n: Node) -> str:
        return f"scratch + {self.plan.kept[n]} * cols"

    def stores(self, p: Pass) -> None:
        for o in p.stores:
            how = f", out_{o.name}_streams" if o in self.streamed else ""
            self.line(f"store(out_{o.name}_row + c, {self.vector(o.node)}, lanes{how});")

    def one_pass(self, p: Pass, loaded: set[Node]) -> None:
        for n in p.maxima:
            self.line(f"Max max_{self.name[n]};")
        for n in p.firsts:
            self.line(f"V first_{self.name[n]} = splat(NEUTRAL_FIRST);")
        if p.sums:
            totals = f"sums_{self.plan.passes.index(p) + 1}"
            self.line(f"S {totals}[{len(p.sums)}];")
            sums = f"row_sums<{len(p.sums)}, {str(p.cheap).lower()}>"
            self.open(f"{sums}(cols, partial, [&](int64_t c, auto lanes) INLINE_LAMBDA")
        else:
            self.open("each(0, cols, [&](int64_t c, auto lanes) INLINE_LAMBDA")
        self.compute(p, loaded)
        self.stores(p)
        for n in p.maxima:
            x = self.vector(n.args[0])
            self.line(f"take(max_{self.name[n]}, pad(leaf_max({x}), NEUTRAL_MAX, lanes));")
        for n in p.firsts:
            self.line(f"take_first(first_{self.name[n]}, {self.vector(n.args[0])}, c, lanes);")
        for n in p.col_sums:
            place = f"block_{self.name[n]} + c"
            self.line(f"store({place}, add(load({place}, lanes), {self.vector(n.args[0])}), lanes);")
        if p.sums:
            parts = ", ".join(f"pad({self.vector(n.args[0])}, NEUTRAL_SUM, lanes)" for n in p.sums)
            self.line(f"return summands(lanes, {parts});")
            self.close("}, [&](int64_t c) INLINE_LAMBDA {")
            self.depth += 1
            self.prefetches(p)
            self.close(f"}}, {totals});")
            for i, n in enumerate(p.sums):
                self.line(f"const S {self.name[n]} = {totals}[{i}];")
        else:
            self.close("});")
        for n in p.maxima:
            self.line(f"const S {self.name[n]} = result(max_{self.name[n]});")
        for n in p.firsts:
            joined = f"across<1, LANES>(first_{self.name[n]}, [](V a, V b) {{ return join_first(a, b); }})"
            self.line(f"const S {self.name[n]} = done_first(first({joined}), cols);")

    def prefetches(self, p: Pass) -> None:
        """The next row is fetched during the last pass that sums, when this one lies in the caches."""
        if p is [q for q in self.plan.passes if q.sums][-1]:
            for t in self.graph.inputs:
                if t.space == "rc":
                    self.line(f"prefetch(in_{t.name}_next + c);")
        else:
            self.line("(void)c;")

    def column_results(self) -> None:
        """The tree over blocks of rows, and what is made of complete column sums. The loop above ends in a barrier."""
        columns = [o for o in self.graph.outputs if o.space == "c"]
        scalars = [o for o in self.graph.outputs if o.space == "s"]
        for n in (n for n in self.plan.finish if n.space == "s"):
            if n.op == "col_sum":
                self.tree_over_blocks(n)
            else:
                self.declare(n, self.expression(n, False, self.name), vector=False)
        for o in scalars:
            self.line("#pragma omp single nowait")
            self.line(f"store1(out_{o.name}, {self.name[o.node]});")
        if not columns:
            return
        self.line("#pragma omp for schedule(static)")
        self.open("for (int64_t chunk = 0; chunk < cols; chunk += 64)")
        self.open("each(chunk, min(cols, chunk + 64), [&](int64_t c, auto lanes) INLINE_LAMBDA")
        done: set[Node] = set()
        for o in columns:
            for n in self.cone(o.node):
                if n in done:
                    continue
                done.add(n)
                if n.op == "col_sum":
                    part = f"[&](int64_t i) {{ return load(sum_{self.name[n]} + i * cols + c, lanes); }}"
                    self.declare(n, f"tree_over(blocks, splat(S{{}}), {part})", vector=True)
                else:
                    self.column_value(n)
            self.line(f"store(out_{o.name} + c, {self.vector(o.node)}, lanes);")
        self.close("});")
        self.close()
