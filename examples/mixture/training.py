"""The loop: batches of a text, losses, gradients clipped by their global norm, steps; and a digest of the weights.

A batch is worked through in blocks of tokens, by as many ranks as there are: none of them shows in a bit.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tokitai import ops
from tokitai.errors import ArgumentError, DeviceMissingError, UnavailableError, UnknownNameError
from tokitai.experts import Logits
from tokitai.torch import accumulate
from tokitai.torch.accumulators import Accumulators
from tokitai.torch.optim import AdamW, clip_grad_norm_
from tokitai.torch.ranks import Arrangement, Gradients, arrange
from tokitai.torch.replay import Run

from .checkpoint import load, save
from .flops import flops
from .model import Mixture, Shape
from .pace import Pace

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BYTES = 256
SMALL = Shape(vocabulary=BYTES, features=64, layers=2, heads=4, key_heads=2, experts=4, hidden=64)
DRAWN_BY = ("AVX2", "AVX512")  # processors on which torch draws the same normal numbers
BEFORE: dict[str, Any] = {  # of runs recorded before there was a choice
    "router_logits": "storage", "block": None, "accumulator": "f32",
}  # fmt: skip
PARALLEL = ("ddp", "fsdp")
MOST_NORM = 1.0
SAVED = 100  # steps from one checkpoint to the next


@dataclass(frozen=True)
class Training:
    """What a run is. ``loss_scale`` keeps small gradients within f16; ``router_logits`` says what the logits by which
    experts are chosen are rounded to, ``accumulator`` how products are summed. ``block``: the tokens whose gradient is
    one term of the sum; the whole batch, on one rank, where it is None. Raises ArgumentError for an accumulator that
    does not take the format."""

    steps: int = 50
    batch: int = 4
    length: int = 64
    lr: float = 3e-3
    dtype: str = "bf16"
    device: str = "cpu"
    seed: int = 0
    shape: Shape = SMALL
    router_logits: Logits = "f32"
    block: int | None = None
    accumulator: str = "f32"

    def __post_init__(self) -> None:
        Accumulators(ops.linear).chosen(self.accumulator, DTYPES[self.dtype], "a run")

    def arrangement(self, group: Any = None) -> Arrangement:
        """Which rank has which blocks. Raises ArgumentError."""
        if self.block is None:
            ranks, rank = (dist.get_world_size(group), dist.get_rank(group)) if dist.is_initialized() else (1, 0)
            return Arrangement(1, ranks, rank, group)
        if self.block % self.length:
            raise ArgumentError(f"block={self.block}; accepted: a multiple of length={self.length}")
        return arrange(self.batch * self.length, self.block, group)

    @property
    def loss_scale(self) -> float:
        return 1024.0 if self.dtype == "f16" else 1.0


@dataclass(frozen=True)
class Report:
    """The loss of each step, in nats a token; the SHA-256 of all weights after the last; and how fast it was."""

    losses: tuple[float, ...]
    digest: str
    tokens_per_second: float = field(default=0.0, compare=False)


def device_of(name: str) -> torch.device:
    """Raises UnknownNameError for a name that is none, DeviceMissingError for a GPU that is not there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UnknownNameError("device", name, ["cpu", "cuda", "cuda:N"]) from None
    if device.type not in ("cpu", "cuda"):
        raise UnknownNameError("device", name, ["cpu", "cuda", "cuda:N"])
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceMissingError(f"{name}: torch sees {torch.cuda.device_count()} CUDA devices")
    return device


class Batches:
    """Calls give (batch, length + 1) tokens of a text, at places that a generator of the host draws."""

    def __init__(self, text: bytes, run: Training) -> None:
        if len(text) <= run.length:
            raise ArgumentError(f"a text of {len(text)} bytes; accepted: more than {run.length}")
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(torch.int64)
        self.run = run
        self.generator = torch.Generator().manual_seed(run.seed)

    def __call__(self) -> Tensor:
        places = (self.run.batch, 1)
        begin = torch.randint(0, len(self.tokens) - self.run.length, places, generator=self.generator)
        return self.tokens[begin + torch.arange(self.run.length + 1)]


def digest_of(model: torch.nn.Module) -> str:
    """The SHA-256 of all weights, in the order of their names. A collective call where they are sharded."""
    total = hashlib.sha256()
    for name, p in sorted(model.named_parameters()):
        total.update(name.encode())
        whole = p.full_tensor() if isinstance(p, DTensor) else p
        total.update(whole.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def record(text: bytes, run: Training, report: Report) -> dict[str, Any]:
    """A run and what came of it, by which it can be repeated elsewhere. Losses are exact, in hex."""
    return {
        "text": hashlib.sha256(text).hexdigest(), "run": dataclasses.asdict(run), "device": name_of(run.device),
        "torch": torch.__version__, "losses": [x.hex() for x in report.losses], "weights": report.digest,
        "tokens_per_second": round(report.tokens_per_second),
    }  # fmt: skip


def name_of(device: str) -> str:
    """The name of a GPU, or cpu."""
    return torch.cuda.get_device_name(device) if device != "cpu" else "cpu"


def trained_again(text: bytes, recorded: dict[str, Any], device: str, say: Callable[[str], None]) -> bool:
    """Whether a run that `record` describes comes to the same losses and weights here, to the bit.

    Raises ArgumentError where it was of another text, and UnavailableError where torch draws other weights to begin
    with: its normal numbers are those of the vectors of AVX2, or other ones. All that follows has the same bits."""
    drawn_by = torch.backends.cpu.get_cpu_capability()
    if drawn_by not in DRAWN_BY:
        raise UnavailableError(f"torch draws weights by {drawn_by}; accepted for such a run: {', '.join(DRAWN_BY)}")
    if recorded["text"] != (here := hashlib.sha256(text).hexdigest()):
        raise ArgumentError(f"a run of the text {recorded['text'][:12]}...; accepted beside this one: {here[:12]}...")
    run = Training(**{**BEFORE, **recorded["run"], "shape": Shape(**recorded["run"]["shape"]), "device": device})
    found = record(text, run, train(text, run, say))
    return bool(found["losses"] == recorded["losses"] and found["weights"] == recorded["weights"])


class Losses(torch.nn.Module):
    """A model whose forward pass is its losses, as DistributedDataParallel takes it."""

    def __init__(self, model: Mixture) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """As `Mixture.loss`."""
        return self.model.loss(tokens)


def spread(model: Mixture, parallel: str, group: Any = None) -> torch.nn.Module:
    """The losses of a model over the ranks of a group: replicas, or weights in shards. Raises UnknownNameError."""
    if parallel not in PARALLEL:
        raise UnknownNameError("parallelism", parallel, PARALLEL)
    if not dist.is_initialized():
        return Losses(model)
    if parallel == "ddp":
        return DistributedDataParallel(Losses(model), process_group=group)
    kind = next(model.parameters()).device.type
    every: Any = dist.group.WORLD if group is None else group
    mesh = DeviceMesh.from_group(every, kind)
    for part in (*model.blocks, model):
        fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32))
    return Losses(model)


