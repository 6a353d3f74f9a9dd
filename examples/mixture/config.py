"""A file of settings for the command: options by their names, and the sizes of the model in a table ``shape``."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

from tokitai.errors import ArgumentError, UnknownNameError

from .model import Shape
from .training import SMALL


def read(path: Path) -> tuple[list[str], Shape]:
    """The options as arguments of a command line, and the shape. Raises ArgumentError for a file that is none of TOML,
    for a value that no option takes and for a size that is missing, UnknownNameError for another size."""
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--config {path}: {error}; accepted: a file of TOML") from None
    sizes = found.pop("shape", dataclasses.asdict(SMALL))
    names = {f.name: f.default is dataclasses.MISSING for f in dataclasses.fields(Shape)}
    if not isinstance(sizes, dict) or {n for n, needed in names.items() if needed} - sizes.keys():
        raise ArgumentError(f"--config {path}: shape={sizes!r}; accepted: a table of {', '.join(names)}")
    arguments = []
    for name, value in (*found.items(), *sizes.items()):
        kinds = (int,) if name in sizes else (int, float, str)
        if type(value) not in kinds:
            raise ArgumentError(f"--config {path}: {name}={value!r}; accepted: {', '.join(k.__name__ for k in kinds)}")
        if name in sizes and name not in names:
            raise UnknownNameError("size", name, names)
        arguments += [f"--{name.replace('_', '-')}={value}"] if name in found else []
    return arguments, Shape(**sizes)
