"""What the machine code of a kernel holds: how many instructions of each class, and those that may compute something
else than the source asks for.

Each backend reads its own listings (`cpu.x86`, `cuda.ptx`, `cuda.sass`, `hip.assembly`): an instruction on floats is
of a class, or it is a finding. `verification.sentences` makes the claims of a certificate of what was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..lang import FIXED_BITS, NARROW_ACCUMULATORS, Graph, Node

PLAIN, FUSED = "sums, differences and products", "fused multiply-adds"
MERGED = "fused multiply-adds whose line is lost"
UNTOLD = (
    "fused multiply-adds of kernels whose text asks for some"  # of a listing that does not tell which are asked for
)
ANY_FUSED = {FUSED, MERGED, UNTOLD}
DIVISIONS, ROOTS, STARTS = "divisions", "square roots", "starts of quotients"
STEPS = "steps of matrix units"


@dataclass(frozen=True)
class Finding:
    """An instruction that may compute something else than was defined: its line in the listing, and why."""

    line: int
    kernel: str
    instruction: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel or 'listing'}:{self.line}: {self.instruction}: {self.reason}"


@dataclass(frozen=True)
class MachineCode:
    """One listing of a binary: its SHA-256, what was read and by which tool, how many instructions of each class, and
    the findings in words. Where it could not be read, ``missing`` says which tool is not there, and the rest is empty.
    """

    binary: str
    listing: str
    counts: Mapping[str, int] = field(default_factory=dict)
    findings: Sequence[str] = ()
    missing: str | None = None


def holds_fma(graph: Graph) -> bool:
    """Whether a definition holds a fused multiply-add, in a function that it calls perhaps; the sums of products do."""

    def under(some: Iterable[Node]) -> Iterator[Node]:
        for n in some:
            yield n
            if n.body is not None:
                yield from under(n.body.nodes)

    return any(n.op in ("fma", "matmul") for n in under(graph.nodes))


def holds_f64(graph: Graph) -> bool:
    """Whether a definition holds sums in f64."""
    return any(n.op == "matmul" and n.data[1] == "f64" for n in graph.nodes)


def holds_steps(graph: Graph) -> bool:
    """Whether a definition adds up products by a matrix unit's steps."""
    return any(n.op == "matmul" and n.data[1] in NARROW_ACCUMULATORS for n in graph.nodes)


def holds_fixed(graph: Graph) -> bool:
    """Whether a definition multiplies operands in fixed point."""
    return any(n.op == "matmul" and n.data[1] in FIXED_BITS for n in graph.nodes)
