"""Look through a kernel for AMD GPUs for arithmetic that the definition did not ask for.

Two texts are read. In LLVM's intermediate text (after its optimizer) every operation says what it is, and what may
be done with it: whether a product and a sum may become one operation, how exact a division must be, whether subnormal
numbers count. In the assembly that is made of it every instruction is of a list, none changes the mode in which floats
are rounded, and each kernel has exactly as many operations as its intermediate text asks for: a contraction makes one
fused operation more, a square root left approximate two fewer.

The counts know what AMD's instructions leave to do. A correctly rounded division is two ``v_div_scale``, a ``v_rcp``,
a product, five fused operations, ``v_div_fmas`` and ``v_div_fixup``; a square root is a ``v_sqrt`` between two products
by powers of two, and two fused operations. Integers are divided through floats: 32 bits wide by a ``v_rcp_iflag`` and a
product, 64 bits wide by a ``v_rcp``, a ``v_trunc``, two products and two fused operations (on gfx9 ``v_mac``, which
takes subnormal numbers for 0: of whole numbers there are none).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from ..machine_code import DIVISIONS, FUSED, PLAIN, ROOTS, Finding, MachineCode

# ------------------------------------------------------------------ the intermediate text
_FLAGS = r"(?:fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)"
_TYPE = r"(?:<(\d+) x )?(half|bfloat|float|double)\b"
_ARITHMETIC = re.compile(rf"= (fadd|fsub|fmul|fdiv|frem)((?: {_FLAGS})*) {_TYPE}")
_FLAGGED = re.compile(rf"= (?:\w+ )*?(?:f\w+|call|select|phi)((?: {_FLAGS})+) ")
_CALL = re.compile(r"\bcall\b[^@\n]*@([\w.$]+)\(")
_FUNCTION = re.compile(r"llvm\.(\w+)\.(?:v(\d+))?(f16|bf16|f32|f64)\b")
_EXACT = {"fma", "sqrt", "fabs", "copysign", "rint", "roundeven"}  # rounded once, or exact
_OWN = re.compile(
    r"llvm\.amdgcn\.((workitem|workgroup)\.id\.\w|(kernarg\.segment|dispatch|implicitarg)\.ptr|ds\.bpermute|s\.barrier)"
)
_VECTOR = re.compile(r"\s+(%[\w.]+) = .*?\b(fadd|fsub|fmul|fdiv|call)\b.*? <(\d+) x float>(?: @llvm\.(\w+))?")
_ATTRIBUTE = re.compile(r'"([\w-]*fp-math[\w-]*)"="([^"]*)"')

Counts = dict[str, Counter[str]]


def read_ir(ir: str, fma_allowed: bool = False, f64_allowed: bool = False) -> tuple[Counts, list[Finding]]:
    """How often each function has each operation, elements of vectors one by one; and what does not belong there.
    Sums and fused operations in f64 have names of their own. "idle fmul" counts elements that nothing reads, which the
    code generator may leave out."""
    counts: Counts = defaultdict(Counter)
    found: list[Finding] = []
    name, read = "", dict[str, list[str]]()
    lines = ir.splitlines()
    for number, line in enumerate(lines, 1):
        head = re.match(r"define\b[^@]*@([\w.$]+)\(", line)
        if head:
            name, read = head[1], _readers(itertools.takewhile(lambda text: text != "}", lines[number:]))
        reason = _ir_reason(line, counts[name], fma_allowed, f64_allowed)
        vector = _VECTOR.match(line)
        if vector:
            counts[name][f"idle {vector[4] or vector[2]}"] += _idle(int(vector[3]), read[vector[1]])
        if reason:
            found.append(Finding(number, name or "intermediate text", line.strip()[:120], reason))
    return {n: +c for n, c in counts.items() if +c}, found


def _readers(body: Iterable[str]) -> dict[str, list[str]]:
    """The lines of a function that read each value."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in body:
        for value in set(re.findall(r"%[\w.]+", line.partition(" = ")[2] or line)):
            found[value].append(line)
    return found


def _idle(lanes: int, readers: Sequence[str]) -> int:
    """How many elements of a vector nothing reads, where all that read it take one element."""
    taken = [re.search(r"= extractelement <.*, i\d+ (\d+)$", line) for line in readers]
    return lanes - len({t[1] for t in taken if t}) if all(taken) else 0


