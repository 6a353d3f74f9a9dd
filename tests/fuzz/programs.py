"""A drawn definition: the source of a module, so that what fails can be written to a file and run again."""

from __future__ import annotations

from dataclasses import dataclass

HEAD = '''"""Graph {number} of the seed {seed}."""

from typing import Literal

from tokitai.elementary import *
from tokitai.lang import *


@function
def bend(x, y):
    return fma(x, y, 1) / maximum(abs(y), 0.5)


def words(low, high, seed):
    """Random bits, by a few rounds of multiplication."""
    for i in range(3):
        low, high = bit_xor(multiply_high(low, 0xD2511F53), high + seed), low * 0xCD9E8D57
    return bit_xor(low, shift_right(high, 7))

'''


@dataclass(frozen=True)
class Program:
    """A definition and how it is to be tried: the format, the optional tensors that are given, options, and for each
    shape the kind of noise."""

    seed: int
    number: int
    family: str
    source: str
    dtype: str
    present: frozenset[str]
    options: dict[str, object]
    shapes: tuple[tuple[int, int], ...]
    how: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the definition."""
        return f"graph_{self.number}"

    def __str__(self) -> str:
        """A program that can be run again."""
        variant = f"Variant(frozenset({sorted(self.present)}), {tuple(self.options.items())})"
        given = f"dtype={self.dtype!r}, variant={variant}"
        return (
            f"{self.source}\n\nif __name__ == '__main__':\n    import tokitai\n"
            f"    from tokitai.verification.verdict import Variant\n\n"
            f"    for device in ('cpu', 'sim'):\n"
            f"        print(tokitai.verify({self.name}, device=device, {given}))\n"
            f"# tried at {', '.join(map(str, self.shapes))} with {', '.join(self.how)}\n"
        )