def train(
    text: bytes, run: Training, say: Callable[[str], None] = lambda _: None, checkpoint: Path | None = None,
    parallel: str = "ddp", watched: Run | None = None, group: Any = None,
) -> Report:  # fmt: skip
    """Train a model on a text, on the ranks of a group. With a file as ``checkpoint`` the run goes on from there, if
    the file exists, and is saved there every SAVED steps and at its end: it ends with the same bits as one that was
    never stopped. ``watched`` records the run instead, or replays it.

    Raises ArgumentError for a text that is too short, a number of steps below 1 or that was passed already, and a file
    that is of no such run."""
    if run.steps < 1:
        raise ArgumentError(f"steps={run.steps}; accepted: 1 or more")
    if checkpoint is not None and not checkpoint.parent.is_dir():
        raise ArgumentError(f"{checkpoint}: {checkpoint.parent} is no folder; accepted: a file in a folder that exists")
    device, arrangement = device_of(run.device), run.arrangement(group)
    model = Mixture(run.shape, DTYPES[run.dtype], device, run.seed, run.router_logits)
    losses_of = spread(model, parallel, group)
    by_accumulator = accumulate(run.accumulator)(losses_of.__call__)
    pace = Pace(run.batch * run.length, flops(run.shape, run.batch, run.length), name_of(run.device), arrangement.ranks)
    gradients = Gradients(losses_of, arrangement)
    optimizer = AdamW(model.parameters(), lr=run.lr, betas=(0.9, 0.95), weight_decay=0.1)
    next_batch, losses = Batches(text, run), torch.zeros(0)
    settings = {**dataclasses.asdict(run), "text": hashlib.sha256(text).hexdigest()}

    def saved(path: Path) -> None:
        save(path, settings, model, optimizer, next_batch.generator, losses, group)

    def loaded(path: Path) -> None:
        nonlocal losses
        losses = load(path, settings, BEFORE, model, optimizer, next_batch.generator)
        say(f"{path}: {len(losses)} steps")

    if checkpoint is not None and checkpoint.exists():
        loaded(checkpoint)
    if len(losses) > run.steps:
        raise ArgumentError(f"steps={run.steps}; accepted behind the {len(losses)} of {checkpoint}: as many or more")
    steps: Iterable[int] = range(len(losses) + 1, run.steps + 1)
    if watched is not None:
        steps = watched.steps(run.steps, model, optimizer, gradients, save=saved, load=loaded)
    for step in steps:
        batch = next_batch().to(device)
        if watched is not None:
            watched.note("batch", batch)
        for block in gradients.blocks():
            total, loss = by_accumulator(block.of(batch))
            (total * (run.loss_scale / arrangement.blocks)).backward()
            block.record(loss=loss)
        norm = clip_grad_norm_(model.parameters(), MOST_NORM * run.loss_scale)
        if watched is not None:
            watched.note("norm of the gradient", norm)
        optimizer.step(loss_scale=run.loss_scale)
        optimizer.zero_grad()
        loss = gradients.totals["loss"] / arrangement.blocks
        losses = torch.cat([losses, loss.cpu().view(1)])
        pace.step()
        if checkpoint is not None and (step % SAVED == 0 or step == run.steps):
            saved(checkpoint)
        if step == 1 or step % 10 == 0 or step == run.steps:
            size = norm.item() / run.loss_scale
            say(f"step {step}: loss {loss.item():.4f}, norm of the gradient {size:.3f}{pace.text(run.steps - step)}")
    rate = pace.tokens_per_second
    return Report(tuple(losses.tolist()), digest_of(model), rate)


def replayed(config: dict[str, Any], watched: Run) -> None:
    """The entry of recorded runs: `tokitai replay` calls it. Raises ArgumentError for a text that is not there."""
    try:
        text = Path(config["text"]).read_bytes()
    except OSError as error:
        raise ArgumentError(
            f"{config['text']}: {error.strerror}; accepted: the text of the run, at its place"
        ) from None
    shape = Shape(**config["run"]["shape"])
    run = Training(**{**config["run"], "shape": shape, "device": watched.device})
    train(text, run, parallel=config["parallel"], watched=watched)
