"""Sections in memory: replicas of a run, names that are shared, tensors of torch, what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from shards import model, reference_digest, rows

from tokitai.errors import ArgumentError, UnknownNameError
from tokitai.glue import Glued, Obstruction, Section, check, digest, glue, renamed, replicas


def test_replicas_that_agree() -> None:
    assert check(replicas({"0": model(), "1": model(), "2": model()})) is None


def test_replicas_that_differ_fall_into_classes() -> None:
    states = {str(rank): model() for rank in range(6)}
    for rank in "14":
        states[rank]["weight"].view(np.uint32)[9, 3] ^= 1
    states["4"]["bias"].view(np.uint16)[5] ^= 0x8000
    found = check(replicas(states))
    assert found is not None
    assert found.classes == (("0", "2", "3", "5"), ("1",), ("4",))
    seen = {(d.tensor, d.index, d.ranks, d.bits, d.count) for d in found.disagreements}
    nan = ("0x7fa12345", "0x7fa12344")
    assert {s[:4] for s in seen if s[0] == "weight"} == {
        ("weight", (9, 3), ("0", "1"), nan), ("weight", (9, 3), ("0", "4"), nan),
    }  # fmt: skip
    assert {s[1:3] for s in seen if s[0] == "bias"} == {((5,), ("0", "4"))}
    assert "weight[9, 3]: 0x7fa12345 in rank 0, 0x7fa12344 in rank 1" in str(found)


def test_zeros_of_both_signs_are_different_bits() -> None:
    found = check(replicas({"a": {"x": np.array([0.0])}, "b": {"x": np.array([-0.0])}}))
    assert found is not None and found.disagreements[0].bits == ("0x0000000000000000", "0x8000000000000000")


def test_all_elements_that_differ_are_counted_over_blocks() -> None:
    one, other = np.zeros(3_000_000, np.uint16), np.zeros(3_000_000, np.uint16)
    other[[5, 600_000, 2_999_999]] = 1
    (found,) = check(replicas({"a": {"x": one}, "b": {"x": other}})).disagreements  # type: ignore[union-attr]
    assert (found.index, found.count) == ((5,), 3)


def test_a_weight_that_two_stages_share() -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    sections = replicas({"first": {"embedding": table}, "last": {"head": table.copy()}})
    assert len(glue(sections).tensors) == 2  # type: ignore[union-attr]
    joined = renamed(sections, {"head": "embedding"})
    assert glue(joined).digest == digest({"embedding": table})  # type: ignore[union-attr]
    sections[1].values[2, 1] = 7
    assert str(check(joined)).startswith("embedding[2, 1]: 0x41100000 in rank first, 0x40e00000 in rank last")


def test_a_wrong_type_and_a_wrong_shape_are_named() -> None:
    states = {rank: {"w": np.zeros((4, 3), np.float32)} for rank in "012"}
    states["1"]["w"] = states["1"]["w"].astype(np.float16)
    states["2"]["w"] = np.zeros((4, 4), np.float32)
    found = glue(replicas(states))
    assert isinstance(found, Obstruction)
    said = {(c.what, c.rank, c.found, c.expected) for c in found.conflicts}
    assert said == {("dtype", "1", "F16", "F32"), ("shape", "2", "[4, 4]", "[4, 3]")}
    assert check(replicas(states)) == found


def test_a_section_beyond_its_tensor() -> None:
    parts = [Section(r, "w", np.zeros((2, 2), np.uint8), (at, 0), (4, 2)) for r, at in (("0", 0), ("1", 3))]
    found = glue(parts)
    assert isinstance(found, Obstruction)
    assert [(c.rank, c.box) for c in found.conflicts] == [("1", ((3, 5), (0, 2)))]
    assert [(g.index, g.count) for g in found.gaps] == [((2, 0), 2)]


def test_a_tensor_of_a_shape_that_no_memory_has_is_a_gap() -> None:
    huge = (2**40, 2**15)
    parts = [Section(r, "w", np.full((2, 2), i, np.uint8), (0, 0), huge) for i, r in enumerate("ab")]
    found = glue(parts)
    assert isinstance(found, Obstruction)
    assert found.gaps[0].count == 2**55 - 4 and found.disagreements[0].count == 4


def test_shapes_that_nobody_gives_are_reported() -> None:
    array = np.arange(10, dtype=np.uint8)
    result = glue([Section("0", "w", array[:4], (0,)), Section("1", "w", array[4:], (4,))])
    assert isinstance(result, Glued) and result.inferred == ("w",)
    assert glue(rows({"w": array}, 2)).inferred == ()  # type: ignore[union-attr]


def test_tensors_of_torch_have_the_bits_of_numpy() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    array = rng.integers(0, 2**16, (5, 6), np.uint16)
    of_torch = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    states = {"numpy": {"w": array.view(ml_dtypes.bfloat16).T}, "torch": {"w": of_torch.T}}
    assert check(replicas(states)) is None
    assert digest(states["torch"]) == reference_digest({"w": array.view(ml_dtypes.bfloat16).T})


def test_the_digest_of_whole_tensors_is_that_of_their_shards() -> None:
    for ranks in (1, 3, 8):
        result = glue(rows(model(), ranks))
        assert isinstance(result, Glued), str(result)
        assert result.digest == digest(model()) == reference_digest(model())


def test_an_obstruction_can_be_pickled() -> None:
    found = check(replicas({"a": {"x": np.zeros(2)}, "b": {"x": np.ones(2)}}))
    assert pickle.loads(pickle.dumps(found)) == found


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Section("0", "w", np.zeros((2, 2)), (0,)), "accepted: 2 integers"),
        (lambda: Section("0", "w", np.zeros(2), (-1,)), "none negative"),
        (lambda: Section("0", "w", np.zeros(2), (0,), (-2,)), "none negative"),
        (lambda: Section("0", "w", [1, 2]), "accepted: arrays of NumPy"),
        (lambda: Section("0", "w", np.array(["a"])), "no type of elements named '<U1'"),
    ],
)
def test_what_is_no_section_is_refused(make: Callable[[], Section], said: str) -> None:
    with pytest.raises((ArgumentError, UnknownNameError)) as caught:
        make()
    assert said in str(caught.value)
