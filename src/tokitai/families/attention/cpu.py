"""C++ for the CPU: the text of attention, from its plan. The header that it works with is `emit/cpu/attention.h`.

The ABI is that of `matmul.cpu`: rows, columns, inner size, products in the batch, then for every matrix its row
stride and the stride from one of the batch to the next. Values with one element a row lie one of the batch after
another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...emit.cpp import IN_THREADS
from ...emit.text import POINTER, Printer
from ...lang import MATRICES, Node
from ..matmul.cpu import defines_of_units, plan_defines
from .plan import PANEL, AttentionPlan, KeyPass, made_of

VALUES = ("rc", "c", "r", "rk", "ck")  # spaces whose values are vectors here


class AttentionEmitter(Printer):
    """Prints one kernel."""

    includes = ("attention.h",)
    vectors = VALUES

    def __init__(self, plan: AttentionPlan) -> None:
        super().__init__(plan.graph)
        self.plan = plan
        self.defines = plan_defines(f64=False, panel=PANEL)
        self.steps = "_steps" if plan.format else ""  # products by steps of a matrix unit
        if plan.format:
            self.defines = defines_of_units(plan.format, plan.format) + self.defines
            self.includes = ("attention_steps.h",)
        # Values with one element a row that are kept beside a panel: conditions are made of them again.
        self.rows = [n for n in plan.graph.nodes if n.space == "r" and n.type != "bool"]

    def body(self) -> None:
        """What stands between the braces of the kernel."""
        self.arguments()
        self.memory()
        self.open(IN_THREADS)
        self.line("const FloatMode mode;")
        for s in self.plan.uniform:
            self.declare(s, self.expression(s, False, self.name), vector=False)
        self.line("E* const mine = static_cast<E*>(workspace) + thread_number() * memory.size;")
        self.line("memory.guards.set(mine);")
        self.line("int64_t packed = -1;")
        # A head's keys are packed by every thread that works on it; of few heads the panels are dealt out in turn, as
        # those that see more keys are more work. Computed here: clang 19 crashes on a schedule by a captured variable.
        self.line("const int64_t chunk = batch >= threads ? ceil_div(batch * cuts, threads) : 1;")
        self.line("#pragma omp for schedule(static, chunk)")
        self.open("for (int64_t unit = 0; unit < batch * cuts; ++unit)")
        self.line("const int64_t item = unit / cuts, first = cuts == 1 ? 0 : unit % cuts * PANEL;")
        self.line("const int64_t stop = cuts == 1 ? rows : min(rows, first + PANEL);")
        for name, space, kind, const in self.tensors:
            step = f"{name}_batch" if space in MATRICES else "rows"
            self.line(f"{const}{kind}* const {name} = all_{name} + item * {step};")
        self.pack()
        self.line("int64_t reached = 0;")
        for n in self.plan.over_queries if self.steps else ():
            name = self.name[n]
            self.line(f"HeldBack held_{name} = {{mine + held_weights_{name}, mine + held_lines_{name}, {{}}}};")
        self.open("for (int64_t r0 = first; r0 < stop; r0 += PANEL)")
        self.panel()
        self.close()
        self.line("(void)reached;")
        self.key_results()
        self.close()
        self.line("memory.guards.check(mine);")
        self.close("});")

    # ------------------------------------------------------------------ sizes and memory
    def arguments(self) -> None:
        self.pointers_of_batches(all_have=True)
        self.line("const Stored* const scalars = static_cast<const Stored*>(scalar_table);")
        self.line("(void)scalars, (void)integers;")
        # Sums over queries run through all of them in order; else every panel is work of its own.
        self.line(f"const int64_t cuts = {'1' if self.plan.over_queries else 'ceil_div(rows, PANEL)'};")

    def memory(self) -> None:
        """Where the pieces of a thread's memory begin."""
        keys, queries, columns, lines = self.plan.sides
        tall, wide = "round_up(k_size, MR)", "round_up(k_size, NR)"
        pieces = [(f"keys_{self.name[n]}", "round_up(cols, MR) * k_size") for n in keys]
        pieces += [(f"queries_{self.name[n]}", "NR * k_size") for n in queries]
        pieces += [(f"columns_{self.name[n]}", f"{tall} * cols") for n in columns]
        pieces += [(f"lines_{self.name[n]}", f"NR * {wide}") for n in lines]
        pieces += [(f"panel_{i}", "round_up(cols, MR) * NR + WIDTH") for i in range(self.plan.panels)]
        pieces += [("tile", "TILE_SIZE * (1 + levels_of(k_size))"), ("output", "NR * round_up(k_size, 16)")]
        pieces += [(f"sum_{self.name[n]}", f"{tall} * NR * (1 + levels_of(cols))") for n in self.plan.over_keys]
        pieces += [
            (f"sum_{self.name[n]}", f"round_up(cols, MR) * {wide} * (1 + levels_of(rows))")
            for n in self.plan.over_queries
        ]
        for n in self.plan.over_queries if self.steps else ():
            pieces += [(f"held_weights_{self.name[n]}", "round_up(cols, MR) * HELD")]
            pieces += [(f"held_lines_{self.name[n]}", f"HELD * {wide}")]
        self.line("Memory memory;")
        for name, size in pieces:
            self.line(f"const int64_t {name} = memory.take({size});")

    def side(self, n: Node, row: str = "") -> str:
        name = f"in_{n.data[0]}"
        start = f"{name} + {row} * {name}_stride" if row else name
        return f"Operand<{POINTER[str(n.data[1])]}>{{{start}, {name}_stride}}"

    def pack(self) -> None:
        """Operands that all queries of an item share."""
        keys, _, columns, _ = self.plan.sides
        self.open("if (packed != item)")
        for n in keys:
            self.line(f"pack_lines<MR>(mine + keys_{self.name[n]}, {self.side(n)}, cols, k_size);")
        for n in columns:
            self.line(f"pack_k<MR>(mine + columns_{self.name[n]}, {self.side(n)}, cols, k_size);")
        self.line("packed = item;")
        self.close()

    # ------------------------------------------------------------------ a panel of queries
    def panel(self) -> None:
        plan = self.plan
        _, queries, _, lines = plan.sides
        self.line("const int64_t count = min(PANEL, rows - r0);")
        for n in self.rows:
            kind = "int32_t" if n.type == "i32" else "Stored"
            self.line(f"PerQuery<{kind}> row_{self.name[n]};")
            if n.op == "input":
                self.line(f"row_{self.name[n]}.read(in_{n.data[0]} + r0, count);")
        limit = f"key_limits(row_{self.name[plan.limit]}, count)" if plan.limit else "KeyLimits{cols, cols, nullptr}"
        self.line(f"const KeyLimits limits = {limit};")
        self.line("reached = max(reached, limits.max);")
        for n in queries:
            self.line(f"pack_lines<NR>(mine + queries_{self.name[n]}, {self.side(n, 'r0')}, count, k_size);")
        for n in lines:
            self.line(f"pack_k<NR>(mine + lines_{self.name[n]}, {self.side(n, 'r0')}, count, k_size);")
        for n in plan.products:
            left, right = f"mine + keys_{self.name[n.args[1]]}", f"mine + queries_{self.name[n.args[0]]}"
            place = f"mine + panel_{plan.slot[n]}"
            self.line(f"score{self.steps}({place}, limits.max, cols, k_size, {left}, {right}, mine + tile);")
        self.row_values(plan.before)
        there: set[Node] = set(plan.products)
        for p in plan.passes:
            self.one_pass(p, there)
            there |= set(p.keep)
            self.row_values(p.after)
        for o in self.graph.outputs:
            if o.space == "r":
                place = f"row_{self.name[o.node]}.value + i"
                self.line(f"for (int64_t i = 0; i < count; ++i) store1(out_{o.name} + r0 + i, load1({place}));")
        for n in plan.over_keys:
            size = "round_up(k_size, MR) * NR"
            weights, left = f"mine + panel_{plan.slot[n.args[0]]}", f"mine + columns_{self.name[n.args[1]]}"
            head = f"sum{self.steps}_over_keys(mine + sum_{self.name[n]}, {size}, cols, k_size, limits"
            self.line(f"{head}, {left}, {weights});")
        self.query_results()
        for n in plan.over_queries:
            size = "round_up(cols, MR) * round_up(k_size, NR)"
            weights, right = f"mine + panel_{plan.slot[n.args[0]]}", f"mine + lines_{self.name[n.args[1]]}"
            head = (
                f"sum{self.steps}_over_queries(mine + sum_{self.name[n]}, {size}, r0, count, rows, cols, k_size, limits"
            )
            held = f", held_{self.name[n]}" if self.steps else ""
            self.line(f"{head}, {weights}, {right}{held});")

    def stored(self, n: Node) -> str:
        """The panel that a value lies in."""
        return f"stored(mine + panel_{self.plan.slot[n]})"

    def one_pass(self, p: KeyPass, there: set[Node]) -> None:
        """One sweep over the keys that are seen; of the others maxima and sums take what stands for them."""
        reductions = [*p.maxima, *p.sums]
        for n in reductions:
            self.line(f"{'RowMax' if n.op == 'row_max' else 'RowSum'} over_{self.name[n]};")
        self.open("each_key(cols, limits, [&](int64_t c, int64_t index, int64_t lines) INLINE_LAMBDA")
        self.line("(void)index, (void)lines;")
        self.beside(p.compute, there)
        for n in p.compute:
            if n in there:
                self.declare(n, f"load({self.stored(n)} + c * NR, Four{{}})", vector=True)
            elif n.op == "column_index":
                self.declare(n, "key_index(c, Four{})", vector=True)
            else:
                self.declare(n, self.expression(n, True, self.name), vector=True)
        for n in p.keep:
            self.line(f"store({self.stored(n)} + c * NR, {self.name[n]}, Four{{}});")
        for n in reductions:
            self.line(f"over_{self.name[n]}.take({self.vector(n.args[0])}, index, lines);")
        self.close("}, [&](int64_t index, int64_t lines) INLINE_LAMBDA {")
        self.depth += 1
        self.line("(void)index, (void)lines;")
        for n in reductions:
            if n in self.plan.hidden:
                self.line(f"over_{self.name[n]}.take(splat({self.name[self.plan.hidden[n]]}), index, lines);")
        self.close("}, [&](int64_t n, int64_t count) INLINE_LAMBDA {")
        self.depth += 1
        self.line("(void)n, (void)count;")
        for n in reductions:
            self.line(f"over_{self.name[n]}.close(n, count);")
        self.close("});")
        for n in reductions:
            self.line(f"over_{self.name[n]}.result(cols, row_{self.name[n]});")

    def beside(self, nodes: Iterable[Node], there: set[Node]) -> None:
        """Values with one element a row that these need, beside the keys that are worked on together."""
        for n in self.needed([m for m in nodes if m not in there], "r"):
            if n in self.rows:
                self.declare(n, f"beside(row_{self.name[n]})", vector=True)
            else:
                self.declare(n, self.expression(n, True, self.name), vector=True)

    def needed(self, nodes: Sequence[Node], space: str) -> list[Node]:
        """The operands of these with one element a row, and of those conditions that are made again."""
        found: set[Node] = set()
        stack = [a for n in nodes for a in n.args if a.space == space]
        while stack:
            n = stack.pop()
            if n not in found:
                found.add(n)
                stack += [] if n in self.rows else [a for a in n.args if a.space == space]
        return [n for n in self.graph.nodes if n in found]

    def row_values(self, nodes: Sequence[Node]) -> None:
        """Values with one element a row, a vector of queries at a time."""
        if not any(n in self.rows for n in nodes):
            return
        self.open("for (int64_t j = 0; j < NR; j += LANES)")
        made = set(nodes)
        for n in self.needed(nodes, "r"):
            if n not in made and n in self.rows:
                self.declare(n, f"query_vector(row_{self.name[n]}, j)", vector=True)
        for n in nodes:
            self.declare(n, self.expression(n, True, self.name), vector=True)
            if n in self.rows:
                self.line(f"replicate(row_{self.name[n]}, j, {self.name[n]});")
        self.close()

    # ------------------------------------------------------------------ results
    def query_results(self) -> None:
        """Results of rows x inner, made of sums over keys."""
        for o in self.graph.outputs:
            if o.space != "rk":
                continue
            work = made_of(o.node)
            sums = [n for n in work if n.op == "weighted_sum"]
            head = f"each_query_sum<{len(sums)}>({{{', '.join(f'mine + sum_{self.name[n]}' for n in sums)}}}, count"
            self.open(
                f"{head}, k_size, out_{o.name} + r0 * out_{o.name}_stride, out_{o.name}_stride, mine + output, "
                f"[&](int64_t j, const V (&sum)[{len(sums)}]) INLINE_LAMBDA"
            )
            self.line("(void)j;")
            for n in self.needed([m for m in work if m not in sums], "r"):
                if n in self.rows:
                    self.declare(n, f"query_vector(row_{self.name[n]}, j)", vector=True)
                else:
                    self.declare(n, self.expression(n, True, self.name), vector=True)
            self.elements(work, sums)
            self.line(f"return {self.name[o.node]};")
            self.close("});")

    def key_results(self) -> None:
        """Results of cols x inner, made of sums over queries."""
        for o in self.graph.outputs:
            if o.space != "ck":
                continue
            work = made_of(o.node)
            sums = [n for n in work if n.op == "weighted_sum"]
            head = f"each_key_sum<{len(sums)}>({{{', '.join(f'mine + sum_{self.name[n]}' for n in sums)}}}, cols"
            values = f"auto lanes, const V (&sum)[{len(sums)}]"
            self.open(f"{head}, k_size, reached, [&](int64_t c, int64_t d, {values}) INLINE_LAMBDA")
            self.elements(work, sums)
            self.line(f"store(out_{o.name} + c * out_{o.name}_stride + d, {self.name[o.node]}, lanes);")
            self.close("});")

    def elements(self, work: Sequence[Node], sums: Sequence[Node]) -> None:
        for n in work:
            self.declare(n, f"sum[{sums.index(n)}]" if n in sums else self.expression(n, True, self.name), vector=True)

    def vector(self, n: Node) -> str:
        return self.name[n] if n.space in VALUES else f"splat({self.name[n]})"
