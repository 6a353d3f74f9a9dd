"""From a Python function to an operator: annotations give tensors and scalars, the body is traced to a graph.

An operator is one file: the definition, its contract, a textbook reference in float64 and hard inputs::

    @operator
    def rms_norm(x: Matrix[storage], gamma: Cols[storage], *, eps: float):
        rstd = 1 / sqrt(row_sum(x * x) / columns(x) + eps)
        return outputs(y=x * rstd * gamma, rstd=rstd)
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn, Protocol, Union, overload

import numpy as np

from ..errors import ArgumentError, DefinitionError, UnknownNameError
from ..formats import format_of
from .contract import Contract, OptionSpec, ParamSpec, faults
from .gradient import Gradient, gradient_faults
from .graph import GROUPS, OPERANDS, Graph, Node, Output, Space, TensorSpec
from .groups import Groups
from .origin import refuse
from .values import INTEGERS, Cols, Matrix, Operand, Rows, Slots, Table, Value, format_name, make, tracing

Array = np.ndarray[Any, Any]
ANYTHING = Contract()  # where an operator says nothing of what it accepts
PLAIN = Gradient()  # every input of floats has a gradient of its own
RESERVED = ("out", "threads", "copy", "cuda_stream", "check")  # arguments of every call
_SPACES: dict[object, Space] = {
    Matrix: "rc", Rows: "r", Cols: "c", Table: "t", Slots: "r", Operand: "rk", Groups: "g",
}  # fmt: skip


@dataclass(frozen=True)
class HardInput:
    """One named set of inputs that has broken kernels before. Tensors are given as float64 or integer arrays, rounded
    once to the format under test; those that are left out are drawn at random, those that are ``saved`` are what the
    forward pass stores for the others."""

    name: str
    tensors: Mapping[str, Any]
    scalars: Mapping[str, float] = field(default_factory=dict)
    in_domain: bool = True  # False: outside the contract's domain, so that only the bits are compared
    saved: tuple[str, ...] = ()  # beside those of which the contract says so


class Outputs(dict[str, Any]):
    """Named results of a definition. A name that is also an input's means: stored in that input's place."""


def outputs(**values: Any) -> Outputs:
    """Name the results. Matrix and column results are stored in the storage format, row results in f32, unless
    ``stored(value, format)`` says otherwise; a result named like an input replaces it, in its format."""
    return Outputs(values)


def stored(value: Value, to: Any) -> tuple[Value, str]:
    """A result with the format that it is stored in."""
    return value, format_name(to)


class Runner(Protocol):
    """What runs an operator on arrays."""

    def __call__(self, operator: Operator, /, *args: Any, **kwargs: Any) -> Any:
        """Run `operator` with the arguments of its call."""


_runner: Runner | None = None


def set_runner(runner: Runner) -> None:
    """Let `runner` run every operator that is called. The language knows no device: the package sets what does, once
    when it is imported (a runner that loads the runtime) and once when that is loaded (the runtime's own `call`)."""
    global _runner
    _runner = runner


class Operator:
    """A definition with its contract, textbook reference and hard inputs. Call it with arrays to run it."""

    def __init__(
        self,
        definition: Callable[..., Any],
        contract: Contract,
        backward_of: Operator | None,
        textbook: Callable[..., Any] | None,
        hard_inputs: Callable[..., Iterable[HardInput]] | None,
        gradient: Gradient = PLAIN,
    ) -> None:
        self.name = self.__name__ = definition.__name__
        self.__module__, self.__qualname__ = definition.__module__, definition.__qualname__
        self.definition = definition
        self.contract = contract
        self.backward_of = backward_of
        self.gradient = gradient
        self.file = inspect.getsourcefile(definition) or "<unknown>"
        self.line = definition.__code__.co_firstlineno
        self.__doc__ = definition.__doc__
        self._textbook = textbook
        self._hard_inputs = hard_inputs
        self._graphs: dict[object, Graph] = {}
        self.tensors, self.params, self.options = self._read_signature()
        for what, accepted in faults(contract, self.tensors, self.params, self.options, backward_of is not None):
            self._refuse(what, accepted)

    # ------------------------------------------------------------------ parts that an operator file adds
    @property
    def textbook(self) -> Callable[..., Any] | None:
        """The float64 reference, or None: takes the inputs by name, widened, and returns results by name."""
        return self._textbook

    def set_textbook(self, reference: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the textbook reference of this operator."""
        self._textbook = reference
        return reference

    def set_hard_inputs(self, generator: Callable[..., Iterable[HardInput]]) -> Callable[..., Iterable[HardInput]]:
        """Decorator: a function that yields HardInput objects."""
        self._hard_inputs = generator
        return generator

    def hard_inputs(self) -> Iterator[HardInput]:
        """The named hard inputs of this operator."""
        if self._hard_inputs is not None:
            yield from self._hard_inputs()

    # ------------------------------------------------------------------ tracing
    def trace(
        self, dtype: object = "f32", present: Iterable[str] | None = None, options: Mapping[str, object] | None = None
    ) -> Graph:
        """The graph for a storage format, the optional tensors that are present (default: all) and options.

        Raises DefinitionError for a definition that cannot be traced, UnknownNameError and ArgumentError for a
        format, tensor or option that the operator does not have.
        """
        fmt = format_of(dtype).name
        if fmt not in self.contract.formats:
            raise UnknownNameError(f"storage format of {self.name}", fmt, self.contract.formats)
        optional = {t.name for t in self.tensors if t.optional}
        for name in sorted(set(present or ()) - {t.name for t in self.tensors}):
            raise UnknownNameError(f"tensor of {self.name}", name, [t.name for t in self.tensors])
        given = optional if present is None else set(present) & optional
        chosen = {o.name: o.default for o in self.options}
        for name, value in (options or {}).items():
            spec = next((o for o in self.options if o.name == name), None)
            if spec is None:
                raise UnknownNameError(f"option of {self.name}", name, [o.name for o in self.options])
            chosen[name] = spec.chosen(self.name, value, fmt)
        key = (fmt, frozenset(given), tuple(sorted(chosen.items())))
        if key not in self._graphs:
            with tracing(fmt):
                self._graphs[key] = self._trace(fmt, given, chosen)
        return self._graphs[key]

    def variables(self, graph: Graph) -> dict[Node, str]:
        """The nodes of a graph of this operator that the definition gives a name: its variables when it returns, and
        those of the functions that it calls, where these do not clash."""
        found: dict[str, Any] = {}

        def watch(frame: FrameType, event: str, returned: Any) -> None:
            nonlocal found
            if event == "return" and frame.f_code is self.definition.__code__:
                found = {**found, **frame.f_locals}
            elif event == "return" and not frame.f_code.co_filename.startswith(str(Path(__file__).parent)):
                found = {**frame.f_locals, **found}

        def traced() -> Graph:
            present = {t.name for t in graph.inputs if t.optional}
            with tracing(graph.dtype):
                sys.setprofile(watch)
                try:
                    return self._trace(graph.dtype, present, graph.options)
                finally:
                    sys.setprofile(None)

        with ThreadPoolExecutor(1) as alone:  # a profiler of the caller's thread stays in place
            again = alone.submit(traced).result()
        there = {b: a for a, b in zip(graph.nodes, again.nodes, strict=True)}
        of_inputs = {t.name for t in graph.inputs}
        made: dict[Node, str] = {}
        for name, value in found.items():
            node = value.node if isinstance(value, Value) and not isinstance(value, (Operand, Groups)) else None
            if node in there and node.op not in ("const", "input") and name not in of_inputs:
                made.setdefault(there[node], name)
        return made

    def _trace(self, dtype: str, given: set[str], options: Mapping[str, object]) -> Graph:
        arguments: dict[str, Any] = dict(options)
        inputs = []
        for t in self.tensors:
            if t.optional and t.name not in given:
                arguments[t.name] = None
                continue
            stored_as = dtype if t.format == "storage" else str(t.format)
            slots = int(str(options["k"])) if t.slots else 0
            origin = self._line_of(t.name)
            inputs.append(TensorSpec(t.name, t.space, stored_as, t.optional, slots, origin))
            kind: Any = stored_as if stored_as in ("f64", *INTEGERS) else "f32"
            if t.space in OPERANDS:
                arguments[t.name] = Operand(t.name, stored_as)
                continue
            if t.space in GROUPS:
                if stored_as != "i64":
                    self._refuse(f"the groups {t.name} stored as {stored_as}", "Groups[i64]")
                arguments[t.name] = Groups(t.name)
                continue
            exact = kind in INTEGERS
            data = (t.name, stored_as)
            arguments[t.name] = Value(make("input", space=t.space, type=kind, data=data, exact=exact, origin=origin))
            if slots:
                of_each = ((*data, j) for j in range(slots))
                arguments[t.name] = tuple(
                    Value(make("input", space="r", type=kind, data=d, exact=exact, origin=origin)) for d in of_each
                )
        for p in self.params:
            origin = self._line_of(p.name)
            arguments[p.name] = Value(
                make("param", space="s", type="host", data=(p.name,), exact=p.whole, origin=origin)
            )
        returned = self.definition(**arguments)
        if isinstance(returned, Value):
            returned = Outputs(y=returned)
        if not isinstance(returned, Outputs) or not returned:
            self._refuse(f"{self.name} returns {returned!r}", "outputs(name=value, ...) or a single value")
        results = tuple(self._output(name, value, dtype, inputs) for name, value in returned.items())
        for name in self.contract.places:
            if name not in returned:
                self._refuse(f"the contract's places name {name}", f"results: {', '.join(returned)}")
        for what, accepted in gradient_faults(self.gradient, [t.name for t in self.tensors], list(returned)):
            self._refuse(what, accepted)
        names = tuple(p.name for p in self.params)
        one_row = self.contract.max_rows == 1
        graph = Graph(self.name, dtype, tuple(inputs), names, results, dict(options), one_row)
        if self.contract.batched and not any(n.op == "weighted_sum" for n in graph.nodes):
            for t in (t for t in inputs if t.space == "r"):
                self._refuse(f"the input {t.name} with one value a row beside a batch of products", "rows x cols, Cols")
        return replace(graph, inputs=tuple(self._placed(t, graph) for t in inputs))

    def _placed(self, t: TensorSpec, graph: Graph) -> TensorSpec:
        """An operand of a product with the sides that its use there gives it; groups with the side that they share."""
        if t.space in GROUPS:
            shared = {str(n.data[2]) for n in graph.nodes if n.op == "matmul" and n.data[3:] == (t.name,)}
            found: list[Any] = [f"g{side}" for side in sorted(shared)]
        elif t.space in OPERANDS:
            found = [n.space for n in graph.nodes if n.op == "input" and n.data[0] == t.name]
        else:
            return t
        if len(found) != 1:
            what = "is not used" if not found else f"is used as {' and as '.join(found)}"
            self._refuse(f"the operand {t.name} {what}", "an operand with one place in the products")
        return replace(t, space=found[0])

    def _output(self, name: str, result: Any, dtype: str, inputs: Sequence[TensorSpec]) -> Output:
        value, declared = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        if not isinstance(value, Value):
            self._refuse(f"the result {name}={value!r}", "a value of the language")
        node = value.node
        if node.type == "host":
            node = make("round", node, type="f32", origin=node.origin)
        if node.type == "bool":
            self._refuse(f"the result {name} is a condition", "a number; where(condition, 1, 0) makes one")
        replaced = next((t for t in inputs if t.name == name), None)
        if replaced is not None:
            beside = len(node.args) if node.op == "slots" else 0
            if replaced.space != node.space or replaced.slots != beside:
                self._refuse(f"the result {name} is {value}, its input is not", "a result of the input's own space")
            if declared not in (None, replaced.format) or not _same_kind(node, str(replaced.format)):
                found = f"the result {name} of type {node.type}, stored as {declared or 'its input'}"
                self._refuse(found, f"a result of the kind and format of its input, {replaced.format}")
            return Output(name, node, str(replaced.format), inplace=True)
        if node.type in INTEGERS:
            stored_as = declared or node.type
        else:
            stored_as = declared or ("f32" if node.space in ("r", "s") else "storage")
        stored_as = dtype if stored_as == "storage" else stored_as
        if not _same_kind(node, stored_as):
            self._refuse(f"the result {name} of type {node.type} stored as {stored_as}", "a format of the same kind")
        return Output(name, node, stored_as)

    # ------------------------------------------------------------------ signature
    def _read_signature(self) -> tuple[tuple[TensorSpec, ...], tuple[ParamSpec, ...], tuple[OptionSpec, ...]]:
        try:
            hints = typing.get_type_hints(self.definition)
        except Exception as error:
            accepted = "Matrix[...], Rows[...], Cols[...], Table[...], Operand[...], float"
            self._refuse(f"annotations of {self.name} cannot be read ({error})", accepted)
        tensors, params, choices = [], [], []
        for name, parameter in inspect.signature(self.definition).parameters.items():
            if name in RESERVED:
                self._refuse(f"the parameter {name} of {self.name}", f"a name other than {', '.join(RESERVED)}")
            hint = hints.get(name)
            default = None if parameter.default is parameter.empty else parameter.default
            inner, optional = _strip_optional(hint)
            origin = typing.get_origin(inner)
            if origin in _SPACES:
                (tag,) = typing.get_args(inner)
                tensors.append(TensorSpec(name, _SPACES[origin], format_name(tag), optional, int(origin is Slots)))
            elif hint in (float, int) and parameter.kind is parameter.KEYWORD_ONLY:
                params.append(ParamSpec(name, default, whole=hint is int))
            elif hint is bool:
                choices.append(OptionSpec(name, bool(default), (False, True)))
            elif origin is Literal:
                words = typing.get_args(hint)
                choices.append(OptionSpec(name, words[0] if default is None else default, words))
            else:
                self._refuse(
                    f"the parameter {name}: {hint!r} of {self.name}",
                    "Matrix[...], Rows[...], Cols[...], Slots[...], Table[...] or Operand[...] of a format, or after * "
                    "a float, int, bool or Literal[...]",
                )
        return tuple(tensors), tuple(params), tuple(choices)

    def _line_of(self, parameter: str) -> str:
        """``file:line`` of a parameter; of the definition, where its source cannot be read."""
        return f"{self.file}:{self._parameter_lines.get(parameter, self.line)}"

    @cached_property
    def _parameter_lines(self) -> dict[str, int]:
        try:
            lines, first = inspect.getsourcelines(self.definition)
            (made,) = ast.parse(textwrap.dedent("".join(lines))).body
        except (OSError, SyntaxError, ValueError):
            return {}
        if not isinstance(made, ast.FunctionDef):
            return {}
        return {a.arg: first + a.lineno - 1 for a in (*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs)}

    def _refuse(self, what: str, accepted: str) -> NoReturn:
        raise DefinitionError(f"{self.file}:{self.line}: {what}; accepted: {accepted}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator on arrays; see ``tokitai.runtime.call`` for what is accepted."""
        if _runner is None:
            refuse(f"{self.name}(...) on arrays", "import tokitai first, which brings the devices")
        return _runner(self, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<operator {self.name}>"

    # An operator is one object, as a function is: its copies are itself, and another process finds it by its name.
    def __copy__(self) -> Operator:
        return self

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Operator:
        return self

    def __reduce__(self) -> str:
        return self.__qualname__


def check_operator(x: object) -> None:
    """Raises ArgumentError where something else is given, such as an operator's name."""
    if not isinstance(x, Operator):
        raise ArgumentError(f"operator: {x!r}; accepted: an operator, such as tokitai.ops.softmax")


def _same_kind(node: Node, format_name: str) -> bool:
    return format_of(format_name).is_float == (node.type not in INTEGERS)


def _strip_optional(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (Union, types.UnionType):
        kept = [a for a in typing.get_args(hint) if a is not type(None)]
        if len(kept) == 1:
            return kept[0], True
    return hint, False


@overload
def operator(definition: Callable[..., Any], /) -> Operator: ...
@overload
def operator(
    *,
    contract: Contract = ...,
    backward_of: Operator | None = ...,
    textbook: Callable[..., Any] | None = ...,
    hard_inputs: Callable[..., Iterable[HardInput]] | None = ...,
    gradient: Gradient = ...,
) -> Callable[[Callable[..., Any]], Operator]: ...
def operator(
    definition: Callable[..., Any] | None = None,
    /,
    *,
    contract: Contract = ANYTHING,
    backward_of: Operator | None = None,
    textbook: Callable[..., Any] | None = None,
    hard_inputs: Callable[..., Iterable[HardInput]] | None = None,
    gradient: Gradient = PLAIN,
) -> Operator | Callable[[Callable[..., Any]], Operator]:
    """Make a definition an operator. ``backward_of`` names the forward operator whose gradient this one computes:
    a result ``dx`` is then checked against the derivative of the forward definition in its input ``x``. ``gradient``
    is for the forward operator: what its functions in `tokitai.torch` have to know beyond that."""

    def decorate(f: Callable[..., Any]) -> Operator:
        return Operator(f, contract, backward_of, textbook, hard_inputs, gradient)

    return decorate(definition) if definition is not None else decorate
