"""CUDA C++, also for the CPU's fibers, of attention, from plan and tiling. The header is `emit/gpu/attention.h`.

Two kernels: ``work`` (a block has a tile of queries and walks along the keys, once for each pass) and ``over_queries``
(a block has a tile of keys and walks along the queries). Both take one ``Call`` by value, as `matmul.cpu` has it. The
workspace holds the values of rows that the first leaves for the second, then sums of chains that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from ...emit.gpu_printer import GpuPrinter
from ...emit.text import POINTER, SCALAR
from ...lang import MATRICES, Node
from .plan import AttentionPlan, made_of
from .tiling import Walk, cone, handed_on, kernels_of, walks_of

EACH = {"i": "UNROLL for (int i = 0; i < THREAD_M; ++i)", "j": "UNROLL for (int j = 0; j < THREAD_N; ++j)"}


class GpuAttentionEmitter(GpuPrinter):
    """Prints the kernels of one operator for one tiling."""

    includes: tuple[str, ...] = ("attention.h",)
    at: ClassVar = {True: "row_at(line_here(), i)", False: "column_here(j)"}  # a tile's row, a step's column
    element = "sum[0][i][j]"  # of a tile of scores
    unused = "(void)halves, (void)weights, (void)values;"

    def __init__(self, plan: AttentionPlan, tiling: Any) -> None:
        super().__init__(plan.graph)
        self.plan, self.tiling = plan, tiling
        self.handed_on = handed_on(plan)
        # Values with one element a row that lie in shared memory: conditions are made of them again.
        self.rows = [n for n in plan.graph.nodes if n.space == "r" and n.type != "bool"]
        self.queries = True  # whether a block has a tile of queries
        self.defines = self.defined(tiling)

    def defined(self, t: Any) -> tuple[str, ...]:
        """What the header reads."""
        sizes = {
            "PRODUCTS": 1, "ROWS": t.rows, "COLS": t.cols, "THREAD_M": t.tall, "THREAD_N": t.wide, "DEPTH": t.depth,
            "LANES": t.lanes, "UNROLL_K": t.unrolled, "WIDTH": t.width, "PIECES": t.pieces,
        }  # fmt: skip
        return (
            f"// {t}", "#define ACCUMULATORS_F64 0", "#define MATRIX_UNITS 0",
            *(f"#define PLAN_{name} {value}" for name, value in sizes.items()),
        )  # fmt: skip

    def kernels(self) -> None:
        """The call, and the kernels."""
        matrices = sum(space in MATRICES for _, space, _, _ in self.tensors)
        self.line()
        self.call(f"void* tensors[{len(self.tensors)}]", f"int64_t sizes[{4 + 2 * matrices + len(self.whole_slot)}]")
        for name in kernels_of(self.plan):
            self.queries = name == "work"
            self.kernel(name, self.plan.over_keys if self.queries else self.plan.over_queries)

    def kernel(self, name: str, sums: Sequence[Node]) -> None:
        """One kernel, whose blocks take tiles of their own side in turn."""
        t = self.tiling
        self.line()
        self.open(f"KERNEL({name}, {t.threads}, {t.per_sm})")
        self.pointers_of_batches("call.", all_have=True)
        self.line("const Stored* const scalars = call.scalars;")
        self.line("(void)integers, (void)scalars;")
        for n in self.plan.uniform:
            self.declare(n, self.expression(n, False, self.name), vector=False)
        self.storage()
        self.line("E* const values = static_cast<E*>(call.workspace);  // of rows")
        side, along = ("rows", "cols") if self.queries else ("cols", "rows")
        self.line(f"const int64_t tiles = ceil_div({side}, ROWS);")
        waiting = self.waiting(len(sums), side, along)
        start = f"values + {len(self.handed_on)} * batch * rows"
        self.line(f"E* const pending = {start} + block_index() * ({waiting});")
        self.line(self.unused)
        self.open("for (int64_t at = block_index(); at < batch * tiles; at += grid_size())")
        # Where queries see what lies before them, the last see most; they begin first. So do the first keys.
        tile = "(tiles - 1 - at % tiles)" if self.queries else "at % tiles"
        first = "r0" if self.queries else "c0"
        self.line(f"const int64_t item = at / tiles, {first} = {tile} * ROWS;")
        self.begin_item(first, side)
        self.along_keys() if self.queries else self.along_queries()
        self.close()
        self.close()

    def storage(self) -> None:
        """Shared memory of a block."""
        self.line("SHARED(Quad, memory, MEMORY / QUAD);")
        self.line("E *const k_tiles = memory->e, *const weights = k_tiles, *const halves = k_tiles + WEIGHTS;")
        self.storage_of_rows("ROWS" if self.queries else "COLS")

    def storage_of_rows(self, count: str) -> None:
        """Shared memory for values with one element a row."""
        for n in self.rows:
            self.line(f"SHARED({SCALAR[n.type]}, row_{self.name[n]}, {count});")
            self.line(f"(void)row_{self.name[n]};")

    def waiting(self, sums: int, side: str, along: str) -> str:
        """How much of the workspace a block has for sums that wait."""
        self.line(f"const Work work({side}, {along}, k_size, batch, ceil_div(k_size, CHAIN));")
        return f"pending_size(k_size) + {sums} * PIECES * pending_size({along})"

    def begin_item(self, first: str, side: str) -> None:
        """Where the inputs of an item of the batch begin."""
        for tensor, space, kind, const in self.tensors:
            if tensor.startswith("in_"):
                step = f"{tensor}_batch" if space in MATRICES else "rows"
                self.line(f"{const}{kind}* const {tensor} = all_{tensor} + item * {step};")
                self.line(f"(void){tensor};")

    # ------------------------------------------------------------------ a tile of queries
    def along_keys(self) -> None:
        plan = self.plan
        self.line("barrier();")
        inputs = [n for n in self.rows if n.op == "input"]
        self.of_each_row("ROWS", [*inputs, *plan.before], "min(r0 + thread_index(), rows - 1)")
        self.line("barrier();")
        self.line(f"const KeyLimits limits = {self.seen()};")
        self.line("(void)limits;")
        for walk in walks_of(plan):
            self.walk(walk)
        self.open("if (thread_index() < ROWS && r0 + thread_index() < rows)")
        for i, n in enumerate(self.handed_on):
            place = f"values[{i} * batch * rows + item * rows + r0 + thread_index()]"
            self.line(f"{place} = row_{self.name[n]}[thread_index()];")
        for o in self.graph.outputs:
            if o.space == "r":
                place = f"all_out_{o.name} + item * rows + r0 + thread_index()"
                self.line(f"store1({place}, row_{self.name[o.node]}[thread_index()]);")
        self.close()

    def seen(self) -> str:
        """What a tile of queries sees."""
        return f"key_limits<ROWS>(row_{self.name[self.plan.limit]}, cols)" if self.plan.limit else "{cols, cols}"

    def walk(self, w: Walk) -> None:
        """One sweep along the keys; the last is taken for each part of the inner side that fits into registers."""
        reductions = [*w.maxima, *w.sums]
        sums = self.plan.over_keys if w.weights else ()
        if w.weights:
            self.line("int64_t d0 = 0;")
        self.open("do" if w.weights else "")
        for n in reductions:
            self.line(f"{'RowMax' if n.op == 'row_max' else 'RowSum'} over_{self.name[n]};")
        self.begin_sums(sums)
        self.open(f"ROLLED for (int64_t c0 = 0; c0 < {'cols' if reductions else 'limits.max'}; c0 += COLS)")
        self.line("const int count = int(min<int64_t>(COLS, cols - c0));")
        self.arrays([n.args[0] for n in (*reductions, *sums)])
        self.open("if (c0 < limits.max)")
        self.values(w.compute, [n.args[0] for n in (*reductions, *sums)])
        if self.plan.limit and reductions:
            self.close("} else {")
            self.depth += 1
            for x, hidden in {n.args[0]: self.plan.hidden[n] for n in reductions}.items():
                self.line(f"fill(value_{self.name[x]}, {self.name[hidden]});")
        self.close()
        for n in reductions:
            self.line(f"over_{self.name[n]}.take(value_{self.name[n.args[0]]}, count);")
        if sums:
            self.open("if (c0 < limits.max)")
        self.weigh(sums, "c0", "limits.min < min(c0 + COLS, cols)", "c0 + k < row_{limit}[row_at(line_here(), i)]")
        for i, n in enumerate(sums):
            place = f"pending + pending_size(k_size) + ({i} * PIECES + p) * pending_size(cols)"
            end = f"end_chain(sum_{self.name[n]}[p], {place}, min(c0 + COLS, limits.max), limits.max);"
            self.line(f"UNROLL for (int p = 0; p < PIECES; ++p) {end}")
        if sums:
            self.close()
        self.close()
        for n in reductions:
            self.line(f"over_{self.name[n]}.result(row_{self.name[n]});")
        if reductions:
            self.line("barrier();")
            self.of_each_row("ROWS", w.after, "")
            self.line("barrier();")
        for o in self.graph.outputs:
            if o.space == "rk" and w.weights:
                self.results(o.name, o.node, "r0", "rows")
        if w.weights:
            self.line("d0 += PIECES * COLS;")
        self.close("} while (d0 < k_size);" if w.weights else "}")

    # ------------------------------------------------------------------ a tile of keys
    def along_queries(self) -> None:
        plan = self.plan
        sums = plan.over_queries
        self.open("ROLLED for (int64_t d0 = 0; d0 < k_size; d0 += PIECES * COLS)")
        self.begin_sums(sums)
        self.line("int64_t reached = 0;  // keys below that some query sees")
        self.open("ROLLED for (int64_t r0 = 0; r0 < rows; r0 += COLS)")
        self.line("const int count = int(min<int64_t>(COLS, rows - r0));")
        self.line("barrier();")
        given = [n for n in self.rows if n.op == "input" or n in self.handed_on]
        needed = self.needed(cone(n.args[0] for n in sums), set(given))
        self.of_each_row("COLS", [n for n in self.graph.nodes if n in needed or n is plan.limit],
                         "r0 + min(thread_index(), count - 1)")  # fmt: skip
        self.line("barrier();")
        limit = f"key_limits<COLS>(row_{self.name[plan.limit]}, cols)" if plan.limit else "{cols, cols}"
        self.line(f"const KeyLimits limits = {limit};")
        self.line("reached = max(reached, limits.max);")
        self.open("if (c0 < limits.max)")
        roots = list(dict.fromkeys(n.args[0] for n in sums))
        self.arrays(roots)
        self.values(cone(roots), roots)
        self.weigh(sums, "r0", "limits.min < min(c0 + ROWS, cols)", "c0 + row_at(line_here(), i) < row_{limit}[k]")
        self.close()
        for i, n in enumerate(sums):
            place = f"pending + pending_size(k_size) + ({i} * PIECES + p) * pending_size(rows)"
            end = f"end_chain(sum_{self.name[n]}[p], {place}, min(r0 + COLS, rows), rows);"
            self.line(f"UNROLL for (int p = 0; p < PIECES; ++p) {end}")
        self.close()
        for o in self.graph.outputs:
            if o.space == "ck":
                self.results(o.name, o.node, "c0", "cols")
        self.close()

    # ------------------------------------------------------------------ rows
    def of_each_row(self, count: str, nodes: Iterable[Node], row: str) -> None:
        """Values with one element a row, by one thread for each: made, and left in shared memory. Inputs, and what was
        handed on, are read at `row`."""
        made = list(nodes)
        if not any(n in self.rows for n in made):
            return
        self.open(f"if (thread_index() < {count})")
        if row:
            self.line(f"const int64_t r = {row};")
        there = set(made)
        for n in self.graph.nodes:
            if n in self.needed(made, set(self.rows) - there) and n not in there:
                self.row_beside(n, "thread_index()")
            elif n in there:
                if n.op == "input":
                    self.declare(n, f"load1(in_{n.data[0]} + r)", vector=False)
                elif not self.queries and n in self.handed_on:
                    at = self.handed_on.index(n)
                    self.declare(n, f"values[{at} * batch * rows + item * rows + r]", vector=False)
                else:
                    self.declare(n, self.expression(n, False, self.name), vector=False)
                if n in self.rows:
                    self.line(f"row_{self.name[n]}[thread_index()] = {self.name[n]};")
        self.close()

    def needed(self, nodes: Iterable[Node], there: set[Node]) -> set[Node]:
        """The operands of these with one element a row, and theirs, down to those that are there."""
        found: set[Node] = set()
        stack = [a for n in nodes for a in n.args if a.space == "r"]
        while stack:
            n = stack.pop()
            if n not in found:
                found.add(n)
                stack += [] if n in there else [a for a in n.args if a.space == "r"]
        return found

    def row_beside(self, n: Node, place: str) -> None:
        """A value with one element a row, from shared memory, or made of others that are."""
        if n in self.rows:
            self.declare(n, f"row_{self.name[n]}[{place}]", vector=False)
        else:
            self.declare(n, self.expression(n, False, self.name), vector=False)

    def rows_beside(self, nodes: Iterable[Node], place: str) -> None:
        """Those that these need, of the row at this place."""
        needed = self.needed(nodes, set(self.rows))
        for n in self.graph.nodes:
            if n in needed:
                self.row_beside(n, place)

    # ------------------------------------------------------------------ elements of a step
    def values(self, compute: Sequence[Node], roots: Iterable[Node]) -> None:
        """The scores of a step, and what is made of them."""
        for n in compute:
            if n.op == "matmul":
                left, right = n.args if self.queries else n.args[::-1]
                kinds = [f"Loader<{count}, true, {flag}, {POINTER[str(a.data[1])]}>"
                         for a, count, flag in ((left, "ROWS", "true"), (right, "COLS", "false"))]  # fmt: skip
                name, own, along = self.name[n], *(("r0", "c0") if self.queries else ("c0", "r0"))
                self.line(f"Tile tile_{name};")
                self.open("")
                self.line(f"const {self.side_type(right)} others[1] = {{{self.side(right)}}};")
                call = f"run<{', '.join(kinds)}>(work, ScoreTile(work, {own}, {along})"
                self.line(f"tile_{name}.{call}, {self.side_type(left)}{self.side(left)}, others, pending, k_tiles);")
                self.close()
        self.elements(compute, list(dict.fromkeys(roots)), self.at[self.queries])

    def elements(self, compute: Sequence[Node], wanted: Sequence[Node], row: str, visible: Sequence[Node] = ()) -> None:
        """What is made of scores, element by element, with values of the row at this place; where these masks hold
        everywhere."""
        outer, inner = ("i", "j") if self.queries else ("j", "i")
        self.open(EACH[outer])
        self.rows_beside(compute, row)
        self.open(EACH[inner])
        for n in compute:
            if n.op == "matmul":
                self.declare(n, f"result_of(tile_{self.name[n]}.{self.element})", vector=False)
            elif n in visible:
                self.declare(n, "true", vector=False)
            elif n.op == "column_index":
                self.declare(n, f"int32_t(c0 + {self.at[not self.queries]})", vector=False)
            else:
                self.declare(n, self.expression(n, False, self.name), vector=False)
        for n in wanted:
            self.line(f"value_{self.name[n]}[i][j] = {self.name[n]};")
        self.close()
        self.close()

    def arrays(self, roots: Iterable[Node]) -> None:
        """Room for values of a step, in registers."""
        for n in dict.fromkeys(roots):
            self.line(f"S value_{self.name[n]}[THREAD_M][THREAD_N];")

    def side_type(self, n: Node) -> str:
        return f"Operand<{POINTER[str(n.data[1])]}>"

    def side(self, n: Node) -> str:
        return f"{{in_{n.data[0]}, in_{n.data[0]}_stride}}"

    # ------------------------------------------------------------------ weighted sums
    def begin_sums(self, sums: Iterable[Node]) -> None:
        for n in sums:
            self.line(f"Tile sum_{self.name[n]}[PIECES];")
            self.line(f"UNROLL for (int p = 0; p < PIECES; ++p) sum_{self.name[n]}[p].fill(NEUTRAL);")

    def weigh(self, sums: Sequence[Node], first: str, some: str, met: str) -> None:
        """The products of a step, to the sums of a tile; ``some`` says when only those are added that are met."""
        for n in sums:
            self.line(f"put_weights(value_{self.name[n.args[0]]}, count, weights);")
            x, sum_ = n.args[1], f"sum_{self.name[n]}[p]"
            self.open("UNROLL for (int p = 0; p < PIECES; ++p)")
            self.line("if (d0 + p * COLS >= k_size) continue;")
            given = f"{sum_}, {self.side_type(x)}{self.side(x)}, d0 + p * COLS, k_size, {first}, count, weights, halves"
            whole = f"weigh<false>({given}, [](int, int) {{ return true; }});"
            if self.plan.limit:
                condition = met.format(limit=self.name[self.plan.limit])
                self.line(f"if ({some}) weigh<true>({given}, [&](int i, int k) {{ return {condition}; }});")
                whole = f"else {whole}"
            self.line(whole)
            self.close()

    def results(self, name: str, root: Node, own: str, count: str) -> None:
        """Results of a tile's side x k_size, made of weighted sums."""
        work = made_of(root)
        limit = self.plan.limit
        if not self.queries:
            any_ = "c0 + row < reached"
        else:
            any_ = f"row_{self.name[limit]}[row] > 0" if limit else "cols > 0"
        self.open("")
        self.line(f"auto* const out = all_out_{name} + item * out_{name}_batch;")
        (sum_,) = [n for n in work if n.op == "weighted_sum"]
        made = self.begin_results(name, f"sum_{self.name[sum_]}", own, count)
        if self.queries:
            self.rows_beside([n for n in work if n is not sum_], "row")
        self.declare(sum_, f"result_of({any_} ? {made} : empty_sum())", vector=False)
        for n in work:
            if n is not sum_:
                self.declare(n, self.expression(n, False, self.name), vector=False)
        self.end_results(f"({own} + row) * out_{name}_stride", self.name[root])
        self.close()

    def begin_results(self, name: str, sums: str, own: str, count: str) -> str:
        """Go along the elements of weighted sums, for this result: what names one."""
        self.open("UNROLL for (int p = 0; p < PIECES; ++p)")
        self.line(f"store_tile({sums}[p], k_tiles);")
        self.line("barrier();")
        self.open("ROLLED for (int e = thread_index(); e < ROWS * COLS; e += THREADS)")
        self.line("const int row = e / COLS;")
        self.line("const int64_t d = d0 + p * COLS + e % COLS;")
        self.line(f"if ({own} + row >= {count} || d >= k_size) continue;")
        return "k_tiles[e]"

    def end_results(self, line: str, value: str) -> None:
        """What was made of one is stored in this line."""
        self.line(f"store1(out + {line} + d, {value});")
        self.close()
        self.line("barrier();")
        self.close()
