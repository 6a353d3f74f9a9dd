"""The headers that kernels include, as files of this package; each is read once in a process."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources


@cache
def _content(target: str, name: str) -> str:
    return (resources.files(__package__) / target / name).read_text()


def read(target: str, names: Iterable[str]) -> dict[str, str]:
    """Headers of a target, ``cpu`` or ``gpu``, by the name under which a kernel includes them."""
    return {name: _content(target, name) for name in names}
