"""An operator as a function of torch that autograd differentiates and `torch.compile` may carry through a graph.

Nothing is said twice: the schema of the custom op is the operator's signature, shapes follow from where its results
live, and the gradient is the operator that is `backward_of` it. That one is found, and fed, by names: for a result y it
takes ``dy``, beside it any inputs and results of the forward operator by their own names; for an input x it returns
``dx``. Several backward operators may share the work. An input of floats without a gradient must be said to be one.
Gradients of gradients are refused.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..errors import ArgumentError, DefinitionError
from ..lang import Graph, Operator, Output

FORMATS = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}
DTYPES = {**{name: dtype for dtype, name in FORMATS.items()}, "i32": torch.int32, "i64": torch.int64}
NAMESPACE = "tokitai"
Spread = Callable[[Tensor, Mapping[str, Any]], Tensor]
"""From the gradient of a reduced result and all arguments by name, the gradient of each row."""


def plain(x: Tensor | None) -> Any:
    """What an operator takes: autograd looks at the custom op as a whole."""
    return None if x is None else x.detach()


def differentiable(
    operator: Operator, *backward: Operator, same: Mapping[str, str] = MappingProxyType({}),
    constant: Collection[str] = (), spread: Spread | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """The operator as a function: tensors by position, scalars and options by name, of one storage format.

    It returns what the operator returns, to the bit, less what only its backward pass needs (the mean of a row, say);
    what remains without a gradient is marked so. Where an operator looks at whole numbers or for NaN before it runs,
    ``check=False`` leaves that out for tensors on a card, as it waits for the card.

    ``backward`` names the operators that give gradients, where they are not among `tokitai.ops`. ``same`` says whose
    gradient is also another input's: of x + residual, x's is residual's; ``constant`` which inputs have none.
    ``spread`` is for results that an option reduces to one number.

    Raises DefinitionError for an operator that writes into its inputs, whose backward operators take what it does not
    have, or that has an input of floats whose gradient nobody gives. A call raises ArgumentError, also where a constant
    input requires a gradient.
    """
    forward = _custom_op(operator, several=False)
    rule = _Rule(operator, [_Gradient(b) for b in backward or _backward_of(operator)], same, constant, spread)
    forward.register_autograd(rule.differentiate, setup_context=rule.keep)

    def function(*tensors: Tensor | None, **words: Any) -> Any:
        for name in constant:
            given = words.get(name, dict(zip(rule.inputs, tensors, strict=False)).get(name))
            if given is not None and given.requires_grad:
                raise ArgumentError(
                    f"{operator.name}: {name} requires a gradient and has none; accepted: {name}.detach()"
                )
        made = forward(*tensors, **words)
        every = made if isinstance(made, tuple) else (made,)
        return every[rule.returned[0]] if len(rule.returned) == 1 else tuple(every[i] for i in rule.returned)

    function.__name__ = function.__qualname__ = operator.name
    function.__doc__ = f"{operator.__doc__}\n\n    Returns {', '.join(rule.results[i] for i in rule.returned)}."
    function.__signature__ = _signature(operator)  # type: ignore[attr-defined]
    return function


class _Rule:
    """What a forward pass keeps, and how gradients are made of it."""

    def __init__(
        self, operator: Operator, gradients: list[_Gradient], same: Mapping[str, str], constant: Collection[str],
        spread: Spread | None,
    ) -> None:  # fmt: skip
        self.gradients, self.spread = gradients, spread
        self.inputs = [t.name for t in operator.tensors]
        self.results = [o.name for o in _full_graph(operator).outputs]
        self.slope_of = {n: f"d{same.get(n, n)}" for n in self.inputs}
        self.taken = {n for g in gradients for n in g.taken}
        self.slopes = {f"d{n}" for n in self.results}
        self._look_for_gaps(operator, constant)
        self.sloped = [n for n in self.results if f"d{n}" in self.taken]
        places = operator.contract.places
        self.returned = [
            i for i, n in enumerate(self.results) if n in self.sloped or n in places or n not in self.taken
        ]

    def _look_for_gaps(self, operator: Operator, constant: Collection[str]) -> None:
        known = {*self.results, *self.slopes, *self.inputs}
        if not self.taken <= known:
            unknown, accepted = ", ".join(sorted(self.taken - known)), ", ".join(sorted(known))
            raise DefinitionError(f"{operator.name}: its backward operator takes {unknown}; accepted: {accepted}")
        floats = [t.name for t in operator.tensors if t.format in ("storage", "f32")]
        made = {n for g in self.gradients for n in g.returned}
        lost = [n for n in floats if self.slope_of[n] not in made and n not in constant]
        if lost:
            raise DefinitionError(
                f"{operator.name}: no backward operator returns a gradient of {', '.join(lost)}; accepted: inputs "
                "whose gradient is another's in `same`, inputs without one in `constant`"
            )

    def keep(
        self, ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: Mapping[str, Any] | None = None
    ) -> None:
        """What torch calls behind a forward pass."""
        made = output if isinstance(output, tuple) else (output,)
        of_results = dict(zip(self.results, made, strict=True))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(t for n, t in of_results.items() if n not in self.sloped))
        found = dict(zip(self.inputs, inputs, strict=False)) | of_results
        ctx.kept = [n for n, t in found.items() if t is not None and (n in self.taken or self.spread is not None)]
        ctx.save_for_backward(*(found[n] for n in ctx.kept))
        ctx.words = dict(keyword_only_inputs or {})
        ctx.like = {n: (t.shape, t.dtype, t.device) for n, t in of_results.items()}

    def differentiate(self, ctx: Any, *slope: Tensor | None) -> tuple[Tensor | None, ...]:
        """What torch calls in a backward pass."""
        found: dict[str, Tensor] = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
        arrived = {f"d{n}": s for n, s in zip(self.results, slope, strict=True) if s is not None}
        needed = dict(zip(self.inputs, ctx.needs_input_grad, strict=False))
        wanted = {self.slope_of[n] for n, wants in needed.items() if wants}
        made: dict[str, Tensor] = {}
        for g in self.gradients if arrived else ():
            if wanted & g.returned:
                made |= g(found | self._slopes_for(g, arrived, {**found, **ctx.words}, ctx.like), ctx.words)
        return tuple(made.get(self.slope_of[n]) if wants else None for n, wants in needed.items())

    def _slopes_for(
        self, g: _Gradient, arrived: Mapping[str, Tensor], named: Mapping[str, Any], like: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """The gradients of results as a backward operator takes them: zeros for one that it cannot do without."""
        given = {}
        for t in g.operator.tensors:
            slope = arrived.get(t.name)
            if slope is not None and self.spread is not None and t.space == "r" and slope.ndim == 0:
                given[t.name] = self.spread(slope, named)
            elif slope is not None:
                given[t.name] = slope
            elif t.name in self.slopes and not t.optional:
                shape, dtype, device = like[t.name[1:]]
                given[t.name] = torch.zeros(shape, dtype=dtype, device=device)
        return given


class _Gradient:
    """A backward operator, as a custom op."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.called = _custom_op(operator, several=True)
        self.taken = {t.name for t in operator.tensors}
        self.words = {p.name for p in operator.params} | {o.name for o in operator.options}
        self.returned = {o.name for o in _full_graph(operator).outputs}

    def __call__(self, found: Mapping[str, Tensor], words: Mapping[str, Any]) -> dict[str, Tensor]:
        given = [found.get(t.name) for t in self.operator.tensors]
        words = {n: v for n, v in words.items() if n in self.words}
        graph = _graph_of(self.operator, given, words)
        return dict(zip((o.name for o in graph.outputs), self.called(*given, **words), strict=True))


