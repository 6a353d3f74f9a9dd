"""``python -m bench.training``: a mixture of experts of 0.7 billion weights, trained on an NVIDIA GPU in bf16, beside
the same model in plain torch, eager and compiled.

Ours sums products by each of the --accumulators, in the defined order, and keeps an f32 copy of the weights; torch's
has cuBLAS, its fused attention, norms, products of groups and optimizer, and no such copy. All begin with the same
weights and see the same tokens: pairs of ASCII characters of a text. Ours is trained twice with each accumulator, on a
GPU the second time replayed as one CUDA graph, and must end with the same bits. A step's host time ends when its last
launch has returned; its device time is the sum of its kernels by torch's profiler, in further steps. Figures are added
to bench/results/training.jsonl, or to --out; --page writes the newest of that file as a table to
bench/results/training.md.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from bench.plain_mixture import Plain
from examples.mixture.flops import flops, utilisation
from examples.mixture.model import Mixture, Shape
from examples.mixture.training import device_of, digest_of
from tokitai.errors import ArgumentError, TokitaiError
from tokitai.torch import accumulate, graphed
from tokitai.torch.accumulators import check
from tokitai.torch.optim import AdamW, clip_grad_norm_

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "training.jsonl"
ASCII = 128
LARGE = Shape(
    vocabulary=2 * ASCII**2, features=1024, layers=12, heads=16, key_heads=4, experts=16, hidden=1024
)  # fmt: skip
BATCH, LENGTH = 8, 1024
WORDS: dict[str, Any] = dict(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
WARM = 3  # steps before those that are timed
PROFILED = 3  # steps behind them
EAGER, COMPILED = "torch", "torch, compiled"
Losses = Callable[[Tensor], tuple[Tensor, Tensor]]


def batches(steps: int, device: str, seed: int = 0, batch: int = BATCH, length: int = LENGTH) -> list[Tensor]:
    """Tokens of (batch, length + 1) for each step."""
    text = (ROOT / "LICENSE").read_bytes()
    plain = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(torch.int64)
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(steps):
        begin = torch.randint(0, len(text) - 2 * length - 2, (batch, 1), generator=generator)
        pairs = plain[begin + torch.arange(2 * length + 2)].view(batch, length + 1, 2)
        made.append((pairs[..., 0] * ASCII + pairs[..., 1]).to(device))
    return made


# ------------------------------------------------------------------ runs
def trained(
    loss_of: Losses, parameters: list[Any], optimizer: Any, clip: Callable[[list[Any], float], Any],
    tokens: Sequence[Tensor], wrap: Callable[[Any], Any] = lambda step: step,
) -> dict[str, Any]:  # fmt: skip
    """Milliseconds of a step, of its host and its device, the losses, and the most memory at a time."""
    on_gpu = tokens[0].is_cuda
    wait: Callable[[], Any] = torch.cuda.synchronize if on_gpu else lambda: None
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()

    def step(batch: Tensor) -> Tensor:
        total, loss = loss_of(batch)
        torch.autograd.backward(total)
        clip(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    call, whole, host, losses = wrap(step), [], [], []
    for batch in tokens:
        wait()
        begin = time.perf_counter()
        loss = call(batch)
        host.append(time.perf_counter() - begin)
        wait()
        whole.append(time.perf_counter() - begin)
        losses.append(loss.item())
    seconds = statistics.median(whole[WARM:])
    made: dict[str, Any] = {
        "milliseconds": round(seconds * 1e3, 2), "host_ms": round(statistics.median(host[WARM:]) * 1e3, 2),
        "tokens_per_second": round(tokens[0][:, 1:].numel() / seconds), "losses": [round(x, 4) for x in losses],
    }  # fmt: skip
    if on_gpu:
        made["gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        made["device_ms"] = round(on_device(call, tokens[:PROFILED]), 2)
    return made


def on_device(step: Callable[[Tensor], Tensor], tokens: Sequence[Tensor]) -> float:
    """Milliseconds a step of kernels and copies on the GPU, one after another."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for batch in tokens:
            step(batch)
        torch.cuda.synchronize()
    work = [e for e in seen.events() or () if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    return float(sum(e.time_range.elapsed_us() for e in work)) / len(tokens) / 1e3


def ours(shape: Shape, accumulator: str, tokens: Sequence[Tensor], *wrap: Callable[[Any], Any]) -> dict[str, Any]:
    """A run on the operators; its step may be wrapped, as by `graphed`."""
    model = Mixture(shape, torch.bfloat16, tokens[0].device)
    parameters = list(model.parameters())
    optimizer = AdamW(parameters, **WORDS)
    found = trained(accumulate(accumulator)(model.loss), parameters, optimizer, clip_grad_norm_, tokens, *wrap)
    return {**found, "digest": digest_of(model)}


def theirs(shape: Shape, tokens: Sequence[Tensor], backend: Any = None) -> dict[str, Any]:
    """A run in plain torch, compiled by a backend where there is one; then also how many graphs there were, and how
    often torch went on without one."""
    length = tokens[0].shape[1] - 1
    begin = Mixture(shape, torch.bfloat16, tokens[0].device)
    model = Plain(dict(begin.named_parameters()), shape, length)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True, **WORDS)
    counters: Any = torch._dynamo.utils.counters
    if backend is not None:
        torch.compiler.reset()
        counters.clear()
        model.compile_parts(backend)
    found = trained(model, parameters, optimizer, torch.nn.utils.clip_grad_norm_, tokens)
    if backend is not None:
        found |= {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}
    return found


