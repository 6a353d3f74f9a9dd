"""C++ for the CPU: the source of an element-wise kernel over a list of tensors, from its plan.

The ABI is that of ``emit.cpp``, repeated for each tensor of the list: ``sizes`` are the number of tensors, then for
each one rows, columns and row strides; ``tensors`` are the inputs and results of the first, then of the second ...;
whole host scalars follow ``sizes``.
"""

from __future__ import annotations

from ...emit.cpp import IN_THREADS
from ...emit.text import POINTER, Printer, streamed
from ...lang import Node
from .plan import FlatPlan


class FlatEmitter(Printer):
    """Prints one kernel."""

    def __init__(self, plan: FlatPlan) -> None:
        super().__init__(plan.graph)
        self.plan = plan
        self.streamed = {f"out_{o.name}" for o in streamed(plan.graph)}
        self.per_tensor = 2 + sum(space == "rc" for _, space, _, _ in self.tensors)  # entries of sizes

    def body(self) -> None:
        """What stands between the braces of the kernel."""
        n = self.per_tensor
        self.line("const int64_t count = sizes[0];")
        self.line(f"const int64_t* const integers = sizes + 1 + count * {n};")
        self.line("const Stored* const scalars = static_cast<const Stored*>(scalar_table);")
        self.line("(void)integers, (void)scalars;")
        self.line(
            "int64_t* const first_tile = static_cast<int64_t*>(workspace);  // of each tensor, and one past the last"
        )
        self.line("int64_t* const filled = first_tile + count + 1;                // tensors that are not empty")
        self.line("int64_t fill = 0;")
        self.line("first_tile[0] = 0;")
        self.open("for (int64_t i = 0; i < count; ++i)")
        self.line(f"const int64_t tiles = sizes[1 + i * {n}] * tiles_of(sizes[2 + i * {n}]);")
        self.line("first_tile[i + 1] = first_tile[i] + tiles;")
        self.line("if (tiles) filled[fill++] = i;")
        self.close()
        self.line("const int64_t tiles = first_tile[count];")
        place = "reinterpret_cast<Stored*>(filled + count)"
        for t in self.plan.totals:
            self.line(f"Stored* const tile_{self.name[t]} = {place};")
            place = f"tile_{self.name[t]} + tiles"
        self.open(IN_THREADS)
        self.line("const FloatMode mode;")
        for s in self.plan.uniform:
            self.declare(s, self.expression(s, False, self.name), vector=False)
        for t in self.plan.totals:
            self.total(t)
        for s in self.plan.after:
            self.declare(s, self.expression(s, False, self.name), vector=False)
        if self.plan.compute:
            self.tiles(storing=True)
            self.open("each(0, size, [&](int64_t c, auto lanes) INLINE_LAMBDA")
            self.elements(list(self.plan.compute))
            for o in self.graph.outputs:
                if o.space == "rc":
                    how = f", out_{o.name}_streams" if f"out_{o.name}" in self.streamed else ""
                    self.line(f"store(out_{o.name} + c, {self.vector(o.node)}, lanes{how});")
            self.close("});")
            self.close()
        self.line("finish_stores();")
        for i, o in enumerate(self.graph.outputs):
            if o.space == "s":
                self.line("#pragma omp single nowait")
                kind = POINTER[o.format]
                slot = len(self.graph.inputs) + i
                self.line(f"store1(static_cast<{kind}*>(tensors[{slot}]), {self.name[o.node]});")
        self.close("});")

    def tiles(self, storing: bool = False) -> None:
        """Open the loop over tiles: pointers are to the tile's first element."""
        self.tile()
        self.line("const int64_t across = tiles_of(shape[1]), within = tile - first_tile[tensor];")
        self.line(
            "const int64_t r = within / across, begin = within % across * TILE, size = min(TILE, shape[1] - begin);"
        )
        self.line("const int64_t place = r * shape[1] + begin;")
        self.pointers(storing)

    def tile(self) -> None:
        """Open the loop over tiles, which find their tensor."""
        self.line("#pragma omp for schedule(static)")
        self.open("for (int64_t tile = 0; tile < tiles; ++tile)")
        self.line("const int64_t tensor = tensor_of(first_tile, count, tile);")
        self.line(f"const int64_t* const shape = sizes + 1 + tensor * {self.per_tensor};")

    def pointers(self, storing: bool) -> None:
        """Pointers to the elements of row r from column `begin` on, whose place in the tensor is known."""
        width, stride = len(self.tensors), 2
        self.line("(void)place;")
        for i, (name, space, kind, const) in enumerate(self.tensors):
            if space == "rc":
                cast = f"static_cast<{const}{kind}*>(tensors[tensor * {width} + {i}])"
                self.line(f"{const}{kind}* const {name} = {cast} + r * shape[{stride}] + begin;")
                self.line(f"(void){name};")
                if name in self.streamed and storing:
                    self.line(f"const bool {name}_streams = streams({name}, shape[{stride}], shape[0], shape[1]);")
                stride += 1
        for s in (s for s in self.plan.of_tensor if storing or s not in self.plan.late):
            value = "uint32_t(tensor)" if s.op == "tensor_index" else self.expression(s, False, self.name)
            self.declare(s, value, vector=False)

    def elements(self, nodes: list[Node]) -> None:
        for n in nodes:
            if n.op == "input":
                value = f"load(in_{n.data[0]} + c, lanes)"
            elif n.op == "element_word":
                value = f"element_word<{n.data[0]}>(place + c, lanes)"
            else:
                value = self.expression(n, True, self.name)
            self.declare(n, value, vector=True)

    def total(self, t: Node) -> None:
        """One value a tile, then (behind the loop's barrier) the tree over a tensor's tiles and over the tensors."""
        if t.op == "total_sum" and not self.graph.one_row:
            self.sum_of_rows(t)
            return
        name, x = self.name[t], self.vector(t.args[0])
        self.tiles()
        if t.op == "total_sum":
            self.line("S sum[1];")
            self.line("Stored partial[partial_capacity(TILE)];")
            self.open("row_sums<1, false>(size, partial, [&](int64_t c, auto lanes) INLINE_LAMBDA")
            self.elements(self.plan.under(t))
            self.line(f"return summands(lanes, pad({x}, NEUTRAL_SUM, lanes));")
            self.close("}, [](int64_t) {}, sum);")
            self.line(f"store1(tile_{name} + tile, sum[0]);")
        else:
            self.line("Max top;")
            self.open("each(0, size, [&](int64_t c, auto lanes) INLINE_LAMBDA")
            self.elements(self.plan.under(t))
            self.line(f"take(top, pad(leaf_max({x}), NEUTRAL_MAX, lanes));")
            self.close("});")
            self.line(f"store1(tile_{name} + tile, joined_max(top));")
        self.close()
        if t.op == "total_sum":
            self.open(f"const S {name} = tree_over(fill, S{{}}, [&](int64_t i)")
            self.line("const int64_t begin = first_tile[filled[i]], end = first_tile[filled[i] + 1];")
            self.line(
                f"return tree_over(end - begin, S{{}}, [&](int64_t k) {{ return load1(tile_{name} + begin + k); }});"
            )
            self.close("});")
        else:
            self.line(f"S max_{name} = NEUTRAL_MAX;")
            self.line(f"for (int64_t i = 0; i < tiles; ++i) max_{name} = join_max(max_{name}, load1(tile_{name} + i));")
            self.line(f"const S {name} = done_max(max_{name});")

    def sum_of_rows(self, t: Node) -> None:
        """The same of a sum where there may be several rows: tiles of the flattened tensor, which go on in the next
        row. There are at most as many of them as tiles of rows."""
        name = self.name[t]
        self.tile()
        self.line("const int64_t start = (tile - first_tile[tensor]) * TILE;")
        self.line("const int64_t size = min(TILE, shape[0] * shape[1] - start);")
        self.line("if (size <= 0) continue;")
        self.line("Stored terms[TILE];")
        self.open("for (int64_t done = 0; done < size;)")
        self.line("const int64_t place = start + done, r = place / shape[1], begin = place - r * shape[1];")
        self.line("const int64_t here = min(size - done, shape[1] - begin);")
        self.pointers(storing=False)
        self.open("each(0, here, [&](int64_t c, auto lanes) INLINE_LAMBDA")
        self.elements(self.plan.under(t))
        self.line(f"store(terms + done + c, {self.vector(t.args[0])}, lanes);")
        self.close("});")
        self.line("done += here;")
        self.close()
        self.line("S sum[1];")
        self.line("Stored partial[partial_capacity(TILE)];")
        self.open("row_sums<1, false>(size, partial, [&](int64_t c, auto lanes) INLINE_LAMBDA")
        self.line("return summands(lanes, pad(load(terms + c, lanes), NEUTRAL_SUM, lanes));")
        self.close("}, [](int64_t) {}, sum);")
        self.line(f"store1(tile_{name} + tile, sum[0]);")
        self.close()
        self.open(f"const S {name} = tree_over(fill, S{{}}, [&](int64_t i)")
        self.line(f"const int64_t* const shape = sizes + 1 + filled[i] * {self.per_tensor};")
        self.line("const int64_t begin = first_tile[filled[i]], count = tiles_of(shape[0] * shape[1]);")
        self.line(f"return tree_over(count, S{{}}, [&](int64_t k) {{ return load1(tile_{name} + begin + k); }});")
        self.close("});")
