"""How fast a run is, for those who watch it."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from .flops import utilisation


@dataclass
class Pace:
    """Of steps of so many ``tokens`` and operations (``flops``), on ``ranks`` devices of a name. The first step, which
    builds kernels, does not count."""

    tokens: int
    flops: float
    device: str
    ranks: int
    steps: int = 0
    begin: float = field(default_factory=lambda: perf_counter())

    def step(self) -> None:
        """Behind a step that has ended."""
        if self.steps == 0:
            self.begin = perf_counter()
        self.steps += 1

    @property
    def seconds(self) -> float:
        """Of a step; 0 where none counts."""
        return (perf_counter() - self.begin) / (self.steps - 1) if self.steps > 1 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """0 where no step counts."""
        return self.tokens / self.seconds if self.steps > 1 else 0.0

    def text(self, left: int) -> str:
        """What is added to a line of progress, with so many steps to go."""
        if self.steps < 2:
            return ""
        seconds = self.seconds
        used = utilisation(self.flops / seconds / self.ranks, self.device)
        of_peak = "" if used is None else f" ({used:.1%} of the peak in 16 bits)"
        return f", {self.tokens / seconds:,.0f} tokens/s{of_peak}, {seconds * left:.0f} s left"
