"""The derivative of a definition, by reverse mode over its graph in high precision.

A backward definition is checked against it, so that a wrong gradient cannot hide behind an oracle that matches. Where
elements are stored or rounded, the derivative passes through: rounding is not part of the mathematics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..elementary.exact import DECLARED, REAL
from ..elementary.gelu import exact_normal_cdf
from ..errors import DefinitionError
from ..formats import FORMATS
from ..lang import GROUPS, OPERANDS, Function, Graph, Node, Operator, Output, Sizes, TensorSpec, extent, extents
from .interpret import Array, apply, full_size, items_of, joined, load
from .product import operands, stored, turned
from .real import Real
from .structure import drawn_entries

# An operand's gradient has other sides than the result's.
_MOVES = ("gather", "scatter_sum", "slots", "matmul", "weighted_sum")


def gradient(
    graph: Graph,
    tensors: Mapping[str, Array],
    shape: tuple[int, int],
    params: Mapping[str, float],
    cotangents: Mapping[str, Array],
) -> dict[str, Array]:
    """d(sum over results of cotangent * result) / d(input), for every floating-point input, two-dimensional; zeros for
    an input that no such result depends on.

    ``cotangents`` holds the gradients of some results by name; the others count as zero.
    """
    if isinstance(shape, Sizes) and shape.several:
        return _of_each(graph, tensors, shape, params, cotangents)
    domain = Real(params)
    values: dict[Node, Array] = {}
    specs = {t.name: t for t in graph.inputs}
    for node in graph.nodes:
        if node.op == "input":
            values[node] = load(domain, node, specs[str(node.data[0])], tensors, shape)
        else:
            args = [values[a] for a in node.args]
            values[node] = apply(domain, node, args, shape)
    flow: dict[Node, Array] = {}

    def give(node: Node, amount: Array) -> None:
        """Add to what flows into a node; where it was broadcast, its parts add up."""
        size = full_size(node.space, values[node], shape)
        amount = np.broadcast_to(amount, np.broadcast_shapes(amount.shape, size))
        for axis in (0, 1):
            if size[axis] == 1 and amount.shape[axis] != 1:
                amount = amount.sum(axis=axis, keepdims=True)
        flow[node] = flow[node] + amount if node in flow else np.array(amount, REAL)

    for o in graph.outputs:
        if o.name in cotangents:
            give(o.node, cotangents[o.name].astype(REAL))
    result = {
        t.name: np.zeros(full_size(t.space, tensors[t.name], shape), REAL)
        for t in graph.inputs
        if FORMATS[str(t.format)].is_float
    }
    with np.errstate(all="ignore"):
        for node in reversed(graph.nodes):
            if node not in flow:
                continue
            if node.op == "input":
                name = str(node.data[0])
                if specs[name].slots:
                    result[name][:, int(str(node.data[2]))] = flow[node][:, 0]
                else:
                    result[name] = flow[node]
            else:
                g = flow[node]

                def given(target: Node, amount: Array, g: Array = g) -> None:
                    give(target, np.where(g == 0, 0, amount))  # what is not read carries nothing, NaN or not

                _pull(node, g, [values[a] for a in node.args], values[node], give if node.op in _MOVES else given)
    return result


def _of_each(
    graph: Graph, tensors: Mapping[str, Array], shape: Sizes, params: Mapping[str, float],
    cotangents: Mapping[str, Array],
) -> dict[str, Array]:  # fmt: skip
    """The gradients of a batch of products, of each on its own."""
    known = {} if graph.offsets is None else {graph.offsets.name: tensors[graph.offsets.name]}
    both = zip(items_of(graph, tensors, shape), items_of(graph, {**cotangents, **known}, shape), strict=True)
    made = [gradient(graph, some, one, params, {n: flows[n] for n in cotangents}) for (some, one), (flows, _) in both]
    return {t.name: joined(t.space, [m[t.name] for m in made], shape) for t in graph.inputs if t.name in made[0]}


def _pull(node: Node, g: Array, x: Sequence[Array], y: Array, give: Callable[[Node, Array], None]) -> None:
    a = node.args
    match node.op:
        case "add" | "host_add":
            give(a[0], g)
            give(a[1], g)
        case "sub" | "host_sub":
            give(a[0], g)
            give(a[1], -g)
        case "mul" | "host_mul":
            give(a[0], g * x[1])
            give(a[1], g * x[0])
        case "div" | "host_div":
            give(a[0], g / x[1])
            give(a[1], -g * y / x[1])
        case "fma":
            give(a[0], g * x[1])
            give(a[1], g * x[0])
            give(a[2], g)
        case "sqrt" | "host_sqrt":
            give(a[0], g / (2 * y))
        case "neg" | "host_neg":
            give(a[0], -g)
        case "abs":
            give(a[0], g * np.sign(x[0]))
        case "maximum" | "minimum":
            first = x[0] >= x[1] if node.op == "maximum" else x[0] <= x[1]
            give(a[0], np.where(first, g, 0))
            give(a[1], np.where(first, 0, g))
        case "where":
            give(a[1], np.where(x[0], g, 0))
            give(a[2], np.where(x[0], 0, g))
        case "round" | "round_to" | "round_stochastic":
            give(a[0], g)
        case "convert" if a[0].type in ("f32", "f64"):
            give(a[0], g)
        case "matmul":
            left, right = operands(node, *x)
            give(a[0], stored(node, 0, g @ right.T))
            give(a[1], stored(node, 1, left.T @ g))
        case "weighted_sum":
            weights, met, terms = turned(node, x)
            of_weights = np.where(met, g @ terms.T, 0)
            give(a[0], of_weights if node.data[0] == "columns" else of_weights.T)
            give(a[1], np.where(met, weights, 0).T @ g)
        case "row_sum" | "col_sum" | "total_sum":
            give(a[0], g)
        case "row_max" | "total_max":
            hit = x[0] == y
            give(a[0], np.where(hit, g / hit.sum(axis=1 if node.op == "row_max" else None, keepdims=True), 0))
        case "take_column":
            columns = np.arange(x[0].shape[1])[None, :] if x[0].shape[1] > 1 else np.arange(1)[None, :]
            give(a[0], np.where(columns == x[1], g, 0))
        case "slots":
            for j, part in enumerate(a):
                give(part, g[:, j : j + 1])
        case "gather":
            chosen = np.zeros(x[0].shape, REAL)
            np.add.at(chosen, x[1][:, 0], g)
            give(a[0], chosen)
        case "scatter_sum":
            give(a[0], g[x[1][:, 0]])
        case "call":
            assert node.body is not None
            known = node.body.real
            if known is None:
                _pull_body(node.body, a, g, x, give)
            elif known.derivative is None:
                raise _unknown(node, node.body.name)
            else:
                give(a[0], g * known.derivative(x[0], y))
        case "round_even" | "exponent" | "row_first":
            pass  # constant between steps
        case "power_of_two":
            give(a[0], g * y * np.log(REAL(2)))
        case "significand":
            give(a[0], g * y / x[0])
        case _ if node.type in ("f32", "f64") and any(n.type in ("f32", "f64") for n in a):
            raise _unknown(node, node.op)
        case _:
            pass  # integers, conditions, constants and host scalars carry no derivative to a tensor


def _unknown(node: Node, name: str) -> DefinitionError:
    known = ", ".join(sorted(n for n, f in DECLARED.items() if f.derivative is not None))
    return DefinitionError(f"{node.origin}: no derivative of {name} is known; accepted: primitives, {known}")


def _pull_body(
    body: Function, outside: Sequence[Node], g: Array, x: Sequence[Array], give: Callable[[Node, Array], None]
) -> None:
    """The chain rule through a function of the reader's own, element by element."""
    domain, shape = Real({}), (0, 0)  # which no operation of a body asks for
    values = dict(zip(body.params, x, strict=True))
    for node in body.nodes:
        if node not in values:
            values[node] = apply(domain, node, [values[a] for a in node.args], shape)
    flow: dict[Node, Array] = {body.result: g}

    def add(node: Node, amount: Array) -> None:
        flow[node] = flow[node] + amount if node in flow else amount

    for node in reversed(body.nodes):
        if node in flow and node not in body.params:
            _pull(node, flow[node], [values[a] for a in node.args], values[node], add)
    for argument, parameter in zip(outside, body.params, strict=True):
        if parameter in flow:
            give(argument, flow[parameter])


