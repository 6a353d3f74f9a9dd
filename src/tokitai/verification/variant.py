"""Which graphs of an operator a verification takes."""

from __future__ import annotations

from dataclasses import dataclass

from ..lang import Operator


@dataclass(frozen=True)
class Variant:
    """One graph of an operator: which optional tensors are present, and the options that are not the default."""

    present: frozenset[str]
    options: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        return ",".join([*sorted(self.present), *(f"{n}={v}" for n, v in self.options)]) or "plain"

    def flags(self, operator: Operator) -> str:
        """As command line flags."""
        absent = [t.name for t in operator.tensors if t.optional and t.name not in self.present]
        return "".join(f" --without {n}" for n in absent) + "".join(f" --option {n}={v}" for n, v in self.options)


def variants(operator: Operator, dtype: str = "f16") -> list[Variant]:
    """All optional tensors; none of them; each option's other values in a storage format, one at a time, and where the
    contract wishes so with no optional tensor as well."""
    every = frozenset(t.name for t in operator.tensors if t.optional)
    found = [Variant(every)]
    if every:
        found.append(Variant(frozenset()))
    for present in (every, frozenset[str]())[: 1 + (bool(every) and operator.contract.options_alone)]:
        for o in operator.options:
            found += [Variant(present, ((o.name, v),)) for v in o.choices(dtype) if v != o.default]
    return found
