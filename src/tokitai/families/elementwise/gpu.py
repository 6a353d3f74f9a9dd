"""CUDA C++, also for the CPU's fibers, of an element-wise kernel over one tensor or a list, from its plan.

Totals over all elements are found in one launch, whose blocks take turns in phases (``take_turn`` in rows.h): totals of
*units*, runs of neighbouring tiles; those of tensors; those of all. Elements follow by tiles: in the same launch, as
one more phase, or in a second one where blocks have so little to do that a turn costs more than a launch.

Kernels take one ``Call`` by value. ``table`` has an entry for each tensor: rows, columns, its first tile, its place
among those that are not empty (-1 for others), its first unit, the row stride of every matrix, the address of every
tensor; ``tensor_of_tile`` and ``tensor_of_unit`` say whose they are, ``filled`` which tensors are not empty. For a
single tensor these four are null, and its entry is ``one``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...emit.gpu_printer import QuotientPrinter
from ...emit.text import POINTER, SCALAR
from ...formats import FORMATS
from ...lang import Node
from .plan import FlatPlan
from .schedule import MOST_RUN, TILE, FlatSchedule

ENTRY = 5  # words before the strides
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
        self.stored = {t.name: POINTER[str(t.format)] for t in g.inputs}

    def kernels(self) -> None:
        """Constants, the call, the kernels."""
        threads = self.schedule.threads
        self.line(f"constexpr int TILE = {TILE}, THREADS = {threads}, CHUNKS = TILE / CHUNK / THREADS;")
        self.line(f'static_assert({MOST_RUN} <= WARP, "the totals of a run are summed by a warp");')
        self.line(f"constexpr int WIDTH = {self.width};")
        self.line("constexpr int GROUP = Share<THREADS>::GROUP;")
        self.line()
        self.call(
            "int64_t count, tiles, units, run, filled_count", "const int64_t* table", "const int32_t* tensor_of_tile",
            "const int32_t* tensor_of_unit", "const int32_t* filled", f"int64_t one[{self.entry}]",
            f"int64_t integers[{max(1, len(self.whole_slot))}]",
        )  # fmt: skip
        if self.plan.of_all and not self.schedule.joined:
            self.kernel("totals", self.phases)
        if self.schedule.joined or self.plan.compute:
            self.kernel("work", self.work)

    def kernel(self, name: str, body: Callable[[], None]) -> None:
        self.line()
        self.open(f"KERNEL({name}, {self.schedule.threads}, {self.schedule.per_sm})")
        self.line("const int64_t* const integers = call.integers;")
        self.line("const Stored* const scalars = call.scalars;")
        self.line("(void)integers, (void)scalars;")
        used = "static_cast<Stored*>(call.workspace) + 2"
        for t in self.plan.totals:
            n = self.name[t]
            self.line(f"Stored* const total_{n} = {used};")
            self.line(f"Stored* const tensor_{n} = total_{n} + 1;")
            self.line(f"Stored* const unit_{n} = tensor_{n} + call.filled_count;")
            used = f"unit_{n} + call.units"
        for s in self.plan.uniform:
            self.declare(s, self.expression(s, False, self.name), vector=False)
        body()
        self.close()

    def phases(self) -> None:
        """All turns but those for the elements."""
        self.line("uint32_t* const counters = static_cast<uint32_t*>(call.workspace);")
        self.line("SHARED(uint32_t, own_turn, 1);")
        self.line("SHARED(S, memory, 2 * WARP);")
        self.line("Cells cells{memory, WARP, 0};")
        self.line("const uint32_t units = uint32_t(call.units), filled = uint32_t(call.filled_count);")
        self.line("const uint32_t ends[3] = {units, units + filled, units + filled + 1};")
        self.line("const int64_t turn = take_turn(counters, ends, own_turn);")
        phases = [("ends[0]", self.unit_totals), ("ends[1]", self.tensor_totals), ("ends[2]", self.all_totals)]
        for end, phase in phases:
            self.open(f"if (turn < {end})")
            phase()
            self.line("if (thread_index() == 0) count_done(counters + 1);")
            self.line("return;")
            self.close()

    def entry_of(self, tensor: str, at_once: bool = False) -> None:
        self.line(f"const int tensor = call.table ? {tensor} : 0;")
        entry = f"call.table + int64_t(tensor) * {self.entry}"
        if at_once:
            self.line(f"int64_t entry[{self.entry}];")
            each = f"UNROLL for (int k = 0; k < {self.entry}; ++k) entry[k] ="
            self.line(f"if (call.table) {each} ({entry})[k];")
            self.line(f"else {each} call.one[k];")
        else:
            self.line(f"const int64_t* const entry = call.table ? {entry} : call.one;")
        self.line("const int64_t across_row = (entry[1] + TILE - 1) / TILE;")

    def tile(self) -> None:
        """The block's tile."""
        self.entry_of("call.tensor_of_tile[tile]", self.matrices in AT_ONCE)
        self.line("const int64_t within = tile - entry[2];")
        self.line("const int64_t r = entry[0] == 1 ? 0 : within / across_row;")
        self.inside("within - r * across_row")

    def inside(self, tile_of_row: str, under: Sequence[Node] | None = None) -> None:
        """A tile of row r: pointers are to its first element. Where it is for a total, to that of inputs `under` it."""
        read = None if under is None else {f"in_{n.data[0]}" for n in under if n.op == "input"}
        self.line(f"const int64_t begin = ({tile_of_row}) * TILE;")
        self.line("const int size = int(min<int64_t>(TILE, entry[1] - begin));")
        self.line("const int64_t place = r * entry[1] + begin;")
        self.line("(void)place;")
        self.line("const int first = (thread_index() / GROUP * CHUNKS * GROUP + thread_index() % GROUP) * CHUNK;")
        stride, address = ENTRY, ENTRY + self.matrices
        for i, (name, space, kind, const) in enumerate(self.tensors):
            if space == "rc":
                cast = f"reinterpret_cast<{const}{kind}*>(entry[{address + i}])"
                if read is None or name in read:
                    self.line(f"{const}{kind}* const {name} = {cast} + r * entry[{stride}] + begin;")
                    self.line(f"(void){name};")
                stride += 1
        self.scalars_of_tensor(for_totals=read is not None)

    def scalars_of_tensor(self, for_totals: bool) -> None:
        for s in (s for s in self.plan.of_tensor if not for_totals or s not in self.plan.late):
            value = "uint32_t(tensor)" if s.op == "tensor_index" else self.expression(s, False, self.name)
            self.declare(s, value, vector=False)

    def fetch(self, nodes: list[Node], one: bool = False, declared: bool = False) -> None:
        """All chunks of a thread, or `one`; into rows that are `declared`, perhaps."""
        for n in nodes:
            if n.op == "input":
                name = n.data[0]
                if not declared:
                    self.line(f"Chunk<{self.stored[str(name)]}> row_{name}{'' if one else '[CHUNKS]'};")
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
    def unit_totals(self) -> None:
        """One value a unit: of a sum the tree over those of its tiles."""
        self.entry_of("call.tensor_of_unit[turn]")
        if self.graph.one_row:
            self.line("const int64_t units_across = (across_row + call.run - 1) / call.run, within = turn - entry[4];")
            self.line("const int64_t r = entry[0] == 1 ? 0 : within / units_across;")
            self.line("const int64_t from = (within - r * units_across) * call.run;")
            self.line("const int count = int(min(call.run, across_row - from));")
        else:  # tiles go on in the next row: there are at most as many as those of rows, and units to spare have none
            self.line("const int64_t elements = entry[0] * entry[1], from = (turn - entry[4]) * call.run;")
            self.line("const int count = int(min(call.run, (elements + TILE - 1) / TILE - from));")
        sums = any(t.op == "total_sum" for t in self.plan.totals)
        if sums:
            self.line(f"SHARED(S, sums, {MOST_RUN});")
        for t in self.plan.totals:
            self.open("")
            if self.graph.one_row:
                self.unit_total(t)
            else:
                self.unit_of_rows(t)
            if t.op == "total_sum":
                self.line("barrier();")
                self.line("const int k = thread_index() % WARP;")
                self.line(f"total[0] = across<Add, {MOST_RUN}>(k < count ? sums[k] : NEUTRAL_SUM);")
            else:
                self.line("along_row<Maximum, THREADS, 1, 1>(part, total, cells);")
            self.line(f"if (thread_index() == 0) store1(unit_{self.name[t]} + turn, total[0]);")
            self.close()

    def unit_total(self, t: Node) -> None:
        """One tile after the other. Where few blocks find room, and a tile is small, the next one is on its way
        meanwhile."""
        if t.op == "total_max":
            self.line("S part[1][1] = {{NEUTRAL_MAX}};")
        self.line("S total[1];")
        nodes = self.plan.under(t)
        read = [(str(n.data[0]), self.stored[str(n.data[0])]) for n in nodes if n.op == "input"]
        bits = {t.name: FORMATS[str(t.format)].bits for t in self.graph.inputs}
        ahead = not self.schedule.at_once and sum(bits[name] for name, _ in read) <= 16
        arguments = "".join(f", Chunk<{kind}> (&row_{name})[CHUNKS]" for name, kind in read)
        self.open(f"const auto fetch = [&](int k{arguments})")
        self.inside("from + k", nodes)
        self.fetch(nodes, declared=True)
        self.close("};")
        self.open(f"const auto work_on = [&](int k{arguments})")
        self.inside("from + k", nodes)
        self.tile_total(t)
        self.close("};")
        for name, kind in read:
            self.line(f"Chunk<{kind}> this_{name}[CHUNKS]{f', next_{name}[CHUNKS]' if ahead else ''};")
        this, following = ("".join(f", {turn}_{name}" for name, _ in read) for turn in ("this", "next"))
        if not ahead:
            self.open("ROLLED for (int k = 0; k < count; ++k)")
            self.line(f"fetch(k{this});")
            self.line(f"work_on(k{this});")
            self.close()
            return
        self.line(f"fetch(0{this});")
        self.open("ROLLED for (int k = 0; k < count; k += 2)")
        self.line(f"if (k + 1 < count) fetch(k + 1{following});")
        self.line(f"work_on(k{this});")
        self.line("if (k + 1 >= count) break;")
        self.line(f"if (k + 2 < count) fetch(k + 2{this});")
        self.line(f"work_on(k + 1{following});")
        self.close()

    def tile_total(self, t: Node, elements: Callable[[list[Node]], None] | None = None) -> None:
        """Of a sum one value a tile; of a maximum, in which order does not count, one a thread. ``elements`` prints the
        values of an element, where they are not those of a thread's chunks."""
        sums = t.op == "total_sum"
        op, neutral = ("Add", "NEUTRAL_SUM") if sums else ("Maximum", "NEUTRAL_MAX")
        value = self.name[t.args[0]] if sums else f"leaf_max({self.name[t.args[0]]})"
        if sums:
            self.line("S part[1][CHUNKS];")
        self.open("UNROLL for (int v = 0; v < CHUNKS; ++v)")
        self.line("const int c0 = first + v * GROUP * CHUNK;")
        self.line("S at[CHUNK];")
        self.open("UNROLL for (int e = 0; e < CHUNK; ++e)")
        (elements or self.elements)(self.plan.under(t))
        self.line(f"at[e] = c0 + e < size ? {value} : {neutral};")
        self.close()
        found = f"fold<{op}, CHUNK>(at)"
        self.line(f"part[0][v] = {found};" if sums else f"part[0][0] = Maximum::of(part[0][0], {found});")
        self.close()
        if sums:
            self.line("along_row<Add, THREADS, CHUNKS, 1>(part, total, cells);")
            self.line("if (thread_index() == 0) sums[k] = total[0];")

    def unit_of_rows(self, t: Node) -> None:
        """The same where there may be several rows: elements are read one at a time."""
        if t.op == "total_max":
            self.line("S part[1][1] = {{NEUTRAL_MAX}};")
        self.line("S total[1];")
        self.line("const int first = (thread_index() / GROUP * CHUNKS * GROUP + thread_index() % GROUP) * CHUNK;")
        self.open("ROLLED for (int k = 0; k < count; ++k)")
        self.line("const int64_t begin = (from + k) * TILE;")
        self.line("const int size = int(min<int64_t>(TILE, elements - begin));")
        self.scalars_of_tensor(for_totals=True)
        self.tile_total(t, self.element_of_rows)
        self.close()

    def element_of_rows(self, nodes: list[Node]) -> None:
        """The values of element e of chunk v, by its place in the flattened tensor."""
        self.line("const int64_t place = min(begin + c0 + e, elements - 1), r = place / entry[1];")
        self.line("(void)place, (void)r;")
        matrices = [name for name, space, _, _ in self.tensors if space == "rc"]
        for n in nodes:
            if n.op == "input":
                name = f"in_{n.data[0]}"
                address = ENTRY + self.matrices + [t[0] for t in self.tensors].index(name)
                start = f"reinterpret_cast<const {self.stored[str(n.data[0])]}*>(entry[{address}])"
                at = f"r * entry[{ENTRY + matrices.index(name)}] + (place - r * entry[1])"
                self.declare(n, f"load1({start} + {at})", vector=False)
            elif n.op == "element_word":
                self.declare(n, f"element_word<{n.data[0]}>(place)", vector=False)
            else:
                self.declare(n, self.expression(n, False, self.name), vector=False)

    def tensor_totals(self) -> None:
        """The tree over the units of a tensor that is not empty."""
        self.line("const int64_t place = turn - ends[0];")
        entry = f"call.table + int64_t(call.filled[place]) * {self.entry}"
        self.line(f"const int64_t* const entry = call.table ? {entry} : call.one;")
        self.line("const int64_t elements = TILE * call.run, begin = entry[4];")
        if self.graph.one_row:
            self.line("const int64_t count = entry[0] * ((entry[1] + elements - 1) / elements);")
        else:
            self.line("const int64_t count = (entry[0] * entry[1] + elements - 1) / elements;")
        self.trees("unit", "begin + i", "count", "tensor", "place")

    def all_totals(self) -> None:
        """The tree over the tensors that are not empty, and single results."""
        self.trees("tensor", "i", "call.filled_count", "total", "0")
        self.after()
        for i, o in enumerate(self.graph.outputs):
            if o.space == "s":
                slot = ENTRY + self.matrices + len(self.graph.inputs) + i
                entry = "(call.table ? call.table : call.one)"
                out = f"reinterpret_cast<{POINTER[o.format]}*>({entry}[{slot}])"
                self.line(f"if (thread_index() == 0) store1({out}, {self.name[o.node]});")

    def trees(self, source: str, index: str, count: str, target: str, place: str) -> None:
        for t in self.plan.totals:
            name = self.name[t]
            op = "Add" if t.op == "total_sum" else "Maximum"
            at = f"[&](int64_t i) {{ return load1({source}_{name} + {index}); }}"
            none = "S{}" if t.op == "total_sum" else "Maximum::neutral()"
            self.line(f"const S all_{name} = by_all_threads<{op}, THREADS>({count}, {at}, cells);")
            value = f"{count} ? all_{name} : {none}"
            if target == "total" and t.op == "total_max":
                value = f"done_max({value})"
            self.line(f"if (thread_index() == 0) store1({target}_{name} + {place}, {value});")

    def after(self, stored: bool = False) -> None:
        """Scalars made of totals."""
        for t in self.plan.totals:
            name = self.name[t]
            none = "S{}" if t.op == "total_sum" else "Maximum::neutral()"
            value = f"call.filled_count ? all_{name} : {none}"
            value = f"load1(total_{name})" if stored else f"done_max({value})" if t.op == "total_max" else value
            self.declare(t, value, vector=False)
        for s in self.plan.after:
            self.declare(s, self.expression(s, False, self.name), vector=False)

    # ------------------------------------------------------------------ elements
    def work(self) -> None:
        """The stored results; then, one by one, those of chunks where `Quick` missed a quotient or a result is NaN.
        Ahead of them in the same launch, perhaps, the totals."""
        if self.schedule.joined:
            self.phases()
            self.line("const int64_t tile = turn - ends[2];")
        else:
            self.line("const int64_t tile = block_index();")
        if self.plan.totals:
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
            self.encode(o, "encode_numbers" if o in numbers else "encode")
            self.line(f"store_chunk<WIDTH, RAGGED>(out_{o.name} + c0, new_{o.name}, size - c0);")
        self.close()
        self.close()