def measured(shape: Shape, accumulators: Sequence[str], tokens: Sequence[Tensor], backend: Any) -> dict[str, Any]:
    """All runs by their names. Raises ArgumentError where two of ours end with other weights, or where a first loss is
    another: it is not the same model."""
    runs: dict[str, dict[str, Any]] = {}
    for accumulator in accumulators:
        wrap = [graphed] if tokens[0].is_cuda else []
        first, again = collected(ours, shape, accumulator, tokens), collected(ours, shape, accumulator, tokens, *wrap)
        if first["digest"] != again["digest"]:
            raise ArgumentError(f"{accumulator}: {first['digest']} and {again['digest']}; accepted: the same weights")
        runs[f"tokitai, {accumulator}"] = first
        if wrap:
            runs[f"tokitai, {accumulator}, one graph"] = again
    runs[EAGER] = collected(theirs, shape, tokens)
    if backend is not None:
        runs[COMPILED] = collected(theirs, shape, tokens, backend)
    peer = runs[EAGER]["losses"][0]
    for name, run in runs.items():
        if not math.isclose(run["losses"][0], peer, rel_tol=2**-7):  # one unit of bf16
            raise ArgumentError(f"{name}: first loss {run['losses'][0]}; accepted beside torch's: {peer}")
    return runs


def collected(run: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """A run whose memory is free again behind it; said on the terminal."""
    found = run(*given)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    print(json.dumps({n: v for n, v in found.items() if n != "losses"}), file=sys.stderr, flush=True)
    return found


# ------------------------------------------------------------------ the page
def page(records: Sequence[dict[str, Any]]) -> str:
    """The newest record as a table."""
    r = records[-1]
    head = (
        "# A training step\n\n"
        f"{r['device']}, PyTorch {r['torch']}; {r['date']}.\n\n"
        "Written by `python -m bench.training --page`. A mixture of experts with attention, of\n"
        f"{r['weights']:,} weights in bf16, {r['tokens_a_step']:,} tokens a step: on these operators, by accumulator\n"
        "of products, beside the same model in plain PyTorch, from the same weights, on the same tokens, in one run.\n"
        "Ours keeps f32 copies of the weights, PyTorch's does not. Ours was trained twice with each accumulator, the\n"
        "second time replayed as one CUDA graph where a row says so, and ended with the same bits. The host's time\n"
        "ends when the last launch of a step has returned; the device's is the sum of its kernels. Utilisation:\n"
        "operations of the products over the step's time, of the peak in 16 bits.\n\n"
        "| model | ms a step | host, ms | device, ms | of torch | utilisation | GB | loss of the last step |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|\n"
    )
    rows = []
    for name, run in r["runs"].items():
        step = run["milliseconds"]
        used = utilisation(r["flops_a_step"] / step * 1e3, r["device"])
        rows.append(
            f"| {name} | {step} | {run.get('host_ms', '')} | {run.get('device_ms', '')} | "
            f"{r['runs'][EAGER]['milliseconds'] / step:.2f} | {'' if used is None else f'{used:.1%}'} | "
            f"{run.get('gigabytes', '')} | {run['losses'][-1]} |"
        )
    graphs = r["runs"].get(COMPILED)
    tail = "" if graphs is None else f"\nThe compiled model is {graphs['graphs']} graphs, {graphs['breaks']} breaks.\n"
    return head + "\n".join(rows) + "\n" + tail


def recorded(file: Path) -> list[dict[str, Any]]:
    """The lines of a file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def main(arguments: list[str] | None = None) -> int:
    """Train, print and add one JSON object, or write the page. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.training", description="training beside torch")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--accumulators", default="f32,fused16", help="of ours, separated by commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="inductor", help="of torch.compile; none leaves the compiled model out")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="write the table of what was recorded, and run nothing")
    a = parser.parse_args(arguments)
    try:
        if a.page:
            a.out.with_suffix(".md").write_text(page(recorded(a.out)))
            return 0
        if a.steps <= WARM:
            raise ArgumentError(f"--steps {a.steps}; accepted: more than {WARM}, which are not timed")
        accumulators = a.accumulators.split(",")
        for accumulator in accumulators:
            check(accumulator)
        device = device_of(a.device)
        backend = None if a.backend == "none" else a.backend
        record = made(LARGE, accumulators, batches(a.steps, a.device), device, backend)
    except TokitaiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(record))
    with contextlib.closing(a.out.open("a")) as file:
        file.write(json.dumps(record) + "\n")
    return 0


def made(
    shape: Shape, accumulators: Sequence[str], tokens: Sequence[Tensor], device: torch.device, backend: Any
) -> dict[str, Any]:
    """One record."""
    batch, length = tokens[0].shape[0], tokens[0].shape[1] - 1
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__, "tokens_a_step": batch * length,
        "weights": sum(p.numel() for p in Mixture(shape, torch.bfloat16, "meta").parameters()),
        "flops_a_step": flops(shape, batch, length), "runs": measured(shape, accumulators, tokens, backend),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
