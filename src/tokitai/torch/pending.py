"""A truth value of a GPU that is read when it has arrived, instead of being waited for."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor


class Pending:
    """Whether a tensor of bool holds true; ``bool()`` waits, if need be, for what was in the stream before."""

    def __init__(self, flag: Tensor) -> None:
        self.event: torch.cuda.Event | None = None
        if flag.device.type != "cuda":
            self.value = bool(flag.numpy())
            return
        self.here = _free.pop() if _free else torch.empty((), dtype=torch.bool, pin_memory=True)
        self.here.copy_(flag, non_blocking=True)
        self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.event.record(torch.cuda.current_stream(flag.device))
        _on_the_way.add(self)

    def wait(self) -> None:
        """Until the value is here."""
        if self.event is not None:
            self.event.synchronize()
            self.event, self.value = None, bool(self.here.numpy())
            _on_the_way.discard(self)
            _free.append(self.here)

    def __bool__(self) -> bool:
        self.wait()
        return self.value


# Pinned memory is kept: torch marks what it frees by an event, which would belong to a graph that is being captured.
_free: list[Tensor] = []
_on_the_way: weakref.WeakSet[Pending] = weakref.WeakSet()


def wait_for_all() -> None:
    """Until all values are here: while a stream is captured nothing can be waited for."""
    for pending in list(_on_the_way):
        pending.wait()
