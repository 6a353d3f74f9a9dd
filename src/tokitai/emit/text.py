"""What all C++ sources have in common: printing, the expression of each operation, called functions, the frame."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from ..lang import MATRICES, Function, Graph, Node, Output
from ..lower.scalars import rounded_scalars, whole_scalars

POINTER = {"f16": "f16", "bf16": "bf16", "f32": "f32", "i32": "int32_t", "i64": "int64_t", "u32": "uint32_t"}
SCALAR = {"f32": "S", "i32": "int32_t", "i64": "int64_t", "u32": "uint32_t"}


def streamed(graph: Graph) -> list[Output]:
    """Results that may be written round the caches: whole matrices of numbers that are not read again."""
    return [o for o in graph.outputs if o.space == "rc" and not o.inplace and o.node.type == "f32"]


class Printer:
    """Prints the source of one kernel; a subclass prints what stands between its braces."""

    defines: tuple[str, ...] = ()  # lines before the headers
    includes: tuple[str, ...] = ("rows.h",)
    vectors: tuple[str, ...] = ("rc", "c", "t")  # spaces whose values are vectors

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.name = {n: f"v{i}" for i, n in enumerate(graph.nodes)}
        self.scalar_slot = {n: i for i, n in enumerate(rounded_scalars(graph))}
        self.whole_slot = {n: i for i, n in enumerate(whole_scalars(graph))}
        self.lines: list[str] = []
        self.depth = 0

    def body(self) -> None:
        """What stands between the braces of the kernel."""
        raise NotImplementedError

    def text(self) -> str:
        """The whole source."""
        g = self.graph
        self.line(f"// {g.name}, stored in {g.dtype}. Definition {g.digest[:16]}:")
        for row in str(g).splitlines():
            self.line(f"//   {row}")
        for row in self.defines:
            self.line(row)
        for header in self.includes:
            self.line(f'#include "{header}"')
        self.line()
        self.line("namespace tokitai {")
        for f in g.functions:
            self.function(f)
        self.line()
        self.kernels()
        self.line("}  // namespace tokitai")
        return "\n".join(self.lines) + "\n"

    def kernels(self) -> None:
        """The kernels of the source: on the CPU there is one."""
        self.line('extern "C" __attribute__((visibility("default"))) int32_t tokitai_kernel(')
        self.line("    void* const* tensors, const int64_t* sizes, const void* scalar_table, void* workspace,")
        self.open("    int32_t threads)")
        self.body()
        self.line("return 0;")
        self.close()

    # ------------------------------------------------------------------ printing
    def line(self, text: str = "") -> None:
        self.lines.append("  " * self.depth + text if text else "")

    def open(self, text: str) -> None:
        self.line(f"{text} {{".lstrip())
        self.depth += 1

    def close(self, end: str = "}") -> None:
        self.depth -= 1
        self.line(end)

    @cached_property
    def tensors(self) -> list[tuple[str, str, str, str]]:
        """Name, space, type of an element and "const " or nothing, of each tensor in the order of the ABI."""
        given = [(f"in_{t.name}", str(t.space), POINTER[str(t.format)], "const ") for t in self.graph.inputs]
        return given + [(f"out_{o.name}", str(o.space), POINTER[o.format], "") for o in self.graph.outputs]

    def pointers_of_tensors(self) -> int:
        """A pointer to each tensor, and its row stride where it has one. Returns how many sizes were read."""
        taken = 2
        for i, (name, space, kind, const) in enumerate(self.tensors):
            self.line(f"{const}{kind}* const {name} = static_cast<{const}{kind}*>(tensors[{i}]);")
            if space in ("rc", "t"):
                self.line(f"const int64_t {name}_stride = sizes[{taken}];")
                taken += 1
        return taken

    def call(self, *fields: str) -> None:
        """The parameter that all kernels of a GPU take by value: these fields, host scalars in f32, the workspace."""
        self.open("struct Call")
        for field in fields:
            self.line(f"{field};")
        self.line(f"Stored scalars[{max(1, len(self.scalar_slot))}];")
        self.line("void* workspace;")
        self.close("};")

    def pointers_of_batches(self, call: str = "", all_have: bool = False) -> None:
        """The same of products, with their sizes and strides in the batch: pointers are named all_.. where each product
        of a batch has its own, as matrices have. ``call`` is ahead of what the kernel is given."""
        self.line(f"const int64_t rows = {call}sizes[0], cols = {call}sizes[1], k_size = {call}sizes[2];")
        self.line(f"const int64_t batch = {call}sizes[3];")
        place = 4
        for i, (name, space, kind, const) in enumerate(self.tensors):
            matrix = space in MATRICES
            shown = f"all_{name}" if matrix or all_have else name
            self.line(f"{const}{kind}* const {shown} = static_cast<{const}{kind}*>({call}tensors[{i}]);")
            self.line(f"(void){shown};")
            if matrix:
                sizes = f"{name}_stride = {call}sizes[{place}], {name}_batch = {call}sizes[{place + 1}]"
                self.line(f"const int64_t {sizes};")
                self.line(f"(void){name}_stride, (void){name}_batch;")
                place += 2
        self.line(f"const int64_t* const integers = {call}sizes + {place};")

    # ------------------------------------------------------------------ expressions
    def expression(self, node: Node, vector: bool, name: Mapping[Node, str], own_names: bool = False) -> str:
        """The C++ expression of one operation; scalar operands of a vector operation are repeated."""
        value = "V{}" if vector else "S{}"

        def arg(a: Node) -> str:
            inside = own_names or a.space in self.vectors
            return name[a] if inside or not vector else f"splat({name[a]})"

        args = [arg(a) for a in node.args]
        match node.op:
            case "const" if node.type == "f32":
                return f"constant({_literal(float(str(node.data[0])))}, {value})"
            case "const":
                return f"{SCALAR[node.type]}({node.data[0]})"
            case "round" if node in self.whole_slot:
                return f"{SCALAR[node.type]}(integers[{self.whole_slot[node]}])"
            case "round":
                return f"load1(scalars + {self.scalar_slot[node]})"
            case "convert":
                return f"to_value({args[0]}, {value})" if node.type == "f32" else f"to_{node.type}({args[0]})"
            case "round_to":
                return f"round_to_{node.data[0]}({args[0]})"
            case "round_stochastic":
                if vector and not own_names and node.args[0].space not in self.vectors:
                    # One value for all bits: as many vectors of it as there are of those.
                    args[0] = f"where(eq({args[1]}, {args[1]}), {args[0]}, {args[0]})"
                return f"round_stochastic_{node.data[0]}({args[0]}, {args[1]})"
            case "call":
                return f"f_{node.data[0]}({', '.join(args)})"
        return f"{node.op}({', '.join(args)})"

    def declare(self, node: Node, value: str, vector: bool) -> None:
        if vector:
            kind = "auto"  # one vector or several together
        elif node.type == "bool":
            kind = "bool" if node.exact else "SB"
        else:
            kind = SCALAR[node.type]
        self.line(f"const {kind} {self.name[node]} = {value};")

    def function(self, f: Function) -> None:
        name = {n: (f"x{f.params.index(n)}" if n in f.params else f"t{i}") for i, n in enumerate(f.nodes)}
        if len(f.params) == 1:
            kinds, head = ["T"], "INLINE T"
        else:  # one vector may stand beside several
            kinds, head = [f"T{i}" for i in range(len(f.params))], "INLINE auto"
        params = ", ".join(f"{kind} x{i}" for i, kind in enumerate(kinds))
        self.line()
        self.open(f"template <{', '.join(f'class {kind}' for kind in kinds)}> {head} f_{f.name}({params})")
        for n in f.nodes:
            if n not in f.params:
                value = self.expression(n, True, name, own_names=True).replace("V{}", f"{kinds[0]}{{}}")
                self.line(f"const auto {name[n]} = {value};")
        self.line(f"return {name[f.result]};")
        self.close()

    def cone(self, root: Node) -> list[Node]:
        found: list[Node] = []

        def visit(n: Node) -> None:
            if n.space in ("rc", "c") and n not in found:
                for a in n.args if n.op not in ("col_sum", "gather") else ():
                    visit(a)
                found.append(n)

        visit(root)
        return found

    # ------------------------------------------------------------------ values of one row, of one column
    def row_input(self, n: Node) -> str:
        """Where an input with one element a row is read."""
        return f"in_{n.data[0]} + r" if len(n.data) < 3 else f"in_{n.data[0]} + r * {self.slots(n)} + {n.data[2]}"

    def slots(self, n: Node) -> int:
        """How many values of each row lie beside an input's."""
        return next(t.slots for t in self.graph.inputs if t.name == n.data[0])

    def row_stores(self, o: Output) -> list[str]:
        """The stores of a result with one element a row, or several."""
        if o.node.op != "slots":
            return [f"store1(out_{o.name} + r, {self.name[o.node]});"]
        return [f"store1(out_{o.name} + r * {o.slots} + {j}, {self.name[a]});" for j, a in enumerate(o.node.args)]

    def row_value(self, n: Node) -> None:
        """A value with one element a row, of row r."""
        if n.op == "slots":
            return  # its parts are stored one by one
        if n.op == "input":
            self.declare(n, f"load1({self.row_input(n)})", vector=False)
        elif n.op == "row_index":
            self.declare(n, "r", vector=False)
        elif n.op == "take_column":
            self.take_column(n)
        else:
            self.declare(n, self.expression(n, False, self.name), vector=False)

    def take_column(self, n: Node) -> None:
        """The expression under take_column, at one column only."""
        source, index = n.args
        self.line(f"S {self.name[n]};")
        self.open("")
        self.line(f"const int64_t c = {self.name[index]};")
        for m in self.cone(source):
            if m.op == "input":
                place = f"in_{m.data[0]}_row + c" if m.space == "rc" else f"in_{m.data[0]} + c"
                self.declare(m, f"load1({place})", vector=False)
            elif m.op == "gather":
                self.declare(m, f"load1({self.chosen_entry(m)} + c)", vector=False)
            else:
                self.one_column(m, "int32_t(c)")
        self.line(f"{self.name[n]} = {self.name[source]};")
        self.close()

    def chosen_entry(self, n: Node) -> str:
        """Where the entry of a table begins that a row chooses."""
        table, index = n.args
        return f"in_{table.data[0]} + int64_t({self.name[index]}) * in_{table.data[0]}_stride"

    def one_column(self, n: Node, column: str = "c") -> None:
        """A value at one column that is not an input."""
        if n.op == "column_index":
            self.declare(n, column, vector=False)
        elif n.op == "element_word":
            self.declare(n, f"element_word<{n.data[0]}>(r * cols + {column})", vector=False)
        else:
            self.declare(n, self.expression(n, False, self.name), vector=False)

    def column_value(self, n: Node) -> None:
        """A value with a column index, for the columns from c on."""
        if n.op == "input":
            self.declare(n, f"load(in_{n.data[0]}{'_row' * (n.space != 'c')} + c, lanes)", vector=True)
        elif n.op == "gather":
            self.declare(n, f"load({self.chosen_entry(n)} + c, lanes)", vector=True)
        elif n.op == "column_index":
            self.declare(n, "column_index(c, lanes)", vector=True)
        elif n.op == "element_word":
            self.declare(n, f"element_word<{n.data[0]}>(r * cols + c, lanes)", vector=True)
        else:
            self.declare(n, self.expression(n, True, self.name), vector=True)

    def vector(self, n: Node) -> str:
        return self.name[n] if n.space in ("rc", "c", "t") else f"splat({self.name[n]})"


def _literal(x: float) -> str:
    """A float literal of exactly the f32 value nearest to x."""
    with np.errstate(over="ignore"):
        rounded = float(np.float32(x))
    if math.isinf(rounded):
        return "-INFINITE" if rounded < 0 else "INFINITE"
    return f"{rounded.hex()}f"
