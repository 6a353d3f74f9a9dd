"""CUDA C++, also for the CPU's fibers, of an element-wise kernel over one tensor or a list, from its plan.

Kernels, launched one after another: for totals over all elements ``tile_totals``, ``tensor_totals`` and ``totals``,
then ``work``. All take one ``Call`` by value. ``table`` has an entry for each tensor: rows, columns, its first tile,
its place among those that are not empty (-1 for others), the row stride of every matrix, the address of every tensor;
``tensor_of_tile`` says whose a tile is, ``filled`` which tensors are not empty. For a single tensor these three are
null, and its entry is ``one``.
"""

from __future__ import annotations

from ..lang import Node
from ..lower.flat import FlatPlan
from ..lower.gpu import MOST_THREADS, TILE, FlatSchedule
from .gpu_printer import QuotientPrinter
from .text import POINTER, SCALAR

ENTRY = 4  # words before the strides
AT_ONCE = range(3, 6)  # matrices whose strides and addresses are read at once: of more they take too many registers


class GpuFlatEmitter(QuotientPrinter):
    """Prints the kernels of one element-wise operator."""

    includes = ("rows.h", "quotients.h")

    def __init__(self, plan: FlatPlan, width: int, schedule: FlatSchedule) -> None:
        super().__init__(plan.graph)
        self.plan, self.width, self.schedule = plan, width, schedule
        g = plan.graph
        self.matrices = sum(space == "rc" for _, space, _, _ in self.tensors)
        self.stores = [o for o in g.outputs if o.space == "rc"]
        self.entry = ENTRY + self.matrices + len(self.tensors)

    def kernels(self) -> None:
        """Constants, the call, the kernels."""
        threads = self.schedule.threads
        self.line(f"constexpr int TILE = {TILE}, THREADS = {threads}, CHUNKS = TILE / CHUNK / THREADS;")
        self.line(f"constexpr int WIDTH = {self.width};")
        self.line("constexpr int GROUP = Share<THREADS>::GROUP;")
        self.line()
        self.open("struct Call")
        self.line("int64_t count, tiles, filled_count;")
        self.line("const int64_t* table;")
        self.line("const int32_t* tensor_of_tile;")
        self.line("const int32_t* filled;")
        self.line(f"int64_t one[{self.entry}];")
        self.line(f"int64_t integers[{max(1, len(self.whole_slot))}];")
        self.line(f"Stored scalars[{max(1, len(self.scalar_slot))}];")
        self.line("void* workspace;")
        self.close("};")
        if self.plan.totals:
            self.kernel("tile_totals", threads, self.tile_totals)
            self.kernel("tensor_totals", MOST_THREADS, self.tensor_totals)
            self.kernel("totals", MOST_THREADS, self.totals)
        if self.plan.compute:
            self.kernel("work", threads, self.work, self.schedule.per_sm)

    def kernel(self, name: str, threads: int, body: object, per_sm: int = 1) -> None:
        self.line()
        self.open(f"KERNEL({name}, {threads}, {per_sm})")
        self.line("const int64_t* const integers = call.integers;")
        self.line("const Stored* const scalars = call.scalars;")
        self.line("(void)integers, (void)scalars;")
        used = "static_cast<Stored*>(call.workspace)"
        for t in self.plan.totals:
            n = self.name[t]
            self.line(f"Stored* const total_{n} = {used};")
            self.line(f"Stored* const tensor_{n} = total_{n} + 1;")
            self.line(f"Stored* const tile_{n} = tensor_{n} + call.filled_count;")
            used = f"tile_{n} + call.tiles"
        for s in self.plan.uniform:
            self.declare(s, self.expression(s, False, self.name), vector=False)
        assert callable(body)
        body()
        self.close()

    def tile(self) -> None:
        """The block's tile: pointers are to its first element."""
        self.line("const int64_t tile = block_index();")
        self.line("const int tensor = call.table ? call.tensor_of_tile[tile] : 0;")
        entry = f"call.table + int64_t(tensor) * {self.entry}"
        if self.matrices in AT_ONCE:
            self.line(f"int64_t entry[{self.entry}];")
            each = f"UNROLL for (int k = 0; k < {self.entry}; ++k) entry[k] ="
            self.line(f"if (call.table) {each} ({entry})[k];")
            self.line(f"else {each} call.one[k];")
        else:
            self.line(f"const int64_t* const entry = call.table ? {entry} : call.one;")
        self.line("const int64_t across_row = (entry[1] + TILE - 1) / TILE, within = tile - entry[2];")
        self.line("const int64_t r = entry[0] == 1 ? 0 : within / across_row;")
        self.line("const int64_t begin = (within - r * across_row) * TILE;")
        self.line("const int size = int(least<int64_t>(TILE, entry[1] - begin));")
        self.line("const int64_t place = r * entry[1] + begin;")
        self.line("(void)place;")
        self.line("const int first = (thread_index() / GROUP * CHUNKS * GROUP + thread_index() % GROUP) * CHUNK;")
        stride, address = ENTRY, ENTRY + self.matrices
        for i, (name, space, kind, const) in enumerate(self.tensors):
            if space == "rc":
                cast = f"reinterpret_cast<{const}{kind}*>(entry[{address + i}])"
                self.line(f"{const}{kind}* const {name} = {cast} + r * entry[{stride}] + begin;")
                stride += 1
        for s in self.plan.of_tensor:
            value = "uint32_t(tensor)" if s.op == "tensor_index" else self.expression(s, False, self.name)
            self.declare(s, value, vector=False)

    def fetch(self, nodes: list[Node], one: bool = False) -> None:
        """All chunks of a thread, or `one`."""
        kinds = {t.name: POINTER[str(t.format)] for t in self.graph.inputs}
        for n in nodes:
            if n.op == "input":
                name = n.data[0]
                self.line(f"Chunk<{kinds[str(name)]}> row_{name}{'' if one else '[CHUNKS]'};")
                load = f"load_chunk<WIDTH, RAGGED>(row_{name}{'' if one else '[v]'}, in_{name} + c0, size - c0);"
                if one:
                    self.line(load)
                    continue
                self.open("UNROLL for (int v = 0; v < CHUNKS; ++v)")
                self.line("const int c0 = first + v * GROUP * CHUNK;")
                self.line(load)
                self.close()

    def elements(self, nodes: list[Node], way: str = "Exact{}", row: str | None = "[v]") -> None:
        """The values of element e of chunk v, whose inputs lie in a thread's `row`, or in memory."""
        self.way = way
        for n in nodes:
            if n.op == "input":
                place = f"in_{n.data[0]} + c0 + e" if row is None else f"&row_{n.data[0]}{row}.e[e]"
                value = f"load1({place})"
            elif n.op == "element_word":
                value = f"element_word<{n.data[0]}>(place + c0 + e)"
            else:
                value = self.expression(n, False, self.name)
            self.declare(n, value, vector=False)
        self.way = None

    # ------------------------------------------------------------------ totals
    def tile_totals(self) -> None:
        """One value a tile."""
        self.tile()
        self.line("SHARED(S, memory, 2 * WARP);")
        self.line("Cells cells{memory, WARP, 0};")
        for t in self.plan.totals:
            sums = t.op == "total_sum"
            op, neutral = ("Add", "NEUTRAL_SUM") if sums else ("Most", "NEUTRAL_MAX")
            value = self.name[t.args[0]] if sums else f"leaf_max({self.name[t.args[0]]})"
            self.open("")
            self.fetch(self.plan.under(t))
            self.line("S part[1][CHUNKS], total[1];")
            self.open("UNROLL for (int v = 0; v < CHUNKS; ++v)")
            self.line("const int c0 = first + v * GROUP * CHUNK;")
            self.line("S at[CHUNK];")
            self.open("UNROLL for (int e = 0; e < CHUNK; ++e)")
            self.elements(self.plan.under(t))
            self.line(f"at[e] = c0 + e < size ? {value} : {neutral};")
            self.close()
            self.line(f"part[0][v] = fold<{op}, CHUNK>(at);")
            self.close()
            self.line(f"along_row<{op}, THREADS, CHUNKS, 1>(part, total, cells);")
            self.line(f"if (thread_index() == 0) store1(tile_{self.name[t]} + tile, total[0]);")
            self.close()

    def tensor_totals(self) -> None:
        """The tree over a tensor's tiles: a block for each tensor that is not empty."""
        self.line("const int64_t place = block_index();")
        entry = f"call.table + int64_t(call.filled[place]) * {self.entry}"
        self.line(f"const int64_t* const entry = call.table ? {entry} : call.one;")
        self.line("const int64_t begin = entry[2], count = entry[0] * ((entry[1] + TILE - 1) / TILE);")
        self.trees("tile", "begin + i", "count", "tensor", "place")

    def totals(self) -> None:
        """The tree over the tensors that are not empty."""
        self.trees("tensor", "i", "call.filled_count", "total", "0")

    def trees(self, source: str, index: str, count: str, target: str, place: str) -> None:
        self.line("SHARED(S, memory, 2 * WARP);")
        self.line("Cells cells{memory, WARP, 0};")
        for t in self.plan.totals:
            name = self.name[t]
            op = "Add" if t.op == "total_sum" else "Most"
            at = f"[&](int64_t i) {{ return load1({source}_{name} + {index}); }}"
            none = "S{}" if t.op == "total_sum" else "Most::neutral()"
            self.line(f"const S all_{name} = by_all_threads<{op}>({count}, {at}, cells);")
            value = f"{count} ? all_{name} : {none}"
            if target == "total" and t.op == "total_max":
                value = f"done_max({value})"
            self.line(f"if (thread_index() == 0) store1({target}_{name} + {place}, {value});")
        if target == "total":
            self.after()
            for i, o in enumerate(self.graph.outputs):
                if o.space == "s":
                    slot = ENTRY + self.matrices + len(self.graph.inputs) + i
                    entry = "(call.table ? call.table : call.one)"
                    out = f"reinterpret_cast<{POINTER[o.format]}*>({entry}[{slot}])"
                    self.line(f"if (thread_index() == 0) store1({out}, {self.name[o.node]});")

    def after(self, stored: bool = False) -> None:
        """Scalars made of totals."""
        for t in self.plan.totals:
            name = self.name[t]
            none = "S{}" if t.op == "total_sum" else "Most::neutral()"
            value = f"call.filled_count ? all_{name} : {none}"
            value = f"load1(total_{name})" if stored else f"done_max({value})" if t.op == "total_max" else value
            self.declare(t, value, vector=False)
        for s in self.plan.after:
            self.declare(s, self.expression(s, False, self.name), vector=False)

    # ------------------------------------------------------------------ elements
    def work(self) -> None:
        """The stored results; then, one by one, those of chunks where `Quick` missed a quotient or a result is NaN."""
        self.after(stored=True)
        self.tile()
        nodes = list(self.plan.compute)
        self.chunks(nodes)
        self.open("if (missed) ROLLED for (int i = 0; i < CHUNKS * CHUNK; ++i)")
        self.line("const int v = i / CHUNK, e = i % CHUNK, c0 = first + v * GROUP * CHUNK;")
        self.line("if (!(missed >> v & 1) || c0 + e >= size) continue;")
        self.elements(nodes, row=None)
        for o in self.stores:
            self.line(f"store1(out_{o.name} + c0 + e, {self.name[o.node]});")
        self.close()

    def chunks(self, nodes: list[Node]) -> None:
        """All chunks of a thread; `missed` has those that are to be computed once more."""
        at_once = self.schedule.at_once
        numbers = [o for o in self.stores if o.node.type == "f32"]
        if at_once:
            self.fetch(nodes)
        self.line("uint32_t missed = 0;")
        self.open(f"{'UNROLL' if at_once else 'ROLLED'} for (int v = 0; v < CHUNKS; ++v)")
        self.line("const int c0 = first + v * GROUP * CHUNK;")
        if not at_once:
            self.fetch(nodes, one=True)
        self.line("bool odd = false;")
        self.line("const Quick quotients{&odd};")
        self.line("(void)quotients;")
        for o in self.stores:
            self.line(f"Chunk<{POINTER[o.format]}> new_{o.name};")
            self.line(f"{SCALAR[o.node.type]} values_{o.name}[CHUNK];")
        self.open("UNROLL for (int e = 0; e < CHUNK; ++e)")
        self.elements(nodes, "quotients", "[v]" if at_once else "")
        for o in self.stores:
            self.line(f"values_{o.name}[e] = {self.name[o.node]};")
        self.close()
        for o in numbers:
            self.line(f"odd |= any_nan(values_{o.name});")
        self.open("if (odd)")
        self.line("missed |= 1u << v;")
        self.close("} else {")
        self.depth += 1
        for o in self.stores:
            self.line(f"{'encode_numbers' if o in numbers else 'encode'}(new_{o.name}, values_{o.name});")
            self.line(f"store_chunk<WIDTH, RAGGED>(out_{o.name} + c0, new_{o.name}, size - c0);")
        self.close()
        self.close()
