"""An operator as a function of torch that autograd differentiates and `torch.compile` may carry through a graph.

Nothing is said twice: the schema of the custom op is the operator's signature, shapes follow from where its results
live, and the gradient is the operator that is `backward_of` it. That one is found, and fed, by names: for a result y it
takes ``dy``, beside it any inputs and results of the forward operator by their own names; for an input x it returns
``dx``. Several backward operators may share the work. An input of floats without a gradient must be said to be one.

What is not defined is refused with an ArgumentError, never ignored: gradients of gradients, forward mode, and the
gradient of a result that no backward operator takes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import ops
from ..errors import ArgumentError, DefinitionError
from ..lang import Operator
from ..lang.gradient import Autocast
from .accumulators import OPTION
from .arguments import checked
from .autocast import chosen_by, to_format
from .custom_ops import TorchOp, full_graph, looks_at_values, torch_op
from .integers import narrow
from .reductions import Spread, spread_of
from .transforms import needs_gradient, refuse_gradient, refuse_transforms

FLOATS = ("f16", "bf16", "f32")


def differentiable(
    operator: Operator, *backward: Operator, same: Mapping[str, str] | None = None,
    constant: Collection[str] | None = None, spread: Spread | None = None, autocast: Autocast | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """The operator as a function: tensors by position, scalars and options by name, of one storage format.

    It returns what the operator returns, to the bit, less what only its backward pass needs (the mean of a row, say).
    A scalar may be a tensor that holds one number; inputs of int32 may be given as int64. Where an operator looks at
    whole numbers or for NaN, a GPU asserts that they are right, and ``check=False`` leaves that out (see `assertions`).
    Under `torch.vmap` it has the bits of one call for each element of the batch.

    ``backward`` names the operators that give gradients, where they are not among `tokitai.ops`. ``same`` says whose
    gradient is also another input's: of x + residual, x's is residual's; ``constant`` which inputs have none, and which
    results of floats do not change with any input; ``autocast`` which format `torch.autocast` chooses. What is left
    out is as the operator declares it (`lang.Gradient`). ``spread`` is for results that an option reduces to one
    number; it follows from the definition where the option is called ``reduction``.

    Raises DefinitionError for an operator that writes into its inputs, whose backward operators take what it does not
    have, or that has an input of floats whose gradient nobody gives. A call raises ArgumentError, also where a constant
    input requires a gradient, and in forward mode; so does a backward pass through a result
    without a gradient, or through a gradient.
    """
    declared = operator.gradient
    same = declared.same if same is None else same
    constant = declared.constant if constant is None else constant
    spread = spread_of(operator) if spread is None else spread
    rule_of_formats = declared.autocast if autocast is None else autocast
    forward = torch_op(operator, several=False)
    rule = _Rule(forward, [_Gradient(b) for b in backward or _backward_of(operator)], same, constant, spread)
    forward.op.register_autograd(rule.differentiate, setup_context=rule.keep)
    names = forward.tensors
    place = {n: i for i, n in enumerate(names)}
    storage = tuple(i for i, t in enumerate(operator.tensors) if t.format == "storage")
    whole = tuple(i for i, t in enumerate(operator.tensors) if t.format == "i32")
    fixed = tuple(place[n] for n in constant if n in place)
    accumulators = forward.accumulators

    def function(*args: Tensor | None, **words: Any) -> Any:
        tensors = [*args, *[None] * (len(names) - len(args))]
        for n in [n for n in words if n in place]:
            tensors[place[n]] = words.pop(n)
        for i in fixed:
            x, n = tensors[i], names[i]
            if x is not None and needs_gradient(x):
                raise ArgumentError(f"{operator.name}: {n} requires a gradient and has none; accepted: {n}.detach()")
        chosen = chosen_by(rule_of_formats, [tensors[i] for i in storage])
        for i in storage if chosen is not None else ():
            tensors[i] = to_format(tensors[i], chosen)
        for i in whole:
            tensors[i] = narrow(operator.name, names[i], tensors[i])
        if accumulators:
            dtype = next((x.dtype for i in storage if (x := tensors[i]) is not None), torch.float32)
            words["accumulator"] = accumulators.chosen(words.get("accumulator"), dtype)
        made = forward(tensors, words)
        every = list(made) if isinstance(made, tuple) else [made]
        # A graph that is traced gives every result a gradient, wanted or not: only a plain call can refuse one.
        if rule.refused and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            needing = [x for x in tensors if x is not None and needs_gradient(x)]
            for i in rule.refused if needing else ():
                message = f"{operator.name}: its result {rule.results[i]} has no gradient; accepted: its .detach()"
                every[i] = refuse_gradient(every[i], needing[0], message)
        return every[rule.returned[0]] if len(rule.returned) == 1 else tuple(every[i] for i in rule.returned)

    function.__name__ = function.__qualname__ = operator.name
    function.__module__ = sys._getframe(1).f_globals.get("__name__", __name__)  # where it is assigned: so it pickles
    function.__doc__ = f"{operator.__doc__}\n\n    Returns {', '.join(rule.results[i] for i in rule.returned)}."
    counted = any(p.whole and p.default is None for p in operator.params)  # such as a seed: another one in each call
    return checked(function, _signature(operator), replayed=not counted)


class _Rule:
    """What a forward pass keeps, and how gradients are made of it."""

    def __init__(
        self, forward: TorchOp, gradients: list[_Gradient], same: Mapping[str, str], constant: Collection[str],
        spread: Spread | None,
    ) -> None:  # fmt: skip
        operator = forward.operator
        self.forward, self.gradients, self.spread = forward, gradients, spread
        self.inputs = list(forward.tensors)
        outputs = full_graph(operator).outputs
        self.results = [o.name for o in outputs]
        self.slope_of = {n: f"d{same.get(n, n)}" for n in self.inputs}
        self.taken = {n for g in gradients for n in g.taken}
        self.slopes = {f"d{n}" for n in self.results}
        self._look_for_gaps(operator, constant)
        self.sloped = [n for n in self.results if f"d{n}" in self.taken]
        places = operator.contract.places
        self.returned = [
            i for i, n in enumerate(self.results) if n in self.sloped or n in places or n not in self.taken
        ]
        without = {*self.sloped, *constant, *places, *(o.name for o in outputs if o.format not in FLOATS)}
        self.refused = [i for i in self.returned if self.results[i] not in without]  # whose gradient nobody defines

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
        tensors, held = self.forward.split(inputs)
        found = tensors | of_results
        kept = {n: t for n, t in found.items() if n in self.taken or (self.spread is not None and n in tensors)}
        ctx.kept, ctx.held = list(kept), list(held)
        ctx.save_for_backward(*kept.values(), *held.values())
        ctx.words = {n: v for n, v in (keyword_only_inputs or {}).items() if n not in held}
        ctx.like = {n: (t.shape, t.dtype, t.device) for n, t in of_results.items()}

    def differentiate(self, ctx: Any, *slope: Tensor | None) -> tuple[Tensor | None, ...]:
        """What torch calls in a backward pass."""
        found: dict[str, Tensor] = dict(zip([*ctx.kept, *ctx.held], ctx.saved_tensors, strict=True))
        words = {**ctx.words, **{n: found.pop(n) for n in ctx.held}}
        arrived = {f"d{n}": s for n, s in zip(self.results, slope, strict=True) if s is not None}
        needed = dict(zip(self.inputs, ctx.needs_input_grad, strict=False))
        wanted = {self.slope_of[n] for n, wants in needed.items() if wants}
        made: dict[str, Tensor] = {}
        for g in self.gradients if arrived else ():
            if wanted & g.returned:
                made |= g(found | self._slopes_for(g, arrived, {**found, **words}, ctx.like), words)
        own = (made.get(self.slope_of[n]) if wants else None for n, wants in needed.items())
        return (*own, *([None] * (len(ctx.needs_input_grad) - len(needed))))

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
        self.op = torch_op(operator, several=True)
        self.taken = {t.name for t in operator.tensors}
        self.words = {p.name for p in operator.params} | {o.name for o in operator.options}
        self.returned = {o.name for o in full_graph(operator).outputs}

    def __call__(self, found: Mapping[str, Tensor], words: Mapping[str, Any]) -> dict[str, Tensor]:
        given = {t.name: found[t.name] for t in self.operator.tensors if t.name in found}
        for x in given.values():
            refuse_transforms((self.operator.backward_of or self.operator).name, x)
        words = {n: v for n, v in words.items() if n in self.words}
        graph = self.op.graph_of(given, words)
        made = self.op([given.get(n) for n in self.op.tensors], words)
        return dict(zip((o.name for o in graph.outputs), made, strict=True))


def _backward_of(operator: Operator) -> list[Operator]:
    every = (ops.get(name) for name in ops.registry())
    return [b for b in every if b.backward_of is operator]


def _signature(operator: Operator) -> inspect.Signature:
    """The arguments of an operator with a gradient, as Python shows them."""
    empty, either, found = inspect.Parameter.empty, inspect.Parameter.POSITIONAL_OR_KEYWORD, []
    last = max((i for i, t in enumerate(operator.tensors) if not t.optional), default=-1)
    for i, t in enumerate(operator.tensors):
        default: Any = None if t.optional and i > last else empty
        kind: Any = Tensor | None if t.optional else Tensor
        found.append(inspect.Parameter(t.name, either, default=default, annotation=kind))
    words: Sequence[tuple[str, object, Any]] = [
        *((p.name, p.default, int | Tensor if p.whole else float | Tensor) for p in operator.params),
        *(
            (o.name, None, str | None) if o.name == OPTION else (o.name, o.default, type(o.default))
            for o in operator.options
            if o.name not in operator.contract.switches
        ),
        *([("check", True, bool)] if looks_at_values(operator) else []),
    ]
    for name, value, kind in words:
        default = empty if value is None and name != OPTION else value
        found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return inspect.Signature(found)
