"""Sort the arguments of a call, and check those that are no tensors.

A `Form` is how a call is written. The launch cache finds a call by its form and the layout of its tensors, and need not
sort its arguments again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..lang import Operator
from ..lang.operator import RESERVED


def bind(
    operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, float], dict[str, object]]:
    """Sort a call's arguments into tensors, scalars and options. Raises ArgumentError."""
    names = [t.name for t in operator.tensors]
    if len(args) > len(names):
        raise ArgumentError(f"{operator.name}: {len(args)} positional arguments; accepted: {', '.join(names)}")
    given = dict(zip(names, args, strict=False))
    for name in kwargs:
        if name in given:
            raise ArgumentError(f"{operator.name}: {name} is given twice; accepted: once")
    values = {**given, **kwargs}
    tensors = {n: values.pop(n) for n in names if values.get(n) is not None}
    for n in names:
        values.pop(n, None)
    missing = [t.name for t in operator.tensors if not t.optional and t.name not in tensors]
    if missing:
        raise ArgumentError(f"{operator.name}: missing {', '.join(missing)}; accepted: {', '.join(names)}")
    params: dict[str, float] = {}
    for p in operator.params:
        value = values.pop(p.name, p.default)
        if value is None:
            raise ArgumentError(f"{operator.name}: missing the scalar {p.name}; accepted: a number")
        params[p.name] = value
    options = {o.name: values.pop(o.name) for o in operator.options if o.name in values}
    for option, scalar in operator.contract.switches.items():
        if options.setdefault(option, bool(params[scalar])) is False and params[scalar]:
            raise ArgumentError(
                f"{operator.name}: {scalar}={params[scalar]} with {option}=False; accepted: one or the other"
            )
    for o in operator.options:
        if o.name in options:
            options[o.name] = o.chosen(operator.name, options[o.name])
    if values:
        accepted = [*names, *(p.name for p in operator.params), *(o.name for o in operator.options), *RESERVED]
        raise ArgumentError(f"{operator.name}: unknown argument {', '.join(values)}; accepted: {', '.join(accepted)}")
    return tensors, params, options


def check_flag(operator: Operator, name: str, value: object) -> None:
    """An argument that is true or false. Raises ArgumentError."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{operator.name}: {name}={value!r}; accepted: True, False")


def check_params(operator: Operator, params: Mapping[str, float]) -> None:
    """Scalars are real numbers, whole where the operator says so, in its ranges. Raises ArgumentError."""
    for p in operator.params:
        value = params[p.name]
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ArgumentError(f"{operator.name}: {p.name}={value!r}; accepted: a number")
        if isinstance(value, int) and abs(value) >= 2**1024:
            raise ArgumentError(f"{operator.name}: {p.name} of {value.bit_length()} bits; accepted: a number of f64")
        if p.whole and not (abs(value) <= 2**53 and int(value) == value):
            raise ArgumentError(f"{operator.name}: {p.name}={value!r}; accepted: a whole number of at most 2**53")
        low, high = operator.contract.ranges.get(p.name, (-math.inf, math.inf))
        if p.name in operator.contract.ranges and not low <= value <= high:  # NaN lies in no range
            raise ArgumentError(f"{operator.name}: {p.name}={value!r}; accepted: {low!r} to {high!r}")
    for name, none in operator.contract.entry.items():
        if params[name] != none:
            check_entry(operator.name, name, params[name], int(params["entries"]))


def check_entry(called: str, name: str, value: float, entries: int) -> None:
    """A scalar names one of so many entries of a table, a negative one from the table's end. Raises ArgumentError."""
    if not -entries <= value < entries:
        accepted = f"{-entries} to {entries - 1}" if entries else "None, of no entries"
        raise ArgumentError(f"{called}: {name}={value}; accepted: {accepted}")


# ------------------------------------------------------------------ calls that are repeated
MOST_CALLS = 4096
MOST_SCALARS = 256  # sets of host scalars that a replay keeps


class Form:
    """How a call is written: by the names of its arguments, and how many there are in ``out``."""

    def __init__(self, operator: Operator, count: int, names: Sequence[str], results: int) -> None:
        self.operator = operator
        declared = [t.name for t in operator.tensors]
        scalars = {p.name for p in operator.params}
        self.tensors = tuple(n for n in names if n in declared)
        self.scalars = tuple(n for n in names if n in scalars)
        self.others = tuple(n for n in names if n not in declared and n not in scalars)
        self.named: list[object] = [*declared[:count], *self.tensors, *range(results)]  # or places in ``out``
        self.fits = count <= len(declared) and not set(declared[:count]) & set(names)
        self.cacheable = self.fits and not operator.contract.lists
        self.by_scalars = bool(operator.contract.switches) or "entries" in scalars  # options or sizes follow from them

    def scalar_key(self, kwargs: Mapping[str, Any]) -> tuple[object, ...]:
        """The scalars that a call gives, so that equal ones are the same: True is not 1 and -0.0 is not 0.0, although
        they compare equal. Raises TypeError for what cannot be hashed, and so is no scalar."""
        if not self.scalars:
            return ()
        found: list[object] = []
        for n in self.scalars:
            value = kwargs[n]
            found += type(value), value or repr(value)
        scalars = tuple(found)
        hash(scalars)
        return scalars


_forms: dict[tuple[object, ...], Form] = {}


def form_of(
    operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any
) -> tuple[Form, Sequence[Any]]:
    """How a call is written, and what is in its ``out``."""
    results: Sequence[Any] = ()
    if out is None:
        how = (operator, len(args), -1, *kwargs)
    else:
        several = type(out) is tuple or type(out) is list
        results = out if several else (out,)
        how = (operator, len(args), len(results) if several else -2, *kwargs)
    form = _forms.get(how)
    if form is None:
        form = _forms[how] = Form(operator, len(args), tuple(kwargs), len(results))
    return form, results
