"""The command line as a user meets it: a process with an exit code and two streams, or the same in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tokitai.cli import run

KEYS = {
    "operator", "dtype", "device", "shape", "verdict", "evidence", "cases", "max_ulp_error", "max_ulp_error_of_row",
    "condition", "failure", "seconds", "certificate",
}  # fmt: skip

# The smallest operator that has an optional input, a scalar and an option.
SMALL = '''
from typing import Literal
from tokitai.lang import Cols, Matrix, Outputs, operator, outputs, storage

@operator
def small(x: Matrix[storage], w: Cols[storage] | None, *, by: float = 2.0, sign: Literal["plus", "minus"] = "plus") -> Outputs:
    """y = x * by (times w)."""
    y = x * by if sign == "plus" else -x * by
    return outputs(y=y if w is None else y * w)
'''  # noqa: E501


@dataclass(frozen=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def object(self) -> dict[str, Any]:
        """Standard output as the one JSON object that it must be."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        assert self.out.count("\n") == 1
        return value


class Command:
    """Runs ``tokitai``: call it to run in this process, or use `process` where streams or the environment matter."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capfd = folder, capfd

    def __call__(self, *words: str | Path) -> Done:
        self.capfd.readouterr()
        code = run([str(word) for word in words])
        done = Done(code, *self.capfd.readouterr())
        assert "Traceback" not in done.out + done.err
        return done

    def process(self, *words: str | Path, **environment: str) -> Done:
        ran = subprocess.run(
            [Path(sys.executable).with_name("tokitai"), *map(str, words)], capture_output=True, text=True, check=False,
            cwd=self.folder, env={**os.environ, **environment}, timeout=120,
        )  # fmt: skip
        assert "Traceback" not in ran.stdout + ran.stderr
        return Done(ran.returncode, ran.stdout, ran.stderr)
