"""C++ for the CPU: the text of a row-wise kernel, from its plan.

One text serves every instruction set, and numbers as well as hashes: the headers in ``emit/cpu`` decide what a value is
and how many a vector holds.

The kernel's one symbol is::

    int32_t tokitai_kernel(void* const* tensors, const int64_t* sizes, const void* scalars, void* workspace,
                           int32_t threads)

``tensors`` are the inputs, then the results; ``sizes`` are rows, columns, then the row stride in elements of every
rows x cols tensor in the same order; ``scalars`` is the table of rounded host scalars.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np

from ..lang import Function, Graph, Node
from ..lower.rowwise import Pass, RowPlan
from ..lower.scalars import rounded_scalars

HEADERS = ("lanes.h", "numbers.h", "hashes.h", "rows.h")
_POINTER = {"f16": "f16", "bf16": "bf16", "f32": "f32", "i32": "int32_t", "i64": "int64_t", "u32": "uint32_t"}
_VECTOR = {"f32": "V", "i32": "I", "u32": "U"}
_SCALAR = {"f32": "S", "i32": "int32_t", "i64": "int64_t", "u32": "uint32_t"}


@dataclass(frozen=True)
class KernelText:
    """The emitted text with the headers that it includes, by name."""

    text: str
    headers: Mapping[str, str]


def headers() -> dict[str, str]:
    """The headers of the cpu target, by the name under which a kernel includes them."""
    folder = resources.files(__package__) / "cpu"
    return {name: (folder / name).read_text() for name in HEADERS}


def workspace_elements(plan: RowPlan, rows: int, cols: int, threads: int) -> int:
    """How many elements (4 bytes as numbers, 8 as hashes) of workspace a call needs: sums of blocks of rows and, for
    each thread, scratch rows and the sums of a row's blocks."""
    blocks = -(-rows // plan.block)
    shared = sum(blocks * (cols if n.space == "c" else 1) for n in plan.col_sums)
    partial = plan.most_sums * (cols // 4 + 512)  # partial_room(cols) in rows.h
    return shared + threads * (len(plan.kept) * cols + partial)


def emit_cpu(plan: RowPlan) -> KernelText:
    """The text of the kernel for this plan."""
    return KernelText(_Emitter(plan).text(), headers())


class _Emitter:
    def __init__(self, plan: RowPlan) -> None:
        self.plan = plan
        self.graph: Graph = plan.graph
        self.name = {n: f"v{i}" for i, n in enumerate(self.graph.nodes)}
        self.scalar_slot = {n: i for i, n in enumerate(rounded_scalars(self.graph))}
        self.private = [f"{len(plan.kept)} * cols"] * bool(plan.kept)  # workspace of each thread
        self.private += [f"{plan.most_sums} * partial_room(cols)"] * bool(plan.most_sums)
        self.streamed = [o for o in plan.graph.outputs if o.space == "rc" and not o.inplace]
        self.lines: list[str] = []
        self.depth = 0

    # ------------------------------------------------------------------ printing
    def line(self, text: str = "") -> None:
        self.lines.append("  " * self.depth + text if text else "")

    def open(self, text: str) -> None:
        self.line(f"{text} {{".lstrip())
        self.depth += 1

    def close(self, end: str = "}") -> None:
        self.depth -= 1
        self.line(end)

    # ------------------------------------------------------------------ expressions
    def expression(self, node: Node, vector: bool, name: Mapping[Node, str], own_names: bool = False) -> str:
        """The C++ expression of one operation; scalar operands of a vector operation are repeated."""
        value = "V{}" if vector else "S{}"

        def arg(a: Node) -> str:
            inside = own_names or a.space in ("rc", "c")
            return name[a] if inside or not vector else f"splat({name[a]})"

        args = [arg(a) for a in node.args]
        match node.op:
            case "const" if node.type == "f32":
                return f"constant({_literal(float(str(node.data[0])))}, {value})"
            case "const":
                return f"{_SCALAR[node.type]}({node.data[0]})"
            case "round":
                return f"load1(scalars + {self.scalar_slot[node]})"
            case "convert":
                return f"to_value({args[0]}, {value})" if node.type == "f32" else f"to_{node.type}({args[0]})"
            case "round_to":
                return f"round_to_{node.data[0] if node.data[0] != 'storage' else self.graph.dtype}({args[0]})"
            case "call":
                return f"f_{node.data[0]}({', '.join(args)})"
        return f"{node.op}({', '.join(args)})"

    def declare(self, node: Node, value: str, vector: bool) -> None:
        if node.type == "bool":
            kind = ("M" if node.exact else "B") if vector else ("bool" if node.exact else "SB")
        else:
            kind = (_VECTOR if vector else _SCALAR)[node.type]
        self.line(f"const {kind} {self.name[node]} = {value};")

    # ------------------------------------------------------------------ the kernel
    def text(self) -> str:
        g = self.graph
        self.line(f"// {g.name}, stored in {g.dtype}. Definition {g.digest[:16]}:")
        for row in str(g).splitlines():
            self.line(f"//   {row}")
        self.line('#include "rows.h"')
        self.line()
        self.line("namespace tokitai {")
        for f in g.functions:
            self.function(f)
        self.line()
        self.line('extern "C" __attribute__((visibility("default"))) int32_t tokitai_kernel(')
        self.line("    void* const* tensors, const int64_t* sizes, const void* scalar_table, void* workspace,")
        self.open("    int32_t threads)")
        self.open("#pragma omp parallel num_threads(threads)\n ")
        self.line("const FloatMode mode;")
        self.arguments()
        for n in self.plan.uniform:
            self.declare(n, self.expression(n, False, self.name), vector=False)
        if self.plan.flat:
            self.flat()
        else:
            self.blocks()
            self.column_results()
        self.line("finish_stores();")
        self.close()
        self.line("return 0;")
        self.close()
        self.line("}  // namespace tokitai")
        return "\n".join(self.lines) + "\n"

    def function(self, f: Function) -> None:
        name = {n: (f"x{f.params.index(n)}" if n in f.params else f"t{i}") for i, n in enumerate(f.nodes)}
        params = ", ".join(f"T x{i}" for i in range(len(f.params)))
        self.line()
        self.open(f"template <class T> INLINE T f_{f.name}({params})")
        for n in f.nodes:
            if n not in f.params:
                value = self.expression(n, True, name, own_names=True).replace("V{}", "T{}")
                self.line(f"const auto {name[n]} = {value};")
        self.line(f"return {name[f.result]};")
        self.close()

    def arguments(self) -> None:
        self.line("const int64_t rows = sizes[0], cols = sizes[1];")
        self.line("const Stored* const scalars = static_cast<const Stored*>(scalar_table);")
        self.line("(void)rows, (void)cols, (void)scalars, (void)workspace;")
        stride = 2
        tensors = [(f"in_{t.name}", t.space, t.format, "const ") for t in self.graph.inputs]
        tensors += [(f"out_{o.name}", o.space, o.format, "") for o in self.graph.outputs]
        for i, (name, space, fmt, const) in enumerate(tensors):
            kind = f"{const}{_POINTER[str(fmt)]}*"
            self.line(f"{kind} const {name} = static_cast<{kind}>(tensors[{i}]);")
            if space == "rc":
                self.line(f"const int64_t {name}_stride = sizes[{stride}];")
                stride += 1
        for o in self.streamed:
            self.line(f"const bool out_{o.name}_streams = streams(out_{o.name}, out_{o.name}_stride, rows, cols);")
        if not self.plan.flat:
            self.line(f"const int64_t blocks = (rows + {self.plan.block - 1}) / {self.plan.block};")
        used = "static_cast<Stored*>(workspace)"
        for n in self.plan.col_sums:
            self.line(f"Stored* const sum_{self.name[n]} = {used};")
            used = f"sum_{self.name[n]} + blocks{' * cols' if n.space == 'c' else ''}"
        if self.private:
            self.line(f"Stored* const private_space = {used};")

    def pointers(self, row: str, following: str | None = None) -> None:
        for t in self.graph.inputs:
            for end, index in (("row", row), ("next", following)):
                if t.space == "rc" and index:
                    kind = f"const {_POINTER[str(t.format)]}*"
                    self.line(f"{kind} const in_{t.name}_{end} = in_{t.name} + {index} * in_{t.name}_stride;")
        for o in self.graph.outputs:
            if o.space == "rc":
                self.line(f"{_POINTER[o.format]}* const out_{o.name}_row = out_{o.name} + {row} * out_{o.name}_stride;")

    def flat(self) -> None:
        tile = self.plan.tile
        self.line(f"const int64_t tiles = (cols + {tile - 1}) / {tile};")
        self.line("#pragma omp for schedule(static)")
        self.open("for (int64_t tile = 0; tile < rows * tiles; ++tile)")
        self.line(f"const int64_t r = tile / tiles, begin = tile % tiles * {tile};")
        self.pointers("r")
        self.open(f"each(begin, least(cols, begin + {tile}), [&](int64_t c, auto lanes) INLINE_LAMBDA")
        for p in self.plan.passes:
            self.compute(p, set())
            self.stores(p)
        self.close("});")
        self.close()

    def blocks(self) -> None:
        plan = self.plan
        if self.private:
            self.line(f"Stored* const scratch = private_space + thread_number() * ({' + '.join(self.private)});")
        if plan.most_sums:
            self.line(f"Stored* const partial = scratch{f' + {len(plan.kept)} * cols' if plan.kept else ''};")
        self.line("#pragma omp for schedule(static)")
        self.open("for (int64_t block = 0; block < blocks; ++block)")
        self.line(f"const int64_t end = least(rows, (block + 1) * {plan.block});")
        for n in plan.col_sums:
            if n.space == "s":
                self.line(f"S block_{self.name[n]} = NEUTRAL_SUM;")
            else:
                self.line(f"Stored* const block_{self.name[n]} = sum_{self.name[n]} + block * cols;")
                clear = f"store(block_{self.name[n]} + c, splat(NEUTRAL_SUM), lanes);"
                self.line(f"each(0, cols, [&](int64_t c, auto lanes) INLINE_LAMBDA {{ {clear} }});")
        self.open(f"for (int64_t r = block * {plan.block}; r < end; ++r)")
        self.row()
        self.close()
        for n in plan.col_sums:
            if n.space == "s":
                self.line(f"store1(sum_{self.name[n]} + block, block_{self.name[n]});")
        self.close()

    def row(self) -> None:
        """All that is computed from one row on its own."""
        self.pointers("r", "least(r + 1, rows - 1)" if self.plan.most_sums else None)
        for n in self.plan.before:
            self.row_value(n)
        loaded: set[Node] = set()
        for p in self.plan.passes:
            self.one_pass(p, loaded)
            loaded |= set(p.keep)
            for n in p.after:
                self.row_value(n)
        for o in self.graph.outputs:
            if o.space == "r":
                self.line(f"store1(out_{o.name} + r, {self.name[o.node]});")
        for n in self.plan.col_sums:
            if n.space == "s":
                self.line(f"block_{self.name[n]} = add(block_{self.name[n]}, {self.name[n.args[0]]});")

    def row_value(self, n: Node) -> None:
        if n.op == "input":
            self.declare(n, f"load1(in_{n.data[0]} + r)", vector=False)
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
            elif m.op == "column_index":
                self.declare(m, "int32_t(c)", vector=False)
            else:
                self.declare(m, self.expression(m, False, self.name), vector=False)
        self.line(f"{self.name[n]} = {self.name[source]};")
        self.close()

    def cone(self, root: Node) -> list[Node]:
        found: list[Node] = []

        def visit(n: Node) -> None:
            if n.space in ("rc", "c") and n not in found:
                for a in n.args if n.op != "col_sum" else ():
                    visit(a)
                found.append(n)

        visit(root)
        return found

    def compute(self, p: Pass, loaded: set[Node]) -> None:
        for n in p.compute:
            if n in loaded:
                self.declare(n, f"load({self.scratch(n)} + c, lanes)", vector=True)
            else:
                self.column_value(n)
            if n in p.keep:
                self.line(f"store({self.scratch(n)} + c, {self.name[n]}, lanes);")

    def column_value(self, n: Node) -> None:
        """A value with a column index, for the columns from c on."""
        if n.op == "input":
            self.declare(n, f"load(in_{n.data[0]}{'_row' * (n.space == 'rc')} + c, lanes)", vector=True)
        elif n.op == "column_index":
            self.declare(n, "column_index(c)", vector=True)
        else:
            self.declare(n, self.expression(n, True, self.name), vector=True)

    def scratch(self, n: Node) -> str:
        return f"scratch + {self.plan.kept.index(n)} * cols"

    def stores(self, p: Pass) -> None:
        for o in p.stores:
            how = f", out_{o.name}_streams" if o in self.streamed else ""
            self.line(f"store(out_{o.name}_row + c, {self.vector(o.node)}, lanes{how});")

    def vector(self, n: Node) -> str:
        return self.name[n] if n.space in ("rc", "c") else f"splat({self.name[n]})"

    def one_pass(self, p: Pass, loaded: set[Node]) -> None:
        for n in p.maxima:
            self.line(f"Max max_{self.name[n]};")
        if p.sums:
            totals = f"sums_{self.plan.passes.index(p) + 1}"
            self.line(f"S {totals}[{len(p.sums)}];")
            self.open(f"row_sums<{len(p.sums)}>(cols, partial, [&](int64_t c, auto lanes) INLINE_LAMBDA")
        else:
            self.open("each(0, cols, [&](int64_t c, auto lanes) INLINE_LAMBDA")
        self.compute(p, loaded)
        self.stores(p)
        for n in p.maxima:
            x = self.vector(n.args[0])
            self.line(f"take(max_{self.name[n]}, pad(leaf_max({x}), NEUTRAL_MAX, lanes));")
        for n in p.col_sums:
            place = f"block_{self.name[n]} + c"
            self.line(f"store({place}, add(load({place}, lanes), {self.vector(n.args[0])}), lanes);")
        if p.sums:
            parts = ", ".join(f"pad({self.vector(n.args[0])}, NEUTRAL_SUM, lanes)" for n in p.sums)
            self.line(f"return Sums<{len(p.sums)}>{{{{{parts}}}}};")
            self.close("}, [&](int64_t c) INLINE_LAMBDA {")
            self.depth += 1
            self.prefetches(p)
            self.close(f"}}, {totals});")
            for i, n in enumerate(p.sums):
                self.line(f"const S {self.name[n]} = {totals}[{i}];")
        else:
            self.close("});")
        for n in p.maxima:
            self.line(f"const S {self.name[n]} = result(max_{self.name[n]});")

    def prefetches(self, p: Pass) -> None:
        """The next row is fetched during the first pass that sums: by then this one lies in the caches."""
        if p is next(q for q in self.plan.passes if q.sums):
            for t in self.graph.inputs:
                if t.space == "rc":
                    self.line(f"prefetch(in_{t.name}_next + c);")
        else:
            self.line("(void)c;")

    def column_results(self) -> None:
        """The tree over blocks of rows, and what is made of complete column sums. The loop above ends in a barrier."""
        columns = [o for o in self.graph.outputs if o.space == "c"]
        scalars = [o for o in self.graph.outputs if o.space == "s"]
        for n in (n for n in self.plan.finish if n.space == "s"):
            if n.op == "col_sum":
                part = f"load1(sum_{self.name[n]} + i)"
                self.declare(n, f"tree_over(blocks, S{{}}, [&](int64_t i) {{ return {part}; }})", vector=False)
            else:
                self.declare(n, self.expression(n, False, self.name), vector=False)
        for o in scalars:
            self.line("#pragma omp single nowait")
            self.line(f"store1(out_{o.name}, {self.name[o.node]});")
        if not columns:
            return
        self.line("#pragma omp for schedule(static)")
        self.open("for (int64_t chunk = 0; chunk < cols; chunk += 64)")
        self.open("each(chunk, least(cols, chunk + 64), [&](int64_t c, auto lanes) INLINE_LAMBDA")
        done: set[Node] = set()
        for o in columns:
            for n in self.cone(o.node):
                if n in done:
                    continue
                done.add(n)
                if n.op == "col_sum":
                    part = f"[&](int64_t i) {{ return load(sum_{self.name[n]} + i * cols + c, lanes); }}"
                    self.declare(n, f"tree_over(blocks, splat(S{{}}), {part})", vector=True)
                else:
                    self.column_value(n)
            self.line(f"store(out_{o.name} + c, {self.vector(o.node)}, lanes);")
        self.close("});")
        self.close()


def _literal(x: float) -> str:
    """A float literal of exactly the f32 value nearest to x."""
    with np.errstate(over="ignore"):
        rounded = float(np.float32(x))
    if math.isinf(rounded):
        return "-__builtin_inff()" if rounded < 0 else "__builtin_inff()"
    return f"{rounded.hex()}f"
