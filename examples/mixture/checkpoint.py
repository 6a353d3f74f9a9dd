"""A run that was stopped, in one safetensors file: weights, optimizer, generator of batches, losses so far."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from tokitai.errors import ArgumentError
from tokitai.torch.optim import AdamW

FREE = ("steps", "device")  # of a run, what may be other when it is taken up again


def save(
    path: Path, run: Mapping[str, Any], model: torch.nn.Module, optimizer: AdamW, generator: torch.Generator,
    losses: Tensor,
) -> None:  # fmt: skip
    """Write a file, or replace it as a whole. Raises ArgumentError where that is impossible."""
    state = optimizer.state_dict()["state"]
    tensors = {f"model.{n}": t for n, t in model.state_dict().items()}
    tensors |= {f"optimizer.{i}.{n}": t for i, s in state.items() for n, t in s.items() if isinstance(t, Tensor)}
    tensors |= {"generator": generator.get_state(), "losses": losses}
    about = {"run": run, "steps": {i: s["step"] for i, s in state.items()}, "skipped": optimizer.skipped}
    whole = path.with_name(path.name + ".part")
    try:
        save_file({n: t.contiguous() for n, t in tensors.items()}, whole, {"tokitai": json.dumps(about)})
        os.replace(whole, path)
    except (OSError, SafetensorError) as error:
        whole.unlink(missing_ok=True)
        raise ArgumentError(f"{path}: {error}; accepted: a file to write to") from None


def load(
    path: Path, run: Mapping[str, Any], before: Mapping[str, Any], model: torch.nn.Module, optimizer: AdamW,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """Take up a run; the losses so far. ``before`` holds settings of files that do not name them. Raises ArgumentError
    for a file that is none, or of a run of other settings."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["tokitai"])
            tensors = {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ArgumentError(f"{path}: {error}; accepted: a file that `--checkpoint` wrote") from None
    for name, value in run.items():
        found = about["run"].get(name, before.get(name))
        if name not in FREE and found != value:
            raise ArgumentError(f"{path}: {name}={found!r}; accepted beside this run: {value!r}")
    state: dict[int, dict[str, Any]] = {int(i): {"step": n} for i, n in about["steps"].items()}
    for name, t in tensors.items():
        if name.startswith("optimizer."):
            _, i, what = name.split(".")
            state[int(i)][what] = t
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    groups = [g | {"skipped": about["skipped"]} for g in optimizer.state_dict()["param_groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    generator.set_state(tensors["generator"])
    losses: Tensor = tensors["losses"]
    return losses
