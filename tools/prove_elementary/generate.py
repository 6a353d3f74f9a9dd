"""C++ source of a function of the language: one line a node, so that what is tried over all inputs is the definition.

Scalar code over local variables; the compiler vectorises the loop around it. Written apart from the emitters in
src/tokitai/emit, so that a slip there cannot hide here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np

from tokitai.lang import Function, Node, Value
from tokitai.lang.values import make

PRELUDE = """\
#include <cstdint>
#include <cstring>
static inline float from_bits(uint32_t u) { float f; std::memcpy(&f, &u, 4); return f; }
static inline uint32_t to_bits(float f) { uint32_t u; std::memcpy(&u, &f, 4); return u; }
// 2**k for whole k in [-126, 127]: 12582912 = 1.5 * 2**23 puts the integer into the low bits of the sum.
static inline float power_of_two(float k) { return from_bits((to_bits(k + 12582912.0f) + 127u) << 23); }
static inline float exponent(float a) { return (float)((int32_t)(to_bits(a) << 1 >> 24) - 127); }
static inline float significand(float a) { return from_bits((to_bits(a) & 0x007fffffu) | 0x3f800000u); }
static inline float maximum(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b > a ? b
                                                       : from_bits(to_bits(a) & to_bits(b)); }
static inline float minimum(float a, float b) { return a != a ? a : b != b ? b : a < b ? a : b < a ? b
                                                       : from_bits(to_bits(a) | to_bits(b)); }
"""

TEMPLATES = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "-{0}",
    "fma": "__builtin_fmaf({0}, {1}, {2})", "sqrt": "__builtin_sqrtf({0})", "abs": "__builtin_fabsf({0})",
    "maximum": "maximum({0}, {1})", "minimum": "minimum({0}, {1})", "round_even": "__builtin_rintf({0})",
    "power_of_two": "power_of_two({0})", "exponent": "exponent({0})", "significand": "significand({0})",
    "lt": "{0} < {1}", "le": "{0} <= {1}", "eq": "{0} == {1}", "ne": "{0} != {1}",
    "logical_and": "{0} && {1}", "logical_or": "{0} || {1}", "logical_not": "!{0}", "where": "{0} ? {1} : {2}",
}  # fmt: skip


def traced(function: Callable[..., Value]) -> Function:
    """The f32 graph of a one-argument function of the language."""
    body = function(Value(make("input", space="s", type="f32", data=("x", "f32")))).node.body
    assert body is not None, f"{function.__name__} is not decorated with @function"
    return body


def cpp(function: Function) -> str:
    """The function, after the functions that it calls, each as ``static inline float <name>(float ...)``."""
    called = [n.body for n in function.nodes if n.body is not None]
    before = "".join(dict.fromkeys(cpp(f) for f in called))
    params = ", ".join(f"float p{i}" for i in range(len(function.params)))
    body = "".join(f"    {line}\n" for line in _lines(function))
    return f"{before}static inline float {function.name}({params}) {{\n{body}}}\n"


def _lines(function: Function) -> Iterator[str]:
    name = {n: f"v{i}" for i, n in enumerate(function.nodes)}
    for node in function.nodes:
        if node.type not in ("f32", "bool"):
            raise ValueError(f"{function.name}: a node of type {node.type}; only f32 and bool are printed")
        kind = "bool" if node.type == "bool" else "float"
        yield f"const {kind} {name[node]} = {_expression(node, name, function)};"
    yield f"return {name[function.result]};"


def _expression(node: Node, name: dict[Node, str], function: Function) -> str:
    args = [name[a] for a in node.args]
    if node.op == "input":
        return f"p{function.params.index(node)}"
    if node.op == "const":
        value = float(np.float32(node.data[0]))  # type: ignore[arg-type]
        return "__builtin_inff()" if value == np.inf else "-__builtin_inff()" if value == -np.inf else f"{value.hex()}f"
    if node.op == "call":
        return f"{node.data[0]}({', '.join(args)})"
    return TEMPLATES[node.op].format(*args)


def operations(function: Function) -> int:
    """Primitive operations of one evaluation, calls included; inputs and constants are free."""
    return sum(operations(n.body) if n.body else n.op not in ("input", "const") for n in function.nodes)


def digest(function: Function) -> str:
    """SHA-256 of the printed definition: tells whether a recorded result belongs to it."""
    return hashlib.sha256(cpp(function).encode()).hexdigest()
