"""Processes of one machine that stay, and run what they are sent: each is a rank of gloo on the CPU, or of NCCL with a
GPU of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SECONDS = 120
ALONE = dict(TOKITAI_NUM_THREADS="1", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", NCCL_NVLS_ENABLE="0")


def _serve(rank: int, ranks: int, meeting: str, pipe: Connection, device: str) -> None:
    import torch
    import torch.distributed as dist

    from tokitai.torch import ranks as ranks_of_torch

    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = {"cpu": "gloo", "cuda": "nccl"}[device]
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    groups = {n: dist.new_group(list(range(n))) for n in range(1, ranks + 1)}  # each rank makes all of them
    while (sent := pipe.recv_bytes()) != b"":
        function, wanted, arguments = pickle.loads(sent)
        try:
            made: Any = function(groups[wanted], *arguments) if rank < wanted else None
        except Exception as error:
            traceback.print_exc()
            made = error
        pipe.send(made)
    ranks_of_torch.stop()


class World:
    """Ranks that can be called."""

    def __init__(self, pipes: list[Connection]) -> None:
        self.pipes = pipes

    def __call__(self, ranks: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """function(group, *arguments) on the first ranks; what each returns, or raises."""
        for pipe in self.pipes:
            pipe.send_bytes(pickle.dumps((function, ranks, arguments)))
        made = []
        for pipe in self.pipes:
            assert pipe.poll(SECONDS), "a rank did not answer"
            made.append(pipe.recv())
        return made[:ranks]

    def same(self, ranks: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """What each of the ranks returns, all of them the same."""
        first, *others = self(ranks, function, *arguments)
        if isinstance(first, Exception):
            raise first
        assert all(o == first for o in others), [first, *others]
        return first


@contextlib.contextmanager
def world_of(ranks: int, device: str = "cpu") -> Iterator[World]:
    spawn = multiprocessing.get_context("forkserver")  # it imports once, and the ranks are its children
    spawn.set_forkserver_preload(["tests.torch.small_runs"])
    with tempfile.TemporaryDirectory() as folder:
        pairs = [spawn.Pipe() for _ in range(ranks)]
        meeting = str(Path(folder) / "meeting")
        processes = [
            spawn.Process(target=_serve, args=(r, ranks, meeting, theirs, device), daemon=True)
            for r, (_, theirs) in enumerate(pairs)
        ]
        before = {n: os.environ.get(n) for n in ALONE}
        os.environ |= ALONE
        for p in processes:
            p.start()
        for n, value in before.items():
            os.environ.pop(n)
            os.environ |= {n: value} if value is not None else {}
        try:
            yield World([ours for ours, _ in pairs])
            for ours, _ in pairs:
                ours.send_bytes(b"")
            for p in processes:
                p.join(SECONDS)
        finally:
            for p in processes:
                p.kill()
