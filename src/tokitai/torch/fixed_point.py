"""A product in fixed point whose inner side is split over the ranks of a process group, to the bits of the whole one.

`tokitai.meaning.fixed_point` defines it. Two things of a block of 4096 along k belong to all ranks that have a part of
it. The exponent of a line is the largest of theirs. The sum of products of integers is the sum of theirs, an integer of
at most 2^58. Both are exact, whatever order a collective has. So each rank rounds the same sum once to f32, and adds
the blocks in the f32 tree. One int32 a line and one integer an element are exchanged for each block: of 4 bytes for
fixed8, else of 8.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..lang import MATMUL_BLOCK
from .tree import Partial

ZEROS, NO_UNIT = -150, 128  # in place of an exponent: below those of all numbers of f32, and above them
LIMB = 12  # bits of the lower part of an integer of 24 bits
F64_EXACT = 2**53  # up to it every sum of integers in float64 is exact, in any order


def product_over_ranks(left: Tensor, right: Tensor, bits: int, group: Any) -> Tensor:
    """left right^T of (rows, k) and (cols, k) in f32, on every rank. ``left`` and ``right``, in f16, bf16 or f32, are
    this rank's columns of both, as many on each rank, rank after rank. A collective call."""
    ranks, rank, k = dist.get_world_size(group), dist.get_rank(group), left.shape[1]
    begins = [start - rank * k for start in range(0, ranks * k, MATMUL_BLOCK)]
    parts = [slice(min(max(b, 0), k), min(max(b + MATMUL_BLOCK, 0), k)) for b in begins]
    if not parts:
        return torch.zeros(len(left), len(right), device=left.device)
    exponents = torch.stack([torch.cat([_exponents(left[:, p]), _exponents(right[:, p])]) for p in parts])
    dist.all_reduce(exponents, dist.ReduceOp.MAX, group=group)
    partial: Partial[Tensor] = Partial(len(parts), 0, torch.Tensor.add_)
    for part, of_block in zip(parts, exponents, strict=True):
        partial.push(_block(left[:, part], right[:, part], of_block, bits, group))
    return partial.whole()


def _block(left: Tensor, right: Tensor, exponents: Tensor, bits: int, group: Any) -> Tensor:
    """The sums of one block over all ranks, rounded once; ``exponents`` are those of its rows, then of its columns."""
    of_left, of_right = exponents[: len(left)], exponents[len(left) :]
    exact = _exact(_integers(left, of_left, bits), _integers(right, of_right, bits), bits)
    dist.all_reduce(exact, dist.ReduceOp.SUM, group=group)
    units = (_power(e - (bits - 2)) for e in (of_left[:, None], of_right[None, :]))
    scaled = exact.to(torch.float32).to(torch.float64)  # the one rounding: what follows is exact in f64
    for unit in units:
        scaled *= unit
    return scaled.to(torch.float32).masked_fill_((of_left == NO_UNIT)[:, None] | (of_right == NO_UNIT), torch.nan)


def _exponents(lines: Tensor) -> Tensor:
    """For each line the e with 2**e <= largest magnitude < 2**(e + 1); ZEROS without any, NO_UNIT beside an infinity or
    NaN. int32."""
    if lines.shape[1] == 0:
        return torch.full((len(lines),), ZEROS, dtype=torch.int32, device=lines.device)
    largest = lines.abs().amax(1).to(torch.float64)  # in which numbers that are subnormal in f32 are normal
    found = torch.frexp(largest).exponent.to(torch.int32) - 1
    return found.masked_fill_(largest == 0, ZEROS).masked_fill_(~largest.isfinite(), NO_UNIT)


def _integers(lines: Tensor, exponents: Tensor, bits: int) -> Tensor:
    """Lines in whole units, in f64."""
    top = 2 ** (bits - 1) - 1
    finite = lines.to(torch.float64).nan_to_num(0, 0, 0)
    return finite.mul_(_power(bits - 2 - exponents)[:, None]).round_().clamp_(-top, top)  # round_: ties to even


def _power(exponent: Tensor) -> Tensor:
    """2**exponent in f64, by its exponent field: exact on any device."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def _exact(left: Tensor, right: Tensor, bits: int) -> Tensor:
    """left right^T of integers in f64, as int64, or int32 where that holds a whole block's sum. Products in f64 are
    exact: where a sum may leave 2^53 the left integers are cut in two."""
    largest = MATMUL_BLOCK * (2 ** (bits - 1) - 1) ** 2
    if largest <= F64_EXACT:
        return (left @ right.T).to(torch.int32 if largest < 2**31 else torch.int64)
    high = (left * 2.0**-LIMB).round_()
    low = left - high * 2.0**LIMB
    return ((high @ right.T).to(torch.int64) << LIMB) + (low @ right.T).to(torch.int64)
