"""What a definition may say: several results, results in place, optional tensors, options, scalars, functions."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from tokitai.errors import ArgumentError, UnknownNameError
from tokitai.lang import (
    Cols,
    Contract,
    Matrix,
    Rows,
    Value,
    bf16,
    col_sum,
    columns,
    convert,
    f16,
    f32,
    fma,
    function,
    i32,
    i64,
    operator,
    outputs,
    round_to,
    row_max,
    row_sum,
    rows,
    sqrt,
    storage,
    stored,
    take_column,
    u32,
    where,
)
from tokitai.lang.values import make
from tokitai.meaning import bits

F32 = np.float32


@operator
def statistics(x: Matrix[storage], w: Cols[storage]):  # type: ignore[no-untyped-def]
    """Results of every space."""
    mean = row_sum(x) / columns(x)
    return outputs(y=x * w, mean=mean, total=col_sum(x), grand=col_sum(mean), short=stored(mean, f16))


def test_results_have_the_space_and_format_that_outputs_says() -> None:
    graph = statistics.trace("bf16")
    found = {o.name: (o.space, o.format, o.inplace) for o in graph.outputs}
    assert found == {
        "y": ("rc", "bf16", False),
        "mean": ("r", "f32", False),
        "total": ("c", "bf16", False),
        "grand": ("s", "f32", False),
        "short": ("r", "f16", False),
    }


def test_a_single_value_is_the_result_y() -> None:
    @operator
    def twice(x: Matrix[storage]) -> Any:
        return x + x

    assert [o.name for o in twice.trace("f16").outputs] == ["y"]


@operator
def step(p: Matrix[storage], g: Matrix[storage], m: Matrix[f32], *, lr: float, beta: float = 0.9) -> Any:
    """A result named like an input takes its place, in its format."""
    m = m * beta + g * (1 - beta)
    return outputs(p=p - m * lr, m=m)


def test_in_place_results() -> None:
    graph = step.trace("f16")
    assert {o.name: (o.format, o.inplace) for o in graph.outputs} == {"p": ("f16", True), "m": ("f32", True)}
    assert graph.params == ("lr", "beta")
    assert [(p.name, p.default, p.whole) for p in step.params] == [("lr", None, False), ("beta", 0.9, False)]


@operator
def affine(x: Matrix[storage], w: Cols[storage] | None, b: Cols[f32] | None = None) -> Any:
    y = x if w is None else x * w
    return y if b is None else y + b


@pytest.mark.parametrize(
    ("present", "inputs"),
    [
        (None, ["x", "w", "b"]),
        ([], ["x"]),
        (["w"], ["x", "w"]),
        (["x", "b"], ["x", "b"]),
    ],
)
def test_optional_tensors(present: list[str] | None, inputs: list[str]) -> None:
    graph = affine.trace("f16", present=present)
    assert [t.name for t in graph.inputs] == inputs
    assert {t.name for t in graph.inputs if t.name == "b" and t.format != "f32"} == set()


def test_an_optional_tensor_that_does_not_exist() -> None:
    with pytest.raises(UnknownNameError, match=r"no tensor of affine named 'bias' \(accepted: b, w, x\)"):
        affine.trace("f16", present=["bias"])


@operator(contract=Contract(formats=("f16", "f32")))
def reduce(x: Matrix[storage], *, kind: Literal["sum", "mean"] = "mean", square: bool = False) -> Any:
    x = x * x if square else x
    total = row_sum(x)
    return total / columns(x) if kind == "mean" else total


def test_options_give_graphs_of_their_own() -> None:
    plain = reduce.trace("f16")
    assert plain.options == {"kind": "mean", "square": False}
    assert reduce.trace("f16", options={"kind": "mean"}) is plain
    others = [reduce.trace("f16", options=o) for o in ({"kind": "sum"}, {"square": True})]
    assert len({g.digest for g in (plain, *others)}) == 3


def test_options_and_formats_that_do_not_exist() -> None:
    with pytest.raises(UnknownNameError, match=r"no option of reduce named 'knd'; did you mean kind\?"):
        reduce.trace("f16", options={"knd": "sum"})
    with pytest.raises(ArgumentError, match=r"reduce: kind='max'; accepted: 'sum', 'mean'"):
        reduce.trace("f16", options={"kind": "max"})
    with pytest.raises(UnknownNameError, match=r"no storage format of reduce named 'bf16'; .*\(accepted: f16, f32\)"):
        reduce.trace("bf16")
    with pytest.raises(UnknownNameError, match="no format named 'float8'"):
        reduce.trace("float8")


@pytest.mark.parametrize("name", ["f16", "float16", "half", np.float16, np.dtype(np.float16)])
def test_a_format_may_be_named_in_several_ways(name: object) -> None:
    assert reduce.trace(name).dtype == "f16"


def run(definition: Any, tensors: dict[str, Any], shape: tuple[int, int], dtype: str = "f32", **params: float) -> Any:
    """The bits of the only result."""
    (result,) = bits.evaluate(operator(definition).trace(dtype), tensors, shape, params).values()
    return result


def test_integer_tensors_stay_integers() -> None:
    def pick(x: Matrix[storage], t: Rows[i64], mask: Matrix[i32]) -> Any:
        return where(mask == 1, x, take_column(x, t))

    x = np.arange(6, dtype=F32).reshape(2, 3)
    mask = np.array([[1, 0, 0], [0, 1, 2]], np.int32)
    got = run(pick, dict(x=x, t=np.array([2, 0]), mask=mask), (2, 3))
    assert got.tolist() == [[0, 2, 2], [3, 4, 3]]


def test_host_scalars_are_f64_and_rounded_once() -> None:
    def scaled(x: Matrix[storage], *, beta: float, step: int) -> Any:
        return x * (1 - beta**step)

    beta, t = 0.999, 7
    got = run(scaled, dict(x=np.ones((1, 1), F32)), (1, 1), beta=beta, step=t)
    square = beta * beta
    power = beta * square * (square * square)  # square and multiply, from the lowest bit
    assert got[0, 0] == F32(1 - power) != F32(1) - F32(beta) ** F32(t)


def test_rows_and_columns_are_host_scalars() -> None:
    def share(x: Matrix[storage]) -> Any:
        return x / rows(x) + sqrt(columns(x))

    assert run(share, dict(x=np.full((4, 9), 2, F32)), (4, 9))[0, 0] == 3.5


def test_storage_means_the_format_that_is_traced() -> None:
    def twice_rounded(x: Matrix[f32]) -> Any:
        return outputs(y=stored(round_to(x, storage), f32))

    x = np.array([[1 + 2.0**-9]], F32)
    assert run(twice_rounded, dict(x=x), (1, 1), "f16")[0, 0] == x[0, 0]
    assert run(twice_rounded, dict(x=x), (1, 1), "bf16")[0, 0] == 1
    assert len({operator(twice_rounded).trace(f).digest for f in ("f16", "bf16", "f32")}) == 3


@function
def cube(a: Value) -> Value:
    return a * a * a


@function
def cube_plus(a: Value, b: Value) -> Value:
    return fma(cube(a), 1.0, b)


def test_functions_are_named_calls_whose_bodies_are_traced_once() -> None:
    def definition(x: Matrix[storage], c: Cols[storage]) -> Any:
        return cube_plus(x, c) + cube(x)

    graph = operator(definition).trace("f16")
    assert [f.name for f in graph.functions] == ["cube", "cube_plus"]
    assert [n.data for n in graph.nodes if n.op == "call"] == [("cube_plus",), ("cube",)]
    again = operator(definition).trace("bf16")
    assert again.functions == graph.functions
    x, c = np.array([[2.0, 3.0]], np.float16), np.array([1.0, -1.0], np.float16)
    assert run(definition, dict(x=x, c=c), (1, 2), "f16").tolist() == [[17, 53]]


def test_functions_take_numbers_and_host_scalars() -> None:
    def definition(x: Matrix[storage], *, eps: float) -> Any:
        return cube_plus(x, 1.0) + cube(eps)

    assert run(definition, dict(x=np.full((1, 1), 2, F32)), (1, 1), eps=0.5)[0, 0] == 9.125


def test_equal_operations_are_one_node() -> None:
    def definition(x: Matrix[storage]) -> Any:
        return (x + 0.0) * (x + 0.0) - (x + -0.0)

    adds = [n for n in operator(definition).trace("f32").nodes if n.op == "add"]
    assert len(adds) == 2, "0.0 and -0.0 are two constants"


def test_number_types_follow_their_partner() -> None:
    def definition(x: Matrix[u32], i: Rows[i32]) -> Any:
        return outputs(a=x * 3 + 1, b=i - 1, c=convert(x, f32) * 3, d=stored(row_max(convert(x, f32)) * 1, bf16))

    graph = operator(definition).trace("f32")
    assert [(o.name, o.node.type, o.format) for o in graph.outputs] == [
        ("a", "u32", "u32"), ("b", "i32", "i32"), ("c", "f32", "f32"), ("d", "f32", "bf16"),
    ]  # fmt: skip
    constants = {(n.type, n.data) for n in graph.nodes if n.op == "const"}
    assert constants == {("u32", (3,)), ("u32", (1,)), ("i32", (1,)), ("f32", (3.0,)), ("f32", (1.0,))}


def test_comparisons_and_logic() -> None:
    def definition(x: Matrix[storage]) -> Any:
        inside = ~((x <= -1.0) | (x > 1.0)) & (x != 0.0)
        return where(inside, 1, where(x == 0.0, 2, 0))

    x = np.array([[-1, -0.5, -0.0, 0, 0.5, 1, 2, np.nan]], F32)
    assert run(definition, dict(x=x), (1, 8)).tolist() == [[0, 1, 2, 2, 1, 1, 0, 1]]


def test_nodes_made_outside_a_definition_are_shared_as_well() -> None:
    a = make("input", space="s", type="f32", data=("a", "f32"))
    assert make("neg", a) is make("neg", a)


def test_text_shows_one_node_a_line() -> None:
    text = str(affine.trace("f16", present=["w"]))
    assert text.splitlines() == [
        "   v0 : rc f32  = input(x, f16)",
        "   v1 :  c f32  = input(w, f16)",
        "   v2 : rc f32  = mul(v0, v1)",
        "store y : rc f16 = v2",
    ]
