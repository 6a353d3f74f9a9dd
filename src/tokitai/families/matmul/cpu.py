"""C++ for the CPU: the text of a matrix product with element-wise work on its result, from its plan.

The ABI is that of ``emit.cpp``, but for ``sizes``: rows, columns, inner size, products in the batch, then for every
matrix its row stride and the stride from one product of the batch to the next (0 where all share it), in elements.
"""

from __future__ import annotations

from ...emit.cpp import IN_THREADS, headers, own
from ...emit.text import POINTER, Printer
from ...formats import FORMATS
from ...lang import FIXED_BITS, MATRICES
from .plan import BLOCK_ROWS, DEPTH, PANEL_COLS, PANEL_ROWS, SHARE, TALL, WIDE, ProductPlan


def unit_defines(plan: ProductPlan) -> tuple[str, ...]:
    """What the headers of products read where a matrix unit adds up, the smallest exponents of the operands; of
    operands in fixed point their bits."""
    if plan.fixed:
        return (f"#define PLAN_FIXED_BITS {FIXED_BITS[plan.accumulator]}",)
    if plan.accumulator != "fused16":
        return ()
    return defines_of_units(*(str(n.data[1]) for n in plan.products[0].args[:2]))


def defines_of_units(left_format: str, right_format: str) -> tuple[str, ...]:
    """The same of operands in these formats."""
    left, right = (FORMATS[f].emin for f in (left_format, right_format))
    return ("#define ACCUMULATORS_FUSED 1", f"#define LEFT_MIN_EXPONENT {left}", f"#define RIGHT_MIN_EXPONENT {right}")


def plan_defines(f64: bool, tall: int = TALL, wide: int = WIDE, panel: int = PANEL_COLS) -> tuple[str, ...]:
    """What the headers of products read: the accumulators, the tile, how much is packed at a time, panels at most."""
    sizes = {"BLOCK_M": tall, "BLOCK_N": wide, "DEPTH": DEPTH, "BLOCK_ROWS": BLOCK_ROWS, "SHARE": SHARE}
    sizes |= {"PANEL_ROWS": PANEL_ROWS, "PANEL_COLS": panel}
    return (f"#define ACCUMULATORS_F64 {int(f64)}", *(f"#define PLAN_{n} {value}" for n, value in sizes.items()))


def product_headers(plan: ProductPlan) -> dict[str, str]:
    """The headers of a product's kernel, by name."""
    return headers(of_products=True) | (own("fixed_point.h") if plan.fixed else {})


class ProductEmitter(Printer):
    """Prints one kernel."""

    includes: tuple[str, ...] = ("products.h",)

    def __init__(self, plan: ProductPlan) -> None:
        super().__init__(plan.graph)
        self.plan = plan
        self.defines = unit_defines(plan) + plan_defines(plan.accumulator == "f64")
        self.buffers = "FixedBuffers" if plan.fixed else "Buffers"
        self.includes = (*self.includes, *(["fixed_point.h"] if plan.fixed else []))

    def body(self) -> None:
        """What stands between the braces of the kernel."""
        self.arguments()
        count = len(self.plan.products)
        self.line(f"const {self.buffers} buffers({count}, rows, cols, k_size, batch, threads, workspace);")
        self.open(IN_THREADS)
        self.line("const FloatMode mode;")
        for s in self.plan.uniform:
            self.declare(s, self.expression(s, False, self.name), vector=False)
        self.open("each_product(batch, threads, [&](int64_t item, Team team)")
        for name, space, kind, const in self.tensors:
            if space in MATRICES:
                self.line(f"{const}{kind}* const {name} = all_{name} + item * {name}_batch;")
        left, layout = self.plan.left.data[0], str(self.plan.products[0].data[0])
        rights = [n.args[1].data for n in self.plan.products]
        sides = ", ".join(f"{{in_{name}, in_{name}_stride}}" for name, _ in rights)
        self.line(f"const Operand<{POINTER[str(rights[0][1])]}> right[{count}] = {{{sides}}};")
        turned = [str(n.data[0])[1] == "T" for n in self.plan.products]
        self.line(f"const bool right_transposed[{count}] = {{{', '.join(str(t).lower() for t in turned)}}};")
        kind = POINTER[str(self.plan.left.data[1])]
        self.line(f"const Operand<{kind}> left = {{in_{left}, in_{left}_stride}};")
        self.line(f"constexpr bool left_transposed = {str(layout[0] == 'T').lower()};")
        head = "products<left_transposed>(rows, cols, k_size, team, buffers, left, right, right_transposed, "
        values = f"const V (&product)[{count}]"
        self.open(f"{head}[&](int64_t r, int64_t c, auto lanes, {values}) INLINE_LAMBDA")
        self.elements()
        self.close("});")
        self.close("});")
        self.close("});")

    def arguments(self) -> None:
        self.pointers_of_batches()
        self.line("const Stored* const scalars = static_cast<const Stored*>(scalar_table);")
        self.line("(void)scalars, (void)integers;")

    def elements(self) -> None:
        """What is made of the products at row r and the columns from c on, and its store."""
        for i, n in enumerate(self.plan.products):
            self.line(f"const V {self.name[n]} = product[{i}];")
        for n in self.plan.compute:
            if n.space == "r":
                self.row_value(n)
            elif n.op == "input":
                row = f" + r * in_{n.data[0]}_stride" if n.space == "rc" else ""
                self.declare(n, f"load(in_{n.data[0]}{row} + c, lanes)", vector=True)
            elif n.op == "column_index":
                self.declare(n, "column_index(c)", vector=True)
            elif n.op == "element_word":
                self.declare(n, f"element_word<{n.data[0]}>(r * cols + c)", vector=True)
            else:
                self.declare(n, self.expression(n, True, self.name), vector=True)
        for o in self.graph.outputs:
            self.line(f"store(out_{o.name} + r * out_{o.name}_stride + c, {self.vector(o.node)}, lanes);")
