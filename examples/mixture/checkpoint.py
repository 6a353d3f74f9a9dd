"""A run that was stopped, in one safetensors file: weights, optimizer, generator of batches, losses so far.

Any number of ranks goes on with it: `tokitai.torch.ranks.checkpoint` writes and reads whole tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokitai.errors import ArgumentError
from tokitai.torch.optim import AdamW
from tokitai.torch.ranks import checkpoint

FREE = ("steps", "device")  # of a run, what may be other when it is taken up again


def save(
    path: Path, run: Mapping[str, Any], model: torch.nn.Module, optimizer: AdamW, generator: torch.Generator,
    losses: Tensor, group: Any = None,
) -> None:  # fmt: skip
    """Write a file, or replace it as a whole; a collective call of a group. Raises ArgumentError where that is
    impossible."""
    tensors = {"generator": generator.get_state(), "losses": losses}
    checkpoint.save(path, model, optimizer, tensors, {"run": run}, group)


def load(
    path: Path, run: Mapping[str, Any], before: Mapping[str, Any], model: torch.nn.Module, optimizer: AdamW,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """Take up a run; the losses so far. ``before`` holds settings of files that do not name them. Raises ArgumentError
    for a file that is none, or of a run of other settings."""
    found = checkpoint.read_about(path).get("run", {})
    for name, value in run.items():
        if name not in FREE and (saved := found.get(name, before.get(name))) != value:
            raise ArgumentError(f"{path}: {name}={saved!r}; accepted beside this run: {value!r}")
    tensors, _ = checkpoint.load(path, model, optimizer)
    generator.set_state(tensors["generator"])
    return tensors["losses"]
