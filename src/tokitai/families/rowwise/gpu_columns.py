"""The kernels round the rows: what all begin with, sums that rows need beforehand, and what comes after the last row.

`gpu_rows` prints the rows themselves.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...emit.gpu_printer import GpuPrinter
from ...emit.text import POINTER
from ...lang import Node, TensorSpec
from .plan import NARROW, RowPlan
from .schedule import Schedule, blocked, column_results, held, under_sums


def again(t: TensorSpec) -> str:
    """A flag of loads of what other rows need as well. Loads of 32 bits had better not move: the two stores of a chunk,
    each of half a sector, would come apart."""
    return ", AGAIN" if t.space == "c" and t.format in NARROW else ""


class GpuColumnEmitter(GpuPrinter):
    """Prints the kernels of a row-wise operator that go down its rows."""

    def __init__(self, plan: RowPlan, schedule: Schedule) -> None:
        super().__init__(plan.graph)
        self.plan, self.schedule = plan, schedule
        if plan.has_firsts:
            self.includes = ("rows.h", "first.h")
        g = plan.graph
        self.matrices = [t for t in g.inputs if t.space == "rc"]
        self.columns = [t for t in g.inputs if t.space == "c"]
        self.rows_fetched = [t for t in g.inputs if t.space == "r" and not t.slots]
        self.sums = [n for n in plan.running if n.space == "c"]
        self.row_sums = [n for n in plan.running if n.space == "s"]
        self.joined = blocked(plan) and not schedule.apart  # rows and column sums in one kernel
        self.held = held(plan, schedule)
        # Threads of one row all have it. Where a chunk is stored by two accesses, a look at it keeps these together:
        # half sectors that come apart cost a tenth of the time.
        self.all_live = schedule.rows == 1 and all(o.format in NARROW for o in g.outputs if o.space == "rc")
        self.most = max((max(len(p.sums), len(p.maxima), len(p.firsts)) for p in plan.passes), default=0)

    # ------------------------------------------------------------------ what all kernels begin with
    def arguments(self) -> None:
        self.line("const int64_t rows = call.sizes[0];")
        self.line("const int cols = int(call.sizes[1]);")
        stride = 2
        for i, (name, space, kind, const) in enumerate(self.tensors):
            self.line(f"{const}{kind}* const {name} = static_cast<{const}{kind}*>(call.tensors[{i}]);")
            if space in ("rc", "t"):
                self.line(f"const int64_t {name}_stride = call.sizes[{stride}];")
                stride += 1
        self.line(f"const int64_t* const integers = call.sizes + {stride};")
        self.line("const Stored* const scalars = call.scalars;")
        self.line("const int64_t blocks = (rows + BLOCK - 1) / BLOCK;")
        self.line("(void)integers, (void)scalars, (void)blocks, (void)SPAN;")
        used = "static_cast<Stored*>(call.workspace)"
        for n in self.plan.early:
            self.line(f"Stored* const early_{self.name[n]} = {used};")
            used = f"early_{self.name[n]} + 1"
        for n in self.plan.running:
            self.line(f"Stored* const sum_{self.name[n]} = {used};")
            used = f"sum_{self.name[n]} + {'blocks * cols' if n.space == 'c' else 'rows'}"
        for n in self.plan.uniform:
            self.declare(n, self.uniform(n), vector=False)

    def uniform(self, n: Node) -> str:
        """A scalar of the whole call; the number of columns is printed where it is known."""
        known = self.schedule.full and not self.schedule.sliced
        if known and n.op == "round" and n.args[0].op == "columns" and n in self.scalar_slot:
            return f"known(scalars + {self.scalar_slot[n]}, float(SPAN))"
        return self.expression(n, False, self.name)

    def expression(self, node: Node, vector: bool, name: Mapping[Node, str], own_names: bool = False) -> str:
        """As in all kernels, but for quotients of a row's value by what all rows share."""
        if node.op == "div" and node.type == "f32" and (node.args[0].space, node.args[1].space) == ("r", "s"):
            return f"div_by_one({name[node.args[0]]}, {name[node.args[1]]})"
        return super().expression(node, vector, name, own_names)

    def cells(self, count: str) -> None:
        """Shared memory for so many values."""
        self.line(f"SHARED(S, memory, {count});")
        self.line(f"Cells cells{{memory, ({count}) / 2, 0}};")

    def after_early(self) -> None:
        for n in self.plan.early:
            self.declare(n, f"load1(early_{self.name[n]})", vector=False)
        for n in self.plan.after_early:
            self.declare(n, self.expression(n, False, self.name), vector=False)

    def row_input(self, n: Node) -> str:
        """Of a row that was fetched ahead: from there."""
        ahead = self.joined and self.schedule.kept and n not in self.plan.under_early and len(n.data) < 3
        return f"&row_{n.data[0]}" if ahead else super().row_input(n)

    # ------------------------------------------------------------------ early
    def early(self) -> None:
        """Sums down the rows that the rows themselves need."""
        self.cells("2 * WARP")
        for n in self.plan.early:
            self.open(f"const S sum_{self.name[n]} = down_rows<BLOCK>(rows, [&](int64_t r)")
            for m in self.plan.under_early:
                self.row_value(m)
            self.line(f"return {self.name[n.args[0]]};")
            self.close("}, cells);")
            self.line(f"if (thread_index() == 0) store1(early_{self.name[n]}, sum_{self.name[n]});")

    # ------------------------------------------------------------------ down the rows of a block
    def columns_kernel(self) -> None:
        """The chains of column sums of one block of rows, a chunk of columns a thread."""
        nodes = under_sums(self.plan)
        inputs = {t.name: t for t in self.graph.inputs}
        read = [inputs[str(n.data[0])] for n in nodes if n.op == "input"]
        self.after_early()
        self.line(f"constexpr int AHEAD = 4, FITS = {'EXACT' if self.schedule.exact else 'RAGGED'};")
        self.line("const int64_t across = (cols - 1) / (block_size() * CHUNK) + 1;")
        self.line("const int64_t block = block_index() / across;")
        self.line("const int c0 = (int(block_index() % across) * block_size() + thread_index()) * CHUNK;")
        for t in read:
            if t.space == "c":
                self.line(f"Chunk<{POINTER[str(t.format)]}> col_{t.name};")
                self.line(f"load_chunk<WIDTH, FITS{again(t)}>(col_{t.name}, in_{t.name} + c0, cols - c0);")
        for n in self.sums:
            self.line(f"S acc_{self.name[n]}[CHUNK];")
            self.line(f"UNROLL for (int e = 0; e < CHUNK; ++e) acc_{self.name[n]}[e] = NEUTRAL_SUM;")
        self.open("ROLLED for (int i = 0; i < BLOCK; i += AHEAD)")
        for t in read:
            if t.space == "rc":
                self.line(f"Chunk<{POINTER[str(t.format)]}> row_{t.name}[AHEAD];")
        self.open("UNROLL for (int d = 0; d < AHEAD; ++d)")
        self.line("const int64_t r = least(block * BLOCK + i + d, rows - 1);")
        for t in read:
            if t.space == "rc":
                source = f"in_{t.name} + r * in_{t.name}_stride + c0"
                self.line(f"load_chunk<WIDTH, FITS>(row_{t.name}[d], {source}, cols - c0);")
        self.line("(void)r;")
        self.close()
        self.open("UNROLL for (int d = 0; d < AHEAD; ++d)")
        self.line("const int64_t r = block * BLOCK + i + d;")
        self.line("if (r >= rows) break;  // the same in all threads")
        for n in nodes:
            if n.space == "r":
                self.row_value(n)
        self.open("UNROLL for (int e = 0; e < CHUNK; ++e)")
        self.line("const int c = c0 + e;")
        self.line("(void)c;")
        for n in nodes:
            if n.op == "input" and n.space != "r":
                place = f"row_{n.data[0]}[d]" if n.space == "rc" else f"col_{n.data[0]}"
                self.declare(n, f"element({place}, e)", vector=False)
            elif n.space in ("rc", "c"):
                self.one_column(n)
        for n in self.sums:
            self.line(f"acc_{self.name[n]}[e] = add(acc_{self.name[n]}[e], {self.name[n.args[0]]});")
        self.close()
        self.close()
        self.close()
        for n in self.sums:
            self.line(f"store_partial(sum_{self.name[n]} + block * cols + c0, acc_{self.name[n]}, cols - c0);")

    # ------------------------------------------------------------------ after the last row
    def finish(self) -> None:
        """The tree over blocks of rows, and what is made of complete column sums."""
        self.cells("MOST_THREADS")
        self.after_early()
        for n in (n for n in self.plan.finish if n.space == "s"):
            if n.op == "col_sum":
                at = f"[&](int64_t r) {{ return load1(sum_{self.name[n]} + r); }}"
                self.declare(n, f"down_rows<BLOCK>(rows, {at}, cells)", vector=False)
            else:
                self.declare(n, self.expression(n, False, self.name), vector=False)
        scalars = [o for o in self.graph.outputs if o.space == "s"]
        if scalars:
            self.open("if (block_index() == 0 && thread_index() == 0)")
            for o in scalars:
                self.line(f"store1(out_{o.name}, {self.name[o.node]});")
            self.close()
        if not column_results(self.plan):
            return
        self.line("if (cols == 0) return;")
        self.line("const int column = int(block_index()) * COLUMNS + thread_index() % COLUMNS;")
        self.line("const int c = least(column, cols - 1);")
        columns = [o for o in self.graph.outputs if o.space == "c"]
        done: list[Node] = []
        for o in columns:
            for n in self.cone(o.node):
                if n in done:
                    continue
                done.append(n)
                if n.op == "col_sum":
                    at = f"[&](int64_t i) {{ return load1(sum_{self.name[n]} + i * cols + c); }}"
                    self.declare(n, f"over_blocks(blocks, {at}, memory)", vector=False)
                elif n.op == "input":
                    self.declare(n, f"load1(in_{n.data[0]} + c)", vector=False)
                else:
                    self.one_column(n)
        self.open("if (thread_index() < COLUMNS && column < cols)")
        for o in columns:
            self.line(f"store1(out_{o.name} + c, {self.name[o.node]});")
        self.close()