def check_backward(
    backward: Operator,
    forward: Operator,
    dtype: str,
    shape: tuple[int, int],
    seed: int,
    options: Mapping[str, object] | None = None,
) -> list[tuple[str, float, float]]:
    """For every result ``d<name>`` of a backward operator: its distance from the derivative of the forward operator in
    ``<name>``, and the rounding-error bound, both relative to the largest element.

    The rounding-error bound is measured: the same backward graph evaluated in f64, against its evaluation in the higher
    precision in which the derivative is taken. Where that precision is f64 itself the figure is a bound from above of
    both evaluations' error: n roundings of 2^-53, with n the number of operations times the longest sum.
    Roundings to a storage format on the way are left out of both.
    ``options`` are those that both operators have. The gradients of a product have their sizes in other places than it
    has, so that all sizes are then as long as a column. Where more columns are chosen than a row has, it has as many.
    Raises DefinitionError for a result that is named after no input of the forward operator.
    """
    from . import real

    names = {t.name for t in backward.tensors}
    f = _without_roundings(forward.trace(dtype, options=options))
    # A gradient that is added to is left out.
    added_to = {o.name for o in backward.trace(dtype, options=options).outputs if o.inplace}
    present = {t.name for t in backward.tensors if t.optional} - added_to
    b = _without_roundings(backward.trace(dtype, present, options))
    if any(t.space in OPERANDS for t in f.inputs):
        shape = (shape[0], shape[0])
    shape = (shape[0], max(shape[1], *(t.slots for t in b.inputs)))  # as many columns as are chosen
    here, there = (Sizes(*shape, shape[1], 3, g.ragged) if g.ragged else shape for g in (f, b))
    rng = np.random.default_rng(seed)
    entries = drawn_entries(shape[0])
    params = _scalars(forward, f) | _scalars(backward, b)
    params |= {"entries": entries} if "entries" in params else {}
    counted = {n for o in (forward, backward) for n, i in o.contract.indices.items() if i.entries}
    wishes = {**forward.contract.draw, **backward.contract.draw}
    tensors: dict[str, Array] = {}
    for t, sizes in (*((t, here) for t in f.inputs), *((t, there) for t in b.inputs)):
        wide: tuple[int, ...] = extents(t.space, shape, entries, t.slots or 1)
        wide = extent(t.space, sizes) if f.ragged else wide
        sample = _sample(rng, t, wide, entries if t.name in counted else shape[1], wishes.get(t.name, ""))
        tensors.setdefault(t.name, sample)
    results = real.evaluate(f, tensors, here, params)
    cotangents = {}
    for o in f.outputs:
        if f"d{o.name}" in names:
            cotangents[o.name] = _of_result(backward, f"d{o.name}", o, tensors[f"d{o.name}"], results[o.name].shape)
            tensors[f"d{o.name}"] = np.broadcast_to(cotangents[o.name], tensors[f"d{o.name}"].shape)
        elif f"d{o.name}" in params and o.space == "s":
            cotangents[o.name] = np.full((1, 1), params[f"d{o.name}"], REAL)
        if o.name in names:  # saved by the forward pass: its result, its statistics
            same = tensors[o.name].shape != results[o.name].shape and results[o.name].ndim == tensors[o.name].ndim
            tensors[o.name] = np.broadcast_to(results[o.name], tensors[o.name].shape) if same else results[o.name]
    if not cotangents:
        accepted = ", ".join(f"d{o.name}" for o in f.outputs)
        found = f"{backward.name} takes the gradient of no result of {forward.name}"
        raise DefinitionError(f"{backward.file}:{backward.line}: {found}; accepted: {accepted}")
    want = gradient(f, tensors, here, params, cotangents)
    got = real.evaluate(b, tensors, there, params)
    narrow = {k: v.astype(np.float64) if v.dtype == REAL else v for k, v in tensors.items()}
    rough = real.evaluate(b, narrow, there, params, np.float64)
    report = []
    for name, value in got.items():
        target = name[1:]
        if target not in want:
            accepted = ", ".join(f"d{n}" for n in want)
            raise DefinitionError(f"{backward.file}:{backward.line}: the result {name}; accepted: {accepted}")
        if np.broadcast_shapes(want[target].shape, value.shape) != value.shape:
            found = f"the result {name} of {_sides(value)} elements"
            raise DefinitionError(
                f"{backward.file}:{backward.line}: {found}; accepted: as many as {target} has, {_sides(want[target])}"
            )
        exact = np.broadcast_to(want[target], value.shape)
        top = float(np.abs(exact).max()) or 1.0
        floor = len(b.nodes) * sum(shape) * 2.0 ** -(real.PRECISION - 1)
        explained = float(np.abs(rough[name] - value).max()) / top + floor
        report.append((name, float(np.abs(value - exact).max()) / top, explained))
    return report


