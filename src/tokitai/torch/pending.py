"""A truth value of a GPU that is read when it has arrived, instead of being waited for."""

from __future__ import annotations

import torch
from torch import Tensor


class Pending:
    """Whether a tensor of bool holds true; ``bool()`` waits, if need be, for what was in the stream before."""

    def __init__(self, flag: Tensor) -> None:
        self.event: torch.cuda.Event | None = None
        self.here = flag
        if flag.is_cuda:
            self.here = torch.empty((), dtype=torch.bool, pin_memory=torch.cuda.is_available())
            self.here.copy_(flag, non_blocking=True)
        if torch.cuda.is_available() and flag.is_cuda:
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record(torch.cuda.current_stream(flag.device))

    def __bool__(self) -> bool:
        if self.event is not None:
            self.event.synchronize()
        return bool(self.here.numpy())
