"""CUDA C++, also for the CPU's fibers, of attention by steps of a matrix unit: for `emit/gpu/attention_steps.h`.

The kernels, their ``Call`` and workspace are those of `attention.gpu`. What a thread has of a step are elements of
fragments, of which it knows rows and columns; so what the graph makes of scores is printed on those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from ...emit.text import SCALAR
from ...lang import Node
from ...lower.ranges import constant
from ..matmul.cpu import defines_of_units
from .gpu import GpuAttentionEmitter
from .plan import AttentionPlan
from .step_tiling import StepTiling, sides_of
from .tiling import Walk, cone

NEAREST = 12582912.0  # 1.5 2^23


class GpuStepEmitter(GpuAttentionEmitter):
    """Prints the kernels of one operator for one tiling."""

    includes = ("attention_steps.h",)
    at: ClassVar = {True: "row_at(i)", False: "column_here(j)"}
    element = "at(i, j)"
    unused = "(void)values, (void)pending, (void)stages;"

    def __init__(self, plan: AttentionPlan, tiling: StepTiling) -> None:
        super().__init__(plan, tiling)
        self.whole = tiling.whole
        self.own: list[Node] = []
        self.others: list[Node] = []

    def defined(self, t: StepTiling) -> tuple[str, ...]:
        """What the header reads."""
        plan = self.plan
        sizes = {
            "PRODUCTS": 1, "ROWS": t.rows, "COLS": t.cols, "TILES": t.tiles, "DIM": t.dim, "WHOLE": int(t.whole),
            "WIDTH": t.width, "WARPGROUPS": int(t.warpgroups),
        }  # fmt: skip
        return (
            f"// {t}", *defines_of_units(plan.format, plan.format), f"#define UNIT_ATOM {int(t.atom)}",
            *(f"#define PLAN_{name} {value}" for name, value in sizes.items()),
        )  # fmt: skip

    def expression(self, node: Node, vector: bool, name: Mapping[Node, str], own_names: bool = False) -> str:
        """As elsewhere; but a sum that rounded to a whole number holds it in its lowest bits, from which a power of two
        is made without taking them out first."""
        if node.op == "power_of_two" and node.args[0].op == "add":
            whole, shift = node.args[0].args
            rounded = whole.op == "sub" and whole.args[0].op == "fma" and constant(whole.args[1]) == NEAREST
            if rounded and (constant(shift) or 0.5).is_integer():
                return f"power_of_two({name[whole.args[0]]}, {name[whole.args[1]]}, {name[shift]})"
        return super().expression(node, vector, name, own_names)

    # ------------------------------------------------------------------ kernels
    def kernel(self, name: str, sums: Sequence[Node]) -> None:
        """One kernel, whose blocks take tiles of their own side in turn."""
        self.own, self.others = sides_of(self.plan, name)
        super().kernel(name, sums)

    def storage(self) -> None:
        """Shared memory of a block."""
        own, others = (len(self.own), f"2 * {len(self.others)}") if self.whole else (1, "1")
        self.line(f"constexpr int K_TILES = ({own} * OWN_K_TILE + {others} * K_TILE) * int(sizeof(W));")
        self.line("SHARED_STORAGE(memory, more(K_TILES, RESULTS));")
        self.line("W* const k_tiles = reinterpret_cast<W*>(memory);")
        self.line(f"W* const stages = k_tiles + {own} * OWN_K_TILE;")
        self.line(f"Copies<{max(len(self.own), len(self.others), 2)} * EACH> copies;")
        self.storage_of_rows("ROWS" if self.queries else "2 * COLS")
        if not self.queries and self.plan.limit:
            self.line("SHARED(Survey, survey, 1);")

    def waiting(self, sums: int, side: str, along: str) -> str:
        """How much of the workspace a block has for sums that wait."""
        return f"pending_size<ACROSS>(k_size) + {sums} * pending_size<PIECES>({along})"

    def begin_item(self, first: str, side: str) -> None:
        """Where the inputs of an item of the batch begin; the block's own tiles are brought."""
        self.line(f"const bool idle = !has_lines({first}, {side});")
        super().begin_item(first, side)
        self.line("barrier();")
        for i, n in enumerate(self.own if self.whole else ()):
            fetched = f"copies, k_tiles + {i} * OWN_K_TILE, {self.typed(n)}, {first}, {side}, 0, k_size"
            self.line(f"fetch_k_tile<ROWS, true>({fetched});")
        self.line("copies.close();")
        self.line("copies.template wait<0>();")

    def typed(self, n: Node) -> str:
        """An operand of an item."""
        return f"{self.side_type(n)}{self.side(n)}"

    def seen(self) -> str:
        """What a tile of queries sees."""
        if not self.plan.limit:
            return "{cols, cols}"
        return f"key_limits<ROWS>([&](int i) {{ return row_{self.name[self.plan.limit]}[i]; }}, cols)"

    def fetch(self, operands: Iterable[Node], half: str, line: str, lines: str) -> None:
        """The k_tiles of a step on their way."""
        for n in operands:
            to = f"stages + (({half}) * {len(self.others)} + {self.others.index(n)}) * K_TILE"
            self.line(f"fetch_k_tile<COLS, false>(copies, {to}, {self.typed(n)}, {line}, {lines}, 0, k_size);")

    # ------------------------------------------------------------------ a tile of queries
    def walk(self, w: Walk) -> None:
        """One sweep along the keys; the last is taken for each piece of the k_size side."""
        reductions = [*w.maxima, *w.sums]
        sums = self.plan.over_keys if w.weights else ()
        needed = [n.args[1] for n in w.compute if n.op == "matmul"] + [n.args[1] for n in sums]
        needed = list(dict.fromkeys(needed)) if self.whole else []
        roots = [n.args[0] for n in (*reductions, *sums)]
        self.open("")
        self.line("int64_t d0 = 0;")
        self.open("do")
        for n in reductions:
            self.line(f"{'RowMax' if n.op == 'row_max' else 'RowSum'} over_{self.name[n]};")
        self.begin_sums(sums)
        self.line("barrier();")
        self.open("if (limits.max > 0)")
        self.fetch(needed, "0", "0", "cols")
        self.close()
        self.line("copies.close();")
        self.line("int64_t c0 = 0;")
        self.open("ROLLED for (int half = 0; c0 < limits.max; c0 += COLS, half ^= 1)")
        self.line("const int count = int(min<int64_t>(COLS, cols - c0));")
        self.line("(void)count;")
        if self.whole:
            self.line("copies.template wait<0>();")
            self.line("barrier();")
            self.open("if (c0 + COLS < limits.max)")
            self.fetch(needed, "half ^ 1", "c0 + COLS", "cols")
            self.close()
            self.line("copies.close();")
        for i, n in enumerate(sums):
            self.line(f"chains.end(sum_{self.name[n]}, {self.room(i, 'cols')}, c0, limits.max);")
        if sums:
            self.line("chains.pass(c0);")
        self.arrays(roots)
        self.values(w.compute, roots)
        for n in reductions:
            self.line(f"over_{self.name[n]}.take(value_{self.name[n.args[0]]}, count);")
        met = "c0 + k < limits.min || c0 + k < row_{limit}[row_at(i)]" if self.plan.limit else "k < count"
        met = f"k < count && ({met})" if self.plan.limit else met
        self.weigh(sums, "c0", "c0 + COLS > limits.min", met)
        self.close()
        if reductions:
            self.hidden_steps(reductions)
        for i, n in enumerate(sums):
            self.line(f"chains.end(sum_{self.name[n]}, {self.room(i, 'cols')}, limits.max, limits.max);")
        for n in reductions:
            self.line(f"over_{self.name[n]}.result(row_{self.name[n]});")
        if reductions:
            self.line("barrier();")
            self.of_each_row("ROWS", w.after, "")
            self.line("barrier();")
        for o in self.graph.outputs:
            if o.space == "rk" and w.weights:
                self.results(o.name, o.node, "r0", "rows")
        self.line("d0 += DIM;")
        self.close("} while (d0 < k_size);" if sums else "} while (false);")
        self.close()

    def hidden_steps(self, reductions: Sequence[Node]) -> None:
        """What maxima and sums take of the steps that no query of a tile sees."""
        if not self.plan.limit:
            return
        for n in reductions:
            self.line(f"over_{self.name[n]}.take_equal({self.name[self.plan.hidden[n]]}, c0, cols);")

    def room(self, i: int, along: str) -> str:
        """Where the chains of a sum wait."""
        return f"pending + pending_size<ACROSS>(k_size) + {i} * pending_size<PIECES>({along})"

    # ------------------------------------------------------------------ a tile of keys
    def along_queries(self) -> None:
        plan = self.plan
        sums = plan.over_queries
        roots = list(dict.fromkeys(n.args[0] for n in sums))
        needed = self.others if self.whole else []
        self.line("int64_t d0 = 0;")
        self.open("do")
        self.begin_sums(sums)
        self.line("int64_t reached = 0;  // keys below that some query sees")
        if plan.limit:
            self.line("int64_t page = -1;")
            self.line("KeyLimits found = {0, 0};")
            self.open("const auto next = [&](int64_t r)")
            self.open("ROLLED for (; r < rows; r += COLS)")
            self.open("if (r / (SURVEYED * COLS) != page)")
            self.line("page = r / (SURVEYED * COLS);")
            self.line(f"survey->make(in_{plan.limit.data[0]}, page * (SURVEYED * COLS), rows);")
            self.close()
            place = "r / COLS % SURVEYED"
            self.line(f"found = {{min<int64_t>(survey->min[{place}], cols), "
                      f"min<int64_t>(survey->max[{place}], cols)}};")  # fmt: skip
            self.line("if (c0 < found.max) return r;")
            self.close()
            self.line("return rows;")
            self.close("};")
        else:
            self.line("const KeyLimits found = {cols, cols};")
            self.line("const auto next = [](int64_t r) { return r; };")
        self.line("int64_t r0 = next(0);")
        self.line("KeyLimits limits = found;")
        self.line("barrier();")
        self.rows_of_step("0", "r0")
        self.open("if (r0 < rows)")
        self.fetch(needed, "0", "r0", "rows")
        self.close()
        self.line("copies.close();")
        self.open("ROLLED for (int half = 0; r0 < rows; half ^= 1)")
        self.line("const int count = int(min<int64_t>(COLS, rows - r0));")
        self.line("const int64_t later = next(r0 + COLS);")
        if self.whole:
            self.line("copies.template wait<0>();")
        self.line("barrier();")
        if self.whole:
            self.open("if (later < rows)")
            self.fetch(needed, "half ^ 1", "later", "rows")
            self.close()
            self.line("copies.close();")
        self.raw_rows_of_step("later")
        self.line("reached = max(reached, limits.max);")
        for i, n in enumerate(sums):
            self.line(f"chains.end(sum_{self.name[n]}, {self.room(i, 'rows')}, r0, rows);")
        self.line("chains.pass(r0);")
        self.arrays(roots)
        self.values(cone(roots), roots)
        met = "k < count" + (f" && c0 + row_at(i) < row_{self.name[plan.limit]}[half * COLS + k]" if plan.limit else "")
        self.weigh(sums, "r0", "limits.min < min(c0 + ROWS, cols) || count < COLS", met)
        self.made_rows_of_step("half ^ 1")
        self.line("r0 = later, limits = found;")
        self.close()
        for i, n in enumerate(sums):
            self.line(f"chains.end(sum_{self.name[n]}, {self.room(i, 'rows')}, rows, rows);")
        for o in self.graph.outputs:
            if o.space == "ck":
                self.results(o.name, o.node, "c0", "cols")
        self.line("d0 += DIM;")
        self.close("} while (d0 < k_size);")

    def step_rows(self) -> tuple[list[Node], list[Node]]:
        """The values of rows that steps along the queries need: those that are read, and all in order."""
        given = [n for n in self.rows if n.op == "input" or n in self.handed_on]
        needed = self.needed(cone(n.args[0] for n in self.plan.over_queries), set(given))
        every = [n for n in self.graph.nodes if n in needed or n is self.plan.limit]
        return [n for n in every if n in given], every

    def rows_of_step(self, half: str, row: str) -> None:
        """Values of the rows of a step, in shared memory."""
        self.open("")
        self.raw_rows_of_step(row)
        self.made_rows_of_step(half)
        self.close()

    def raw_rows_of_step(self, row: str) -> None:
        """What is read for the rows of a step."""
        for n in self.step_rows()[0]:
            self.line(f"{SCALAR[n.type]} raw_{self.name[n]} = {{}};")
        self.open(f"if (thread_index() < COLS && {row} < rows)")
        self.line(f"const int64_t r = min<int64_t>({row} + thread_index(), rows - 1);")
        for n in self.step_rows()[0]:
            if n.op == "input":
                self.line(f"raw_{self.name[n]} = load1(in_{n.data[0]} + r);")
            else:
                at = self.handed_on.index(n)
                self.line(f"raw_{self.name[n]} = values[{at} * batch * rows + item * rows + r];")
        self.close()

    def made_rows_of_step(self, half: str) -> None:
        """What is made of it, in shared memory."""
        given, every = self.step_rows()
        self.open("if (thread_index() < COLS)")
        for n in every:
            self.declare(n, f"raw_{self.name[n]}" if n in given else self.expression(n, False, self.name), vector=False)
            if n in self.rows:
                self.line(f"row_{self.name[n]}[({half}) * COLS + thread_index()] = {self.name[n]};")
        self.close()

    # ------------------------------------------------------------------ elements of a step
    def values(self, compute: Sequence[Node], roots: Iterable[Node]) -> None:
        """The scores of a step, and what is made of them."""
        own, along, lines, others = ("r0", "c0", "rows", "cols") if self.queries else ("c0", "r0", "cols", "rows")
        for n in compute:
            if n.op == "matmul":
                left, right = n.args if self.queries else n.args[::-1]
                self.line(f"Scores tile_{self.name[n]};")
                if self.whole:
                    mine = f"k_tiles + {self.own.index(left)} * OWN_K_TILE"
                    theirs = f"stages + (half * {len(self.others)} + {self.others.index(right)}) * K_TILE"
                    self.line(f"tile_{self.name[n]}.run({mine}, {theirs}, count, k_size, idle);")
                else:
                    sides = f"{self.typed(left)}, {own}, {lines}, {self.typed(right)}, {along}, {others}"
                    self.line(
                        f"tile_{self.name[n]}.run_pieces(copies, k_tiles, stages, {sides}, k_size, pending, idle);"
                    )
        wanted = list(dict.fromkeys(roots))
        row = self.at[True] if self.queries else f"half * COLS + {self.at[False]}"
        masks = [n for n in compute if n.op == "lt" and n.args[0].op == "column_index" and n.args[1] is self.plan.limit]
        if masks:
            visible = "c0 + COLS <= limits.min" if self.queries else "min(c0 + ROWS, cols) <= limits.min"
            self.open(f"if ({visible})")
            self.elements(compute, wanted, row, masks)
            self.close("} else {")
            self.depth += 1
        self.elements(compute, wanted, row)
        if masks:
            self.close()

    # ------------------------------------------------------------------ weighted sums
    def begin_sums(self, sums: Iterable[Node]) -> None:
        some = list(sums)
        for n in some:
            self.line(f"Sums<PIECES> sum_{self.name[n]};")
            self.line(f"sum_{self.name[n]}.fill(NEUTRAL);")
        if some:
            self.line("Chains chains;")

    def weigh(self, sums: Sequence[Node], first: str, some: str, met: str) -> None:
        """The products of a step, to the sums of a tile; ``some`` says when only those are added that are met."""
        lines = "cols" if self.queries else "rows"
        for n in sums:
            x = n.args[1]
            if self.whole:
                k_tile = f"stages + (half * {len(self.others)} + {self.others.index(x)}) * K_TILE"
            else:
                k_tile = "stages"
                self.line("barrier();")
                self.line(f"fetch_k_tile<COLS, false>(copies, stages, {self.typed(x)}, {first}, {lines}, d0, k_size);")
                self.line("copies.close();")
                self.line("copies.template wait<0>();")
                self.line("barrier();")
            given = f"sum_{self.name[n]}, value_{self.name[n.args[0]]}, {k_tile}, count, k_size - d0, idle"
            limit = self.name[self.plan.limit] if self.plan.limit else ""
            condition = met.format(limit=limit)
            self.line(f"if ({some}) weigh<true>({given}, [&](int i, int k) {{ (void)i; return {condition}; }});")
            self.line(f"else weigh<false>({given}, [](int, int) {{ return true; }});")

    def begin_results(self, name: str, sums: str, own: str, count: str) -> str:
        """Go along the elements of weighted sums, for this result: what names one."""
        place = f"out + {own} * out_{name}_stride + d0, out_{name}_stride, {count} - {own}, k_size - d0"
        self.open(f"results_of({sums}, memory, {place}, [&](int row, int, E made)")
        return "made"

    def end_results(self, line: str, value: str) -> None:
        """What was made of one is stored there."""
        self.line(f"return {value};")
        self.close("});")
