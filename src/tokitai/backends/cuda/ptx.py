"""Look through PTX for arithmetic that the definition did not ask for.

Compilers of CUDA C++ may multiply and add in one rounding, flush subnormal numbers or approximate, all at the word of
an option. The PTX shows it: there every instruction says what it does, and ptxas fuses only a ``mul`` and an ``add``
that name no rounding. What this scan accepts is a list; an instruction on floats that is not on it is a finding.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ...lang import Graph
from ..machine_code import (
    DIVISIONS,
    PLAIN,
    ROOTS,
    STARTS,
    STEPS,
    UNTOLD,
    Finding,
    MachineCode,
    holds_f64,
    holds_fma,
    holds_steps,
)

_FLOAT = re.compile(r"b?f\d+(x\d+)?|tf32|[eu]\d+m\d+(x\d+)?")
_INT = r"[su](8|16|32|64)"
_COMPARE = r"(eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan)"
_ARITHMETIC = r"(add|sub|mul|div|sqrt)\.rn"
_OTHER = (
    rf"(neg|abs|copysign|mov|selp|min|max|min\.NaN|max\.NaN|testp\.\w+|setp\.{_COMPARE}(\.(and|or|xor))?"
    rf"|set\.{_COMPARE}(\.(and|or|xor))?\.(u32|s32))"
)
_MEMORY = r"(ld|st|ldu)(\.[\w:]+)*?(\.v[248])?"

# Every instruction on floats that does what its text says: exact, or rounded once, to nearest even.
ALLOWED = re.compile(
    rf"{_ARITHMETIC}\.f32|{_OTHER}\.f32|{_MEMORY}\.f(16|32|64)"
    rf"|cvt\.rn\.f32\.{_INT}|cvt\.r[nzmp]i\.{_INT}\.f32|cvt\.r[nzmp]i\.f32\.f32"
    r"|cvt\.rn\.b?f16(x2)?\.f32|cvt\.f32\.b?f16"
)
F64 = re.compile(
    rf"({_ARITHMETIC}|{_OTHER})\.f64|cvt\.rn\.f64\.{_INT}|cvt\.r[nzmp]i\.{_INT}\.f64|cvt\.r[nzmp]i\.f64\.f64"
    r"|cvt\.f64\.(f32|b?f16)|cvt\.rn\.(f32|b?f16)\.f64"
)
MATRIX = re.compile(r"mma\.sync\.aligned\.m16n8k4\.row\.col\.f64\.f64\.f64\.f64")
STEP = re.compile(
    r"(wgmma\.mma_async\.sync\.aligned\.m64n\d+k16|mma\.sync\.aligned\.m16n8k16\.row\.col)\.f32\.(f16\.f16|bf16\.bf16)(\.f32)?"
)
FMA = re.compile(r"fma\.rn\.(f32|f64)")

_BAD = {
    "ftz": "flushes subnormal numbers to zero",
    "approx": "is an approximation",
    "full": "is an approximation",
    "sat": "clamps its result to [0, 1]",
    "relu": "clamps its result to 0",
}
_UNNAMED = re.compile(r"(add|sub|mul)\.(f32|f64|f32x2)")


def scan(
    ptx: str, fma_allowed: bool = False, f64_allowed: bool = False, quotients_allowed: bool = False,
    matrix_allowed: bool = False, steps_allowed: bool = False,
) -> list[Finding]:  # fmt: skip
    """Everything in `ptx` that is not on the list: ``fma_allowed`` where the definition holds fused multiply-adds,
    ``f64_allowed`` where it computes in f64, ``quotients_allowed`` where it divides: an approximate reciprocal may then
    be the start of a quotient (emit/gpu/quotients.h), and nothing else; ``matrix_allowed`` where FP64 matrix units
    stand for chains of multiply-adds, ``steps_allowed`` where the definition's chains are of a matrix unit's steps."""
    found = []
    listed = list(instructions(ptx))
    starts = quotient_starts(listed) if quotients_allowed else frozenset()
    for line, kernel, opcode, text in listed:
        expected = (
            line in starts
            or (matrix_allowed and MATRIX.fullmatch(opcode))
            or (steps_allowed and STEP.fullmatch(opcode))
        )
        reason = None if expected else _reason(opcode, fma_allowed, f64_allowed)
        if reason:
            found.append(Finding(line, kernel, text, reason))
    for place in re.finditer(r"^\s*\.extern\s+\.func\b.*$", _plain(ptx), flags=re.MULTILINE):
        line = ptx.count("\n", 0, place.start(0)) + 1
        found.append(Finding(line, "", place[0].strip(), "is a function that is defined elsewhere"))
    return found


START = "rcp.approx.ftz.f32"


def quotient_starts(listed: Sequence[tuple[int, str, str, str]]) -> frozenset[int]:
    """The lines of approximate reciprocals that are used in the sequence of a quotient and nowhere else:
    ``r = start(b); e = fma(-b, r, 1); s = fma(r, e, r); q = a s; m = fma(q, b, -a); fma(-m, s, q)``."""
    made: dict[tuple[str, str], tuple[str, list[str]]] = {}  # by function and register: what sets it
    uses: dict[tuple[str, str], list[tuple[str, list[str]]]] = {}
    starts = []
    for line, kernel, opcode, text in listed:
        operands = re.findall(r"%\w+|0[fd][0-9A-Fa-f]+", text)
        made[kernel, operands[0] if operands else ""] = opcode, operands[1:]
        for register in dict.fromkeys(operands[1:]):
            uses.setdefault((kernel, register), []).append((opcode, operands))
        if opcode == START:
            starts.append((line, kernel, *operands))

    def constant(kernel: str, operand: str) -> int | None:
        opcode, operands = made.get((kernel, operand), ("", []))
        literal = operands[0] if opcode in ("mov.f32", "mov.b32") else operand
        return int(literal[2:], 16) if literal.startswith("0f") else None

    def is_one(kernel: str, operand: str) -> bool:
        return constant(kernel, operand) == 0x3F800000

    def negated(kernel: str, operand: str, of: str) -> bool:
        one, other = constant(kernel, operand), constant(kernel, of)
        opposite = one is not None and other is not None and one ^ other == 1 << 31
        return opposite or made.get((kernel, operand)) == ("neg.f32", [of])

    def fma(kernel: str, register: str) -> Iterator[tuple[str, list[str]]]:
        for opcode, operands in uses.get((kernel, register), ()):
            if opcode == "fma.rn.f32" and len(operands) == 4:
                yield operands[0], operands[1:]

    good = []
    for line, kernel, r, b in starts:
        every = uses.get((kernel, r), [])
        errors = [d for d, (x, y, one) in fma(kernel, r) if y == r and negated(kernel, x, b) and is_one(kernel, one)]
        better = [d for d, (x, e, z) in fma(kernel, r) if x == z == r and e in errors]
        if len(every) != 2 or len(errors) != 1 or len(better) != 1 or len(uses.get((kernel, errors[0]), [])) != 1:
            continue
        s = better[0]
        for opcode, (q, a, *rest) in uses.get((kernel, s), []):
            if opcode != "mul.rn.f32" or rest != [s]:
                continue
            rests = [d for d, (x, y, z) in fma(kernel, q) if (x, y) == (q, b) and negated(kernel, z, a)]
            ends = [x for _, (x, y, z) in fma(kernel, s) if (y, z) == (s, q)]
            last = [x for x in ends if any(negated(kernel, x, m) for m in rests)]
            if last and len(uses[kernel, s]) == 2:
                good.append(line)
    return frozenset(good)


_CLASSES = {
    PLAIN: re.compile(r"(add|sub|mul)\.rn\.f(32|64)"), UNTOLD: FMA, DIVISIONS: re.compile(r"div\.rn\.f(32|64)"),
    ROOTS: re.compile(r"sqrt\.rn\.f(32|64)"), STARTS: re.compile(re.escape(START)),
    STEPS: re.compile(r"(wgmma\.mma_async|mma\.sync)\..*"),
}  # fmt: skip


def read(binary: str, ptx: str, graph: Graph) -> MachineCode:
    """What a binary's PTX holds, built for a definition."""
    fma, f64 = holds_fma(graph), holds_f64(graph)
    counts: Counter[str] = Counter()
    for opcode, count in opcodes(ptx).items():
        counts += Counter({kind: count for kind, pattern in _CLASSES.items() if pattern.fullmatch(opcode)})
    found = scan(ptx, fma, f64, quotients_allowed=fma, matrix_allowed=f64, steps_allowed=holds_steps(graph))
    listing = "PTX by NVRTC, in which sums and products name their rounding"
    return MachineCode(binary, listing, dict(counts), tuple(map(str, found)))


