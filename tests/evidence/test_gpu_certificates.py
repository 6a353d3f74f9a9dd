"""Certificates of a run on a GPU, checked again on this machine: inputs drawn and oracle computed from the definition.

The first tests show on certificates of the simulated device that what is checked can fail.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokitai.errors import ArgumentError, UnknownNameError
from tokitai.evidence import archive
from tokitai.lang import FIXED_BITS, Operator
from tokitai.ops import get, registry
from tokitai.verification import verify
from tokitai.verification.again import recomputed, sampled
from tokitai.verification.recheck import recheck
from tokitai.verification.verdict import variants
from tools.gpu_verify import jobs_of

FOLDER = Path(__file__).parents[2] / "evidence" / "cuda"
WANTED = [(o, f) for o in registry().values() for f in o.contract.formats]
SAMPLE = 3


def names(value: object) -> str:
    return str(getattr(value, "name", value))


# ------------------------------------------------------------------ certificates of a GPU
needs_folder = pytest.mark.skipif(not FOLDER.is_dir(), reason="no run on a GPU has been kept yet: evidence/cuda")


@needs_folder
def test_there_is_a_certificate_for_every_operator_and_format() -> None:
    there = {p.name for p in archive.members(FOLDER)}
    assert there, "the folder is empty"
    wanted = {f"{o.name}.{fmt}.cuda.json" for o, fmt in WANTED}
    assert there == wanted, f"missing: {sorted(wanted - there)}; of no operator: {sorted(there - wanted)}"


@needs_folder
@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), WANTED, ids=names)
def test_a_certificate_of_a_gpu_holds(op: Operator, dtype: str) -> None:
    path = FOLDER / f"{op.name}.{dtype}.cuda.json"
    assert recheck(path, op, SAMPLE) == []
    predicate = json.loads(archive.read_bytes(path))["predicate"]
    assert (predicate["dtype"], predicate["target"], predicate["verdict"]) == (dtype, "cuda", "verified")
    assert predicate["device"]["name"] and predicate["compiler"]["kind"] == "nvrtc"
    assert {"structure", "seeded"} <= {c["kind"] for c in predicate["cases"]}
    assert {k["structure"] for k in predicate["kernels"]} == {False, True}


# Products whose blocks are reduced by a matrix unit's steps.
STEPS = FOLDER.parent / "fused16"
TAKE_STEPS = [o for o in registry().values() if any("fused16" in p.accepted for p in o.options)]
NOT_YET = {"attention_backward": "its cases took longer than there was time on a GPU"}
IN_STEPS = [(o, f) for o in TAKE_STEPS for f in ("f16", "bf16") if o.name not in NOT_YET]
# Products in fixed point.
FIXED = tuple(FIXED_BITS)
IN_FIXED = [
    (option, o, f) for option in FIXED for o in TAKE_STEPS for f in o.contract.formats
    if any(option in p.accepted for p in o.options)
]  # fmt: skip


def test_there_is_a_certificate_of_steps_and_of_fixed_point_for_every_product() -> None:
    assert {p.name for p in archive.members(STEPS)} == {f"{o.name}.{fmt}.cuda.json" for o, fmt in IN_STEPS}
    for option in FIXED:
        wanted = {f"{o.name}.{f}.cuda.json" for name, o, f in IN_FIXED if name == option}
        assert {p.name for p in archive.members(STEPS.parent / option)} == wanted and len(wanted) == 39


@pytest.mark.slow
@pytest.mark.parametrize(("option", "op", "dtype"), IN_FIXED, ids=names)
def test_a_certificate_of_fixed_point_holds(option: str, op: Operator, dtype: str) -> None:
    path = STEPS.parent / option / f"{op.name}.{dtype}.cuda.json"
    assert recheck(path, op, SAMPLE) == []
    predicate = json.loads(archive.read_bytes(path))["predicate"]
    assert (predicate["dtype"], predicate["target"], predicate["verdict"]) == (dtype, "cuda", "verified")
    assert predicate["plan"]["accumulator"] == option


def test_one_command_renews_the_certificates_of_a_folder() -> None:
    fixed = [(STEPS.parent / n, f"accumulator={n}") for n in FIXED]
    for folder, option in ((FOLDER, None), (STEPS, "accumulator=fused16"), *fixed):
        made = jobs_of([], "folder", option)
        left = NOT_YET.keys() if folder == STEPS else ()
        names = [f"{n}.{f}.cuda.json" for n, f, _, where in made if where is not None and n not in left]
        assert sorted(names) == sorted(p.name for p in archive.members(folder))
    assert {number for *_, number, _ in jobs_of(["grouped_linear"], "folder", "accumulator=fused16")} == {2}
    others = len(variants(get("grouped_linear"))) - 1
    assert [job[-1] for job in jobs_of(["grouped_linear"], "folder")] == ["folder"] * 3 + [None] * others
    for wrong in ("accumulator=fused", "accumulator", ""):
        with pytest.raises(ArgumentError, match="accepted: NAME=VALUE"):
            jobs_of([], "folder", wrong)
    with pytest.raises(UnknownNameError):
        jobs_of(["no_such_operator"], "folder")


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), IN_STEPS, ids=names)
def test_a_certificate_of_steps_holds(op: Operator, dtype: str) -> None:
    path = STEPS / f"{op.name}.{dtype}.cuda.json"
    assert recheck(path, op, SAMPLE) == []
    predicate = json.loads(archive.read_bytes(path))["predicate"]
    assert (predicate["dtype"], predicate["target"], predicate["verdict"]) == (dtype, "cuda", "verified")
    assert predicate["plan"]["accumulator"] == "fused16"
    assert any("Hopper's warpgroups were compared by numbers alone" in s for s in predicate["non_claims"])


# ------------------------------------------------------------------ the check itself
Made = tuple[Operator, Path]


@pytest.fixture(scope="module", params=["silu", "global_norm", "cross_entropy_with_grad"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A certificate of the cpu: the same form, in seconds."""
    op = get(request.param)
    folder = tmp_path_factory.mktemp("certificates")
    verdict = verify(op, dtype="f16", variant=variants(op)[0], out=folder)
    assert verdict.certificate is not None
    return op, verdict.certificate


