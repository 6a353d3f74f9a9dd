"""Train a small mixture of experts on a text, on tokitai's operators alone:

python -m examples.mixture [TEXT] [--steps N] [--dtype f32|f16|bf16] [--device cpu|cuda|cuda:N] [--seed N]
                           [--accumulator f32|fused16|...] [--router-logits f32|storage] [--lr RATE]
                           [--batch N] [--length N] [--block N] [--parallel ddp|fsdp] [--config FILE]
                           [--checkpoint FILE] [--record FILE] [--folder FOLDER] [--layers N] [--picture FILE]
python -m examples.mixture [TEXT] --again FILE [--device cpu|cuda|cuda:N]
torchrun --standalone --nproc-per-node N -m examples.mixture --batch 8 --block 64 [...]

A file of --config is TOML: options by their names, which the command line overrides, and the sizes of the model in a
table [shape]; examples/mixture/0.7b.toml is one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from tokitai.bench.report import check_plot
from tokitai.errors import ArgumentError, TokitaiError
from tokitai.lang.graph import ACCUMULATORS
from tokitai.torch import ranks
from tokitai.torch.replay import Record

from . import config
from .model import Shape
from .picture import curves
from .training import DTYPES, PARALLEL, SMALL, Training, name_of, record, train, trained_again

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0, 1 where bits differ, 2 for wrong usage, 3 where something is missing."""
    parser = argparse.ArgumentParser(prog="python -m examples.mixture", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("text", nargs="?", type=Path, default=TEXT, help="a file, read byte by byte")
    parser.add_argument("--steps", type=int, default=Training.steps)
    parser.add_argument("--dtype", choices=list(DTYPES), default="bf16")
    parser.add_argument("--accumulator", choices=ACCUMULATORS, default="f32", help="how products are summed")
    parser.add_argument("--lr", type=float, default=Training.lr, help="the learning rate")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--router-logits", choices=["f32", "storage"], default="f32", help="what the choice of experts is made by"
    )
    parser.add_argument("--batch", type=int, default=Training.batch, help="sequences of a step, over all ranks")
    parser.add_argument("--length", type=int, default=Training.length, help="tokens of a sequence")
    parser.add_argument("--block", type=int, help="tokens of a block, a part of the run; by default the whole batch")
    parser.add_argument("--parallel", choices=PARALLEL, default="ddp", help="replicas, or weights in shards")
    parser.add_argument(
        "--folder", type=Path, help="a folder to record the run in for `tokitai replay`, or to go on with"
    )
    parser.add_argument("--layers", type=int, default=0, help="with --folder: results of layers every N steps")
    parser.add_argument("--checkpoint", type=Path, help="a file to save the run to, and to go on from if it is there")
    parser.add_argument("--again", type=Path, help="a file of `--record`: train its runs again, and compare all bits")
    parser.add_argument("--record", type=Path, help="a file to which the run and what came of it are added as JSON")
    parser.add_argument("--picture", type=Path, help="a file of .svg, .png or .pdf for the loss of each step")
    parser.add_argument("--config", type=Path, help="a file of TOML with options and sizes")
    given = sys.argv[1:] if arguments is None else arguments
    a = parser.parse_args(given)
    try:
        shape = SMALL
        if a.config is not None:
            configured, shape = config.read(a.config)
            a = parser.parse_args([*configured, *given])
        if a.picture is not None:
            check_plot(a.picture, "--picture")
        try:
            text = a.text.read_bytes()
        except OSError as error:
            raise ArgumentError(f"{a.text}: {error.strerror}; accepted: a file that can be read") from None
        if a.again is not None:
            return again(text, a.again, a.device)
        try:
            return trained(a, text, shape)
        finally:
            ranks.stop()
    except TokitaiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def trained(a: argparse.Namespace, text: bytes, shape: Shape) -> int:
    """Train, and say what came of it, on the first rank. Raises what `train` does."""
    run = Training(
        steps=a.steps, batch=a.batch, length=a.length, dtype=a.dtype, device=ranks.start(a.device), seed=a.seed,
        router_logits=a.router_logits, block=a.block, accumulator=a.accumulator, lr=a.lr, shape=shape,
    )  # fmt: skip
    arrangement, watched = run.arrangement(), None
    shown: Callable[[str], None] = print if arrangement.rank == 0 else lambda _: None
    many = f"{arrangement.ranks} rank{'s' * (arrangement.ranks > 1)}"
    how = f"{many}, {a.parallel}" if arrangement.ranks > 1 else many
    blocks = f"{arrangement.blocks} block{'s' * (arrangement.blocks > 1)}"
    numbers = run.dtype if run.accumulator == "f32" else f"{run.dtype} with {run.accumulator}"
    shown(f"{how}, {blocks} of {run.batch * run.length // arrangement.blocks} tokens, {numbers} on {a.device}")
    if a.folder is not None:
        if a.checkpoint is not None:
            raise ArgumentError("--checkpoint beside --folder, which saves checkpoints; accepted: one of both")
        settings = {"run": dataclasses.asdict(run) | {"steps": 1, "device": "cpu"}, "text": str(a.text.resolve())}
        watched = Record(
            a.folder, "examples.mixture.training:replayed", settings | {"parallel": a.parallel}, device=run.device,
            layers=a.layers, every=10, free=("parallel",),
        )  # fmt: skip
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")  # nothing writes into it
    progress: Callable[[str], None] = (lambda line: print(line, file=sys.stderr)) if arrangement.rank == 0 else shown
    report = train(text, run, progress, a.checkpoint, a.parallel, watched)
    if a.record is not None and arrangement.rank == 0:
        try:
            with a.record.open("a") as file:
                file.write(json.dumps(record(text, run, report)) + "\n")
        except OSError as error:
            raise ArgumentError(f"--record {a.record}: {error.strerror}; accepted: a file to write to") from None
    if a.picture is not None and arrangement.rank == 0:
        curves(a.picture, {f"{numbers} on {name_of(run.device)}": [report.losses]}, f"{how}, {run.steps} steps")
    shown(f"loss {report.losses[0]:.4f} -> {report.losses[-1]:.4f}, weights {report.digest}")
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
