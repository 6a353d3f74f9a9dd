"""``python -m bench.graphed_step [--layers N]``: a training step of the mixture of experts on an NVIDIA GPU, as it
is and replayed as one CUDA graph.

Prints milliseconds of a step, those in which the host was busy with it, and whether both runs ended with the same
weights. Sizes are those of `bench.training` with fewer layers, so that the host's share shows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.training import LARGE, WORDS, batches
from examples.mixture.model import Mixture
from examples.mixture.training import digest_of
from tokitai.torch import graphed
from tokitai.torch.optim import AdamW, clip_grad_norm_

WARM = 4


def trained(layers: int, tokens: list[Tensor], wrap: Callable[[Any], Any]) -> dict[str, Any]:
    """Times of steps and the digest of the weights."""
    model = Mixture(replace(LARGE, layers=layers), torch.bfloat16, "cuda")
    weights = list(model.parameters())
    optimizer = AdamW(weights, **WORDS)

    def step(batch: Tensor) -> Tensor:
        total, loss = model.loss(batch)
        total.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    call, whole, host = wrap(step), [], []
    for batch in tokens:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call(batch)
        host.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        whole.append(time.perf_counter() - begin)
    found = {n: round(statistics.median(t[WARM:]) * 1e3, 2) for n, t in (("step", whole), ("host", host))}
    return {**found, "digest": digest_of(model)}


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    asked = parser.parse_args()
    tokens = batches(asked.steps, "cuda")
    found = {name: trained(asked.layers, tokens, wrap) for name, wrap in (("eager", lambda f: f), ("graph", graphed))}
    print(json.dumps({"device": torch.cuda.get_device_name(), "layers": asked.layers, **found}))
    if found["eager"]["digest"] != found["graph"]["digest"]:
        raise SystemExit("the graph ended with other weights")


if __name__ == "__main__":
    main()