def _ir_reason(line: str, count: Counter[str], fma_allowed: bool, f64_allowed: bool) -> str | None:
    for attribute, value in _ATTRIBUTE.findall(line) if line.startswith("attributes") else ():
        if attribute.startswith("denormal") and value != "ieee,ieee":
            return f"{attribute}={value} flushes subnormal numbers to zero"
        if not attribute.startswith("denormal") and value == "true":
            return f"{attribute} permits other arithmetic"
    if line.startswith(("attributes", "declare", "!", ";")):
        return None
    if "!fpmath" in line:
        return "is an approximation"
    flagged = _FLAGGED.search(line)
    if flagged:
        return f"permits other arithmetic:{flagged[1]}"
    if "atomicrmw" in line and re.search(r"atomicrmw( volatile)? (f\w+|\w+ ptr[^,]*, (half|float|double))", line):
        return "adds or compares floats in no fixed order"
    if re.search(r"\bcall\b.* asm ", line):
        return "is assembly, whose meaning the intermediate text does not tell"
    arithmetic = _ARITHMETIC.search(line)
    if arithmetic:
        operation, _, lanes, kind = arithmetic.groups()
        if kind == "double" and operation == "fadd" and f64_allowed:
            count["f64 fadd"] += int(lanes or 1)
            return None
        count[operation] += int(lanes or 1)
        return None if kind == "float" and operation != "frem" else f"computes in {kind}"
    called = _CALL.search(line)
    return _call_reason(called[1], count, fma_allowed, f64_allowed) if called else None


def _call_reason(name: str, count: Counter[str], fma_allowed: bool, f64_allowed: bool) -> str | None:
    if not name.startswith("llvm."):
        return None  # a function of this text, or else the linker refuses it
    if name.startswith("llvm.amdgcn."):
        return None if _OWN.fullmatch(name) else "is not on the list of instructions with the defined bits"
    function = _FUNCTION.match(name)
    if function is None:
        return None  # on integers, or on memory
    operation, lanes, kind = function.groups()
    wide = kind == "f64" and operation == "fma" and f64_allowed
    if operation not in _EXACT or (kind != "f32" and not wide):
        return "is not on the list of instructions with the defined bits"
    count["f64 fma" if wide else operation] += int(lanes or 1)
    if operation == "fma" and not fma_allowed:
        return "is a fused multiply-add that the definition does not hold"
    return None


# ------------------------------------------------------------------ the assembly
_PREFIX = r"(?:v|v_pk|v_dual|s|v_s)_"
_KINDS = {
    "plain": re.compile(rf"{_PREFIX}(add|sub|subrev|mul)_f32"),
    "fused": re.compile(rf"{_PREFIX}(fma|fmac|fmaak|fmamk)_f32"),
    "division": re.compile(r"v_div_fixup_f32"),
    "scale": re.compile(r"v_div_scale_f32"),
    "root": re.compile(r"v_(s_)?sqrt_f32"),
    "reciprocal": re.compile(r"v_(s_)?rcp_f32"),
    "narrow": re.compile(r"v_rcp_iflag_f32"),
    "wide": re.compile(r"[vs]_trunc_f32"),
    "": re.compile(
        r"[vs]_cmpx?_\w+_f32|[vs]_cvt_f32_[iu]32|[vs]_cvt_[iu]32_f32|v_cvt_f32_ubyte\d|v_div_fmas_f32|[vs]_rndne_f32"
        r"|v(_dual)?_(max|min)(_num)?_f32|s_(max|min)_num_f32|v_ldexp_f32"
    ),
}  # fmt: skip
_IN_F64 = {
    "f64 plain": re.compile(r"v_add_f64"),
    "f64 fused": re.compile(r"v_(fma|fmac)_f64"),
    "": re.compile(r"v_cvt_f64_f32|v_cvt_f32_f64"),
}
# Of the division of 64-bit integers on gfx9: 2^32 and -2^32 times a whole number.
_WHOLE = re.compile(r"v_(mac|mad|madmk)_f32 .*\b0x[4c]f800000\b")
# A sum or product of one register and a constant may be computed anew where its result is used again, which keeps the
# register alone: there may be more of these than the intermediate text asks for.
_WITH_CONSTANT = re.compile(r", (-?\d+\.\d+|0x[0-9a-f]+)(,|$)")
_FLOAT = re.compile(r"_(pk_)?b?f(16|32|64)(_|$)|_fp?8|_bf8|_xf32")
_ATOMIC = re.compile(r"(global|flat|buffer|ds|image)_(atomic_)?(pk_)?(add|sub|f?min|f?max|cmpst)_\w*f(16|32|64)")
_MODE = re.compile(r"s_setreg\w* (?!hwreg\(HW_REG_FLAT_SCR_(LO|HI)\)).*|s_(denorm|round)_mode .*")
_WANTED = {"round_mode_32": "0", "round_mode_16_64": "0", "denorm_mode_32": "3", "denorm_mode_16_64": "3"}


def read_asm(asm: str, f64_allowed: bool = False) -> tuple[Counts, list[Finding]]:
    """How often each kernel has each kind of operation, and what does not belong there."""
    counts: Counts = defaultdict(Counter)
    found = []
    for line, kernel, text in instructions(asm):
        opcode = re.sub(r"(_e32|_e64|_dpp|_e64_dpp|_sdwa)+$", "", text.split()[0])
        reason = _asm_reason(opcode, text, counts[kernel], f64_allowed)
        if reason:
            found.append(Finding(line, kernel or "assembly", text, reason))
    found += _modes(asm)
    return {n: +c for n, c in counts.items() if +c}, found


