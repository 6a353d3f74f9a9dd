"""CUDA C++, also for the CPU's fibers, of a matrix product with element-wise work on its result, from plan and tiling.

Two kernels: ``work`` (tiles of the result, or parts of the sums in them) and ``finish`` (the tree over the parts, where
there are several); of operands in fixed point ``cut`` is ahead of them, which makes their integers. All take one
``Call`` by value: ``together`` says how many chains along k are a part; the rest is as `matmul.cpu` has it.
"""

from __future__ import annotations

from ...emit.text import POINTER, Printer
from ...lang import MATRICES, Node
from .cpu import unit_defines
from .plan import ProductPlan
from .tiling import CUT_THREADS, FINISH_THREADS, Tiling


class GpuProductEmitter(Printer):
    """Prints the kernels of one operator for one tiling."""

    includes: tuple[str, ...] = ("products.h",)
    batch = "batch"  # products that the work in all consists of
    share = ""  # the side that groups share out
    mine, item, row = "work", "unit.item", "r"  # the product of a unit: its sizes, its place in the batch, a row of it

    def __init__(self, plan: ProductPlan, tiling: Tiling) -> None:
        super().__init__(plan.graph)
        self.plan, self.tiling = plan, tiling
        t = tiling
        sizes = {
            "PRODUCTS": len(plan.products), "ROWS": t.rows, "COLS": t.cols, "THREAD_M": t.tall, "THREAD_N": t.wide,
            "DEPTH": t.depth, "LANES": t.lanes, "UNROLL_K": t.unrolled, "WIDTH": t.width,
        }  # fmt: skip
        self.fused = plan.accumulator == "fused16"
        self.fixed = plan.fixed
        self.includes = tuple("fixed_point.h" if plan.fixed and h == "products.h" else h for h in self.includes)
        unit = (*unit_defines(plan), f"#define UNIT_ATOM {int(t.atom)}") if self.fused or self.fixed else ()
        self.defines = (
            f"// {t}",
            *unit,
            f"#define ACCUMULATORS_F64 {int(plan.accumulator == 'f64')}",
            f"#define MATRIX_UNITS {int(t.matrix)}",
            *(f"#define PLAN_{name} {value}" for name, value in sizes.items()),
        )

    def kernels(self) -> None:
        """The call, and the kernels."""
        matrices = sum(space in MATRICES for _, space, _, _ in self.tensors)
        self.line()
        numbers = 4 + 2 * matrices + len(self.whole_slot)
        self.call(
            *self.ahead(len(self.tensors), numbers), f"void* tensors[{len(self.tensors)}]", "int64_t chains_per_slice",
            f"int64_t sizes[{numbers}]",
        )  # fmt: skip
        for name, threads, per_sm, body in (
            *([("cut", CUT_THREADS, 1, self.cut)] if self.fixed else []),
            ("work", self.tiling.threads, self.tiling.per_sm, self.work), ("finish", FINISH_THREADS, 1, self.finish),
        ):  # fmt: skip
            self.line()
            self.open(f"KERNEL({name}, {threads}, {per_sm})")
            self.arguments()
            body()
            self.close()

    def ahead(self, tensors: int, sizes: int) -> list[str]:
        """The fields ahead of the addresses of so many tensors and of so many sizes."""
        return []

    def arguments(self) -> None:
        self.pointers_of_batches("call.")
        self.line("const Stored* const scalars = call.scalars;")
        if self.fixed:
            self.digits_in_workspace()
        else:
            self.line("E* const slices = static_cast<E*>(call.workspace);  // where there are several")
        self.line(f"const Work work(rows, cols, k_size, {self.batch}, call.chains_per_slice);")
        self.line("(void)integers, (void)scalars;")
        for n in self.plan.uniform:
            self.declare(n, self.expression(n, False, self.name), vector=False)

    # ------------------------------------------------------------------ kernels
    def work(self) -> None:
        left, layout = self.plan.left.data, str(self.plan.products[0].data[0])
        rights = [n.args[1].data for n in self.plan.products]
        kinds = POINTER[str(left[1])], POINTER[str(rights[0][1])]
        along = ["true" if flag else "false" for flag in (layout[0] == "N", layout[1] == "T")]
        if self.fixed:
            self.line("SHARED(Piece, memory, MEMORY);")
            self.line("Bytes* const k_tiles = memory->e;")
        else:
            self.line(f"typedef Loader<ROWS, {along[0]}, true, {kinds[0]}> Left;")
            self.line(f"typedef Loader<COLS, {along[1]}, false, {kinds[1]}> Right;")
            pack, element = ("Pack", "W") if self.fused else ("Quad", "E")
            self.line(f"SHARED({pack}, memory, 2 * K_TILE_SIZE / {pack.upper()});")
            self.line(f"{element}* const k_tiles = memory->e;")
        self.line("E* const pending = slices + work.slice_partials() + block_index() * work.pending_of_block();")
        self.units()
        self.matrices(self.item)
        if self.fixed:
            self.digits_of_unit()
        else:
            self.line(f"const Operand<{kinds[0]}> left = {self.side(self.plan.left)};")
            sides = ", ".join(self.side(n.args[1]) for n in self.plan.products)
            self.line(f"const Operand<{kinds[1]}> right[PRODUCTS] = {{{sides}}};")
        self.line("Tile tile;")
        self.line(f"tile.run{'' if self.fixed else '<Left, Right>'}({self.mine}, unit, left, right, pending, k_tiles);")
        at = f"[&](int64_t {self.row}, int64_t c, const E (&sums)[PRODUCTS])"
        self.open(f"tile.results({self.mine}, unit, k_tiles, {at}")
        self.begin_result()
        self.open("if (work.slices > 1)")
        place = "slices[work.index(unit.slice, n, unit.item, r, c)]"
        self.line(f"UNROLL for (int n = 0; n < PRODUCTS; ++n) {place} = sums[n];")
        self.line("return;")
        self.close()
        self.elements()
        self.close("});")
        self.close()

    # ------------------------------------------------------------------ operands in fixed point
    @property
    def factors(self) -> list[Node]:
        """The left operand, then the right ones."""
        return [self.plan.left, *(n.args[1] for n in self.plan.products)]

    def digits_in_workspace(self) -> None:
        """Where the integers of operands lie, and behind them the sums of parts."""
        self.line(f"Buffers buffers(call.workspace, k_size, {'batch' if self.share == 'k' else '0'});")
        for i, x in enumerate(self.factors):
            items = "1" if self.share == "k" else f"in_{x.data[0]}_batch ? batch : 1"
            self.line(f"buffers.lines[{i}] = {'cols' if i else 'rows'}, buffers.items[{i}] = {items};")
        self.line("E* const slices = buffers.rest();  // where there are several")

    def digits_of_unit(self) -> None:
        """The integers of a unit's operands."""
        left, *others = (self.digits(i, x) for i, x in enumerate(self.factors))
        self.line(f"const Digits left = {left}, right[PRODUCTS] = {{{', '.join(others)}}};")

    def digits(self, place: int, x: Node) -> str:
        """The integers of a unit's operand."""
        line = "group.begin" if self.share == "r" and not place else "0"
        group, begin = ("group.index", "group.begin") if self.share == "k" else ("0", "0")
        return f"buffers.digits({place}, in_{x.data[0]}_batch ? {self.item} : 0, {line}, {group}, {begin})"

    def cut(self) -> None:
        """Each operand's integers, strip by strip."""
        self.line("(void)slices;")
        self.line("SHARED(CutMemory, memory, 1);")
        for i, x in enumerate(self.factors):
            name = f"in_{x.data[0]}"
            along = str(str(x.space)[1] == "k").lower()
            items = "batch" if self.share == "k" else f"buffers.items[{i}]"
            kind = POINTER[str(x.data[1])]
            self.line(f"each_strip<CUT_LINES<{along}, {kind}>>(")
            self.open(f"    {items}, buffers.lines[{i}], k_size, [&](int64_t item, int64_t line, int64_t block)")
            self.line(f"const auto* const from = all_{name} + item * {name}_batch;")
            self.line("int64_t k0 = block * CHAIN, length = min(CHAIN, k_size - k0), group = 0;")
            if self.share == "k":
                offsets = f"in_{self.graph.offsets.name}" if self.graph.offsets else ""
                self.line(f"const int64_t begin = {offsets}[item], count = {offsets}[item + 1] - begin;")
                self.line("if (k0 >= count) return;")
                self.line("length = min(CHAIN, count - k0), k0 += begin, group = item, item = 0;")
            step = f"line * {name}_stride + k0" if along == "true" else f"k0 * {name}_stride + line"
            side = f"Operand<{kind}>{{from + {step}, {name}_stride}}"
            to = f"buffers.digits({i}, item, 0, group, k0)"
            self.line(f"cut<{along}>(*memory, {side}, line, buffers.lines[{i}] - line, length, {to});")
            self.close("});")

    def units(self) -> None:
        """The loop over a block's units, and which one it is."""
        self.open("for (int64_t at = block_index(); at < work.units; at += grid_size())")
        self.line("const Unit unit(work, at);")

    def side(self, operand: Node) -> str:
        """An operand of a unit's product, as ``Side`` has it."""
        return f"{{in_{operand.data[0]}, in_{operand.data[0]}_stride}}"

    def begin_result(self) -> None:
        """What is ahead of an element of a result."""

    def parts_of_item(self) -> str:
        """How many parts a product's sum has."""
        return "work.slices"

    def finish(self) -> None:
        self.open(
            f"for (int64_t e = block_index() * {FINISH_THREADS} + thread_index(); e < {self.batch} * rows * cols; "
            f"e += grid_size() * {FINISH_THREADS})"
        )
        self.line("const int64_t item = e / (rows * cols), r = e / cols % rows, c = e % cols;")
        self.matrices("item")
        self.line("E sums[PRODUCTS];")
        self.open("UNROLL for (int n = 0; n < PRODUCTS; ++n)")
        at = "[&](int64_t slice) { return slices[work.index(slice, n, item, r, c)]; }"
        self.line(f"sums[n] = over_slices({self.parts_of_item()}, {at});")
        self.close()
        self.elements()
        self.close()

    def matrices(self, item: str) -> None:
        """Pointers to the matrices of one product of the batch."""
        for name, space, kind, const in self.tensors:
            if space in MATRICES:
                self.line(f"{const}{kind}* const {name} = all_{name} + {item} * {name}_batch;")
                self.line(f"(void){name};")

    def elements(self) -> None:
        """What is made of the products at row r and column c, and its store."""
        self.values()
        for o in self.graph.outputs:
            self.line(f"store1(out_{o.name} + r * out_{o.name}_stride + c, {self.name[o.node]});")

    def values(self) -> None:
        """What is made of the products at row r and column c."""
        for i, n in enumerate(self.plan.products):
            self.declare(n, f"result_of(sums[{i}])", vector=False)
        for n in self.plan.compute:
            if n.space == "r":
                self.row_value(n)
            elif n.op == "input":
                self.declare(n, self.read(n), vector=False)
            else:
                self.one_column(n)

    def read(self, n: Node) -> str:
        """An input's element at row r and column c."""
        row = f" + r * in_{n.data[0]}_stride" if n.space == "rc" else ""
        return f"load1(in_{n.data[0]}{row} + c)"
