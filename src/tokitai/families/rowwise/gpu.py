"""CUDA C++, also for the CPU's fibers, of a row-wise kernel, from its plan and a schedule.

A source has up to four kernels, launched one after another: ``early`` (sums that rows need before they begin), ``work``
(the rows), ``columns`` (sums down blocks of rows, where rows are too long for ``work`` to hold those as well),
``finish`` (column sums over all blocks, and what is made of them). All take one ``Call`` by value: ``tensors`` are the
inputs, then the results; ``sizes`` are rows, columns, the row stride in elements of every rows x cols tensor in the
same order, then whole host scalars; ``scalars`` the rounded host scalars.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...emit.gpu_printer import FramedPrinter
from ...emit.text import POINTER, SCALAR
from ...lang import Node, TensorSpec
from ...lower.gpu import MOST_THREADS
from .gpu_select import OneColumn, inputs_at, one_column
from .plan import NARROW, Pass, RowPlan
from .schedule import (
    COLUMN_THREADS,
    Schedule,
    blocked,
    column_results,
    finishes,
    held,
    stages,
    under_sums,
    widened_again,
)


def again(t: TensorSpec) -> str:
    """A flag of loads of what other rows need as well. Loads of 32 bits had better not move: the two stores of a chunk,
    each of half a sector, would come apart."""
    return ", REUSED" if t.space == "c" and t.format in NARROW else ""


class GpuRowEmitter(FramedPrinter):
    """Prints the kernels of one row-wise operator."""

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

    def kernels(self) -> None:
        """Constants of the schedule, the call, the kernels."""
        s = self.schedule
        self.line(f"// {s}")
        self.line(f"constexpr int THREADS = {s.threads}, CHUNKS = {s.chunks}, ROWS = {s.rows}, WIDTH = {s.width};")
        self.line(f"constexpr int BLOCK = {self.plan.block}, SPAN = THREADS * CHUNKS * CHUNK;")
        fit = "FULL" if s.full else "EXACT" if s.exact else "RAGGED"
        self.line(f"constexpr int GROUP = Share<THREADS>::GROUP, STEP = GROUP * CHUNK, FIT = {fit};")
        self.line()
        sizes = 2 + sum(space in ("rc", "t") for _, space, _, _ in self.tensors) + len(self.whole_slot)
        self.call(f"void* tensors[{len(self.tensors)}]", f"int64_t sizes[{sizes}]")
        if self.plan.early:
            self.kernel("early", MOST_THREADS, self.early)
        self.kernel("work", s.block_threads, self.work, s.per_sm)
        if s.apart:
            self.kernel("columns", COLUMN_THREADS, self.columns_kernel)
        if finishes(self.plan):
            self.kernel("finish", MOST_THREADS, self.finish)

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

    # ------------------------------------------------------------------ the rows
    def work(self) -> None:
        s = self.schedule
        self.after_early()
        if self.most:
            self.cells(f"THREADS > WARP ? {2 * self.most} * WARP : 2")
        begin, unit = "", "block_index()"
        if s.sliced:
            self.line("const int64_t units = (rows + ROWS - 1) / ROWS, slice = block_index() / units;")
            begin, unit = "int(slice) * SPAN + ", "(block_index() - slice * units)"
        place = f"{begin}(t / GROUP * CHUNKS * GROUP + t % GROUP) * CHUNK"
        self.line(f"const int t = thread_index() % THREADS, first = {place};")
        if s.hoisted:
            for t in self.columns:
                kind = POINTER[str(t.format)]
                self.line(f"Chunk<{kind}> col_{t.name}[CHUNKS];")
                self.in_each_chunk(
                    f"load_chunk<WIDTH, FIT{again(t)}>(col_{t.name}[v], in_{t.name} + first + v * STEP, cols - c0);"
                )
        if self.joined and s.staged:
            self.staged_blocks()
        elif self.joined:
            self.blocks_of_rows()
        elif s.staged:
            self.staged_rows()
        else:
            if s.kept and s.ahead:
                self.fetch("next", "min(block_index() * ROWS + thread_index() / THREADS, rows - 1)")
            self.open(f"for (int64_t row0 = {unit} * ROWS; row0 < rows; row0 += grid_size() * ROWS)")
            if self.all_live:
                self.line("const int64_t r = row0;")
                self.line("constexpr bool live = true;")
            else:
                self.line("const int64_t r = min(row0 + thread_index() / THREADS, rows - 1);")
                self.line("const bool live = row0 + thread_index() / THREADS < rows;")
            if s.kept:
                if s.ahead:
                    for t in self.matrices:
                        self.line(f"Chunk<{POINTER[str(t.format)]}> row_{t.name}[CHUNKS];")
                        self.line(f"UNROLL for (int v = 0; v < CHUNKS; ++v) row_{t.name}[v] = next_{t.name}[v];")
                    self.fetch("next", "min(r + grid_size() * ROWS, rows - 1)", declared=False)
                else:
                    self.fetch("row", "r")
            self.row()
            self.close()

    def in_each_chunk(self, statement: str) -> None:
        """A loop over the chunks of a thread: v is the chunk, c0 its first column."""
        self.open("UNROLL for (int v = 0; v < CHUNKS; ++v)")
        self.line("const int c0 = first + v * STEP;")
        self.line(statement)
        self.close()

    def fetch(self, place: str, row: str, declared: bool = True) -> None:
        """The chunks of a row into registers."""
        for t in self.matrices:
            kind = POINTER[str(t.format)]
            if declared:
                self.line(f"Chunk<{kind}> {place}_{t.name}[CHUNKS];")
            source = f"in_{t.name} + {row} * in_{t.name}_stride + first + v * STEP"
            self.in_each_chunk(f"load_chunk<WIDTH, FIT>({place}_{t.name}[v], {source}, cols - c0);")

    def blocks_of_rows(self) -> None:
        """Rows one after another inside blocks: chains of column sums, with the next rows on their way."""
        ahead = self.schedule.ahead
        self.open("for (int64_t block0 = block_index() * ROWS; block0 < blocks; block0 += grid_size() * ROWS)")
        self.line("const int64_t block = min(block0 + thread_index() / THREADS, blocks - 1);")
        self.line("const bool mine = block0 + thread_index() / THREADS < blocks;")
        if self.schedule.kept:
            self.declare_sums()
            for t in self.matrices:
                self.line(f"Chunk<{POINTER[str(t.format)]}> ahead_{t.name}[{ahead}][CHUNKS];")
            for t in self.rows_fetched:
                self.line(f"{POINTER[str(t.format)]} ahead_{t.name}[{ahead}];")
            self.open(f"UNROLL for (int d = 0; d < {ahead}; ++d)")
            self.fetch_ahead("min(block * BLOCK + d, rows - 1)")
            self.close()
        self.open(f"ROLLED for (int64_t i = 0; i < BLOCK; i += {ahead})")
        self.open(f"UNROLL for (int d = 0; d < {ahead}; ++d)")
        self.line("if (block0 * BLOCK + i + d >= rows) break;  // the same in all threads")
        self.line("const int64_t row = block * BLOCK + i + d, r = min(row, rows - 1);")
        self.line("constexpr bool live = true;" if self.all_live else "const bool live = mine && row < rows;")
        if self.schedule.kept:
            for t in self.matrices:
                self.line(f"Chunk<{POINTER[str(t.format)]}> row_{t.name}[CHUNKS];")
                self.line(f"UNROLL for (int v = 0; v < CHUNKS; ++v) row_{t.name}[v] = ahead_{t.name}[d][v];")
            for t in self.rows_fetched:
                self.line(f"const {POINTER[str(t.format)]} row_{t.name} = ahead_{t.name}[d];")
            self.open(f"if (i + d + {ahead} < BLOCK)")
            self.fetch_ahead(f"min(row + {ahead}, rows - 1)")
            self.close()
        self.row()
        self.close()
        self.close()
        if self.schedule.kept:
            self.store_sums()
        self.close()

    def fetch_ahead(self, row: str) -> None:
        for t in self.matrices:
            source = f"in_{t.name} + {row} * in_{t.name}_stride + first + v * STEP"
            self.in_each_chunk(f"load_chunk<WIDTH, FIT>(ahead_{t.name}[d][v], {source}, cols - c0);")
        for t in self.rows_fetched:
            self.line(f"ahead_{t.name}[d] = in_{t.name}[{row}];")

    def row(self) -> None:
        """All that is computed from one row on its own."""
        for t in self.matrices:
            kind = POINTER[str(t.format)]
            self.line(f"const {kind}* const in_{t.name}_row = in_{t.name} + r * in_{t.name}_stride;")
            self.line(f"(void)in_{t.name}_row;")
        for o in self.graph.outputs:
            if o.space == "rc":
                self.line(f"{POINTER[o.format]}* const out_{o.name}_row = out_{o.name} + r * out_{o.name}_stride;")
        if self.schedule.kept:
            for n in self.plan.kept:
                self.line(f"S kept_{self.name[n]}[CHUNKS * CHUNK];")
        for n in self.plan.before:
            self.row_value(n)
        loaded: set[Node] = set()
        for p in self.plan.passes:
            self.one_pass(p, loaded)
            loaded |= set(p.keep)
            for n in p.after:
                self.row_value(n)
        lines = [line for o in self.graph.outputs if o.space == "r" for line in self.row_stores(o)]
        lines += [f"store1(sum_{self.name[n]} + r, {self.name[n.args[0]]});" for n in self.row_sums]
        if lines:
            self.open("if (t == 0 && live)")
            for line in lines:
                self.line(line)
            self.close()

    # ------------------------------------------------------------------ one sweep over a row
    def one_pass(self, p: Pass, loaded: set[Node]) -> None:
        kept, number = self.schedule.kept, self.plan.passes.index(p) + 1
        reduced = [("Add", "sum", p.sums), ("Maximum", "max", p.maxima), ("FirstIndex", "first", p.firsts)]
        for op, word, nodes in reduced:
            if nodes:
                self.line(f"S {word}_{number}[{len(nodes)}];")
                if not kept:
                    self.line(f"BinaryCounter<{op}> {word}_counter_{number}[{len(nodes)}];")
        choice = one_column(p, any(o.inplace for o in self.graph.outputs))
        if choice is not None:
            self.before_choice(p, choice)
        if not kept:
            self.open("for (int base = 0; base < cols; base += SPAN)")
        elif number > 1 and widened_again(self.plan, self.schedule):
            for t in self.matrices:
                self.line(f"rematerialize(row_{t.name}, uint32_t(rows >> 62));")
        for _, word, nodes in reduced:
            if nodes:
                self.line(f"S {word}_part_{number}[{len(nodes)}][CHUNKS];")
        if self.schedule.sliced:
            self.choose(n for n in p.compute if n.op == "gather")
        self.open("UNROLL for (int v = 0; v < CHUNKS; ++v)")
        self.line(f"const int c0 = {self.at_chunk};")
        if choice is None:
            self.chunk(p, loaded, number)
        else:
            own = self.name[choice.choice]
            self.name[choice.choice] = self.name[choice.choice.args[2]]
            self.chunk(replace(p, compute=choice.compute), loaded, number)
            self.name[choice.choice] = own
            self.line("holds |= uint32_t(at - c0) < uint32_t(CHUNK);")
        self.close()
        for op, word, nodes in reduced:
            if nodes:
                k = len(nodes)
                total = f"{word}_{number}"
                self.line(f"along_row<{op}, THREADS, CHUNKS, {k}>({word}_part_{number}, {total}, cells);")
                if not kept:
                    self.line(f"for (int k = 0; k < {k}; ++k) {word}_counter_{number}[k].push({total}[k]);")
        if not kept:
            self.close()
            for op, word, nodes in reduced:
                if nodes:
                    each = f"for (int k = 0; k < {len(nodes)}; ++k)"
                    self.line(f"{each} {word}_{number}[k] = {word}_counter_{number}[k].result({op}::neutral());")
        if choice is not None:
            self.at_choice(p)
        for i, n in enumerate(p.sums):
            total = f"sum_{number}[{i}]" if self.schedule.full else f"cols ? sum_{number}[{i}] : S{{}}"
            self.line(f"const S {self.name[n]} = {total};")
        for i, n in enumerate(p.maxima):
            self.line(f"const S {self.name[n]} = done_max(max_{number}[{i}]);")
        for i, n in enumerate(p.firsts):
            self.line(f"const S {self.name[n]} = done_first(first_{number}[{i}], cols);")

    def before_choice(self, p: Pass, choice: OneColumn) -> None:
        """What the one column's results are made of, before anything is stored."""
        index = self.name[choice.index]
        self.line(f"const bool within = {index} >= 0 && {index} < cols;")
        self.line(f"const int at = within ? {index} : 0;")
        self.line("bool holds = false;")
        for n in dict.fromkeys(n for o in p.stores for n in inputs_at(o.node)):
            kind, name = self.kind_of(n), n.data[0]
            self.line(f"const {kind} at_{name} = cols ? in_{name}_row[at] : padding<{kind}>();")

    def at_choice(self, p: Pass) -> None:
        """The results at the one column, by the thread that has stored its neighbours."""
        self.open("if (holds && within && live)")
        done: list[Node] = []
        for o in p.stores:
            for n in self.cone(o.node):
                if n in done:
                    continue
                done.append(n)
                if n.op == "input":
                    place = f"&at_{n.data[0]}" if n.space == "rc" else f"in_{n.data[0]} + at"
                    self.declare(n, f"load1({place})", vector=False)
                elif n.op == "gather":
                    self.declare(n, f"load1({self.chosen_entry(n)} + at)", vector=False)
                else:
                    self.one_column(n, "int32_t(at)")
            self.line(f"store1(out_{o.name}_row + at, {self.name[o.node]});")
        self.close()

    def chunk(self, p: Pass, loaded: set[Node], number: int) -> None:
        """The elements of one chunk."""
        s = self.schedule
        self.load_for(
            n for n in p.compute
            if n.op == "input" and (not self.held if n.space == "rc" else not s.hoisted) and n not in loaded
        )  # fmt: skip
        for n in p.compute:
            if n.op == "gather" and n not in loaded and not s.sliced:
                self.line(f"Chunk<{self.kind_of(n.args[0])}> gathered_{self.name[n]};")
                source = f"{self.chosen_entry(n)} + {self.at_chunk}"
                self.line(f"load_chunk<WIDTH, FIT>(gathered_{self.name[n]}, {source}, cols - c0);")
        for word, nodes in (("sum", p.sums), ("max", p.maxima), ("first", p.firsts)):
            for i, _ in enumerate(nodes):
                self.line(f"S {word}_at_{i}[CHUNK];")
        for o in p.stores:
            self.line(f"Chunk<{POINTER[o.format]}> new_{o.name};")
            self.line(f"{SCALAR[o.node.type]} values_{o.name}[CHUNK];")
        self.open("UNROLL for (int e = 0; e < CHUNK; ++e)")
        self.line("const int c = c0 + e;")
        self.line("(void)c;")
        for n in p.compute:
            if n in loaded:
                self.declare(n, f"kept_{self.name[n]}[v * CHUNK + e]", vector=False)
            elif n.op == "input":
                held = self.held if n.space == "rc" else s.hoisted
                place = f"{'row' if n.space == 'rc' else 'col'}_{n.data[0]}{'[v]' * held}"
                self.declare(n, f"element({place}, e)" if n.type == "f32" else f"{place}.e[e]", vector=False)
            elif n.op == "gather":
                self.declare(n, f"element(gathered_{self.name[n]}{'[v]' * s.sliced}, e)", vector=False)
            else:
                self.one_column(n)
            if n in p.keep:
                self.line(f"kept_{self.name[n]}[v * CHUNK + e] = {self.name[n]};")
        for word, neutral, nodes in (("sum", "NEUTRAL_SUM", p.sums), ("max", "NEUTRAL_MAX", p.maxima)):
            for i, n in enumerate(nodes):
                value = self.name[n.args[0]] if word == "sum" else f"leaf_max({self.name[n.args[0]]})"
                padded = value if self.schedule.exact else f"c < cols ? {value} : {neutral}"
                self.line(f"{word}_at_{i}[e] = {padded};")
        for i, n in enumerate(p.firsts):
            leaf = f"leaf_first({self.name[n.args[0]]}, to_value(int32_t(c), S{{}}))"
            self.line(f"first_at_{i}[e] = c < cols ? {leaf} : NEUTRAL_FIRST;")
        for o in p.stores:
            self.line(f"values_{o.name}[e] = {self.name[o.node]};")
        for n in p.col_sums if self.joined else ():
            self.column_sum(n)
        self.close()
        for word, op, nodes in (
            ("sum", "Add", p.sums),
            ("max", "Maximum", p.maxima),
            ("first", "FirstIndex", p.firsts),
        ):
            for i, _ in enumerate(nodes):
                tree = f"fold<{op}, CHUNK>({word}_at_{i})"
                padded = tree if self.schedule.full else f"c0 < cols ? {tree} : {op}::neutral()"
                self.line(f"{word}_part_{number}[{i}][v] = {padded};")
        for o in p.stores:
            self.encode(o)
            place = f"out_{o.name}_row + {self.at_chunk}"
            self.line(f"if (live) store_chunk<WIDTH, FIT>({place}, new_{o.name}, cols - c0);")

    def choose(self, gathers: Iterable[Node]) -> None:
        """A thread's chunks of the entries that a row chooses, all on their way at once: others may choose them too."""
        for n in gathers:
            self.line(f"Chunk<{self.kind_of(n.args[0])}> gathered_{self.name[n]}[CHUNKS];")
            source = f"{self.chosen_entry(n)} + c0"
            self.in_each_chunk(f"load_chunk<WIDTH, FIT, REUSED>(gathered_{self.name[n]}[v], {source}, cols - c0);")

    def column_sum(self, n: Node) -> None:
        value = self.name[n.args[0]]
        if self.schedule.kept:
            acc = f"acc_{self.name[n]}[v * CHUNK + e]"
            self.line(f"if (live) {acc} = add({acc}, {value});")
        else:
            place = f"sum_{self.name[n]} + block * cols + c"
            self.open("if (live && c < cols)")
            self.line(f"store1({place}, add(i + d == 0 ? NEUTRAL_SUM : load1({place}), {value}));")
            self.close()

    @property
    def at_chunk(self) -> str:
        """The first column of a chunk, in parts, so that those of a thread lie a constant apart."""
        return f"{'' if self.schedule.kept else 'base + '}first + v * STEP"

    def kind_of(self, n: Node) -> str:
        """The type of an input's elements."""
        return POINTER[str(n.data[1])]

    def load_for(self, inputs: Iterable[Node]) -> None:
        """Chunks that a pass over a long row reads."""
        by_name: dict[str, TensorSpec] = {t.name: t for t in self.graph.inputs}
        for n in inputs:
            t = by_name[str(n.data[0])]
            kind = POINTER[str(t.format)]
            place = "row" if t.space == "rc" else "col"
            if t.space == "rc" and self.schedule.staged:
                self.line(f"const Chunk<{kind}> row_{t.name} = stage_{t.name}.get(turn, v);")
                continue
            source = f"in_{t.name}_row" if t.space == "rc" else f"in_{t.name}"
            self.line(f"Chunk<{kind}> {place}_{t.name};")
            self.line(f"load_chunk<WIDTH, FIT{again(t)}>({place}_{t.name}, {source} + {self.at_chunk}, cols - c0);")

    # ------------------------------------------------------------------ staged rows
    # Rows come into shared memory while others are worked on: copies go on by themselves, past registers. Every thread
    # copies what it will read itself, so no barrier is needed.
    def staged_rows(self) -> None:
        """Rows one after another."""
        self.stages()
        self.stage("0", "block_index()", "rows")
        self.open("for (int64_t r = block_index(); r < rows; r += grid_size(), turn = after(turn))")
        self.line("constexpr bool live = true;")
        if self.held:
            self.line("wait_for_copies<0>();")
            for t in self.matrices:
                self.line(f"Chunk<{POINTER[str(t.format)]}> row_{t.name}[CHUNKS];")
                self.line(f"UNROLL for (int v = 0; v < CHUNKS; ++v) row_{t.name}[v] = stage_{t.name}.get(0, v);")
            self.stage("0", "r + grid_size()", "rows")
        else:
            self.wait_and_stage("r + grid_size()", "rows")
        self.row()
        self.close()

    def staged_blocks(self) -> None:
        """Rows one after another inside blocks: chains of column sums."""
        self.stages()
        self.open("for (int64_t block0 = block_index() * ROWS; block0 < blocks; block0 += grid_size() * ROWS)")
        self.line("const int64_t block = min(block0 + thread_index() / THREADS, blocks - 1);")
        self.line("const bool mine = block0 + thread_index() / THREADS < blocks;")
        self.line("const int64_t end = min(rows, (block + 1) * BLOCK);")
        self.declare_sums()
        self.line("wait_for_copies<0>();")
        self.line("turn = 0;")
        self.stage("0", "block * BLOCK", "end")
        for t in self.rows_fetched:
            self.line(f"{POINTER[str(t.format)]} next_{t.name} = in_{t.name}[block * BLOCK];")
        self.open("ROLLED for (int64_t i = 0; i < BLOCK; ++i, turn = after(turn))")
        self.line("if (block0 * BLOCK + i >= rows) break;  // the same in all threads")
        self.line("const int64_t row = block * BLOCK + i, r = min(row, rows - 1);")
        self.line("constexpr bool live = true;" if self.all_live else "const bool live = mine && row < rows;")
        for t in self.rows_fetched:
            self.line(f"const {POINTER[str(t.format)]} row_{t.name} = next_{t.name};")
            self.line(f"next_{t.name} = in_{t.name}[min(row + 1, rows - 1)];")
        self.wait_and_stage("row + 1", "end")
        self.row()
        self.close()
        self.store_sums()
        self.close()

    def stages(self) -> None:
        """Where rows are staged."""
        self.line("SHARED_AT_LAUNCH(staging);")
        self.line(f"constexpr int STAGES = {stages(self.plan, self.schedule)};")
        taken = "staging"
        for t in self.matrices:
            kind = f"Stage<{POINTER[str(t.format)]}, THREADS * ROWS, CHUNKS, STAGES>"
            self.line(f"{kind} stage_{t.name}({taken});")
            taken += f" + {kind}::BYTES"
        self.line("const auto after = [](int turn) { return STAGES - 1 - turn; };")
        self.line("int turn = 0;")

    def wait_and_stage(self, row: str, end: str) -> None:
        """The row of this turn has come; a later one is on its way to where the row before it lay."""
        self.line("wait_for_copies<0>();")
        self.stage("after(turn)", row, end)

    def stage(self, turn: str, row: str, end: str) -> None:
        """A row on its way, if there is one; copies are counted by rows in any case."""
        self.open("")
        self.line(f"const int64_t wanted = {row};")
        self.line(f"const int to = {turn};")
        self.open(f"if (wanted < {end})")
        for t in self.matrices:
            source = f"in_{t.name} + wanted * in_{t.name}_stride + first + v * STEP"
            self.in_each_chunk(f"stage_{t.name}.template fetch<WIDTH, FIT>(to, v, {source}, cols - c0);")
        self.close()
        self.line("close_copies();")
        self.close()

    def declare_sums(self) -> None:
        """A thread's parts of the column sums, in registers."""
        for n in self.sums:
            self.line(f"S acc_{self.name[n]}[CHUNKS * CHUNK];")
            self.line(f"UNROLL for (int i = 0; i < CHUNKS * CHUNK; ++i) acc_{self.name[n]}[i] = NEUTRAL_SUM;")

    def store_sums(self) -> None:
        """The sums of a block of rows."""
        self.open("if (mine)")
        for n in self.sums:
            self.in_each_chunk(
                f"store_partial(sum_{self.name[n]} + block * cols + first + v * STEP, "
                f"acc_{self.name[n]} + v * CHUNK, cols - c0);"
            )
        self.close()

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
        self.line("const int64_t r = min(block * BLOCK + i + d, rows - 1);")
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
        self.cells("MAX_THREADS")
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
        self.line("const int c = min(column, cols - 1);")
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
