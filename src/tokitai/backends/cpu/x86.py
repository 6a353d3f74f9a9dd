"""Read the machine code of a kernel for x86-64 as objdump lists it, for arithmetic that its source does not ask for.

Kernels are built with line numbers (`toolchain.build.LINES`), and a compiler that fuses a product with a sum gives the
result the line of the sum. So a fused multiply-add is one that the source asks for where its line names one, and a
contraction where its line holds a sum and names none. One that was merged, with those of other lines or under the mask
of a choice, has lost its line, and is counted apart. Any other instruction on floats is on a list; what sets the
floating-point mode may only set IEEE 754's default, or what it was.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from ...errors import CompileError
from ...toolchain.build import HERE, Artifact
from ...toolchain.process import shown
from ..machine_code import DIVISIONS, FUSED, MERGED, PLAIN, ROOTS, Finding, MachineCode

NO_LINE = "code whose line is not known"
HOW = "each fused multiply-add held against its line of the source"
MISSING = "no GNU objdump is on PATH; install it with `apt install binutils`"

_K = r"(?:[ps][sd])"  # packed or scalar, of f32 or f64
_WHOLE = r"(?:dq|udq|qq|uqq|si|usi)"
_BY_WORD = "by word"  # rounds to nearest even by its first operand, or as the mode says
_CLASSES = {
    PLAIN: re.compile(rf"(?:h|addsub|)(?:add|sub|mul){_K}|addsub{_K}"),
    FUSED: re.compile(rf"fn?m(?:add|sub|addsub|subadd)(?:132|213|231){_K}"),
    DIVISIONS: re.compile(rf"div{_K}"),
    ROOTS: re.compile(rf"sqrt{_K}"),
    # exact, or rounded once
    "": re.compile(
        rf"mov\w*|(?:and|andn|or|xor|unpck[lh]|shuf|blendv?|blendm|max|min|perm\w*|test|maskmov|compress|expand){_K}"
        rf"|(?:broadcast|extract|insert|mask|gatherd|gatherq|scatterd|scatterq)\w*{_K}|u?comi{_K}|cmp\w*{_K}"
        rf"|cvtt?{_K}2{_WHOLE}[lqxy]?|cvt{_WHOLE}2{_K}[lqxy]?|cvtps2pd|cvtpd2ps[xyz]?|cvtss2sd|cvtsd2ss|cvtph2ps"
    ),
    _BY_WORD: re.compile(rf"cvtps2ph|(?:round|rndscale){_K}"),
}  # fmt: skip
_FLOAT = re.compile(r"(?!v?p)\w+[ps][sd][xyz]?|v\w+(?:ph|sh|bf16|bf8|hf8)[xyz]?|v?(?:cvt|rcp|rsqrt)\w+|f\w+")
# Of the C library and of OpenMP: what moves memory, starts threads, is exact, or rounds once: ldexp a subnormal number.
_CALLED = re.compile(r"mem(?:cpy|set|move|cmp)|(?:GOMP|omp|__kmpc|__cxa)_\w+|(?:rint|nearbyint|roundeven|ldexp)f?")
_ASKED = re.compile(r"fma(?:dd|f\b|\b)")
# What is converted to a whole number is cut toward zero; and an instruction may be asked for by name, with a rounding.
_ROUNDING = re.compile(r"\bint(?:32|64)_t\(|_MM_FROUND_TO_ZERO|__builtin_ia32_\w+")
_SUM = re.compile(r"(?!for\b).*[\w)\]]\s*[+-]=?\s*[\w(.]")  # what a product can be fused with
_LABEL = re.compile(r"[0-9a-f]+ <([^>]+)>:")
_FILE = re.compile(r"(?:CU: )?(\S.*?):(?:\[\+\+\])?")
_ROW = re.compile(r"(\S.*?)\s+(\d+|-)\s+(0x[0-9a-f]+)(?:\s|$)")
_INSTRUCTION = re.compile(r"\s+([0-9a-f]+):\s+(?:(?:lock|bnd|notrack|data16|rep[nz]*|\{\w+\}) )*(\S+)\s*(.*)")


def read(artifact: Artifact) -> MachineCode:
    """What the machine code of a build holds. Raises CompileError where the disassembler fails."""
    if artifact.compiler.machine != "x86_64":
        return MachineCode(artifact.digest, "", missing=f"code for {artifact.compiler.machine} is not read")
    name = _disassembler(shutil.which("objdump"))
    if name is None:
        return MachineCode(artifact.digest, "", missing=MISSING)
    counts, found = scan(_objdump("-d", "--no-show-raw-insn", "--dwarf=decodedline", "--wide", str(artifact.path)),
                         artifact.path.parent)  # fmt: skip
    return MachineCode(artifact.digest, f"x86-64 code by {name}, {HOW}", dict(counts), tuple(map(str, found)))


@lru_cache(maxsize=4)
def _disassembler(path: str | None) -> str | None:
    """What objdump says that it is; None where it is not GNU's, which alone prints tables of line numbers."""
    said = _objdump("--version").partition("\n")[0] if path else ""
    return said if said.startswith("GNU objdump") else None


