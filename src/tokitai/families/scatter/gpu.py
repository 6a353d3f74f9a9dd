"""CUDA C++, also for the CPU's fibers, of a sum over the entries that rows choose.

Kernels, in order: ``count_p`` and ``place_p`` for each digit of the sort, ``find`` (where segments begin, and which are
long), ``work`` (chains of long segments, short segments, entries without rows), ``trees`` (long segments).
"""

from __future__ import annotations

from ...emit.gpu_printer import FramedPrinter
from ...emit.text import POINTER, SCALAR
from ...lang import Node
from ...lower.gpu import MOST_THREADS
from .plan import ScatterPlan
from .schedule import DIGITS, PASSES, THREADS


class GpuScatterEmitter(FramedPrinter):
    """Prints the kernels of one operator for accesses of at most `width` elements: of rows that are `full` where they
    are whole chunks, and `wide` where their numbers need 64 bits."""

    includes = ("rows.h", "segments.h", "sorting.h", "entries.h")

    def __init__(self, plan: ScatterPlan, width: int, full: bool, wide: bool) -> None:
        super().__init__(plan.graph)
        self.plan, self.width, self.full, self.wide = plan, width, full, wide
        self.held = [n for n in plan.of_row if n is plan.total.args[0] or any(n in m.args for m in plan.compute)]

    def kernels(self) -> None:
        """The call, and the kernels."""
        self.line(f"constexpr int WIDTH = {self.width}, FIT = {'FULL' if self.full else 'RAGGED'};")
        self.line(f"constexpr int THREADS = {THREADS};")
        self.line(f"typedef int{64 if self.wide else 32}_t RowIndex;  // a row's number, or its place among the sorted")
        self.line()
        strides = sum(space in ("rc", "t") for _, space, _, _ in self.tensors)
        self.call(f"void* tensors[{len(self.tensors)}]", f"int64_t sizes[{2 + strides + len(self.whole_slot)}]")
        self.line()
        self.line("// The next part of a workspace, for so many values.")
        self.open("template <class T> INLINE T* next_part(char*& place, int64_t count)")
        self.line("T* const part = reinterpret_cast<T*>(place);")
        self.line("place += ceil_div(count * int64_t(sizeof(T)), 16) * 16;")
        self.line("return part;")
        self.close()
        for p in range(PASSES):
            self.kernel(f"count_{p}", DIGITS, lambda p=p: self.count(p))  # type: ignore[misc]
            self.kernel(f"place_{p}", DIGITS, lambda p=p: self.place(p))  # type: ignore[misc]
        self.kernel("find", DIGITS, self.find)
        self.kernel("work", THREADS, self.work)
        self.kernel("trees", MOST_THREADS, self.trees)

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
        self.line("const int64_t tiles = tiles_of(rows), pitch = ceil_div(cols, CHUNK) * CHUNK;")
        self.line("char* free_space = static_cast<char*>(call.workspace);")
        for kind, name, count in (
            ("RowIndex", "starts", "entries + 1"), ("RowIndex", "rows_0", "rows"), ("RowIndex", "rows_1", "rows"),
            ("int32_t", "keys_0", "rows"), ("int32_t", "keys_1", "rows"), ("int32_t", "counts", "DIGITS * tiles"),
            ("int32_t", "longs", "1 + windows_of(rows)"), ("Stored", "sums", "2 * windows_of(rows) * pitch"),
        ):  # fmt: skip
            self.line(f"{kind}* const {name} = next_part<{kind}>(free_space, {count});")
        self.line("const bool odd = sort_passes(entries) % 2;  // passes take turns")
        self.line("const int32_t* const keys = odd ? keys_1 : keys_0;")
        self.line("const RowIndex* const order = odd ? rows_1 : rows_0;")
        for name in ("cols", "scalars", "starts", "counts", "longs", "sums", "keys", "order"):
            self.line(f"(void){name};")
        for n in self.plan.uniform:
            self.declare(n, self.expression(n, False, self.name), vector=False)

    # ------------------------------------------------------------------ the sort
    def keyed(self, p: int) -> None:
        """Keys that pass p reads: the index itself first."""
        self.open("const auto key_at = [&](int64_t r)")
        if p == 0:
            for n in self.plan.of_index:
                self.row_value(n)
            self.line(f"return int32_t({self.name[self.plan.total.args[1]]});")
        else:
            self.line(f"return keys_{p % 2}[r];")
        self.close("};")

    def count(self, p: int) -> None:
        self.line("SHARED(int32_t, cells, SORT_CELLS);")
        self.keyed(p)
        if p == 0:
            self.line("if (block_index() == 0 && thread_index() == 0) longs[0] = 0;")
        self.line(f"count_digits(rows, {p}, counts, cells, key_at);")

    def place(self, p: int) -> None:
        self.line("SHARED(RowIndex, cells, SORT_CELLS);")
        self.keyed(p)
        row = "i" if p == 0 else f"rows_{p % 2}[i]"
        self.line(f"const auto row_at = [&](int64_t i) {{ return {row}; }};")
        to = (p + 1) % 2
        self.line(f"place_rows(rows, {p}, counts, cells, key_at, row_at, keys_{to}, rows_{to});")

    def find(self) -> None:
        self.line("const int64_t entry = block_index() * DIGITS + thread_index();")
        self.line("if (entry > entries) return;")
        self.line("const int64_t begin = first_from(rows, keys, entry);")
        self.line("starts[entry] = RowIndex(begin);")
        self.line("const bool is_long = begin + CHAIN < rows && keys[begin + CHAIN] == entry;")
        self.line("if (is_long) longs[1 + next_number(longs)] = int32_t(entry);")

    # ------------------------------------------------------------------ sums
    def chunked(self, nodes: tuple[Node, ...]) -> list[Node]:
        """Those of these values that chunks are loaded for."""
        return [n for n in nodes if n.op in ("input", "gather")]

    def kind_of(self, n: Node) -> str:
        """The stored type of a chunk's elements."""
        return POINTER[str((n if n.op == "input" else n.args[0]).data[1])]

    def load(self, nodes: tuple[Node, ...], row: str, into: str) -> None:
        """The chunks that a row or an entry has."""
        for n in self.chunked(nodes):
            source = f"in_{n.data[0]}" if n.op == "input" else self.chosen_entry(n)
            if n.op == "input" and n.space != "c":
                source += f" + {row} * in_{n.data[0]}_stride"
            self.line(f"load_chunk<WIDTH, FIT>({into}.chunk_{self.name[n]}, {source} + c0, cols - c0);")

    def values(self, nodes: tuple[Node, ...], held: str) -> None:
        """The elements at one column of chunks."""
        self.line("const int c = c0 + e;")
        self.line("(void)c;")
        for n in nodes:
            if n.op in ("input", "gather"):
                self.declare(n, f"load1(&{held}.chunk_{self.name[n]}.e[e])", vector=False)
            else:
                self.one_column(n)

    def types(self) -> None:
        """What a thread holds of a row, and of an entry."""
        self.open("struct Row")
        for n in self.chunked(self.plan.compute):
            self.line(f"Chunk<{self.kind_of(n)}> chunk_{self.name[n]};")
        for n in self.held:
            kind = ("bool" if n.exact else "SB") if n.type == "bool" else SCALAR[n.type]
            self.line(f"{kind} {self.name[n]};")
        self.close("};")
        self.open("struct Entry")
        for n in self.chunked(self.plan.finish):
            self.line(f"Chunk<{self.kind_of(n)}> chunk_{self.name[n]};")
        self.close("};")

    def fetch(self) -> None:
        """Loads of a row, and of an entry."""
        self.open("const auto fetch = [&](int64_t r, Row& row)")
        for n in self.plan.of_row:
            self.row_value(n)
        for n in self.held:
            self.line(f"row.{self.name[n]} = {self.name[n]};")
        self.load(self.plan.compute, "r", "row")
        self.line("(void)r, (void)row;")
        self.close("};")
        self.open("const auto look_up = [&](int64_t entry, Entry& old)")
        self.load(self.plan.finish, "entry", "old")
        self.line("(void)entry, (void)old;")
        self.close("};")

    def finish(self) -> None:
        """What is made of an entry's complete sum, and stored."""
        self.open("const auto finish = [&](int64_t entry, const S (&sum)[CHUNK], const Entry& old)")
        self.line("(void)old;")
        for o in self.graph.outputs:
            self.line(f"Chunk<{POINTER[o.format]}> new_{o.name};")
            self.line(f"{SCALAR[o.node.type]} values_{o.name}[CHUNK];")
        self.open("UNROLL for (int e = 0; e < CHUNK; ++e)")
        self.declare(self.plan.total, "sum[e]", vector=False)
        self.values(self.plan.finish, "old")
        for o in self.graph.outputs:
            self.line(f"values_{o.name}[e] = {self.name[o.node]};")
        self.close()
        for o in self.graph.outputs:
            self.line(f"encode(new_{o.name}, values_{o.name});")
            place = f"out_{o.name} + entry * out_{o.name}_stride + c0"
            self.line(f"store_chunk<WIDTH, FIT>({place}, new_{o.name}, cols - c0);")
        self.close("};")

    def work(self) -> None:
        """Units: blocks of long segments, windows, entries. Loads of several rows are on their way at a time."""
        self.types()
        self.line("const Unit of_all = unit_of<THREADS>(cols);")
        self.line("const int c0 = of_all.c0;")
        self.line("const int64_t unit = of_all.number, blocks = rows > CHAIN ? 2 * windows_of(rows) : 0;")
        self.line("const int64_t segments = blocks + ceil_div(rows, WINDOW);")
        self.line("if (c0 >= cols || unit >= segments + ceil_div(entries, ENTRIES)) return;")
        self.fetch()
        self.finish()
        self.line("S acc[CHUNK];")
        self.without_rows()
        self.line("RowIndex begin, end;")
        self.line("Stored* part = nullptr;  // where the sum of a long segment's block goes")
        self.open("if (unit < blocks)")
        self.line("int64_t first, last;")
        self.line("const auto entry_at = [&](int64_t i) { return keys[i]; };")
        self.line("if (!long_block(unit, rows, starts, entry_at, first, last)) return;")
        self.line("begin = RowIndex(first), end = RowIndex(last), part = sums + unit * pitch + c0;")
        self.depth -= 1
        self.open("} else")
        self.line("short_segments(unit - blocks, rows, starts, keys, begin, end);")
        self.close()
        self.chains()

    def chains(self) -> None:
        """Chains over sorted rows, each of one entry."""
        each = "UNROLL for (int k = 0; k < AHEAD; ++k)"
        self.line("UNROLL for (int e = 0; e < CHUNK; ++e) acc[e] = NEUTRAL_SUM;")
        self.open("ROLLED for (RowIndex i = begin; i < end; i += AHEAD)")
        self.line("RowIndex from[AHEAD];")
        self.line("int32_t entry[AHEAD];")
        self.line("bool last[AHEAD];")
        self.line("Row row[AHEAD];")
        self.line("Entry old[AHEAD];")
        self.open(each)
        self.line("const RowIndex place = k < end - i ? i + k : end - 1;")
        self.line("from[k] = order[place], entry[k] = keys[place];")
        self.line("last[k] = place == end - 1 || keys[place + 1] != keys[place];")
        self.close()
        self.open(each)
        self.line("if (k < end - i) fetch(from[k], row[k]);")
        if self.chunked(self.plan.finish):
            self.line("if (k < end - i && last[k] && !part) look_up(entry[k], old[k]);")
        self.close()
        self.open(each)
        self.line("if (k >= end - i) continue;")
        for n in self.held:
            self.declare(n, f"row[k].{self.name[n]}", vector=False)
        self.open("UNROLL for (int e = 0; e < CHUNK; ++e)")
        self.values(self.plan.compute, "row[k]")
        self.line(f"acc[e] = add(acc[e], {self.name[self.plan.total.args[0]]});")
        self.close()
        self.line("if (!last[k]) continue;")
        self.open("if (part)")
        self.line("Chunk<Stored> sum;")
        self.line("UNROLL for (int e = 0; e < CHUNK; ++e) store1(&sum.e[e], acc[e]);")
        self.line("*reinterpret_cast<Chunk<Stored>*>(part) = sum;")
        self.depth -= 1
        self.open("} else")
        self.line("finish(entry[k], acc, old[k]);")
        self.close()
        self.line("UNROLL for (int e = 0; e < CHUNK; ++e) acc[e] = NEUTRAL_SUM;")
        self.close()
        self.close()

    def without_rows(self) -> None:
        """Entries that no row chose."""
        self.open("if (unit >= segments)")
        self.line("UNROLL for (int e = 0; e < CHUNK; ++e) acc[e] = constant(0.0f, S{});")
        self.line("const int64_t first = (unit - segments) * ENTRIES, past = min(entries, first + ENTRIES);")
        self.open("ROLLED for (int64_t entry = first; entry < past; entry += AHEAD)")
        self.line("RowIndex start[AHEAD + 1];")
        self.line("UNROLL for (int k = 0; k <= AHEAD; ++k) start[k] = starts[min(entry + k, past)];")
        self.line("Entry old[AHEAD];")
        nobody = "if (entry + k < past && start[k] == start[k + 1])"
        if self.chunked(self.plan.finish):
            self.line(f"UNROLL for (int k = 0; k < AHEAD; ++k) {nobody} look_up(entry + k, old[k]);")
        self.line(f"UNROLL for (int k = 0; k < AHEAD; ++k) {nobody} finish(entry + k, acc, old[k]);")
        self.close()
        self.line("return;")
        self.close()

    def trees(self) -> None:
        """The tree over the blocks of each long segment, 128 columns at a time."""
        self.line("SHARED(S, cells, MAX_THREADS * BREADTH);")
        self.line("const int64_t pieces = ceil_div(cols, BROAD), units = longs[0] * pieces;")
        self.open("for (int64_t unit = block_index(); unit < units; unit += grid_size())")
        self.line("const int64_t entry = longs[1 + unit / pieces], start = starts[entry];")
        self.line("const int64_t blocks = windows_of(starts[entry + 1] - start);")
        self.line("const int c0 = int(unit % pieces) * BROAD, c = c0 + thread_index();")
        part = "[&](int64_t block, int at) { return sums + slot_of(start, block) * pitch + c0 + at; }"
        self.line(f"const auto part = {part};")
        self.declare(self.plan.total, "over_broad_blocks(blocks, cols - c0, part, cells)", vector=False)
        self.line("if (thread_index() >= BROAD || c >= cols) continue;")
        for n in self.plan.finish:
            if n.op == "input":
                row = "" if n.space == "c" else f" + entry * in_{n.data[0]}_stride"
                self.declare(n, f"load1(in_{n.data[0]}{row} + c)", vector=False)
            else:
                self.one_column(n)
        for o in self.graph.outputs:
            self.line(f"store1(out_{o.name} + entry * out_{o.name}_stride + c, {self.name[o.node]});")
        self.close()
