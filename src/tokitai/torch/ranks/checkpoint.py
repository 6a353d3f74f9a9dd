"""A run in one safetensors file: whole tensors, whichever ranks had which parts, so that any number of ranks goes on.

Names are ``model.NAME`` for weights and buffers, ``optimizer.INDEX.WHAT`` for moments and f32 copies, and the caller's
own for other tensors; numbers are JSON in the file's metadata under ``tokitai``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Module

from ...errors import ArgumentError
from ..optim import AdamW
from ..shards import part_of

KEY = "tokitai"


def save(
    path: Path, model: Module, optimizer: AdamW, tensors: Mapping[str, Tensor] | None = None,
    about: Mapping[str, Any] | None = None, group: Any = None,
) -> None:  # fmt: skip
    """Write a file, or replace it as a whole. ``tensors`` and ``about`` are the first rank's. A collective call: parts
    of sharded tensors are gathered one tensor after another, and the first rank writes. Raises ArgumentError, on every
    rank, where that is impossible."""
    first = not dist.is_initialized() or dist.get_rank(group) == 0
    state = optimizer.state_dict()["state"]
    named = {f"model.{n}": t for n, t in model.state_dict().items()}
    named |= {f"optimizer.{i}.{n}": t for i, s in state.items() for n, t in s.items() if isinstance(t, Tensor)}
    whole = {}
    for name, t in (named | dict(tensors or {})).items():
        made = t.full_tensor() if isinstance(t, DTensor) else t
        if first:
            whole[name] = made.detach().cpu().contiguous()
    failed = None
    if first:
        steps = {i: s["step"] for i, s in state.items()}
        failed = _write(path, whole, dict(about or {}) | {"steps": steps, "skipped": optimizer.skipped})
    if dist.is_initialized():
        told = [failed]
        dist.broadcast_object_list(told, group=group, group_src=0)
        (failed,) = told
    if failed is not None:
        raise ArgumentError(f"{path}: {failed}; accepted: a file to write to")


def _write(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> str | None:
    """What went wrong, if something did."""
    part = path.with_name(path.name + ".part")
    try:
        save_file(tensors, part, {KEY: json.dumps(about)})
        os.replace(part, path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        return str(error)
    return None


def read_about(path: Path) -> dict[str, Any]:
    """The numbers of a file. Raises ArgumentError for a file that `save` did not write."""
    try:
        with safe_open(path, "pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})[KEY])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ArgumentError(f"{path}: {error}; accepted: a file that a checkpoint was saved to") from None
    return about


def load(path: Path, model: Module, optimizer: AdamW) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Take up a run: weights and the optimizer's state, of which each rank reads its own parts. Returns the other
    tensors, and the numbers.

    Raises ArgumentError for a file that `save` did not write, and for one of another model; then nothing has
    changed."""
    about = read_about(path)
    weights = {f"model.{n}": t for n, t in model.state_dict().items()}
    params = [p for g in optimizer.param_groups for p in g["params"]]
    try:
        state: dict[int, dict[str, Any]] = {int(i): {"step": n} for i, n in about["steps"].items()}
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            found = {n for n in names if n.startswith("model.")}
            if found != set(weights):
                raise ArgumentError(f"{path}: {_some(found ^ set(weights))} in one of both; accepted: the same model")
            shapes = {n: tuple(file.get_slice(n).get_shape()) for n in names}
            for name, t in weights.items():
                if shapes[name] != tuple(t.shape):
                    raise ArgumentError(f"{path}: {name} of {shapes[name]}; accepted: {tuple(t.shape)}")
            read = {n: _part(file, n, t) for n, t in weights.items()}
            for name in names:
                if name.startswith("optimizer."):
                    _, i, what = name.split(".")
                    state[int(i)][what] = _part(file, name, params[int(i)])
            others = {n: file.get_tensor(n) for n in names if not n.startswith(("model.", "optimizer."))}
    except (OSError, SafetensorError, KeyError, IndexError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{path}: {error}; accepted: a file that a checkpoint was saved to") from None
    with torch.no_grad():
        for name, t in weights.items():
            t.copy_(read[name])
    groups = [g | {"skipped": about["skipped"]} for g in optimizer.state_dict()["param_groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return others, about


def _part(file: Any, name: str, like: Tensor) -> Tensor:
    """A tensor of the file, or the part of it that this rank has of one that is sharded as ``like`` is."""
    if not isinstance(like, DTensor):
        whole: Tensor = file.get_tensor(name)
        return whole
    here = part_of(like)
    local_shape = [p.stop - p.start for p in here]
    view = file.get_slice(name)
    local = view[here] if math.prod(local_shape) else torch.empty(local_shape, dtype=like.dtype)
    given: dict[str, Any] = dict(shape=like.shape, stride=like.stride(), run_check=False)
    made: Tensor = DTensor.from_local(local.to(like.to_local().device), like.device_mesh, like.placements, **given)
    return made


def _some(names: set[str]) -> str:
    every = sorted(names)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")