def _objdump(*options: str) -> str:
    ran = subprocess.run(
        ["objdump", *options], capture_output=True, text=True, errors="replace", check=False,
        env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    if ran.returncode != 0:
        raise CompileError(f"objdump {' '.join(options)}: exit status {ran.returncode}: {shown(ran.stderr)}")
    return ran.stdout


def scan(listing: str, folder: Path) -> tuple[Counter[str], list[Finding]]:
    """How many instructions of each class there are, and what does not belong there. ``listing`` is objdump's, with
    the table of line numbers; ``folder`` holds the source."""
    counts: Counter[str] = Counter()
    found = []
    places = _places(listing)
    addresses = [address for address, _ in places]
    for number, function, address, opcode, operands in instructions(listing):
        place = places[max(bisect_right(addresses, address) - 1, 0)][1] if places else ""
        kind, reason = _class_of(opcode, operands, folder, place)
        if kind:
            counts[kind] += 1
        if reason:
            found.append(Finding(number, function, f"{opcode} {operands}".strip(), reason))
    return counts, found


def _places(listing: str) -> list[tuple[int, str]]:
    """The table of line numbers: from which address on code is made of which line, as FILE:LINE. Line 0 is of no line,
    as code that was merged from several is; the file is empty where there is no source. A heading says where a file
    is, and a row names it; rows of a unit that begins with another file than its own have the unit's heading."""
    found, file = [(0, "")], ""
    for text in listing.splitlines():
        if row := _ROW.match(text):
            path = file if Path(file).name == row[1] else f"{HERE}/{row[1]}"
            found.append((int(row[3], 16), "" if row[2] == "-" else f"{path}:{row[2]}"))
        elif head := _FILE.fullmatch(text):
            file = head[1]
    return sorted(found, key=lambda f: f[0])  # which is stable: of rows for one address the last counts


def _class_of(opcode: str, operands: str, folder: Path, place: str) -> tuple[str, str | None]:
    """The class of an instruction that is made of a line of the source, and what is wrong with it."""
    name = opcode.removeprefix("v")
    if opcode in ("call", "jmp") and (called := re.search(r"<([^>]+)@plt>", operands)):
        if re.fullmatch(r"fmaf?", called[1]):  # no compiler calls it where the source does not
            return FUSED, None
        return "", None if _CALLED.fullmatch(called[1]) else "is a function that is defined elsewhere"
    if name == "ldmxcsr":
        default = re.search(r"ldmxcsr\((?:0x1F80|saved)\)", _line_of(folder, place))
        return "", None if default else "changes how floats are rounded, or whether subnormal numbers count"
    if not _FLOAT.fullmatch(opcode):
        return "", None
    if re.fullmatch(r"(?:rcp|rsqrt|exp2)\w*", name):
        return "", "is an approximation"
    kind = next((kind for kind, pattern in _CLASSES.items() if pattern.fullmatch(name)), None)
    if kind is None:
        return "", "is not on the list of instructions with the defined bits"
    nearest = kind != _BY_WORD or re.match(r"\$0x[048c],", operands)
    if (re.search(r"\{r[duz]-sae\}", operands) or not nearest) and not _ROUNDING.search(_line_of(folder, place)):
        return "", "rounds another way"
    if kind != FUSED:
        return kind.removeprefix(_BY_WORD), None
    line = _line_of(folder, place)
    if _ASKED.search(line):
        return FUSED, None
    if line and not _SUM.match(line):
        return MERGED, None
    return FUSED, f"is a fused multiply-add that the source does not ask for: {line or 'of no source'}"


def instructions(listing: str) -> Iterator[tuple[int, str, int, str, str]]:
    """Every instruction: its line in the listing, the function that it stands in, its address, opcode and operands."""
    function = ""
    for number, text in enumerate(listing.splitlines(), 1):
        if found := _INSTRUCTION.fullmatch(text):
            yield number, function, int(found[1], 16), found[2], found[3]
        elif label := _LABEL.fullmatch(text):
            function = label[1]


def _line_of(folder: Path, place: str) -> str:
    """A line of a source: `NO_LINE` for line 0 and where the file cannot be read; empty where there is no source."""
    name, _, number = place.removeprefix(f"{HERE}/").rpartition(":")
    lines = [NO_LINE, *_lines(folder / name)]
    return lines[int(number) if int(number) < len(lines) else 0].strip() if name else ""


@lru_cache(maxsize=64)
def _lines(path: Path) -> Sequence[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return ()
