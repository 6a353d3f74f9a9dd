"""An operator as a function of torch that autograd differentiates and `torch.compile` may carry through a graph.

Nothing is said twice: the schema of the custom op is the operator's signature, shapes follow from where its results
live, and the gradient is the operator that is `backward_of` it. That one is found, and fed, by names: for a result y it
takes ``dy``, beside it any inputs and results of the forward operator by their own names; for an input x it returns
``dx``. Several backward operators may share the work. An input of floats without a gradient must be said to be one.
Gradients of gradients are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..errors import ArgumentError, DefinitionError
from ..lang import Graph, Operator, Output, TensorSpec

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
    what remains without a gradient is marked so. ``backward`` names the operators that give gradients, where they are
    not among `tokitai.ops`. ``same`` says whose gradient is also another input's: of x + residual, x's is residual's;
    ``constant`` which inputs have none. ``spread`` is for results that an option reduces to one number.

    Raises DefinitionError for an operator that writes into its inputs, whose backward operators take what it does not
    have, or that has an input of floats whose gradient nobody gives. A call raises ArgumentError, also where a constant
    input requires a gradient.
    """
    forward = _custom_op(operator, several=False)
    graph = _graph_of(operator, {t.name for t in operator.tensors}, "f32", {})
    results = [o.name for o in graph.outputs]
    gradients = [_Gradient(b) for b in backward or _backward_of(operator)]
    taken = {n for g in gradients for n in g.taken}
    slopes = {f"d{n}" for n in results}
    known = {*results, *slopes, *(t.name for t in operator.tensors)}
    if not taken <= known:
        unknown, accepted = ", ".join(sorted(taken - known)), ", ".join(sorted(known))
        raise DefinitionError(f"{operator.name}: its backward operator takes {unknown}; accepted: {accepted}")
    floats = [t.name for t in operator.tensors if t.format in ("storage", "f32")]
    made = {n for g in gradients for n in g.returned}
    lost = [n for n in floats if f"d{same.get(n, n)}" not in made and n not in constant]
    if lost:
        raise DefinitionError(
            f"{operator.name}: no backward operator returns a gradient of {', '.join(lost)}; accepted: inputs whose "
            "gradient is another's in `same`, inputs without one in `constant`"
        )
    sloped = [n for n in results if f"d{n}" in taken]
    chosen = operator.contract.places
    returned = [i for i, n in enumerate(results) if n in sloped or n in chosen or n not in taken]
    arguments = [t.name for t in operator.tensors]
    slope_of = {n: f"d{same.get(n, n)}" for n in arguments}

    def keep(
        ctx: Any, inputs: tuple[Any, ...], output: Any, keyword_only_inputs: Mapping[str, Any] | None = None
    ) -> None:
        ctx.set_materialize_grads(False)
        made = output if isinstance(output, tuple) else (output,)
        ctx.mark_non_differentiable(*(t for n, t in zip(results, made, strict=True) if n not in sloped))
        found = dict(zip(arguments, inputs, strict=False)) | dict(zip(results, made, strict=True))
        ctx.kept = [n for n, t in found.items() if t is not None and (n in taken or spread is not None)]
        ctx.save_for_backward(*(found[n] for n in ctx.kept))
        ctx.words = dict(keyword_only_inputs or {})
        ctx.like = {n: (t.shape, t.dtype, t.device) for n, t in zip(results, made, strict=True)}

    def differentiate(ctx: Any, *slope: Tensor | None) -> tuple[Tensor | None, ...]:
        found: dict[str, Tensor] = dict(zip(ctx.kept, ctx.saved_tensors, strict=True))
        arrived = {f"d{n}": s for n, s in zip(results, slope, strict=True) if s is not None}
        wanted = {slope_of[n] for n, needed in zip(arguments, ctx.needs_input_grad, strict=False) if needed}
        made: dict[str, Tensor] = {}
        for g in gradients if arrived else ():
            if not wanted & g.returned:
                continue
            given = dict(found)
            for t in g.operator.tensors:
                if t.name in slopes and t.name in arrived:
                    given[t.name] = _row_gradient(arrived[t.name], {**found, **ctx.words}, t, spread)
                elif t.name in slopes and not t.optional:
                    shape, dtype, device = ctx.like[t.name[1:]]
                    given[t.name] = torch.zeros(shape, dtype=dtype, device=device)
            made |= g(given, ctx.words)
        needed = zip(arguments, ctx.needs_input_grad, strict=False)
        return tuple(made.get(slope_of[n]) if wants else None for n, wants in needed)

    if gradients:
        forward.register_autograd(differentiate, setup_context=keep)

    def function(*tensors: Tensor | None, **words: Any) -> Any:
        for name in constant:
            given = words.get(name, dict(zip(arguments, tensors, strict=False)).get(name))
            if given is not None and given.requires_grad:
                raise ArgumentError(
                    f"{operator.name}: {name} requires a gradient and has none; accepted: {name}.detach()"
                )
        made = forward(*tensors, **words)
        several = made if isinstance(made, tuple) else (made,)
        return several[returned[0]] if len(returned) == 1 else tuple(several[i] for i in returned)

    function.__name__ = function.__qualname__ = operator.name
    function.__doc__ = f"{operator.__doc__}\n\n    {', '.join(arguments)} -> {', '.join(results[i] for i in returned)}"
    return function


