"""CUDA C++ of a matrix product by Hopper's warpgroups, from plan and tiling. The header is `emit/gpu/pipeline.h`.

The kernels and their ``Call`` are those of `matmul.gpu`, with tensor maps of the operands in front: that of the left
one, then those of the right ones. They are aligned to 64 bytes, so what is between them and the rest fills the
parameter up to a multiple of 64 bytes.
"""

from __future__ import annotations

from ...emit.gpu_printer import QuotientPrinter, divides
from ...emit.text import POINTER
from ...lang import Node
from .cpu import defines_of_units, unit_defines
from .gpu import GpuProductEmitter
from .plan import ProductPlan
from .tiling import Tiling


def padding(tensors: int, sizes: int, scalars: int) -> int:
    """Words of 8 bytes between the tensor maps and the rest."""
    rest = tensors + 1 + sizes + -(-4 * max(1, scalars) // 8) + 1
    return -rest % 8


class GpuPipelineEmitter(GpuProductEmitter, QuotientPrinter):
    """The kernel that one warp feeds."""

    includes: tuple[str, ...] = ("pipeline.h", "quotients.h")
    by_eights = False
    stage, accumulators = "STAGE_BYTES", "Accumulators"  # as the header calls them

    def __init__(self, plan: ProductPlan, tiling: Tiling) -> None:
        super().__init__(plan, tiling)
        t = tiling
        sizes = {"PRODUCTS": len(plan.products), "ROWS": t.rows, "COLS": t.cols, "STAGES": t.stages}
        sizes["ALTERNATE"] = int(t.alternate)
        defines = [d for d in self.defines if not d.startswith("#define PLAN_")]
        self.divided = any(map(divides, plan.graph.functions)) or any(n.op == "div" for n in plan.graph.nodes)
        self.defines = (*defines, *(f"#define PLAN_{name} {value}" for name, value in sizes.items()))

    def ahead(self, tensors: int, sizes: int) -> list[str]:
        pad = padding(tensors, sizes, len(self.scalar_slot))
        return [f"TensorMap maps[{1 + len(self.plan.products)}]", *([f"int64_t unused[{pad}]"] if pad else [])]

    def each_unit(self) -> None:
        """The loop over a block's units, in either role."""
        self.open("for (int64_t at = block_index(); at < work.units; at += grid_size())")
        self.line("const Unit unit = placed(work, at);")

    def origin(self, operand: str, left: bool) -> str:
        """Where an operand of a unit's product begins."""
        return f"Origin{{0, 0, in_{operand}_batch != 0 ? unit.item : 0}}"

    @property
    def across(self) -> str:
        """Whether neighbours in memory are neighbours across k, of the left operand and of the right ones."""
        layout = str(self.plan.products[0].data[0])
        return f"{str(layout[0] == 'T').lower()}, {str(layout[1] == 'N').lower()}"

    def feed(self) -> None:
        """The operands of a unit, into the ring."""
        left, right = str(self.plan.left.data[0]), str(self.plan.products[0].args[1].data[0])
        origins = f"{self.origin(left, True)}, {self.origin(right, False)}"
        self.line(f"produce<{self.across}>({self.mine}, unit, call.maps, {origins}, ring, position, stages);")

    def accumulate(self) -> None:
        """The sums of a unit, from the ring."""
        self.line(f"accumulators.run<{self.across}>({self.mine}, unit, pending, ring, position, stages);")

    def work(self) -> None:
        self.line("SHARED_AT_LAUNCH(memory);")
        self.line("SHARED(Ring, rings, 1);")
        self.line("Ring& ring = rings[0];")
        self.line("char* const stages = memory + (-int64_t(shared_address(memory)) & 1023);")
        self.line("if (thread_index() == 0) ring.begin();")
        self.line("barrier();")
        self.line("RingPosition position;")
        self.open("if (thread_index() < 128)")
        self.line('asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(PRODUCER_REGISTERS));')
        self.open("if (thread_index() < WARP)")
        self.each_unit()
        self.feed()
        self.close()
        self.close()
        self.close()
        self.open("else")
        self.line('asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(CONSUMER_REGISTERS));')
        self.line("E* const pending = slices + work.slice_partials() + block_index() * work.pending_of_block();")
        self.line(f"{self.accumulators} accumulators;")
        if self.tiling.alternate:
            self.line("const int k_tiles = int(ceil_div(k_size, TILE_K));  // of every unit: one chain")
        self.each_unit()
        if self.tiling.alternate:
            self.open("if (!accumulators.turns.take())")
            self.line("position.skip(k_tiles);")
            self.line("continue;")
            self.close()
        self.matrices(self.item)
        self.accumulate()
        for name, space, _, _ in self.tensors:
            if space in ("rc", "c"):
                stride = f"{name}_stride" if space == "rc" else "0"
                self.line(f"const bool {name}_in_eights = in_eights({name}, {stride});")
        self.line(f"float* const stagings = reinterpret_cast<float*>(stages + STAGES * {self.stage});")
        self.line("float* const staging = stagings + (thread_index() / 128 - 1) * STAGING_SIZE;")
        operands = [n for n in self.plan.compute if n.op == "input" and n.space in ("rc", "c")]
        kinds = " ".join(f"Eight<{POINTER[str(n.data[1])]}> {n.data[0]};" for n in operands)
        self.line(f"struct Operands {{ {kinds} }};" if kinds else "struct Operands {};")
        self.open(f"const auto fetch = [&](int64_t {self.row}, int64_t c0, int count)")
        self.begin_result()
        self.line("Operands next;")
        self.line("(void)r, (void)c0, (void)count;")
        for n in operands:
            name = f"in_{n.data[0]}"
            row = f" + r * {name}_stride" if n.space == "rc" else ""
            self.line(f"next.{n.data[0]} = fetch_eight({name}{row} + c0, count, {name}_in_eights);")
        self.line("return next;")
        self.close("};")
        eight = "const E (&eight)[PRODUCTS][EIGHT], int count, const Operands& operands"
        self.line("const auto elements =")
        self.open(f"    [&](int64_t {self.row}, int64_t c0, {eight})")
        self.line("(void)operands;")
        self.begin_result()
        self.open("if (work.slices > 1)")
        self.open("UNROLL for (int n = 0; n < PRODUCTS; ++n)")
        self.line("E* const to = &slices[work.index(unit.slice, n, unit.item, r, c0)];")
        self.line("UNROLL for (int i = 0; i < EIGHT; ++i)")
        self.line("  if (i < count) to[i] = eight[n][i];")
        self.close()
        self.line("return;")
        self.close()
        for n in operands:
            self.line(f"S in_{n.data[0]}_eight[EIGHT];")
            self.line(f"decode_eight(in_{n.data[0]}_eight, operands.{n.data[0]});")
        for o in self.graph.outputs:
            self.line(f"S {o.name}_eight[EIGHT];")
        if self.divided:
            self.line("bool odd = false;")
            self.line("const Quick quotients{&odd};")
            self.way = "quotients"
        self.open("UNROLL for (int i = 0; i < EIGHT; ++i)")
        self.line("const int64_t c = c0 + i;")
        self.line("E sums[PRODUCTS];")
        self.line("UNROLL for (int n = 0; n < PRODUCTS; ++n) sums[n] = eight[n][i];")
        self.by_eights = True
        self.values()
        self.by_eights, self.way = False, None
        for o in self.graph.outputs:
            self.line(f"{o.name}_eight[i] = {self.name[o.node]};")
        self.close()
        if self.divided:
            for o in self.graph.outputs:
                self.line(f"odd |= any_nan({o.name}_eight);")
            self.open("if (odd)")
            self.open("ROLLED for (int i = 0; i < count; ++i)")
            self.line("const int64_t c = c0 + i;")
            self.line("E sums[PRODUCTS];")
            self.line("UNROLL for (int n = 0; n < PRODUCTS; ++n) sums[n] = one_of(eight[n], i);")
            self.elements()
            self.close()
            self.line("return;")
            self.close()
        for o in self.graph.outputs:
            to = f"out_{o.name} + r * out_{o.name}_stride + c0"
            self.line(f"store_eight({to}, {o.name}_eight, count, out_{o.name}_in_eights);")
        self.close("};")
        self.line(f"accumulators.results({self.mine}, unit, staging, fetch, elements);")
        self.close()
        self.close()

    def read(self, n: Node) -> str:
        """An input's element of this column, which a warpgroup reads with its neighbours."""
        return f"in_{n.data[0]}_eight[i]" if self.by_eights else super().read(n)


class GpuFixedPipelineEmitter(GpuPipelineEmitter):
    """The same for operands in fixed point, whose digits the workspace holds as shared memory does: no map is needed.
    The header is `emit/gpu/fixed_pipeline.h`."""

    includes: tuple[str, ...] = ("fixed_pipeline.h", "quotients.h")
    stage, accumulators = "DIGITS_STAGE", "IntegerAccumulators"

    def __init__(self, plan: ProductPlan, tiling: Tiling) -> None:
        super().__init__(plan, tiling)
        units = defines_of_units(*(str(n.data[1]) for n in plan.products[0].args[:2]))
        tiles = ("#define PLAN_DIGITS_IN_TILES 1", f"#define PLAN_DEPTH {tiling.depth}")
        self.defines = (*self.defines, *unit_defines(plan), *units, *tiles)

    def ahead(self, tensors: int, sizes: int) -> list[str]:
        return []

    def feed(self) -> None:
        self.digits_of_unit()
        self.line(f"produce({self.mine}, unit, left, right, ring, position, stages);")

    def accumulate(self) -> None:
        self.digits_of_unit()
        self.line(f"accumulators.run({self.mine}, unit, left, right, pending, ring, position, stages);")
