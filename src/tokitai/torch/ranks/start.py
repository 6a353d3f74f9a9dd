"""The process group of a program that `torchrun` started, and the device of its rank."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ...errors import ArgumentError


def start(device: str = "cpu") -> str:
    """Make the process group where `torchrun` started this process: gloo for "cpu", NCCL for "cuda", with one GPU a
    rank. Returns the device of this rank; where there is one process alone, the device that is given. Raises
    ArgumentError for "cuda:N" beside other ranks."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or not dist.is_available():
        return device
    kind, _, index = device.partition(":")
    if index and int(os.environ["WORLD_SIZE"]) > 1:
        raise ArgumentError(f"device={device!r} beside {os.environ['WORLD_SIZE']} ranks; accepted: {kind!r}")
    mine = f"{kind}:{os.environ['LOCAL_RANK']}" if kind == "cuda" and not index else device
    if kind == "cuda":
        torch.cuda.set_device(mine)
    else:
        torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    return mine


def stop() -> None:
    """Leave the process group, where `start` made one."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
