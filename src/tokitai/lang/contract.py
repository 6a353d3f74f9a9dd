"""What an operator accepts, and what is wrong with a contract that does not fit its definition."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ArgumentError
from ..formats import FORMATS, STORAGE
from .graph import NARROW_ACCUMULATORS, TensorSpec

if TYPE_CHECKING:
    from .operator import Operator

LARGEST = float(np.finfo(np.float32).max)  # of the finite numbers that a scalar may be where it meets tensors
DRAWS = ("positive", "unit", "probabilities", "below COUNT", "lengths", "any lengths", "above", "saved", "anchor")


@dataclass(frozen=True)
class Index:
    """What an integer input may hold: 0 up to the number of columns, or of a table's entries; or the value of the
    scalar named ``besides``."""

    besides: str | None = None
    upto: bool = False  # the number of columns itself is allowed as well: a length, not a place
    entries: bool = False  # a table's entries are counted, not columns


@dataclass(frozen=True)
class Contract:
    """What an operator accepts. ``domain`` says in words for which values the accuracy statements hold."""

    formats: tuple[str, ...] = tuple(f.name for f in STORAGE)
    lists: bool = False  # made for lists of tensors, such as all parameters of a model: each is taken as one row
    max_rows: int = 2**31  # 1 for `lists`
    max_cols: int = 2**20
    min_cols: int = 0
    domain: str = "all values"
    defaults: Mapping[str, float] = field(default_factory=dict)  # scalars that `verify` uses where none are given
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # scalars, both ends included
    entry: Mapping[str, float] = field(default_factory=dict)  # scalars that name one of `entries`; what means none
    switches: Mapping[str, str] = field(default_factory=dict)  # options that follow from a scalar: on where it is not 0
    indices: Mapping[str, Index] = field(default_factory=dict)  # integer inputs that choose a column
    no_nan: tuple[str, ...] = ()  # inputs in which a NaN is an error
    places: tuple[str, ...] = ()  # results that are columns: whole numbers, which calls return as i32
    draw: Mapping[str, str] = field(default_factory=dict)  # inputs whose seeded values are not plain noise
    # Whose results are "saved", and what its inputs are called here; where it is left out, that is `backward_of`.
    forward: tuple[Operator, Mapping[str, str]] | None = None
    options_alone: bool = False  # options are verified without the optional tensors as well
    batched: bool = False  # leading dimensions of a product's operands are a batch; else they flatten into one side

    def __post_init__(self) -> None:
        if self.lists:
            object.__setattr__(self, "max_rows", 1)


@dataclass(frozen=True)
class ParamSpec:
    """A host scalar: an f64 on the host, rounded to f32 where it meets tensors. ``whole`` ones must be integers."""

    name: str
    default: float | None
    whole: bool


@dataclass(frozen=True)
class OptionSpec:
    """A choice made when the definition is traced; each gives another graph."""

    name: str
    default: object
    accepted: tuple[object, ...]

    def choices(self, dtype: str) -> tuple[object, ...]:
        """The values that are accepted in a storage format: accumulators of 16-bit operands take no f32."""
        return tuple(v for v in self.accepted if dtype in ("f16", "bf16") or v not in NARROW_ACCUMULATORS)

    def chosen(self, operator: str, value: object, dtype: str | None = None) -> object:
        """The value accepted in a storage format, or in any, that is meant: of its own type or NumPy's, so that 2.0 and
        True are neither 2 nor 1. Raises ArgumentError."""
        plain = value.item() if isinstance(value, np.generic) else value
        accepted = self.accepted if dtype is None else self.choices(dtype)
        for one in accepted:
            if type(one) is type(plain) and one == plain:
                return one
        of = f" of {dtype}" if plain in self.accepted else ""
        raise ArgumentError(f"{operator}: {self.name}={value!r}{of}; accepted: {', '.join(map(repr, accepted))}")


def faults(
    contract: Contract, tensors: Sequence[TensorSpec], params: Sequence[ParamSpec], options: Sequence[OptionSpec],
    is_backward: bool,
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """What a contract says that does not fit the definition, and what is accepted. It may name arguments that there
    are not, as several operators share one."""
    scalars, choices = [p.name for p in params], [o.name for o in options]
    if contract.lists and any(t.space != "rc" for t in tensors):
        other = next(t for t in tensors if t.space != "rc")
        yield f"an operator on lists with the input {other.name}", "inputs of Matrix[...] alone"
    if not any(not t.optional for t in tensors):
        yield "a definition that can be called without a tensor", "a tensor that is always given"
    if any(t.slots for t in tensors) and not any(
        o.name == "k" and all(isinstance(v, int) and v > 0 for v in o.accepted) for o in options
    ):
        yield "an input of Slots[...] without the option k, which says how many there are", "k: Literal[2, 4] = 2"
    for option, scalar in contract.switches.items():
        for name, known, kind in ((option, choices, "options"), (scalar, scalars, "scalars")):
            if name not in known:
                yield f"the contract's switches name {name}", f"{kind}: {', '.join(known) or 'there are none'}"
    if set(contract.entry) & set(scalars) and "entries" not in scalars:
        yield f"the contract's entry names {', '.join(contract.entry)}", "beside the scalar entries"
    for t in tensors:
        if t.name in contract.indices and (t.format not in FORMATS or FORMATS[t.format].is_float):
            yield f"the contract's indices name {t.name}, stored as {t.format}", "tensors of whole numbers"
        if t.name in contract.no_nan and t.space != "rc":
            yield f"the contract's no_nan names {t.name}", "tensors of rows x cols"
    for besides in (i.besides for i in contract.indices.values()):
        if besides is not None and besides not in scalars:
            yield f"the contract's indices may be the scalar {besides}", f"scalars: {', '.join(scalars)}"
    for name, wish in contract.draw.items():
        if not re.fullmatch("|".join(DRAWS).replace("COUNT", r"[1-9]\d*"), wish):
            yield f"the contract's draw of {name} as {wish!r}", ", ".join(DRAWS)
        saved = wish in ("saved", "anchor") and any(t.name == name for t in tensors)
        if saved and not is_backward and contract.forward is None:
            yield f"the contract's draw of {name} as {wish!r}", f"{wish!r} where backward_of or forward is given"
