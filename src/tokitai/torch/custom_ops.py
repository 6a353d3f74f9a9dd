"""An operator as a custom op of torch: schema, kernel, shapes, batching rule.

Its arguments are the operator's tensors, then for each host scalar a tensor that may hold it (``seed_tensor``), then
scalars and options by name. Whole numbers are SymInt: `torch.compile` makes no new graph for another seed.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError, DefinitionError
from ..lang import Graph, Operator
from ..runtime.launch_cache import CURRENT
from .accumulators import Accumulators
from .assertions import assert_values, refuse_capture
from .batching import one_by_one, rule_of
from .dispatch import CustomOp
from .shapes import FORMATS, empty_results
from .transforms import refuse_second_derivatives

NAMESPACE = "tokitai"
_count: Counter[str] = Counter()


def plain(x: Tensor | None) -> Any:
    """What an operator takes: autograd looks at the custom op as a whole."""
    return None if x is None else x.detach()


def full_graph(operator: Operator) -> Graph:
    """The graph where all tensors are given."""
    return operator.trace(operator.contract.formats[0])


def looks_at_values(operator: Operator) -> bool:
    """Whether an operator looks at values before it runs."""
    return bool(operator.contract.indices or operator.contract.no_nan)


class TorchOp:
    """The custom op of an operator. ``several``: its results are one list, whose length follows from the inputs that
    are given, and nothing is looked at before it runs, as the forward pass did.

    Raises DefinitionError for an operator that writes into its inputs.
    """

    def __init__(self, operator: Operator, several: bool) -> None:
        self.operator, self.several = operator, several
        graph = full_graph(operator)
        if any(o.inplace for o in graph.outputs):
            raise DefinitionError(f"{operator.name}: it writes into its inputs; accepted: results of their own")
        self.tensors = tuple(t.name for t in operator.tensors)
        summed = {t.name for t in graph.inputs if len(t.space) == 2 and t.space[0] == "k"}
        self.rows = {i for i, t in enumerate(operator.tensors) if t.name in summed}  # of which a vector is one
        self.numbers = tuple(p.name for p in operator.params)
        self.missing = {p.name: 0 if p.whole else 0.0 for p in operator.params if p.default is None}
        self.accumulators = Accumulators(operator)
        self.scalars = {p.name: p.default for p in operator.params}
        self.looks = not several and looks_at_values(operator)
        each = "Tensor[]" if several else ", ".join(["Tensor"] * len(graph.outputs))
        returned = each if several or len(graph.outputs) == 1 else f"({each})"
        _count[operator.name] += 1  # another operator of the same name may be defined: a cell of a notebook run again
        name = operator.name if _count[operator.name] == 1 else f"{operator.name}_{_count[operator.name]}"
        options = {o.name: o.default for o in operator.options if o.name not in operator.contract.switches}
        named = {p.name: p.default for p in operator.params} | options | ({"check": True} if self.looks else {})
        schema = f"({self._arguments()}) -> {returned}"
        self.op = CustomOp(f"{NAMESPACE}::{name}", self._run, schema, named or None)
        self.op.register_fake(self.shapes)
        self.op.register_vmap(one_by_one(self.op) if several else rule_of(operator, graph, self.op))
        if several:
            self.op.register_autograd(refuse_second_derivatives((operator.backward_of or operator).name))

    def __call__(self, tensors: Sequence[Tensor | None], words: Mapping[str, Any]) -> Any:
        """Run on all tensors of the operator in order, None for those left out; a scalar may be a tensor."""
        held = [words[n] if isinstance(words.get(n), Tensor) else None for n in self.numbers]
        rest = {n: v.item() if isinstance(v, np.generic) else v for n, v in words.items() if not isinstance(v, Tensor)}
        for n, h in zip(self.numbers, held, strict=True):
            if h is not None and n in self.missing:
                rest[n] = self.missing[n]
        if self.several:
            tensors = [x.unsqueeze(0) if i in self.rows and x is not None and x.ndim == 1 else x
                       for i, x in enumerate(tensors)]  # fmt: skip
        return self.op(*tensors, *[None] * (len(self.tensors) - len(tensors)), *held, **rest)

    def split(self, given: Sequence[Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The positional arguments that are there, by name: tensors, and tensors that hold scalars."""
        count = len(self.tensors)
        tensors = {n: x for n, x in zip(self.tensors, given[:count], strict=False) if x is not None}
        return tensors, {n: x for n, x in zip(self.numbers, given[count:], strict=False) if x is not None}

    def _run(self, *given: Tensor | None, check: bool | None = None, **words: Any) -> Any:
        tensors, held = self.split(given)
        if held and CURRENT.recorder is not None:
            CURRENT.recorder.spoil()
        for n, x in held.items():
            check_number(self.operator.name, n, x)
            refuse_capture(self.operator.name, f"{n} in a tensor", f"{n} as a number, which each replay has")
            words[n] = x.item()
        first = next(iter(tensors.values()), None)
        if first is not None and first.is_cuda:  # in host memory a look costs little
            if self.looks and check is not False:
                assert_values(self.operator, tensors, self.scalars | words)
            words["check"] = False  # what a backward pass takes was looked at before
        made = self.operator(*map(plain, given[: len(self.tensors)]), **words)
        return list(made if isinstance(made, tuple) else (made,)) if self.several else made

    def shapes(self, *given: Tensor | None, check: bool | None = None, **words: Any) -> Any:
        """Results without values. Raises ArgumentError as the call does."""
        tensors, held = self.split(given)
        for n, x in held.items():
            check_number(self.operator.name, n, x)
        made = empty_results(self.operator, self.graph_of(tensors, {**words, **held}), tensors, words.get("entries"))
        return list(made) if self.several else made if len(made) > 1 else made[0]

    def graph_of(self, tensors: Mapping[str, Tensor], words: Mapping[str, Any]) -> Graph:
        """The graph of a call. What a switch's scalar is, where a tensor holds it, is not known: taken as on."""
        operator = self.operator
        chosen = {o.name: words[o.name] for o in operator.options if o.name in words}
        for option, scalar in operator.contract.switches.items():
            value = words.get(scalar, next(p.default for p in operator.params if p.name == scalar))
            chosen[option] = True if isinstance(value, Tensor) else bool(value)
        present = [t.name for t in operator.tensors if t.optional and t.name in tensors]
        return operator.trace(self._storage(tensors), present, options=chosen)

    def _storage(self, tensors: Mapping[str, Tensor]) -> str:
        """The storage format of a call. Raises ArgumentError for a dtype that is none."""
        for t in self.operator.tensors:
            if t.format == "storage" and t.name in tensors:
                dtype = tensors[t.name].dtype
                if dtype not in FORMATS:
                    accepted = ", ".join(str(d) for d in FORMATS)
                    raise ArgumentError(f"{self.operator.name}: {t.name} of {dtype}; accepted: {accepted}")
                return FORMATS[dtype]
        return self.operator.contract.formats[0]

    def _arguments(self) -> str:
        """The arguments, as a schema of torch spells them; with ``check`` where values are looked at."""
        operator = self.operator
        last = max((i for i, t in enumerate(operator.tensors) if not t.optional), default=-1)
        tensors = [
            f"Tensor? {t.name}" + "=None" * (i > last) if t.optional else f"Tensor {t.name}"
            for i, t in enumerate(operator.tensors)
        ]
        tensors += [f"Tensor? {n}_tensor=None" for n in self.numbers]
        words = []
        for p in operator.params:
            kind = "SymInt" if p.whole else "float"
            words.append(f"{kind} {p.name}" + (f"={p.default!r}" if p.default is not None else ""))
        for o in operator.options:
            if o.name not in operator.contract.switches:
                kind = type(o.default).__name__
                words.append(f"{kind} {o.name}=" + (f'"{o.default}"' if kind == "str" else f"{o.default!r}"))
        words += ["bool check=True"] * self.looks
        return ", ".join([*tensors, *(["*", *words] if words else [])])


def check_number(operator: str, name: str, x: Tensor) -> None:
    """A tensor of one number that is not complex or a truth value. Raises ArgumentError."""
    if x.numel() != 1 or x.dtype == torch.bool or x.dtype.is_complex:
        raise ArgumentError(
            f"{operator}: {name} is a tensor of shape {tuple(x.shape)} of {x.dtype}; accepted: a number, or a tensor "
            "that holds one"
        )


@functools.cache
def torch_op(operator: Operator, several: bool) -> TorchOp:
    """The custom op of an operator, made once."""
    return TorchOp(operator, several)
