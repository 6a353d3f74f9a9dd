"""Check sums of a tensor's bits, by which one element that differs is found, with both bit patterns.

Elements are taken as whole numbers, in chunks of 4,096 of them. A chunk has three sums modulo 2^64: of the elements, of
the elements times their places, and of the elements times fixed random numbers. Between two tensors that differ in one
element of a chunk, by d at place i, they differ by d, i d and r[i] d: which says where, and what was there, and the
third says that it was one element. Any other difference shows, but for one in 2^60 or so. Sums of whole numbers have no
order: devices, threads and shards change nothing.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..shards import run_of

CHUNK = 4096
AT_ONCE = 1024  # chunks, which bounds the memory that is taken
UNITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}


def unit_bits(dtype: torch.dtype) -> int:
    """Of what a check sum takes as one number: an element, or half of one of 64 bits."""
    return min(dtype.itemsize, 4) * 8


@functools.cache
def _factors(device: torch.device) -> Tensor:
    """(3, CHUNK): what each place is multiplied by."""
    place = np.arange(CHUNK, dtype=np.uint64)
    mixed = (place + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)  # splitmix64
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)
    made = np.stack([np.ones(CHUNK, np.uint64), place, mixed]).view(np.int64)
    return torch.from_numpy(made).to(device)


@torch.no_grad()
def sums(x: Tensor, first: int = 0, length: int | None = None) -> Tensor:
    """(chunks, 3) of int64: the check sums of a tensor of ``length`` elements (default: those of x), of which x has
    those from ``first`` on."""
    length = x.numel() if length is None else length
    per = max(x.dtype.itemsize // 4, 1) if x.dtype.itemsize == 8 else 1
    flat = x.detach().contiguous().reshape(-1)
    units = (flat.view(torch.uint8) if x.dtype == torch.bool else flat).view(UNITS[x.dtype.itemsize])
    made = torch.zeros(-(-length * per // CHUNK), 3, dtype=torch.int64, device=x.device)
    before = first * per % CHUNK
    row, mask = first * per // CHUNK, (1 << unit_bits(x.dtype)) - 1
    padded = torch.nn.functional.pad(units, (before, -(before + len(units)) % CHUNK)).view(-1, CHUNK)
    for begin in range(0, len(padded), AT_ONCE):
        some = padded[begin : begin + AT_ONCE].to(torch.int64) & mask
        rows = [(some * factor).sum(1) for factor in _factors(x.device)]
        made[row + begin : row + begin + len(some)] = torch.stack(rows, dim=1)
    return made


def sums_of(x: Tensor) -> Tensor:
    """The check sums of a whole tensor, which may be sharded over a mesh: then it is a collective call."""
    if not isinstance(x, DTensor):
        return sums(x)
    run, first = run_of(x)
    made = sums(run, first, x.numel())
    for dimension in range(x.device_mesh.ndim):
        dist.all_reduce(made, group=x.device_mesh.get_group(dimension))  # of whole numbers, exact in any order
    return made


def digest(dtype: str, shape: Sequence[int], made: np.ndarray) -> str:
    """Of format, shape and check sums, in 32 digits of SHA-256."""
    said = f"{dtype} {tuple(shape)} ".encode() + np.ascontiguousarray(made).astype("<i8").tobytes()
    return hashlib.sha256(said).hexdigest()[:32]


def locate(recorded: Sequence[int], here: Sequence[int]) -> tuple[int, int] | None:
    """Which place of a chunk differs, and recorded minus here, where it is one place; else None."""
    delta = [(int(a) - int(b)) % 2**64 for a, b in zip(recorded, here, strict=True)]
    change = delta[0] - 2**64 if delta[0] >= 2**63 else delta[0]
    if change == 0 or abs(change) >= 2**32:
        return None
    moment = delta[1] - 2**64 if delta[1] >= 2**63 else delta[1]
    place, rest = divmod(moment, change)
    if rest or not 0 <= place < CHUNK:
        return None
    factor = int(_factors(torch.device("cpu"))[2, place])
    return (place, change) if (factor * change - delta[2]) % 2**64 == 0 else None
