"""The process group of a program that `torchrun` started, and the device of its rank."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

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
    """Leave the process group, where `start` made one, and wait for its threads (at most 10 s): see `_rest`."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        _rest(10.0)


def _rest(limit: float) -> None:
    """Wait, at most ``limit`` seconds, until the threads of gloo sleep.

    A collective call returns before the thread that ran it has let go of its tensors. The last reference to a tensor is
    given up under Python's lock, which a thread cannot take any more when the interpreter ends: the process then aborts
    behind its last line. Groups that DistributedDataParallel has seen keep their threads, whatever is destroyed. There
    is no call that waits for them, so their states are read, where the system shows them.
    """
    asleep, end = 0, time.monotonic() + limit
    while asleep < 5 and time.monotonic() < end:  # one look may fall between a wait for the lock and the work behind it
        asleep = 0 if any(state != "S" for state in _states()) else asleep + 1
        time.sleep(0.002)  # without the lock


def _states() -> Iterator[str]:
    """The scheduler's letter for each thread of gloo in this process: R, S, D ... (proc_pid_stat(5))."""
    for task in Path("/proc/self/task").glob("[0-9]*"):
        try:
            name, _, rest = (task / "stat").read_text().rpartition(") ")
        except OSError:  # it has ended
            continue
        if "(pt_gloo" in name:
            yield rest[0]
