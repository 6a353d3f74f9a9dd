"""Attention: against torch and the oracle, its laws, and what a call accepts."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from running import BF16, F16, F32, array, same_bits

from tokitai import ops
from tokitai.errors import ArgumentError, CompileError, DefinitionError
from tokitai.families import emit_cpu, make_plan
from tokitai.lang import (
    Operand,
    Rows,
    Sizes,
    column_index,
    i32,
    matmul,
    operator,
    outputs,
    row_max,
    row_sum,
    storage,
    weighted_sum,
    where,
)
from tokitai.meaning import bits, bounds
from tokitai.runtime.kernel import Kernel, build_text, host_kernel
from tokitai.toolchain.build import Isa, isas_here
from tokitai.verification import cases
from tokitai.verification.run import run_numbers, run_structure

FORMATS = pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
SCALE = 0.375


def noise(seed: int, *shape: int, dtype: Any = F32) -> Any:
    return array(np.random.default_rng(seed).standard_normal(shape), dtype)


def drawn(dtype: Any, heads: int, shared: int, queries: int, keys: int, dim: int, lead: tuple[int, ...] = ()) -> Any:
    """Queries, keys and values."""
    q = noise(1, *lead, heads, queries, dim, dtype=dtype)
    return q, *(noise(s, *lead, shared, keys, dim, dtype=dtype) for s in (2, 3))


def causal(queries: int) -> Any:
    return np.arange(1, queries + 1, dtype=np.int32)


def flat(x: Any, shared: int) -> Any:
    """(heads, queries, ...) as (heads of keys, queries of all heads that share it, ...)."""
    return x.reshape(shared, -1, *x.shape[2:])


# ------------------------------------------------------------------ against torch and the oracle
@FORMATS
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("mask", ["all", "causal", "lengths"])
def test_attention_is_torchs(dtype: Any, heads: int, shared: int, mask: str) -> None:
    """Within the bound of the definition, and of what torch computes in f64."""
    queries, keys, dim = 21, 21, 8
    q, k, v = drawn(dtype, heads, shared, queries, keys, dim)
    limit = {"all": None, "causal": causal(queries), "lengths": np.full((1, 1), 13, np.int32)}[mask]
    y, _, _ = ops.attention(q, k, v, limit, scale=SCALE)
    seen = np.broadcast_to(keys if limit is None else limit, (heads, queries))
    bias = torch.from_numpy(np.arange(keys) < seen[..., None])
    wide = [torch.from_numpy(x.astype(np.float64)) for x in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*wide, attn_mask=bias, scale=SCALE, enable_gqa=True)
    graph = ops.attention.trace(dtype)
    tensors = dict(q=flat(q, shared), k=k, v=v, limit=seen.astype(np.int32).reshape(shared, -1))
    sizes = Sizes(heads // shared * queries, keys, dim, shared)
    if shared == 1:
        tensors = {n: a[0] for n, a in tensors.items()}
    stored, allowed = bounds.evaluate(graph, tensors, sizes, dict(scale=SCALE))["y"]
    assert same_bits(y, np.asarray(stored).reshape(y.shape))
    own = 2.0**-48 * np.abs(v.astype(np.float64)).max()  # torch's roundings in f64: a few hundred
    assert (np.abs(y.astype(np.float64) - want.numpy()).reshape(allowed.shape) <= allowed + own).all()


def test_the_textbook_is_torchs() -> None:
    """Results and gradients in f64; sums of 19 terms at most, of products of the sizes below."""
    q, k, v = (x.astype(np.float64) for x in drawn(F32, 1, 1, 11, 19, 5))
    dy, seen = noise(7, 1, 11, 5).astype(np.float64), np.arange(19) < np.array([*range(1, 11), 19])[:, None]
    leaves = [torch.tensor(x, requires_grad=True) for x in (q, k, v)]
    y = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=torch.tensor(seen), scale=SCALE)
    y.backward(torch.tensor(dy))
    limit = seen.sum(axis=1, keepdims=True)
    made = ops.attention.textbook(q, k, v, limit=limit, scale=SCALE)
    back = ops.attention_backward.textbook(dy, q, k, v, made["top"], made["total"], limit=limit, scale=SCALE)
    for name, got, want in [("y", made["y"], y.detach())] + [
        (f"d{n}", back[f"d{n}"], x.grad) for n, x in zip("qkv", leaves, strict=True)
    ]:
        assert np.abs(got - want.numpy()).max() <= 200 * 2.0**-53 * max(1.0, np.abs(want.numpy()).max()), name


@FORMATS
def test_calls_are_the_oracle(dtype: Any) -> None:
    """Forward and backward, with groups of heads and leading dimensions: every bit."""
    q, k, v = drawn(dtype, 6, 3, 9, 14, 5, lead=(2,))
    limit = np.random.default_rng(5).integers(0, 15, (2, 6, 9)).astype(np.int32)
    y, top, total = ops.attention(q, k, v, limit, scale=SCALE)
    dy = noise(9, *y.shape, dtype=dtype)
    grads = ops.attention_backward(dy, q, k, v, top, total, limit, scale=SCALE)
    sizes = Sizes(18, 14, 5, 6)
    shared = dict(
        q=q.reshape(6, 18, 5), k=k.reshape(6, 14, 5), v=v.reshape(6, 14, 5), limit=limit.reshape(6, 18),
        dy=dy.reshape(6, 18, 5), top=top.reshape(6, 18), total=total.reshape(6, 18),
    )  # fmt: skip
    params = dict(scale=SCALE)
    want = bits.evaluate(ops.attention.trace(dtype), shared, sizes, params)
    want |= bits.evaluate(ops.attention_backward.trace(dtype), shared, sizes, params)
    for name, got in zip(("y", "top", "total", "dq", "dk", "dv"), (y, top, total, *grads), strict=True):
        assert same_bits(got, want[name].reshape(got.shape)), name


# ------------------------------------------------------------------ laws
@FORMATS
def test_padding_changes_no_bit(dtype: Any) -> None:
    """A sentence alone, and in a batch with longer ones: NaN behind its end does no harm, and gets no gradient."""
    q, k, v = drawn(dtype, 2, 2, 7, 7, 6)
    dy = noise(4, 2, 7, 6, dtype=dtype)
    alone = ops.attention(q, k, v, scale=SCALE)
    grads = ops.attention_backward(dy, q, k, v, *alone[1:], scale=SCALE)
    longer = [np.concatenate([x, np.full((2, 30, 6), np.nan, dtype)], axis=1) for x in (q, k, v, dy)]
    limit = np.where(np.arange(37) < 7, 7, 0).astype(np.int32)
    padded = ops.attention(*longer[:3], limit, scale=SCALE)
    back = ops.attention_backward(longer[3], *longer[:3], *padded[1:], limit, scale=SCALE)
    for one, other in zip((*alone, *grads), (*padded, *back), strict=True):
        assert same_bits(one, np.ascontiguousarray(other[:, :7])), "the sentence itself"
    for x in (padded[0], *back):
        assert not x[:, 7:].astype(np.float32).any(), "zeros behind it"
    assert (padded[1][:, 7:] == 0).all() and (padded[2][:, 7:] == 1).all()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(1, 20), st.integers(0, 99))
def test_a_query_has_the_bits_that_it_has_alone(queries: int, keys: int, dim: int, seed: int) -> None:
    q, k, v = noise(seed, queries, dim), noise(seed + 1, keys, dim), noise(seed + 2, keys, dim)
    limit = np.random.default_rng(seed).integers(0, keys + 1, queries).astype(np.int32)
    whole = ops.attention(q, k, v, limit, scale=SCALE)
    for r in {0, queries // 2, queries - 1}:
        n = int(limit[r])
        one = ops.attention(q[r : r + 1], k[:n], v[:n], scale=SCALE)
        assert all(same_bits(a, b[r : r + 1]) for a, b in zip(one, whole, strict=True))


def test_groups_of_heads_share_keys() -> None:
    """The same bits as with the keys repeated; their gradients are sums over all queries of the group, in order."""
    q, k, v = drawn(F32, 6, 2, 10, 12, 4)
    dy = noise(8, 6, 10, 4)
    y, top, total = ops.attention(q, k, v, scale=SCALE)
    repeated = [np.repeat(x, 3, axis=0) for x in (k, v)]
    assert same_bits(y, ops.attention(q, *repeated, scale=SCALE)[0])
    dq, dk, dv = ops.attention_backward(dy, q, k, v, top, total, scale=SCALE)
    assert same_bits(dq, ops.attention_backward(dy, q, *repeated, top, total, scale=SCALE)[0])
    one = [x.reshape(2, 30, 4) for x in (dy, q)]
    single = ops.attention_backward(*one, k, v, top.reshape(2, 30), total.reshape(2, 30), scale=SCALE)
    assert same_bits(dk, single[1]) and same_bits(dv, single[2])


def test_equal_values_are_their_own_mean() -> None:
    """Probabilities add to 1 but for roundings: one of the chain each, and those of the total."""
    q, k, _ = drawn(F32, 1, 1, 9, 200, 8)
    y = ops.attention(q, k, np.ones_like(k), scale=SCALE)[0]
    assert np.abs(y - 1).max() <= (200 + 8 + 1) * 2.0**-24
    same = ops.attention(q, np.ones_like(k), noise(3, 1, 200, 8), scale=SCALE)[0]
    assert all(same_bits(same[:, 0], same[:, r]) for r in range(9)), "equal keys weigh alike, whatever the query"


@FORMATS
def test_one_key_is_its_value(dtype: Any) -> None:
    q, k, v = drawn(dtype, 3, 3, 5, 1, 4)
    assert same_bits(ops.attention(q, k, v, scale=SCALE)[0], np.repeat(v, 5, axis=1))
    large = array(np.full((1, 3, 4), 100.0), dtype)
    y, top, total = ops.attention(large, large, v[:1].repeat(3, axis=1), scale=1.0)
    assert (top == 40000).all() and (total == 3).all() and np.isfinite(y.astype(np.float32)).all()


def test_nothing_to_see_and_nothing_that_sees() -> None:
    none = np.zeros((2, 0, 3), np.float32)
    y, top, total = ops.attention(np.ones((2, 4, 3), np.float32), none, none, scale=1.0)
    assert not y.any() and not np.signbit(y).any() and not top.any() and (total == 1).all()
    stats = np.zeros((2, 0), np.float32)
    dq, dk, dv = ops.attention_backward(none, none, *[np.ones((2, 5, 3), np.float32)] * 2, stats, stats, scale=1.0)
    assert dq.shape == (2, 0, 3) and not dk.any() and not dv.any() and not np.signbit(dk).any()
    assert ops.attention(*[np.zeros((0, 3, 4, 5), np.float16)] * 3, scale=1.0)[0].shape == (0, 3, 4, 5)


# ------------------------------------------------------------------ threads, instruction sets, blocks
SIZES = (Sizes(37, 29, 19), Sizes(18, 70, 9, 3), Sizes(5, 300, 40), Sizes(3, 4099, 2), Sizes(4101, 3, 2))
# Pieces along k, panels of queries, tiles of keys; each must find its place.
BLOCKINGS = {
    "as it is": (),
    "pieces of 64": (("#define PLAN_DEPTH 256", "#define PLAN_DEPTH 64"),),
    "pieces of 4096": (("#define PLAN_DEPTH 256", "#define PLAN_DEPTH 4096"),),
    "panels half as wide": (("NV = 2", "NV = 1"),),
    "panels twice as wide": (("NV = 2", "NV = 4"),),
    "tiles of three keys": (("MR = 6,", "MR = 3,"), ("MR = 4,", "MR = 3,"), ("MR = 12,", "MR = 3,")),
}


def altered(name: str, edits: Any, structure: bool, isa: Any = None) -> Kernel:
    op = ops.get(name)
    graph = op.trace("f16")
    plan = make_plan(graph)
    text = emit_cpu(plan)
    texts = {"": text.text, **text.headers}
    for old, new in edits:
        assert any(old in t for t in texts.values()), old
        texts = {n: t.replace(old, new) for n, t in texts.items()}
    return build_text(op, graph, plan, texts.pop(""), texts, isa=isa, structure=structure)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attention", "attention_backward"])
@pytest.mark.parametrize("blocking", list(BLOCKINGS))
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_blocks_change_no_bit(name: str, blocking: str, isa: Isa) -> None:
    """The expression that is evaluated, at every element: no block size shows in it. On any processor, as a structure
    build has no wide instruction in it."""
    if (blocking, isa) == ("panels twice as wide", "avx512"):
        with pytest.raises(CompileError, match="such panels fit into the workspace"):
            altered(name, BLOCKINGS[blocking], structure=True, isa=isa)
        return
    kernel = altered(name, BLOCKINGS[blocking], structure=True, isa=isa)
    for shape in SIZES:
        limit = cases.draw(kernel.operator, kernel.graph.inputs[-1], "normal", shape, 3)
        found = run_structure(kernel, shape, dict(limit=limit), dict(scale=SCALE), 3)
        assert found.failure is None and found.compared, f"{shape}: {found.failure}"


@pytest.mark.parametrize("name", ["attention", "attention_backward"])
@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512", "neon"])
def test_instruction_sets_and_threads_change_no_bit(name: str, isa: Any) -> None:
    if isa not in isas_here():
        pytest.skip(f"this machine runs {', '.join(isas_here())}, not {isa}")
    op = ops.get(name)
    kernel = host_kernel(op, dtype="f16", isa=isa)
    for shape in (Sizes(37, 29, 19), Sizes(18, 70, 9, 3)):
        case = cases.seeded(op, kernel.graph, "normal", shape, 4)
        found = run_numbers(kernel, case, None, 2)  # one thread, and as many as are drawn
        assert found.failure is None and found.layouts[0] == "plain, 1 thread" and len(set(found.layouts)) == 4


def test_sixteen_lanes_evaluate_the_definition_on_any_processor() -> None:
    """A structure build for AVX-512 has no wide instruction in it."""
    for name in ("attention", "attention_backward"):
        kernel = host_kernel(ops.get(name), "f16", isa="avx512", structure=True)
        for shape in (Sizes(65, 70, 33), Sizes(33, 13, 5, 2), Sizes(1, 1, 1)):
            limit = cases.draw(kernel.operator, kernel.graph.inputs[-1], "normal", shape, 3)
            assert run_structure(kernel, shape, dict(limit=limit), dict(scale=SCALE), 3).failure is None


def test_memory_does_not_grow_with_queries_times_keys() -> None:
    """That of a kernel does not know how many queries there are, but for the levels of the tree above sums over them;
    and a call takes no other that is large."""
    keys, dim = 1000, 64
    forward, backward = (host_kernel(ops.get(n), dtype="f16") for n in ("attention", "attention_backward"))
    few, many = (forward.workspace_bytes([Sizes(r, keys, dim, 8)], 2) for r in (64, 1 << 20))
    assert few == many
    assert few <= 2 * 4 * (keys + 64) * (2 * (dim + 80) + 2 * 32)  # packed keys and values, panels
    few, many = (backward.workspace_bytes([Sizes(r, keys, dim, 8)], 2) for r in (64, 1 << 20))
    levels = 2 * 2 * 4 * (keys + 64) * (dim + 80)  # one level of the trees above dk and dv, of two threads
    assert many <= few + 10 * levels
    q, k, v = drawn(F16, 1, 1, 3000, 3000, 8)
    ops.attention(q, k, v, scale=SCALE)
    tracemalloc.start()
    ops.attention(q, k, v, scale=SCALE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3000 * 3000


# ------------------------------------------------------------------ calls
def test_views_and_results_of_the_callers_own() -> None:
    x = noise(1, 2, 11, 3 * 4 * 6, dtype=F16)  # of a batch the positions, of each the heads of q, k and v
    q, k, v = (x.reshape(2, 11, 3, 4, 6)[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    want = ops.attention(*map(np.ascontiguousarray, (q, k, v)), scale=SCALE)
    assert all(map(same_bits, ops.attention(q, k, v, scale=SCALE), want))
    one = ops.attention(q[:1], k[:1], v[:1], scale=SCALE, copy=False)  # of one sentence heads have a stride
    assert same_bits(one[0], want[0][:1])
    with pytest.raises(ArgumentError, match=r"^q: strides .* need a copy; accepted with copy=False"):
        ops.attention(q, k, v, scale=SCALE, copy=False)
    out = np.empty((2, 4, 11, 6), np.float16)
    got = ops.attention(q, k, v, scale=SCALE, out=(out, None, None))
    assert got[0] is out and same_bits(out, want[0]) and same_bits(got[1], want[1])


ONES = np.ones((4, 5, 8), np.float16)
LIMIT = np.full((4, 5), 5, np.int32)
WRONG: list[tuple[Any, str]] = [
    (lambda: ops.attention(ONES, ONES, ONES), "missing the scalar scale"),
    (lambda: ops.attention(ONES[0, 0], ONES, ONES, scale=1.0), "q: shape (8,); accepted: 2 dimensions or more"),
    (lambda: ops.attention(ONES, ONES[0], ONES[0], scale=1.0), "k: shape (5, 8); accepted beside q: (heads, keys, 8)"),
    (lambda: ops.attention(ONES, ONES[:, :, :7], ONES, scale=1.0), "k: shape (4, 5, 7); accepted beside q: (heads, ke"),
    (lambda: ops.attention(ONES, ONES[:3], ONES[:3], scale=1.0), "k: shape (3, 5, 8), 3 heads; accepted beside q: a"),
    (lambda: ops.attention(ONES, ONES, ONES[:, :4], scale=1.0), "v: shape (4, 4, 8); accepted beside k: (4, 5, 8)"),
    (lambda: ops.attention(ONES, ONES, ONES.astype(np.float32), scale=1.0), "v: format f32 beside f16; accepted: one"),
    (lambda: ops.attention(ONES, ONES, ONES, LIMIT[:3], scale=1.0), "limit: shape (3, 5); accepted: (5,), of queries"),
    (lambda: ops.attention(ONES, ONES, ONES, LIMIT.astype(np.int16), scale=1.0), "limit: format int16; accepted: i32"),
    (lambda: ops.attention(ONES, ONES, ONES, LIMIT + np.int64(2**40), scale=1.0), "limit[0]=1099511627781 (20 s"),
    (lambda: ops.attention(ONES, ONES, ONES, LIMIT + 1, scale=1.0), "limit[0]=6 (20 such rows); accepted: 0 to 5"),
    (lambda: ops.attention(ONES, ONES, ONES, LIMIT - 6, scale=1.0), "limit[0]=-1 (20 such rows); accepted: 0 to 5"),
    (lambda: ops.attention(ONES, ONES, ONES, scale=1.0, out=ONES), "out: 1 arrays; accepted: 3, for y, top, total"),
    (
        lambda: ops.attention(ONES, ONES, ONES, scale=1.0, out=(ONES[0], None, None)),
        "out (y): shape (5, 8) of float16; accepted: (4, 5, 8) of f16",
    ),
    (lambda: ops.attention(ONES, ONES, ONES, scale=1.0, out=(ONES, None, None)), "out (y): overlaps q"),
]


@pytest.mark.parametrize(("call", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_does_not_fit_is_refused(call: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as error:
        call()
    assert words in str(error.value)


# ------------------------------------------------------------------ what the language refuses
def test_definitions_are_refused_where_they_cannot_be_laid_out() -> None:
    @operator
    def unseen(q: Operand[storage], k: Operand[storage], limit: Rows[i32]) -> Any:
        scores = matmul(q, k, "NT")
        return outputs(y=weighted_sum(scores, k, limit), top=row_max(scores))

    with pytest.raises(DefinitionError, match="row_max of what is not seen; accepted beside a limit"):
        make_plan(unseen.trace("f32"))

    @operator
    def two(q: Operand[storage], k: Operand[storage], limit: Rows[i32]) -> Any:
        scores = matmul(q, k, "NT")
        return outputs(y=weighted_sum(scores, k, limit), z=weighted_sum(scores, q, over="rows"))

    with pytest.raises(DefinitionError, match="weighted sums with several limits; accepted: one input, or none"):
        make_plan(two.trace("f32"))

    @operator
    def mixed(q: Operand[storage], k: Operand[storage], limit: Rows[i32]) -> Any:
        scores = where(column_index() < limit, matmul(q, k, "NT"), 0)
        return outputs(y=weighted_sum(scores, k, limit) + scores)

    with pytest.raises(DefinitionError, match="a K dimension beside rows and columns"):
        mixed.trace("f32")

    @operator
    def over(q: Operand[storage], k: Operand[storage]) -> Any:
        return outputs(y=weighted_sum(matmul(q, k, "NT"), k, over="keys"))

    with pytest.raises(DefinitionError, match=r"over='keys'.*accepted: 'columns' or 'rows'"):
        over.trace("f32")


def test_another_definition_of_the_family() -> None:
    """Linear attention with a square for a kernel: no maximum, a sum of its own, the same kernels."""

    @operator
    def squared(q: Operand[storage], k: Operand[storage], v: Operand[storage], limit: Rows[i32] | None) -> Any:
        scores = matmul(q, k, "NT")
        weights = scores * scores if limit is None else where(column_index() < limit, scores * scores, 0)
        return outputs(y=weighted_sum(weights, v, limit) / (row_sum(weights) + 1))

    q, k, v = drawn(F32, 1, 1, 40, 21, 6)
    y = squared(q, k, v)
    want = bits.evaluate(squared.trace("f32", present=()), dict(q=q[0], k=k[0], v=v[0]), Sizes(40, 21, 6), {})["y"]
    assert same_bits(y[0], want)
