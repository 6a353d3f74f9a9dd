"""CUDA C++, also for the CPU's fibers, of a sum over the entries that rows choose.

Kernels, in order: ``count_p``, ``scan`` and ``place_p`` for each digit of the sort, ``find`` (where segments begin),
``blocks`` (chains of long segments), ``work`` (entries with short segments, or none), ``trees`` (long segments).
"""

from __future__ import annotations

from collections.abc import Callable

from ..lang import Node
from ..lower.gpu import MOST_THREADS
from ..lower.gpu_scatter import DIGITS, GROUPS, PASSES, THREADS
from ..lower.scatter import ScatterPlan
from .gpu_printer import GpuPrinter
from .text import POINTER, SCALAR


class GpuScatterEmitter(GpuPrinter):
    """Prints the kernels of one operator for accesses of at most `width` elements."""

    includes = ("rows.h", "segments.h", "sorting.h")

    def __init__(self, plan: ScatterPlan, width: int) -> None:
        super().__init__(plan.graph)
        self.plan, self.width = plan, width

    def kernels(self) -> None:
        """The call, and the kernels."""
        self.line(f"constexpr int WIDTH = {self.width}, THREADS = {THREADS}, GROUPS = {GROUPS};")
        self.line()
        strides = sum(space in ("rc", "t") for _, space, _, _ in self.tensors)
        self.open("struct Call")
        self.line(f"void* tensors[{len(self.tensors)}];")
        self.line(f"int64_t sizes[{2 + strides + len(self.whole_slot)}];")
        self.line(f"Stored scalars[{max(1, len(self.scalar_slot))}];")
        self.line("void* workspace;")
        self.close("};")
        for p in range(PASSES):
            self.kernel(f"count_{p}", DIGITS, lambda p=p: self.count(p))  # type: ignore[misc]
        self.kernel("scan", MOST_THREADS, self.scan)
        for p in range(PASSES):
            self.kernel(f"place_{p}", DIGITS, lambda p=p: self.place(p))  # type: ignore[misc]
        self.kernel("find", DIGITS, self.find)
        self.kernel("blocks", THREADS, self.blocks)
        self.kernel("work", THREADS, self.work)
        self.kernel("trees", MOST_THREADS, self.trees)

    def kernel(self, name: str, threads: int, body: Callable[[], None]) -> None:
        self.line()
        self.open(f"KERNEL({name}, {threads}, 1)")
        self.arguments()
        body()
        self.close()

    def arguments(self) -> None:
        self.line("const int64_t rows = call.sizes[0];")
        self.line("const int cols = int(call.sizes[1]);")
        stride = 2
        for i, (name, space, kind, const) in enumerate(self.tensors):
            self.line(f"{const}{kind}* const {name} = static_cast<{const}{kind}*>(call.tensors[{i}]);")
            if space in ("rc", "t"):
                self.line(f"const int64_t {name}_stride = call.sizes[{stride}];")
                self.line(f"(void){name}_stride;")
                stride += 1
            self.line(f"(void){name};")
        self.line(f"const int64_t* const integers = call.sizes + {stride};")
        self.line("const Stored* const scalars = call.scalars;")
        self.line(f"const int64_t entries = integers[{self.whole_slot[self.plan.total.args[2]]}];")
        self.line("int64_t* const starts = static_cast<int64_t*>(call.workspace);")
        self.line("int64_t* const lists = starts + entries + 1;  // twice keys and rows: passes take turns")
        self.line("int64_t* const counts = lists + 4 * rows;")
        self.line("const int64_t tiles = (rows + SORT_TILE - 1) / SORT_TILE;")
        self.line("Stored* const sums = reinterpret_cast<Stored*>(counts + DIGITS * tiles);")
        self.line("const int64_t* const keys = lists + sort_passes(entries) % 2 * 2 * rows;")
        self.line("const int64_t* const order = keys + rows;")
        self.line("const auto entry_at = [&](int64_t i) { return keys[i]; };")
        self.line("(void)cols, (void)scalars, (void)sums, (void)order, (void)entry_at;")
        for n in self.plan.uniform:
            self.declare(n, self.expression(n, False, self.name), vector=False)

    # ------------------------------------------------------------------ the sort
    def keyed(self, p: int) -> None:
        """Keys and rows that pass p reads: the index itself first."""
        if p == 0:
            self.open("const auto key_at = [&](int64_t r)")
            for n in self.plan.of_index:
                self.row_value(n)
            self.line(f"return int64_t({self.name[self.plan.total.args[1]]});")
            self.close("};")
        else:
            self.line(f"const int64_t* const from = lists + {p % 2} * 2 * rows;")
            self.line("const auto key_at = [&](int64_t i) { return from[i]; };")

    def count(self, p: int) -> None:
        self.keyed(p)
        self.line(f"count_digits(rows, {p}, counts, key_at);")

    def scan(self) -> None:
        self.line("SHARED(int64_t, totals, MOST_THREADS);")
        self.line("scan_counts(DIGITS * tiles, counts, totals);")

    def place(self, p: int) -> None:
        self.keyed(p)
        row = "i" if p == 0 else "from[rows + i]"
        self.line(f"int64_t* const to = lists + {(p + 1) % 2} * 2 * rows;")
        self.line(f"const auto row_at = [&](int64_t i) {{ return {row}; }};")
        self.line(f"place_rows(rows, {p}, counts, key_at, row_at, to, to + rows);")

    def find(self) -> None:
        self.line("const int64_t entry = block_index() * DIGITS + thread_index();")
        self.line("if (entry <= entries) starts[entry] = first_from(rows, keys, entry);")

    # ------------------------------------------------------------------ sums
    def chain(self) -> None:
        """The chain over sorted rows, for the chunk of columns from c0 on."""
        self.open("const auto chain = [&](int64_t begin, int64_t end, int c0, S (&acc)[CHUNK])")
        self.line("UNROLL for (int e = 0; e < CHUNK; ++e) acc[e] = NEUTRAL_SUM;")
        self.open("ROLLED for (int64_t i = begin; i < end; ++i)")
        self.line("const int64_t r = order[i];")
        for n in self.plan.of_row:
            self.row_value(n)
        self.load(self.plan.compute, "r")
        self.open("UNROLL for (int e = 0; e < CHUNK; ++e)")
        self.values(self.plan.compute)
        self.line(f"acc[e] = add(acc[e], {self.name[self.plan.total.args[0]]});")
        self.close()
        self.close()
        self.close("};")

    def load(self, nodes: tuple[Node, ...], row: str) -> None:
        """The chunks that a row or an entry has."""
        for n in nodes:
            if n.op not in ("input", "gather"):
                continue
            source = f"in_{n.data[0]}" if n.op == "input" else self.chosen_entry(n)
            if n.op == "input" and n.space != "c":
                source += f" + {row} * in_{n.data[0]}_stride"
            kind = POINTER[str((n if n.op == "input" else n.args[0]).data[1])]
            self.line(f"Chunk<{kind}> chunk_{self.name[n]};")
            self.line(f"load_chunk<WIDTH, RAGGED>(chunk_{self.name[n]}, {source} + c0, cols - c0);")

    def values(self, nodes: tuple[Node, ...]) -> None:
        """The elements at one column of chunks."""
        self.line("const int c = c0 + e;")
        self.line("(void)c;")
        for n in nodes:
            if n.op in ("input", "gather"):
                self.declare(n, f"load1(&chunk_{self.name[n]}.e[e])", vector=False)
            else:
                self.one_column(n)

    def chunks(self) -> None:
        self.open("for (int c0 = thread_index() * CHUNK; c0 < cols; c0 += THREADS * CHUNK)")
        self.line("S acc[CHUNK];")

    def blocks(self) -> None:
        self.chain()
        self.open("for (int64_t place = block_index(); place < 2 * windows_of(rows); place += grid_size())")
        self.line("int64_t begin, end;")
        self.line("if (!long_block(place, rows, starts, entry_at, begin, end)) continue;")
        self.chunks()
        self.line("chain(begin, end, c0, acc);")
        self.line("UNROLL for (int e = 0; e < CHUNK; ++e)")
        self.line("  if (c0 + e < cols) store1(sums + place * cols + c0 + e, acc[e]);")
        self.close()
        self.close()

    def work(self) -> None:
        self.chain()
        self.open("for (int64_t entry = block_index(); entry < entries; entry += grid_size())")
        self.line("const int64_t begin = starts[entry], end = starts[entry + 1];")
        self.line("if (end - begin > CHAIN) continue;")
        self.chunks()
        self.line("chain(begin, end, c0, acc);")
        self.line("if (begin == end) UNROLL for (int e = 0; e < CHUNK; ++e) acc[e] = constant(0.0f, S{});")
        self.load(self.plan.finish, "entry")
        for o in self.graph.outputs:
            self.line(f"Chunk<{POINTER[o.format]}> new_{o.name};")
            self.line(f"{SCALAR[o.node.type]} values_{o.name}[CHUNK];")
        self.open("UNROLL for (int e = 0; e < CHUNK; ++e)")
        self.declare(self.plan.total, "acc[e]", vector=False)
        self.values(self.plan.finish)
        for o in self.graph.outputs:
            self.line(f"values_{o.name}[e] = {self.name[o.node]};")
        self.close()
        for o in self.graph.outputs:
            self.line(f"encode(new_{o.name}, values_{o.name});")
            place = f"out_{o.name} + entry * out_{o.name}_stride + c0"
            self.line(f"store_chunk<WIDTH, RAGGED>({place}, new_{o.name}, cols - c0);")
        self.close()
        self.close()

    def trees(self) -> None:
        """The tree over the blocks of each long segment, 32 columns at a time."""
        self.line("SHARED(S, cells, MOST_THREADS);")
        self.line("const int pieces = (cols + COLUMNS - 1) / COLUMNS, groups = least(GROUPS, pieces);")
        self.open("for (int64_t unit = block_index(); unit < windows_of(rows) * groups; unit += grid_size())")
        self.line("int64_t entry;")
        self.line("const int64_t start = long_segment(unit / groups, rows, starts, entry_at, entry);")
        self.line("if (start < 0) continue;  // the same in all threads")
        self.line("const int64_t blocks = windows_of(starts[entry + 1] - start);")
        self.open("for (int piece = int(unit % groups); piece < pieces; piece += groups)")
        self.line("const int column = piece * COLUMNS + thread_index() % COLUMNS, c = least(column, cols - 1);")
        part = "[&](int64_t block) { return load1(sums + place_of(start, block) * cols + c); }"
        self.declare(self.plan.total, f"over_blocks(blocks, {part}, cells)", vector=False)
        self.line("if (thread_index() >= COLUMNS || column >= cols) continue;")
        for n in self.plan.finish:
            if n.op == "input":
                row = "" if n.space == "c" else f" + entry * in_{n.data[0]}_stride"
                self.declare(n, f"load1(in_{n.data[0]}{row} + c)", vector=False)
            else:
                self.one_column(n)
        for o in self.graph.outputs:
            self.line(f"store1(out_{o.name} + entry * out_{o.name}_stride + c, {self.name[o.node]});")
        self.close()
        self.close()