def _asm_reason(opcode: str, text: str, count: Counter[str], f64_allowed: bool) -> str | None:
    if _MODE.fullmatch(text):
        return "changes how floats are rounded, or whether subnormal numbers count"
    if _ATOMIC.match(opcode):
        return "adds or compares floats in no fixed order"
    if not _FLOAT.search(opcode):
        return None
    if re.search(r"\bclamp\b", text):
        return "clamps its result to [0, 1]"
    if re.search(r"\b(mul:[24]|div:2)\b", text):
        return "flushes subnormal numbers to zero"
    for kind, pattern in (*_KINDS.items(), *(_IN_F64.items() if f64_allowed else ())):
        if pattern.fullmatch(opcode):
            count[kind] += 2 if opcode.startswith("v_pk_") else 1
            count["anew"] += kind == "plain" and _WITH_CONSTANT.search(text) is not None
            return None
    if opcode.startswith(("v_mad", "v_mac")):
        if _WHOLE.match(re.sub(r"^\S+", opcode, text)):
            count["fused"] += 1
            return None
        return "flushes subnormal numbers to zero"
    return "is not on the list of instructions with the defined bits"


def _modes(asm: str) -> Iterator[Finding]:
    """What the descriptors of kernels say of rounding and of subnormal numbers."""
    kernel, seen = "", set(_WANTED)
    for number, line in enumerate(asm.splitlines(), 1):
        word, _, value = line.strip().partition(" ")
        if word == ".amdhsa_kernel":
            kernel, seen = value, set()
        elif word.startswith(".amdhsa_float_"):
            what = word.removeprefix(".amdhsa_float_")
            seen.add(what)
            if _WANTED.get(what, value) != value:
                reason = "flushes subnormal numbers to zero" if "denorm" in what else "rounds another way"
                yield Finding(number, kernel, line.strip(), reason)
        elif word == ".end_amdhsa_kernel" and set(_WANTED) - seen:
            yield Finding(number, kernel, line.strip(), f"says nothing of {', '.join(sorted(set(_WANTED) - seen))}")


def instructions(asm: str) -> Iterator[tuple[int, str, str]]:
    """Every instruction, as its line, the function that it stands in and its text; two that go together are two."""
    kernel = ""
    for number, line in enumerate(asm.splitlines(), 1):
        text = line.partition(";")[0].strip()
        label = re.fullmatch(r"([A-Za-z_][\w.$]*):", text)
        kernel = label[1] if label else kernel
        if re.match(r"[a-z]\w*(\s|$)", text):
            yield from ((number, kernel, " ".join(part.split())) for part in text.split("::"))


# ------------------------------------------------------------------ both together
def scan(ir: str, asm: str, fma_allowed: bool = False, f64_allowed: bool = False) -> list[Finding]:
    """Everything in the two texts of a kernel that may compute something else than was defined. ``f64_allowed``: where
    it holds sums and fused operations in f64."""
    asked, found = read_ir(ir, fma_allowed, f64_allowed)
    made, more = read_asm(asm, f64_allowed)
    return [*found, *more, *_differences(asked, made)]


def read(binary: str, ir: str) -> MachineCode:
    """What a build holds that the scan passed: as many operations in its assembly as its intermediate text asks for."""
    every: Counter[str] = sum(read_ir(ir)[0].values(), Counter())
    counts = {
        PLAIN: every["fadd"] + every["fsub"] + every["fmul"] + every["f64 fadd"],
        FUSED: every["fma"] + every["f64 fma"], DIVISIONS: every["fdiv"], ROOTS: every["sqrt"],
    }  # fmt: skip
    listing = "AMDGCN assembly by clang, with as many operations as its LLVM IR asks for"
    return MachineCode(binary, listing, {kind: n for kind, n in counts.items() if n})


def _differences(asked: Counts, made: Counts) -> Iterator[Finding]:
    for kernel in sorted({*asked, *made}):
        a, m = asked.get(kernel, Counter()), made.get(kernel, Counter())
        division, root, narrow, wide = m["division"], m["root"], m["narrow"], m["wide"]
        fixed = 2 * root + narrow + 2 * wide  # products by constants, of roots and of quotients of integers
        idle = a["idle fadd"] + a["idle fsub"] + a["idle fmul"]
        for what, there, wanted, less, more in (
            ("divisions", division, a["fdiv"], a["idle fdiv"], 0),
            ("square roots", root, a["sqrt"], a["idle sqrt"], 0),
            ("operations of divisions", m["scale"], 2 * division, 0, 0),
            ("reciprocals", m["reciprocal"], division + wide, 0, 0),
            ("fused operations", m["fused"], a["fma"] + 5 * division + 2 * root + 2 * wide, a["idle fma"], 0),
            ("sums, differences and products", m["plain"],
             a["fadd"] + a["fsub"] + a["fmul"] + division + fixed, idle, max(0, m["anew"] - fixed)),
            ("fused operations in f64", m["f64 fused"], a["f64 fma"], 0, 0),
            ("sums in f64", m["f64 plain"], a["f64 fadd"], 0, 0),
        ):  # fmt: skip
            if not wanted - less <= there <= wanted + more:
                yield Finding(0, kernel, f"{there} {what}", f"the intermediate text asks for {wanted}")
