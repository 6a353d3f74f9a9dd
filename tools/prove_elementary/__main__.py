"""``python -m tools.prove_elementary [names...]``: try functions at all 2^32 f32 inputs and record what was found.

Writes tests/elementary/recorded.json, src/tokitai/elementary/proved.json and docs/reference/elementary.md; exits 1 if
a special value was wrong. With ``--stride N`` every N-th input is tried and
nothing is written. Needs g++ and glibc's double functions.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tokitai import elementary

from .generate import PRELUDE, cpp, digest, operations, traced
from .references import HELPERS, REFERENCES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORDED = ROOT / "tests" / "elementary" / "recorded.json"
TABLE = ROOT / "docs" / "reference" / "elementary.md"
PROVED = ROOT / "src" / "tokitai" / "elementary" / "proved.json"  # what meaning.bounds reads
FLAGS = ["-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-pthread"]
KEPT = 16  # worst inputs recorded for each function, one for each sign and binade at most


def program(name: str, stride: int) -> str:
    """The C++ source that tries one function."""
    reference = REFERENCES[name]
    limit = "INFINITY" if math.isinf(reference.limit) else f"{reference.limit.hex()}f"
    argument = "x[i] > 0 ? NAN : x[i]" if reference.falling else "x[i]"
    return f"""#include "harness.h"
{PRELUDE}
{cpp(traced(getattr(elementary, name)))}
{HELPERS}
static void block(const float* __restrict x, float* __restrict y) {{
    for (int i = 0; i < 1024; ++i) y[i] = {name}({argument});
}}
int main() {{
    return prove::run("{name}", {limit}, {stride}u, block, [](double x) -> double {{ return {reference.expression}; }});
}}
"""


def try_all(name: str, stride: int = 1) -> dict[str, Any]:
    """Build, run and summarise one function."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, f"{name}.cpp"), Path(folder, name)
        source.write_text(program(name, stride))
        subprocess.run(["g++", *FLAGS, f"-I{HERE}", str(source), "-o", str(binary)], check=True)
        output = subprocess.run(["nice", "-n", "5", str(binary)], check=True, capture_output=True, text=True).stdout
    found = json.loads(output)
    worst = sorted(found["worst"], key=lambda w: (-w[0], w[1]))
    function = traced(getattr(elementary, name))
    return {
        "definition": digest(function),
        "operations": operations(function),
        "tried": found["tried"],
        "mismatches": found["mismatches"],
        "first_mismatch": found["first_mismatch"] if found["mismatches"] else None,
        "correctly_rounded": found["correctly_rounded"],
        "largest_error_ulp": worst[0][0],
        "worst": [{"error_ulp": w[0], "input": w[1], "result": w[2], "reference": w[3]} for w in worst[:KEPT]],
        "reference": REFERENCES[name].words,
        "limit": None if math.isinf(REFERENCES[name].limit) else REFERENCES[name].limit,
    }


def table(recorded: dict[str, Any]) -> str:
    """docs/reference/elementary.md"""
    libc = recorded["libc"]
    lines = [
        "# Elementary functions",
        "",
        "Each is a fixed sequence of f32 primitives, so it has the same bits on every target. The figures come from",
        "trying all 2^32 inputs: the error is |result - reference| in units of the last place of f32 at the reference",
        f"(2^-149 for subnormal results). The reference is computed in double by {libc}, with an error of a few",
        "double ulp at most (glibc's manual, *Errors in Math Functions*). In f32 ulp that is below 1e-6, also where a",
        "rounded -x/sqrt(2) is passed on to erfc. Next to the zero of a derivative, where the reference is a small",
        "difference, it can reach half an ulp; the tests try those inputs again with mpmath.",
        "",
        "NaN gives NaN; infinities, zeros and their signs are as the mathematics has them, at every input. Written by",
        "`python -m tools.prove_elementary`; the scripts that derive the constants are in the same folder.",
        "",
        "| function | domain | largest error, ulp | at | correctly rounded | operations | reference |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, r in sorted(recorded["functions"].items()):
        everywhere = "x <= 0, else unspecified" if REFERENCES[name].falling else "all"
        domain = everywhere if r["limit"] is None else f"abs(x) <= 2^{math.log2(r['limit']):g}, else NaN"
        at = r["worst"][0]["input"]
        share = 100 * r["correctly_rounded"] / r["tried"]
        row = [f"`{name}`", domain, shown(r["largest_error_ulp"]), f"`0x{at}`", f"{share:.1f} %", str(r["operations"])]
        lines.append(f"| {' | '.join([*row, r['reference']])} |")
    return "\n".join([*lines, "", *NOTES, ""])


NOTES = [
    "*Correctly rounded* is the share of all inputs (NaN included in the total) whose result is within half an ulp.",
    "*Operations* counts the primitives of one evaluation.",
]


def bounds_of(recorded: dict[str, Any]) -> dict[str, float]:
    """What the package itself keeps of the figures: each function's largest error in ulp."""
    return {name: found["largest_error_ulp"] for name, found in sorted(recorded["functions"].items())}


def shown(error: float) -> str:
    """An error rounded up to two decimals, so that the text never claims too much."""
    return f"{math.ceil(error * 100) / 100:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.prove_elementary", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(REFERENCES)}; all where none is given")
    parser.add_argument("--stride", type=int, default=1, help="try every N-th input only, and write nothing")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(REFERENCES))
    if unknown:
        parser.error(f"no function named {', '.join(unknown)}; accepted: {', '.join(REFERENCES)}")
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {"functions": {}}
    recorded["libc"] = " ".join(platform.libc_ver())
    wrong = 0
    for name in arguments.names or REFERENCES:
        start = time.monotonic()
        found = try_all(name, arguments.stride)
        wrong += found["mismatches"]
        problem = f", {found['mismatches']} WRONG from 0x{found['first_mismatch']}" if found["mismatches"] else ""
        where = f"at 0x{found['worst'][0]['input']}"
        seconds = time.monotonic() - start
        print(f"{name:16} {shown(found['largest_error_ulp'])} ulp {where}{problem} ({seconds:.0f} s)", file=sys.stderr)
        if arguments.stride == 1:
            recorded["functions"][name] = found
            RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
            TABLE.write_text(table(recorded))
            PROVED.write_text(json.dumps(bounds_of(recorded), indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