class _Gradient:
    """A backward operator, as a custom op."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.called = _custom_op(operator, several=True)
        self.taken = {t.name for t in operator.tensors}
        graph = _graph_of(operator, self.taken, "f32", {})
        self.returned = {o.name for o in graph.outputs}

    def __call__(self, found: Mapping[str, Tensor], words: Mapping[str, Any]) -> dict[str, Tensor]:
        given = [found.get(t.name) for t in self.operator.tensors]
        names = {p.name for p in self.operator.params} | {o.name for o in self.operator.options}
        present = {t.name for t, x in zip(self.operator.tensors, given, strict=True) if x is not None}
        words = {n: v for n, v in words.items() if n in names}
        made = self.called(*given, **words)
        graph = _graph_of(self.operator, present, _storage(self.operator, given), words)
        return dict(zip((o.name for o in graph.outputs), made, strict=True))


def _backward_of(operator: Operator) -> list[Operator]:
    every = (ops.get(name) for name in ops.registry())
    return [b for b in every if b.backward_of is operator]


def _row_gradient(slope: Tensor, named: Mapping[str, Any], wanted: TensorSpec, spread: Spread | None) -> Tensor:
    return spread(slope, named) if spread is not None and wanted.space == "r" and slope.ndim == 0 else slope


# ------------------------------------------------------------------ custom ops
def _custom_op(operator: Operator, several: bool) -> Any:
    """The operator as it is, known to torch by its schema and shapes. ``several``: its results are one list, whose
    length follows from the inputs that are given."""
    graph = _graph_of(operator, {t.name for t in operator.tensors}, "f32", {})
    if any(o.inplace for o in graph.outputs):
        raise DefinitionError(f"{operator.name}: it writes into its inputs; accepted: results of their own")

    def run(*tensors: Tensor | None, **words: Any) -> Any:
        made = operator(*map(plain, tensors), **words)
        return list(made if isinstance(made, tuple) else (made,)) if several else made

    def shapes(*tensors: Tensor | None, **words: Any) -> Any:
        given = {t.name: x for t, x in zip(operator.tensors, tensors, strict=False) if x is not None}
        traced = _graph_of(operator, set(given), _storage(operator, tensors), words)
        made = tuple(_empty(operator, traced, o, given) for o in traced.outputs)
        return list(made) if several else made if len(made) > 1 else made[0]

    results = "Tensor[]" if several else ", ".join(["Tensor"] * len(graph.outputs))
    schema = f"({_arguments(operator)}) -> {results if several or len(graph.outputs) == 1 else f'({results})'}"
    made = torch.library.custom_op(f"{NAMESPACE}::{operator.name}", run, mutates_args=(), schema=schema)
    made.register_fake(shapes)
    return made


def _arguments(operator: Operator) -> str:
    """The arguments of an operator, as a schema of torch spells them."""
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
    return ", ".join([*tensors, *(["*", *words] if words else [])])


def _storage(operator: Operator, tensors: Sequence[Tensor | None]) -> str:
    """The storage format of a call. Raises ArgumentError for a dtype that is none."""
    for t, x in zip(operator.tensors, tensors, strict=False):
        if t.format == "storage" and x is not None:
            if x.dtype not in FORMATS:
                accepted = ", ".join(str(d) for d in FORMATS)
                raise ArgumentError(f"{operator.name}: {t.name} of {x.dtype}; accepted: {accepted}")
            return FORMATS[x.dtype]
    return "f32"


def _graph_of(operator: Operator, present: set[str], dtype: str, words: Mapping[str, Any]) -> Graph:
    optional = tuple(t.name for t in operator.tensors if t.optional and t.name in present)
    chosen = {o.name: words[o.name] for o in operator.options if o.name in words}
    for option, scalar in operator.contract.switches.items():
        chosen[option] = bool(words.get(scalar, 0))
    return operator.trace(dtype, optional, options=chosen)


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
