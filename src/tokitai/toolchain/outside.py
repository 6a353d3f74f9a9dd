"""What a library says of an access that left an array of its kernel's own: structure builds and simulated kernels do.

It needs the standard library alone, as processes do that run kernels for others.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

SYMBOL = "tokitai_outside"  # of `emit/cpu/outside.h`: where the message lies


def messages_of(library: Any) -> Callable[[], str]:
    """What tells of the first such access since it was last asked; "" where there was none."""
    try:
        place = library[SYMBOL]
    except AttributeError:
        return str
    place.restype = ctypes.c_void_p

    def taken() -> str:
        address = place()
        said = ctypes.string_at(address)
        ctypes.memset(address, 0, 1)
        return said.decode(errors="replace")

    return taken


__all__ = ["messages_of"]
