"""Arithmetic models: what kernels are known to compute in place of a definition, as transformations of its graph.

None is written for an operator: each looks for what it changes (a sum, a division, a maximum that is subtracted) in
the graph that it is given, which may be that of another model, so that models combine. `arithmetic` says what their
operations are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..elementary import erf, exp, gelu, gelu_slope, gelu_tanh, gelu_tanh_slope, log, sigmoid, tanh
from ..lang import Graph, Node, maximum, sqrt, where
from ..lang.values import Value, make
from .arithmetic import BEHIND, NARROW, narrow_of
from .rewrite import ORIGIN, Named, Rule, behind, rebuilt, same

ROUNDING = ("add", "sub", "mul", "div", "fma", "sqrt", "call", "row_sum", "col_sum", "matmul", "weighted_sum",
            "total_sum", "scatter_sum", "round_even", "convert")  # fmt: skip
SUMS = ("row_sum", "col_sum", "matmul")
TAILS = (
    (("row_sum",), "tail-of-sums", "sums"),
    (("row_sum", "row_max"), "tail-of-rows", "sums and maxima"),
)
LEVELS = (-20, -16, -12, -8, -5)  # relative errors of approximations, as powers of two
WIDTHS = (4, 8, 16, 32, 64, 128, 256)
SMALLER = {"f32": ("bf16", "f16"), "f16": (), "bf16": ()}


@dataclass(frozen=True)
class Model:
    """A change of the arithmetic.

    ``name``: as `--accept` takes it; ``said``: in words; ``rank``: larger ones are thought of later; ``structural``:
    whether its exact value is the definition's, or nearly so, so that it may show in what it makes of other changes
    alone; ``unstable``: whether its exact value is the definition's and its rounding errors are larger, without a bound
    where it cancels; ``once_a_row``: whether it changes what is computed once a row; ``fault``: whether it is never
    what somebody means.
    """

    name: str
    said: str
    change: Callable[[Named], Named]
    rank: int = 1
    structural: bool = False
    unstable: bool = False
    once_a_row: bool = False
    fault: bool = False


def models(some: Named) -> dict[str, Model]:
    """Every model that a graph offers, by name."""
    found: dict[str, Model] = {}
    for make_some in (_roundings, _flushes, _sums, _formulas, _functions, _scalars, _inputs, _stores, _approximations):
        for model in make_some(some):
            found.setdefault(model.name, model)
    return found


def _one(node: Node, change: Callable[[Node], Node | Value]) -> Callable[[Named], Named]:
    """A model that puts what ``change`` makes of a node, as built again, in its place."""

    def apply(some: Named) -> Named:
        return rebuilt(some, lambda n, args: change(same(n, args)) if n is node else None)

    return apply


def _all(rule: Rule) -> Callable[[Named], Named]:
    return lambda some: rebuilt(some, rule)


def _narrower(graph: Graph) -> tuple[str, ...]:
    """Formats that an intermediate result may be rounded to: the storage format, or those below f32."""
    return SMALLER[graph.dtype] or (graph.dtype,)


def _is_float(node: Node) -> bool:
    return node.type == "f32" and not node.exact


def _wrapped(graph: Graph) -> set[Node]:
    """Nodes that have an operation of a model behind them, or are one."""
    return {n for m in graph.nodes if m.op in BEHIND for n in (m, *m.args)}


# ---------------------------------------------------------------------------------------------- roundings
def _roundings(some: Named) -> Iterator[Model]:
    graph, wrapped = some.graph, _wrapped(some.graph)
    stored = {o.node for o in graph.outputs if o.format == graph.dtype}
    nodes = [n for n in graph.nodes if _is_float(n) and n.op in ROUNDING and n not in wrapped]
    wide = [n for n in graph.nodes if n.op == "input" and _is_float(n) and n.data[1] == "f32" and n not in wrapped]
    for fmt in _narrower(graph):
        ending = "" if fmt == graph.dtype else f":{fmt}"
        taken: set[str] = set()
        inner = [n for n in nodes if n not in stored or graph.dtype == "f32"]
        for node in [*inner, *(n for n in wide if n.space not in ("rk", "kr", "kc", "ck"))]:
            name = some.name(node)
            if node.op == "call" and node not in some.names:
                word = name.partition("(")[0]
                name = name if word in taken else word
            if name in taken:
                continue
            taken.add(name)

            def rounded(n: Node, fmt: str = fmt) -> Node:
                return behind("round_to", n, fmt)

            yield Model(f"intermediate:{name}{ending}", f"{name} is rounded to {fmt}", _one(node, rounded))
        if len(inner) > 1:

            def every(n: Node, args: tuple[Node, ...], inner: list[Node] = inner, fmt: str = fmt) -> Node | None:
                return behind("round_to", same(n, args), fmt) if n in inner else None

            yield Model(f"intermediate:all{ending}", f"every intermediate result is rounded to {fmt}", _all(every), 2)
        if len(wide) > 1 and fmt == graph.dtype:

            def given(n: Node, args: tuple[Node, ...], fmt: str = fmt) -> Node | None:
                return behind("round_to", same(n, args), fmt) if n in wide else None

            names = ", ".join(str(n.data[0]) for n in wide)
            yield Model("intermediate:f32-inputs", f"{names} are rounded to {fmt}", _all(given))
        operands = [n for n in graph.nodes if n.op == "input" and n.space in ("rk", "kr", "kc", "ck")]
        if operands and graph.dtype == "f32":

            def cut(n: Node, args: tuple[Node, ...], fmt: str = fmt, operands: list[Node] = operands) -> Node | None:
                return behind("round_to", same(n, args), fmt) if n in operands else None

            yield Model(f"operands:{fmt}", f"the operands of the product are rounded to {fmt}", _all(cut))


def _flushes(some: Named) -> Iterator[Model]:
    graph = some.graph
    if any(n.op == "flush" for n in graph.nodes):
        return
    stored = {o.node for o in graph.outputs}

    def f32(n: Node, args: tuple[Node, ...]) -> Node | None:
        made = same(n, args)
        return behind("flush", made, "f32") if _is_float(n) and n.op in (*ROUNDING, "input") else None

    def storage(n: Node, args: tuple[Node, ...]) -> Node | None:
        made = same(n, args)
        read = n.op == "input" and _is_float(n) and n.data[1] == graph.dtype
        return behind("flush", made, graph.dtype) if read or (n in stored and _is_float(n)) else None

    yield Model("ftz", "subnormal numbers of f32 are flushed to zero", _all(f32))
    if graph.dtype == "f16":
        yield Model("ftz:f16", "subnormal numbers of f16 are flushed to zero", _all(storage))


def _stores(some: Named) -> Iterator[Model]:
    graph = some.graph
    stored = {o.node for o in graph.outputs if o.format == graph.dtype and _is_float(o.node)}

    def store(op: str, fmt: str) -> Rule:
        return lambda n, args: behind(op, same(n, args), fmt) if n in stored else None

    if not stored or stored & {n for n in graph.nodes if n.op in BEHIND}:
        return
    if graph.dtype != "f32":
        yield Model("store:toward-zero", f"results are cut to {graph.dtype}, not rounded to nearest",
                    _all(store("toward_zero", graph.dtype)))  # fmt: skip
    for fmt in {"f32": ("bf16", "f16"), "f16": ("bf16",), "bf16": ("f16",)}[graph.dtype]:
        yield Model(f"store:through-{fmt}", f"results are rounded to {fmt} on the way to {graph.dtype}",
                    _all(store("round_to", fmt)))  # fmt: skip
    yield Model("store:saturated", f"results beyond {graph.dtype} become its largest number, not infinity",
                _all(store("saturate", graph.dtype)))  # fmt: skip


# ---------------------------------------------------------------------------------------------- sums
def _sums(some: Named) -> Iterator[Model]:
    graph = some.graph
    sums = [n for n in graph.nodes if n.op in SUMS and not narrow_of(n) and len(n.data) <= 2]
    every = {n.op for n in sums}
    for fmt in _narrower(graph) if graph.dtype != "f32" else ("bf16", "f16"):
        ending = "" if fmt == graph.dtype else f":{fmt}"
        for order, word in (("chain", ""), ("pairs", ":pairs")):
            for node in sums:
                if order == "pairs" and node.op == "matmul":
                    continue

                def narrow(n: Node, fmt: str = fmt, order: str = order) -> Node:
                    return make(n.op, *n.args, space=n.space, data=(*n.data, NARROW, fmt, order), origin=ORIGIN)

                how = "one term after the other" if order == "chain" else "in pairs"
                name = some.text(node)
                yield Model(f"accumulate:{name}{word}{ending}", f"{name} is accumulated in {fmt}, {how}",
                            _one(node, narrow))  # fmt: skip
            if len(sums) > 1 and order == "chain":

                def all_narrow(n: Node, args: tuple[Node, ...], fmt: str = fmt, order: str = order) -> Node | None:
                    if n not in sums:
                        return None
                    return make(n.op, *args, space=n.space, data=(*n.data, NARROW, fmt, order), origin=ORIGIN)

                yield Model(f"accumulate:all{ending}", f"every sum is accumulated in {fmt}", _all(all_narrow), 2)
    if every & {"row_sum"} or any(n.op == "row_max" for n in graph.nodes):
        for width in WIDTHS:
            for ops, name, said in TAILS:

                def tail(
                    n: Node, args: tuple[Node, ...], width: int = width, ops: tuple[str, ...] = ops
                ) -> Node | Value | None:
                    if n.op not in ops:
                        return None
                    there = Value(make("before_tail", space="c", type="bool", data=(width,), origin=ORIGIN))
                    kept = where(there, Value(args[0]), 0.0 if n.op == "row_sum" else float("-inf"))
                    return same(n, (kept.node,))

                if any(n.op == ops[-1] for n in graph.nodes):
                    behind_last = f"columns behind the last multiple of {width} are left out of {said}"
                    yield Model(f"{name}:{width}", behind_last, _all(tail), 3, fault=True)


# ---------------------------------------------------------------------------------------------- formulas
def _squares(node: Node) -> Node | None:
    """Of a sum of squares what is squared."""
    if node.op == "row_sum" and node.args[0].op == "mul" and node.args[0].args[0] is node.args[0].args[1]:
        return node.args[0].args[0]
    return None


def _mean_of(node: Node) -> tuple[Node, Node] | None:
    """(x, mean) of x - sum(x) / n."""
    if node.op == "sub" and node.args[1].op == "div" and node.args[1].args[0].op == "row_sum" and (
        node.args[1].args[0].args[0] is node.args[0]
    ):  # fmt: skip
        return node.args[0], node.args[1]
    return None


def _formulas(some: Named) -> Iterator[Model]:
    graph = some.graph
    for node in graph.nodes:
        squared = _squares(node.args[0]) if node.op == "div" else None
        if squared is not None and _mean_of(squared) is not None:

            def one_pass(n: Node, args: tuple[Node, ...], at: Node = node) -> Value | None:
                if n is not at:
                    return None
                d = args[0].args[0].args[0]
                x, mean = (Value(a) for a in d.args)
                total = Value(make("row_sum", (x * x).node, space="r", origin=ORIGIN))
                return total / Value(args[1]) - mean * mean

            yield Model("one-pass-variance", "the variance is the mean of squares less the square of the mean",
                        _all(one_pass), unstable=True)  # fmt: skip
        if node.op == "mul":
            for side in (0, 1):
                factor, inside = node.args[1 - side], node.args[side]
                if inside.op not in ("sub", "add") or _is_constant(factor):
                    continue

                def spread(n: Node, args: tuple[Node, ...], at: Node = node, side: int = side) -> Value | None:
                    if n is not at:
                        return None
                    factor, (a, b) = args[1 - side], map(Value, args[side].args)
                    first, second = (_product(some, factor, x) for x in (a, b))
                    return first - second if args[side].op == "sub" else first + second

                said = f"{some.text(node)} is computed as the {'difference' if inside.op == 'sub' else 'sum'} of two"
                yield Model(f"expanded:{some.text(node)}", f"{said} products", _all(spread), structural=True)
    if any(n.op == "row_max" for n in graph.nodes):

        def no_maximum(n: Node, args: tuple[Node, ...]) -> Node | Value | None:
            if n.op == "row_max":
                return make("const", space="s", data=(0.0,), origin=ORIGIN)
            return exp(Value(args[0])) if n.op == "call" and n.data[0] == "exp_down" else None

        yield Model("no-maximum", "the row's maximum is not subtracted", _all(no_maximum))
    for node, name in some.names.items():
        if node.op in ("div", "sub", "fma") and _is_float(node) and node.space in ("r", "c", "s"):

            def zero(n: Node) -> Node:
                return make("const", space="s", data=(0.0,), origin=ORIGIN)

            yield Model(f"without:{name}", f"{name} is left out", _one(node, zero), 2, structural=True)
    for node in graph.nodes:
        if node.op == "div" and node.args[0].op in ("row_sum", "col_sum") and _is_count(node.args[1]):

            def unbiased(n: Node) -> Value:
                return Value(n.args[0]) / (Value(n.args[1]) - 1.0)

            yield Model(f"n-1:{some.name(node)}", f"{some.name(node)} is divided by n - 1, not by n",
                        _one(node, unbiased), 2, fault=True)  # fmt: skip


def _product(some: Named, a: Node, b: Value) -> Value:
    """The product in the order in which the graph has it already, if it has."""
    for n in some.graph.nodes:
        if n.op == "mul" and [_key(x) for x in n.args] == [_key(b.node), _key(a)]:
            return b * Value(a)
    return Value(a) * b


def _key(node: Node) -> tuple[object, ...]:
    """What a node is, whichever graph it is of."""
    return (node.op, node.data, tuple(_key(a) for a in node.args))


def _is_constant(node: Node) -> bool:
    return node.op in ("const", "round")


def _is_count(node: Node) -> bool:
    return node.op == "round" and node.args[0].op in ("columns", "rows")


# ---------------------------------------------------------------------------------------------- functions
def _silu_apart(x: Value) -> Value:
    return x / (exp(-x) + 1.0)


OTHER_FORMULAS: dict[str, tuple[tuple[str, str, Callable[[Value], Value]], ...]] = {
    "gelu": (
        ("one-plus-erf", "x (1 + erf(x / sqrt 2)) / 2, which cancels", lambda x: x * 0.5 * (erf(x * 0.70710677) + 1.0)),
        ("tanh-gelu", "the tanh approximation of GELU", gelu_tanh),
    ),
    "gelu_tanh": (
        ("one-plus-tanh", "x (1 + tanh(u)) / 2, which cancels",
         lambda x: x * 0.5 * (tanh((x + x * x * x * 0.044715) * 0.7978846) + 1.0)),
        ("erf-gelu", "GELU itself, in place of its tanh approximation", gelu),
        ("sigmoid-gelu", "x sigmoid(1.702 x)", lambda x: x / (exp(x * -1.702) + 1.0)),
    ),
    "gelu_slope": (
        ("one-plus-erf", "(1 + erf(x / sqrt 2)) / 2 + x phi(x), which cancels",
         lambda x: (erf(x * 0.70710677) + 1.0) * 0.5 + x * exp(x * x * -0.5) * 0.3989423),
        ("tanh-gelu", "the derivative of GELU's tanh approximation", gelu_tanh_slope),
    ),
    "gelu_tanh_slope": (("erf-gelu", "the derivative of GELU itself", gelu_slope),),
    "silu": (
        ("quotient-silu", "x / (1 + exp(-x))", _silu_apart),
        ("sigmoid-product", "x sigmoid(x)", lambda x: x * sigmoid(x)),
    ),
    "log1p": (("log-of-sum", "log(1 + x), which loses a small x", lambda x: log(x + 1.0)),),
    "expm1": (("exp-minus-1", "exp(x) - 1, which loses a small x", lambda x: exp(x) - 1.0),),
}  # fmt: skip

UNSTABLE = ("one-plus-erf", "one-plus-tanh", "log-of-sum", "exp-minus-1")


def _functions(some: Named) -> Iterator[Model]:
    called = {str(n.data[0]) for n in some.graph.nodes if n.op == "call"}
    for function in sorted(called & set(OTHER_FORMULAS)):
        for name, said, other in OTHER_FORMULAS[function]:

            def swap(
                n: Node, args: tuple[Node, ...], function: str = function, other: Callable[[Value], Value] = other
            ) -> Value | None:
                return other(Value(args[0])) if n.op == "call" and n.data[0] == function else None

            yield Model(f"formula:{name}", f"{function} is computed as {said}", _all(swap),
                        unstable=name in UNSTABLE)  # fmt: skip


def _approximations(some: Named) -> Iterator[Model]:
    graph = some.graph
    if any(n.op == "approximate" for n in graph.nodes):
        return
    called = sorted({str(n.data[0]) for n in graph.nodes if n.op == "call"})
    kinds: list[tuple[str, str, Callable[[Node], bool]]] = [
        (SHORT.get(f, f), f"{SHORT.get(f, f)} is approximated", lambda n, f=f: n.op == "call" and n.data[0] == f)  # type: ignore[misc]
        for f in called
    ]
    if any(n.op == "div" for n in graph.nodes):
        kinds.append(("division", "divisions are approximate", lambda n: n.op == "div"))
    if any(n.op == "sqrt" for n in graph.nodes):
        kinds.append(("rsqrt", "the reciprocal square root is approximate", lambda n: n.op == "sqrt"))
    for level in LEVELS:
        for name, said, which in kinds:

            def rough(n: Node, args: tuple[Node, ...], which: Callable[[Node], bool] = which, level: int = level) -> (
                Node | None
            ):  # fmt: skip
                return behind("approximate", same(n, args), level) if which(n) else None

            yield Model(f"approximate:{name}:2**{level}", f"{said}, with a relative error of up to 2**{level}",
                        _all(rough), 8 + level // 4,
                        once_a_row=all(n.space == "r" for n in graph.nodes if which(n)))  # fmt: skip


SHORT = {"exp_down": "exp"}


# ---------------------------------------------------------------------------------------------- scalars and inputs
def _eps(node: Node) -> bool:
    return node.op == "round" and node.args[0].op == "param" and node.args[0].data[0] == "eps"


def _scalars(some: Named) -> Iterator[Model]:
    graph = some.graph
    for node in graph.nodes:
        if node.op != "add" or not any(map(_eps, node.args)):
            continue
        side = 0 if _eps(node.args[1]) else 1  # of what eps is added to
        inside = any(n.op == "sqrt" and n.args[0] is node for n in graph.nodes)

        def missing(n: Node, side: int = side) -> Node:
            return n.args[side]

        def larger(n: Node, side: int = side) -> Value:
            return maximum(Value(n.args[side]), Value(n.args[1 - side]))

        yield Model("eps:missing", "eps is not added", _one(node, missing), fault=True)
        yield Model("eps:maximum", "the larger of the value and eps is taken, in place of their sum",
                    _one(node, larger))  # fmt: skip
        if inside:

            def outside(n: Node, args: tuple[Node, ...], node: Node = node, side: int = side) -> Value | None:
                if n.op != "sqrt" or n.args[0] is not node:
                    return None
                return sqrt(Value(args[0].args[side])) + Value(args[0].args[1 - side])

            yield Model("eps:outside-sqrt", "eps is added to the square root, not below it", _all(outside))
        if node.args[side].op == "sqrt":

            def below(n: Node, side: int = side) -> Value:
                return sqrt(Value(n.args[side].args[0]) + Value(n.args[1 - side]))

            yield Model("eps:inside-sqrt", "eps is added below the square root, not to it", _one(node, below))
    for n in graph.nodes:
        if n.op == "param" and not n.exact:
            for value in (0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3, 0.9, 0.999, 1.0):

                def fixed(m: Node, value: float = value) -> Node:
                    return make("number", space="s", type="host", data=(value,), origin=ORIGIN)

                name = str(n.data[0])
                yield Model(f"scalar:{name}={value:g}", f"{name} is taken as {value:g}, whatever is given",
                            _one(n, fixed), 3, fault=True)  # fmt: skip


def _inputs(some: Named) -> Iterator[Model]:
    graph = some.graph
    given = [n for n in graph.nodes if n.op == "input"]
    floats = [n for n in given if _is_float(n)]
    for i, a in enumerate(floats):
        for b in floats[i + 1 :]:
            if a.space == b.space and a.data[1:] == b.data[1:]:

                def exchanged(n: Node, args: tuple[Node, ...], a: Node = a, b: Node = b) -> Node | None:
                    return same(b, ()) if n is a else same(a, ()) if n is b else None

                names = f"{a.data[0]} and {b.data[0]}"
                yield Model(f"exchanged:{a.data[0]}:{b.data[0]}", f"{names} are exchanged", _all(exchanged), 3,
                            fault=True)  # fmt: skip
    for node in floats:
        if node.space in ("rk", "kr", "kc", "ck"):
            continue
        for value in (0.0, 1.0):

            def ignored(n: Node, value: float = value) -> Node:
                return make("const", space="s", data=(value,), origin=ORIGIN)

            name = str(node.data[0])
            yield Model(f"ignored:{name}={value:g}", f"{name} is taken as {value:g}", _one(node, ignored), 3,
                        fault=True)  # fmt: skip
    for node in given:
        if node.type not in ("i32", "i64") or node.space not in ("r", "c"):
            continue
        for step in (-1, 1):

            def moved(n: Node, step: int = step) -> Node:
                one = make("const", space="s", type=n.type, data=(step,), exact=True, origin=ORIGIN)
                return make("int_add", n, one, space=n.space, type=n.type, origin=ORIGIN)

            name = str(node.data[0])
            yield Model(f"off-by-one:{name}{step:+d}", f"{name} is taken as {name} {'+' if step > 0 else '-'} 1",
                        _one(node, moved), 3, fault=True)  # fmt: skip