def _backward_of(operator: Operator) -> list[Operator]:
    every = (ops.get(name) for name in ops.registry())
    return [b for b in every if b.backward_of is operator]


# ------------------------------------------------------------------ custom ops
@functools.cache
def _custom_op(operator: Operator, several: bool) -> Any:
    """The operator as it is, known to torch by its schema and shapes. ``several``: its results are one list, whose
    length follows from the inputs that are given."""
    graph = _full_graph(operator)
    if any(o.inplace for o in graph.outputs):
        raise DefinitionError(f"{operator.name}: it writes into its inputs; accepted: results of their own")

    def run(*tensors: Tensor | None, check: bool = not several, **words: Any) -> Any:
        if not check and tensors[0] is not None and tensors[0].is_cuda:
            words["check"] = False  # what a backward pass takes was looked at before; in host memory that costs little
        made = operator(*map(plain, tensors), **words)
        return list(made if isinstance(made, tuple) else (made,)) if several else made

    def shapes(*tensors: Tensor | None, check: bool = False, **words: Any) -> Any:
        traced = _graph_of(operator, tensors, words)
        given = {t.name: x for t, x in zip(operator.tensors, tensors, strict=False) if x is not None}
        made = tuple(_empty(operator, traced, o, given) for o in traced.outputs)
        return list(made) if several else made if len(made) > 1 else made[0]

    looks = not several and _looks(operator)
    each = "Tensor[]" if several else ", ".join(["Tensor"] * len(graph.outputs))
    schema = f"({_arguments(operator, looks)}) -> {each if several or len(graph.outputs) == 1 else f'({each})'}"
    _count[operator.name] += 1  # another operator of the same name may be defined: a cell of a notebook run again
    name = operator.name if _count[operator.name] == 1 else f"{operator.name}_{_count[operator.name]}"
    made = torch.library.custom_op(f"{NAMESPACE}::{name}", run, mutates_args=(), schema=schema)
    made.register_fake(shapes)
    return made