def altered(made: Made, tmp_path: Path, change: Callable[[Any], object]) -> list[str]:
    """What is found where the predicate is another one, with every case looked at."""
    statement = copy.deepcopy(json.loads(made[1].read_text()))
    change(statement["predicate"])
    path = tmp_path / "altered.json"
    path.write_text(json.dumps(statement))
    return recheck(path, made[0], sample=10_000)


@pytest.mark.slow
def test_every_case_of_a_certificate_can_be_computed_again(made: Made) -> None:
    assert recheck(made[1], made[0], sample=10_000) == []


@pytest.mark.slow
@pytest.mark.parametrize("digests", ["input_digests", "oracle_digests"])
def test_one_wrong_digest_is_found(made: Made, tmp_path: Path, digests: str) -> None:
    kinds = {c["kind"] for c in json.loads(made[1].read_text())["predicate"]["cases"]}
    assert {"structure", "seeded"} < kinds
    for kind in kinds:

        def change(p: Any, kind: str = kind) -> None:
            case = next(c for c in p["cases"] if c["kind"] == kind)
            name = sorted(case[digests])[0]
            for d in (digests, "output_digests" if digests == "oracle_digests" else digests):
                case[d][name] = "0" * 64  # as consistent as a wrong run would have it

        (found,) = altered(made, tmp_path, change)
        assert found.startswith(f"case {kind}/") and f"another digest of {digests[:-8].replace('_', '')} " in found


@pytest.mark.slow
def seeded(predicate: Any) -> Any:
    """A case of numbers, and a small one: it is recomputed."""
    return min((c for c in predicate["cases"] if c["kind"] == "seeded"), key=lambda c: c["rows"] * c["cols"])


@pytest.mark.slow
def test_what_else_is_found(made: Made, tmp_path: Path) -> None:
    def of(change: Callable[[Any], object]) -> str:
        return "; ".join(altered(made, tmp_path, change))

    assert "another definition" in of(lambda p: p["operator"].update(graph_digest="1" * 64))
    assert "it is about softmax" in of(lambda p: p["operator"].update(name="softmax"))
    assert "no graph of" in of(lambda p: seeded(p).update(kind="hard", name="one that is not there"))
    assert "dtype" in of(lambda p: p.update(dtype="f64"))
    assert "another definition" in of(lambda p: p.update(dtype="f32"))
    assert "verdict" in of(lambda p: p.update(verdict="undecided"))
    assert "another digest" in of(lambda p: [c.update(seed=(c["seed"] or 0) + 1) for c in p["cases"]])
    assert recheck(tmp_path / "nowhere.json", made[0])


def test_a_sample_takes_every_kind_and_follows_from_its_seed() -> None:
    given = [dict(kind=k, rows=1, cols=i) for k in ("seeded", "structure", "yours", "hard") for i in range(20)]
    given.append(dict(kind="huge", rows=1 << 20, cols=1 << 20))
    one, other = sampled(given, 6, 1), sampled(given, 6, 2)
    assert {c["kind"] for c in one} == {"seeded", "structure", "hard"} and len(one) == 6
    assert one == sampled(given, 6, 1) != other
    assert len({id(c) for c in sampled(given, 1000, 3)}) == 60


def test_a_kind_that_there_is_not_is_no_case() -> None:
    op = get("silu")
    case = dict(kind="guessed", name="normal", rows=3, cols=4, seed=0)
    assert recomputed(op, op.trace("f16"), case) is None
