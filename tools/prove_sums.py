"""Prove the order of sums for every count, and record of which definitions of the headers.

    python -m tools.prove_sums

Writes src/tokitai/emit/proved_sums.json: of each place where pending sums are joined its definitions by their SHA-256,
those of earlier versions too, as certificates name these. Exits 1, and writes nothing, if a statement is not proved.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokitai.emit.counters import digest, proved
from tokitai.proving.sums import obligations, present

RECORD = Path(__file__).parents[1] / "src" / "tokitai" / "emit" / "proved_sums.json"
SECONDS = 60.0  # for one question to the solver


def main() -> int:
    found = list(obligations(SECONDS))
    left = [o for o in found if o.status != "proved"]
    for o in left:
        print(f"{o.name}: {o.status}, {o.reason}", file=sys.stderr)
    if left:
        return 1
    old = proved() if RECORD.exists() else {}
    now = {c.id: {digest(source): source} for c, source in present().items()}
    made = {name: {**old.get(name, {}), **now.get(name, {})} for name in sorted({*old, *now})}
    RECORD.write_text(json.dumps(made, indent=1) + "\n")
    print(f"{RECORD}: {len(found)} statements of {len(now)} places")
    return 0


if __name__ == "__main__":
    sys.exit(main())