def opcodes(ptx: str) -> Counter[str]:
    """How often each instruction stands in the text."""
    return Counter(opcode for _, _, opcode, _ in instructions(ptx))


def _reason(opcode: str, fma_allowed: bool, f64_allowed: bool) -> str | None:
    name, *parts = opcode.split(".")
    for part in parts:
        if part in _BAD:
            return _BAD[part]
    if not any(_FLOAT.fullmatch(part) for part in parts):
        return None
    if name in ("atom", "red", "multimem"):
        return "adds or compares floats in no fixed order"
    if _UNNAMED.fullmatch(opcode):
        return "names no rounding, so that ptxas may fuse it with its neighbour"
    if not f64_allowed and "f64" in parts and name not in ("ld", "ldu", "st", "mov", "selp"):
        return "computes in f64"
    if FMA.fullmatch(opcode):
        return None if fma_allowed else "is a fused multiply-add that the definition does not hold"
    if ALLOWED.fullmatch(opcode) or F64.fullmatch(opcode):
        return None
    return "is not on the list of instructions with the defined bits"


_INSTRUCTION = re.compile(r"(?:@!?%?\w+\s+)?([a-z][a-z0-9_]*(?:\.[\w:]+)*)(?=\s|$)")


def instructions(ptx: str) -> Iterator[tuple[int, str, str, str]]:
    """Every instruction, as its line, the function that it stands in, its opcode and its whole text."""
    kernel, line = "", 1
    for piece in re.split(r"([;{}\n]|^[ \t]*[\w$]+:(?!:))", _plain(ptx), flags=re.MULTILINE):
        text = piece.strip()
        head = re.search(r"\.(?:entry|func)\b(?:\s*\([^)]*\))?\s*([\w$]+)", text)
        if head:
            kernel = head[1]
        found = _INSTRUCTION.match(text)
        if found and not text.endswith(":"):
            yield line, kernel, found[1], " ".join(text.split())
        line += piece.count("\n")


def _plain(ptx: str) -> str:
    """`ptx` with its comments and strings replaced by blanks, every line where it was."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    return re.sub(r'//[^\n]*|/\*.*?\*/|"[^"\n]*"', blank, ptx, flags=re.DOTALL)
