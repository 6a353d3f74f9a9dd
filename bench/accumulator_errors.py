"""``python -m bench.accumulator_errors``: how far sums by each accumulator are from f64, on tensors of a model.

A small mixture of experts is trained in bf16 on the license's text; then operands of its products are taken from one
more step, forward and backward, and multiplied by each accumulator into f32: docs/explanation/accumulators.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.mixture.__main__ import TEXT
from examples.mixture.model import Mixture, Shape
from examples.mixture.training import Batches, Training
from tokitai import ops
from tokitai.torch.optim import AdamW, clip_grad_norm_

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "accumulators.md"
RUN = Training(
    steps=60, batch=8, length=128,
    shape=Shape(vocabulary=256, features=256, layers=2, heads=4, key_heads=2, experts=4, hidden=256),
)  # fmt: skip
ACCUMULATORS = ("f32", "f64", "fused16", "fixed8", "fixed16", "fixed24")
OUTLIER = 1000.0
Pair = tuple[torch.Tensor, torch.Tensor]  # k x rows, k x cols


def trained() -> tuple[Mixture, torch.Tensor]:
    """The model after its steps, and a batch that it has not seen."""
    model = Mixture(RUN.shape, torch.bfloat16, "cpu", RUN.seed)
    optimizer, batches = AdamW(model.parameters(), lr=RUN.lr, betas=(0.9, 0.95)), Batches(TEXT.read_bytes(), RUN)
    for _ in range(RUN.steps):
        total, _ = model.loss(batches())
        total.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model, batches()


def products(model: Mixture, batch: torch.Tensor) -> dict[str, Pair]:
    """The operands of products of one step, each with k as its rows."""
    taken: dict[str, list[torch.Tensor]] = {}
    attention: Any = model.blocks[1]
    parts = {"logits": model.logits, "queries, keys and values": attention.attention.project}
    for name, module in parts.items():
        held = taken.setdefault(name, [])
        module.register_forward_hook(lambda _, given, out, held=held: held.append(given[0].detach()))
        module.register_full_backward_hook(lambda _, into, out, held=held: held.append(out[0].detach()))
    model.loss(batch)[0].backward()  # type: ignore[no-untyped-call]
    found: dict[str, Pair] = {}
    for name, module in parts.items():
        x, dy = (t.reshape(-1, t.shape[-1]) for t in taken[name])
        w = module.weight.detach()
        found[f"{name}, forward"] = x.T, w.T
        found[f"{name}, to the input"] = dy.T, w
        found[f"{name}, to the weight"] = dy, x
        if name == "logits":
            outlying = x.clone()
            outlying[:, 7] *= OUTLIER
            found[f"{name}, forward, one feature times {OUTLIER:.0f}"] = outlying.T, w.T
    return found


def errors(left: torch.Tensor, right: torch.Tensor) -> dict[str, tuple[float, float]]:
    """By accumulator the relative error of the whole product and that of its worst row, against f64; as well what one
    rounding of the exact product to bf16 does."""
    a, b = left.contiguous(), right.contiguous()
    exact = a.double().numpy().T @ b.double().numpy()

    def away(made: Any) -> tuple[float, float]:
        apart = made.astype(np.float64) - exact
        norms = np.linalg.norm(exact, axis=1)
        rows = np.linalg.norm(apart, axis=1)[norms > 0] / norms[norms > 0]
        return float(np.linalg.norm(apart) / np.linalg.norm(exact)), float(rows.max())

    found = {}
    for name in ACCUMULATORS:
        total = torch.zeros(a.shape[1], b.shape[1])
        ops.linear_accumulate_weight(total, a, b, accumulator=name)
        found[name] = away(total.numpy())
    found["bf16"] = away(torch.from_numpy(exact).bfloat16().float().numpy())
    return found


def spread(x: torch.Tensor) -> float:
    """The largest magnitude of a line along k beside the root mean square of its line, in the worst of lines."""
    size = x.double().abs()
    mean = (size**2).mean(dim=0).sqrt()
    return float((size.max(dim=0).values / mean)[mean > 0].max())


HEAD = """\
# How accurate accumulators are

Written by `python -m bench.accumulator_errors`: a mixture of experts of {features} features, {steps} steps of training
in bf16 on this project's license, then the products of one more step, {tokens} tokens. Operands are bf16; each
accumulator multiplies them into f32. An entry is the error of the whole product relative to it in f64, in the
Frobenius norm, and behind it that of the worst row. The last column is what one rounding of the exact product to bf16
does, which every result stored in bf16 has on top. Spread is the largest magnitude of a line along k over the root
mean square of that line, in the worst line of either operand: fixed point pays for it.

| product | k | spread | {names} | stored in bf16 |
|---|--:|--:|{dashes}--:|
"""
TAIL = """
`fixed24` is as accurate as sums in f32, within a small factor, and `fused16` within another one. Whole products in
`fixed16` are several times closer than one rounding to bf16 brings them, so that a stored result hardly shows it.

**16 bits are too few where a row or column has elements far smaller than its largest, and a result is made of those
alone.** What is below 2^-15 of the largest is rounded to zero. Gradients of logits are such: along the tokens the
column of a byte holds one large number wherever that byte came, and small probabilities elsewhere. The worst row of the
logits' weight gradient then has a larger error than a rounding to bf16. An outlier among activations does less harm,
as it is large in the result as well. Take `fixed24`, `fused16` or `f32` where rare rows count. `fixed8`
has an error of up to several percent in each product, in the worst row of tens of percent.
"""


def main() -> None:
    """Train, measure, write the page."""
    found = {name: (pair, errors(*pair)) for name, pair in products(*trained()).items()}
    rows = []
    for name, ((left, right), each) in found.items():
        cells = " | ".join(f"{whole:.1e}, {worst:.1e}" for whole, worst in each.values())
        rows.append(f"| {name} | {len(left)} | {max(spread(left), spread(right)):.0f} | {cells} |\n")
    names = " | ".join(f"`{a}`" for a in ACCUMULATORS)
    head = HEAD.format(
        features=RUN.shape.features, steps=RUN.steps, tokens=RUN.batch * RUN.length, names=names,
        dashes="--:|" * len(ACCUMULATORS),
    )  # fmt: skip
    PAGE.write_text(head + "".join(rows) + TAIL)
    print("".join(rows), end="")


if __name__ == "__main__":
    main()