def _without_roundings(graph: Graph) -> Graph:
    """The graph without roundings to a storage format on the way, whose derivative is 0 wherever there is one."""
    made: dict[Node, Node] = {}
    for n in graph.nodes:
        args = tuple(made[a] for a in n.args)
        made[n] = args[0] if n.op == "round_to" else n if args == n.args else replace(n, args=args)
    return replace(graph, outputs=tuple(replace(o, node=made[o.node]) for o in graph.outputs))


def _scalars(operator: Operator, graph: Graph) -> dict[str, float]:
    """The scalars of one operator: its defaults, else those that its contract names, else 0.5; in agreement with its
    options."""
    named = {p.name: operator.contract.defaults.get(p.name, 0.5) for p in operator.params}
    given = {p.name: named[p.name] if p.default is None else p.default for p in operator.params}
    for option, scalar in operator.contract.switches.items():
        given[scalar] = (given[scalar] or 0.125) if graph.options[option] else 0.0
    return given


def _of_result(backward: Operator, name: str, o: Output, drawn: Array, size: tuple[int, ...]) -> Array:
    """The gradient of a result, of the result's own size: where the backward operator takes it expanded, as a scalar
    that each row has, it is the same number in all. Raises DefinitionError where it takes another size."""
    if drawn.ndim != len(size) or drawn.shape == size:
        return drawn
    if any(n not in (1, m) for n, m in zip(size, drawn.shape, strict=True)):
        raise DefinitionError(
            f"{backward.file}:{backward.line}: the gradient {name} of {_sides(drawn)} elements; accepted: as many as "
            f"{o.name} has, {_sides(np.empty(size))}, or those expanded"
        )
    return drawn[tuple(slice(0, n) for n in size)]


def _sides(values: Array) -> str:
    return " x ".join(map(str, values.shape))


def _sample(rng: np.random.Generator, t: TensorSpec, size: tuple[int, ...], below: int, wish: str) -> Array:
    """Noise, as the contract wishes it: one draw of a normal number for each, whatever is made of it."""
    if t.space in GROUPS:  # the one in the middle is empty
        return np.array([0, below // 2, below // 2, below])
    if str(t.format) in ("i32", "i64", "u32"):
        below = int(wish.split()[1]) if wish.startswith("below") else below
        return rng.integers(0, max(below, 1), size)
    noise = rng.standard_normal(size).astype(REAL)
    match wish:
        case "positive":
            return np.asarray(np.exp(noise / 2))
        case "unit":
            return np.asarray(exact_normal_cdf(noise))
        case "probabilities":
            return np.asarray(np.exp(noise * 3) / np.exp(noise * 3).sum(axis=-1, keepdims=True))
    return noise