_count: Counter[str] = Counter()


def _looks(operator: Operator) -> bool:
    """Whether an operator looks at values before it runs."""
    return bool(operator.contract.indices or operator.contract.no_nan)


def _signature(operator: Operator) -> inspect.Signature:
    """The arguments of an operator with a gradient, as Python shows them."""
    empty, found = inspect.Parameter.empty, []
    for t in operator.tensors:
        default = None if t.optional else empty
        found.append(inspect.Parameter(t.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default))
    words: dict[str, object] = {p.name: empty if p.default is None else p.default for p in operator.params}
    words |= {o.name: o.default for o in operator.options if o.name not in operator.contract.switches}
    words |= {"check": True} if _looks(operator) else {}
    found += [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d) for n, d in words.items()]
    return inspect.Signature(found)


def _arguments(operator: Operator, looks: bool) -> str:
    """The arguments of an operator, as a schema of torch spells them; with ``check`` where it looks at values."""
    required = [i for i, t in enumerate(operator.tensors) if not t.optional]
    last = max(required, default=-1)
    tensors = [
        f"Tensor? {t.name}" + "=None" * (i > last) if t.optional else f"Tensor {t.name}"
        for i, t in enumerate(operator.tensors)
    ]
    words = []
    for p in operator.params:
        words.append(f"{'int' if p.whole else 'float'} {p.name}" + (f"={p.default!r}" if p.default is not None else ""))
    for o in operator.options:
        if o.name not in operator.contract.switches:
            kind = type(o.default).__name__
            words.append(f"{kind} {o.name}=" + (f'"{o.default}"' if kind == "str" else f"{o.default!r}"))
    words += ["bool check=True"] * looks
    return ", ".join([*tensors, *(["*", *words] if words else [])])


def _storage(operator: Operator, tensors: Sequence[Tensor | None]) -> str:
    """The storage format of a call. Raises ArgumentError for a dtype that is none."""
    for t, x in zip(operator.tensors, tensors, strict=False):
        if t.format == "storage" and x is not None:
            if x.dtype not in FORMATS:
                accepted = ", ".join(str(d) for d in FORMATS)
                raise ArgumentError(f"{operator.name}: {t.name} of {x.dtype}; accepted: {accepted}")
            return FORMATS[x.dtype]
    return operator.contract.formats[0]


def _graph_of(operator: Operator, tensors: Sequence[Tensor | None], words: Mapping[str, Any]) -> Graph:
    """The graph of a call."""
    given = [t for t, x in zip(operator.tensors, tensors, strict=False) if x is not None]
    chosen = {o.name: words[o.name] for o in operator.options if o.name in words}
    for option, scalar in operator.contract.switches.items():
        chosen[option] = bool(words.get(scalar, 0))
    present = [t.name for t in given if t.optional]
    return operator.trace(_storage(operator, tensors), present, options=chosen)


def _full_graph(operator: Operator) -> Graph:
    """The graph where all tensors are given."""
    return operator.trace(operator.contract.formats[0])


def _empty(operator: Operator, graph: Graph, o: Output, given: Mapping[str, Tensor]) -> Tensor:
    """A tensor of the shape and format of a result; nothing is written to it."""
    of: dict[str, Tensor] = {}
    for t in graph.inputs:
        of.setdefault(t.space, given[t.name])
    wide = of.get("rc", of.get("rk"))
    first = wide if wide is not None else next(iter(given.values()))
    lead, cols = (first.shape[:-1], first.shape[-1:]) if wide is not None else (first.shape, ())
    shape = {"rc": (*lead, *cols), "rk": (*lead, *cols), "r": lead, "c": cols, "s": ()}.get(o.space)
    if o.space == "ck":
        shape = of["ck"].shape
    if shape is None:
        raise DefinitionError(f"{operator.name}: {o.name} of space {o.space}; accepted: rc, rk, ck, r, c, s")
    dtype = "i32" if o.name in operator.contract.places else o.format
    return first.new_empty((*shape, o.slots) if o.slots else shape, dtype=DTYPES[dtype])
