"""Train a small mixture of experts on a text, on tokitai's operators alone:

python -m examples.mixture [TEXT] [--steps N] [--dtype f32|f16|bf16] [--device cpu|cuda|cuda:N] [--seed N]
                           [--router-logits f32|storage] [--checkpoint FILE] [--record FILE]
python -m examples.mixture [TEXT] --again FILE [--device cpu|cuda|cuda:N]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tokitai.errors import ArgumentError, TokitaiError

from .training import DTYPES, Training, record, train, trained_again

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0, 1 where bits differ, 2 for wrong usage, 3 where something is missing."""
    parser = argparse.ArgumentParser(prog="python -m examples.mixture", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text", nargs="?", type=Path, default=TEXT, help="a file, read byte by byte")
    parser.add_argument("--steps", type=int, default=Training.steps)
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--router-logits", choices=["f32", "storage"], default="f32", help="what the choice of experts is made by"
    )
    parser.add_argument("--checkpoint", type=Path, help="a file to save the run to, and to go on from if it is there")
    parser.add_argument("--again", type=Path, help="a file of `--record`: train its runs again, and compare all bits")
    parser.add_argument("--record", type=Path, help="a file to which the run and what came of it are added as JSON")
    a = parser.parse_args(arguments)
    try:
        try:
            text = a.text.read_bytes()
        except OSError as error:
            raise ArgumentError(f"{a.text}: {error.strerror}; accepted: a file that can be read") from None
        if a.again is not None:
            return again(text, a.again, a.device)
        run = Training(steps=a.steps, dtype=a.dtype, device=a.device, seed=a.seed, router_logits=a.router_logits)
        report = train(text, run, lambda line: print(line, file=sys.stderr), a.checkpoint)
        if a.record is not None:
            try:
                with a.record.open("a") as file:
                    file.write(json.dumps(record(text, run, report)) + "\n")
            except OSError as error:
                raise ArgumentError(f"--record {a.record}: {error.strerror}; accepted: a file to write to") from None
    except TokitaiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"loss {report.losses[0]:.4f} -> {report.losses[-1]:.4f}, weights {report.digest}")
    return 0


def again(text: bytes, file: Path, device: str) -> int:
    """Train the runs of a file again. Raises ArgumentError for a file that holds none, and for another text."""
    try:
        runs = [json.loads(line) for line in file.read_text().splitlines()]
        about = [f"{r['run']['dtype']}, {r['run']['steps']} steps, on {r['device']}" for r in runs]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"--again {file}: {error}; accepted: a file that `--record` wrote") from None
    if not runs:
        raise ArgumentError(f"--again {file}: no runs; accepted: a file that `--record` wrote")
    different = 0
    for what, recorded in zip(about, runs, strict=True):
        same = trained_again(text, recorded, device, lambda line: print(line, file=sys.stderr))
        different += not same
        print(f"{what}: {'the same bits' if same else 'OTHER BITS'} on {device}")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
