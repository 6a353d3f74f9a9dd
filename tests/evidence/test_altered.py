"""Whatever is altered in a certificate, it is not called more than was checked of it.

`TOKITAI_ALTERED` says how many statements are altered at random; by default there are few, for the loop while editing.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sample import VALUES, altered, at_place, paths

from tokitai.emit.counters import proved
from tokitai.lang import Graph, Operator
from tokitai.ops import get, registry
from tokitai.verification import again, suite, verify
from tokitai.verification.recheck import AS_STATED, check_file
from tokitai.verification.variant import variants

Statement = dict[str, Any]
CASES = {"silu": "3x17", "softmax": "3x17", "matmul": "3x5x7", "layer_norm": "3x17", "global_norm": "1x17"}
WORDS = ("recomputed", "partly recomputed")
COUNT = int(os.environ.get("TOKITAI_ALTERED", "1500"))
SUITES = range(2, suite.VERSION + 1)  # that draw from a seed: a case that is asked for alone is the same in each
SAID = {*AS_STATED, "tiles"}  # of the plan of a product for GPUs: which tiles were used


@pytest.fixture(autouse=True, scope="module")
def remembered() -> Iterator[None]:
    """Each case is recomputed once."""
    known: dict[object, again.Recomputed | None] = {}
    whole = again.recomputed

    def once(
        operator: Operator, graph: Graph, case: Any, target: str = "cpu", version: int = 2
    ) -> again.Recomputed | None:
        key = (graph.digest, *(case.get(n) for n in ("kind", "name", *again.WHOLE)), target)
        if key not in known:
            known[key] = whole(operator, graph, case, target, version)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(again, "recomputed", once)
        yield


@pytest.fixture(scope="module")
def statements(tmp_path_factory: pytest.TempPathFactory) -> list[Statement]:
    """One case each, as `--case` asks for; each is recomputed as it is."""
    folder = tmp_path_factory.mktemp("certificates")
    made = []
    for name, shape in CASES.items():
        v = verify(get(name), dtype="f16", case=f"seeded/normal@{shape}#0", variant=variants(get(name))[0], out=folder)
        assert v.certificate is not None
        found = check_file(v.certificate, rerun=0)
        assert found.outcome == "recomputed" and found.as_stated, found.problems
        made.append(json.loads(v.certificate.read_text()))
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Statement:
    """The whole suite of an operator."""
    verdict = verify(get("silu"), dtype="f16", out=tmp_path_factory.mktemp("whole"))
    assert verdict.certificate is not None
    found = check_file(verdict.certificate, rerun=0)
    assert found.outcome == "partly recomputed" and found.rerun is not None and found.cases is not None, found.problems
    assert found.cases - found.rerun["cases"] == 2, "two are large: what is tiled, with NaN and without"
    made: Statement = json.loads(verdict.certificate.read_text())
    return made


def asked(statement: Statement, folder: Path) -> str:
    path = folder / "altered.json"
    path.write_text(json.dumps(statement))
    return check_file(path, rerun=0).outcome


def told(value: Any) -> Any:
    """A JSON value without what only the signer knows, and without null, which is as good as nothing. 3 and 3.0 are the
    same, 1 and true are not."""
    if isinstance(value, dict):
        left_out = SAID | ({"version"} if value.get("only") is not None and value.get("version") in SUITES else set())
        return {k: told(v) for k, v in value.items() if k not in left_out and v is not None}
    if isinstance(value, list):
        return [told(v) for v in value]
    return (type(value) is bool, value)


def others(value: Any) -> list[Any]:
    """What is put in place of a value: of another type, nearly the same, a little less, a little more."""
    found: list[Any] = [*VALUES, ...]
    if isinstance(value, bool):
        found.append(not value)
    elif isinstance(value, int | float):
        found += [value + 1, value - 1, value * 2, -value, 0.0, 1e30]
    elif isinstance(value, str):
        found += [value + "x", value[:-1], value[::-1], value.replace("1", "2"), value.replace("all", "most")]
    elif isinstance(value, list):
        found += [value[:-1], value[1:], value * 2, value[::-1] + value[:1], [*value, "everything is verified"]]
    elif isinstance(value, dict):
        found += [{**value, "more": 1}, dict(list(value.items())[1:])]
    return found


@pytest.mark.slow
def test_every_field(statements: list[Statement], tmp_path: Path) -> None:
    """Each place of a statement, with everything else in it."""
    tried: Counter[str] = Counter()
    for statement in statements[:: 1 if COUNT > 50_000 else 3]:
        for at in paths(statement):
            if not at:
                continue
            for new in others(at_place(statement, at)):
                made = altered(statement, at, new)
                outcome = asked(made, tmp_path)
                tried[outcome] += 1
                assert outcome not in WORDS or told(made) == told(statement), (at, new)
    assert tried["invalid"] > 3000 and tried["recomputed"] > 20


@pytest.mark.slow
def test_many_at_once(statements: list[Statement], tmp_path: Path) -> None:
    """Several places of a statement, drawn; many of the results agree with themselves."""
    rng, tried = random.Random(COUNT), Counter[str]()
    for _ in range(COUNT):
        statement = rng.choice(statements)
        made, places = copy.deepcopy(statement), [at for at in paths(statement) if at]
        for at in rng.choices(places, k=rng.randint(1, 3)):
            try:
                made = altered(made, at, rng.choice(others(at_place(made, at))))
            except (LookupError, TypeError):
                continue  # what lay there was replaced
        outcome = asked(made, tmp_path)
        tried[outcome] += 1
        assert outcome not in WORDS or told(made) == told(statement), made
    print(dict(tried))
    assert tried["invalid"] > COUNT / 2


UNTRUE = {
    "claims of everything": lambda p: p["claims"].append("It is right for all inputs on every device."),
    "another number of elements": lambda p: p["claims"].__setitem__(0, "9" + p["claims"][0]),
    "no non-claims": lambda p: p.update(non_claims=["None."]),
    "errors of zero": lambda p: (
        p["error"].update(max_ulp_error=0.0, bound=0.0),
        [c.update(max_ulp_error=0.0) for c in p["cases"] if c["max_ulp_error"]],
    ),
    "a smaller bound": lambda p: p["error"].update(bound=p["error"]["max_ulp_error"]),
    "errors against their condition of zero": lambda p: [
        said.update(max_error=0.0, histogram=[said["elements"], *[0] * 30]) for said in p["error"]["condition"].values()
    ],
    "a smaller bound against their condition": lambda p: [
        said.update(bound=said["max_error"], probabilistic_bound=said["max_error"])
        for said in p["error"]["condition"].values()
    ],
    "another histogram": lambda p: [
        said["histogram"].__setitem__(slice(0, 2), [sum(said["histogram"][:2]), 0])
        for said in p["error"]["condition"].values()
    ],
    "errors against another format": lambda p: p["error"].update(condition={"f32": p["error"]["condition"]["f16"]}),
    "no errors against their condition": lambda p: p["error"].update(condition=None),
    "another device": lambda p: p.update(target="cuda", device=dict(name="NVIDIA H200", arch="sm_90")),
    "a device without the instruction set": lambda p: p["device"].update(isas=["scalar"]),
    "-ffast-math": lambda p: p["flags"].append("-ffast-math"),
    "-Ofast": lambda p: p["flags"].append("-Ofast"),
    "a flag that nobody knows": lambda p: p["flags"].append("-fplugin=x.so"),
    "no word on contraction": lambda p: p["flags"].remove("-ffp-contract=off"),
    "no word on machine code": lambda p: p.pop("machine_code"),
    "other counts": lambda p: p["machine_code"][0]["counts"].update(divisions=7),
    "machine code of another kernel": lambda p: p["machine_code"][0].update(binary="0" * 64),
    "machine code of fewer kernels": lambda p: p["machine_code"].pop(),
    "a finding": lambda p: p["machine_code"][0]["findings"].append("work:1: vrcp14ps: is an approximation"),
    "an excuse": lambda p: p["machine_code"][0].update(listing="", counts={}, missing="no objdump is on PATH"),
    "an excuse beside a listing": lambda p: p["machine_code"][0].update(missing="no objdump is on PATH"),
    "a contract of 1e30": lambda p: p["operator"]["contract"].update(max_cols=int(1e30)),
    "a wider domain": lambda p: p["operator"]["contract"].update(domain="everything"),
    "another plan": lambda p: p["plan"].update({next(iter(p["plan"])): 77}),
    "hard cases removed": lambda p: p.update(cases=[c for c in p["cases"] if c["kind"] != "hard"]),
    "a kind removed, and its claim": lambda p: p.update(
        cases=[c for c in p["cases"] if c["kind"] != "exhaustive"], claims=[c for c in p["claims"] if "65,536" not in c]
    ),
    "a shape removed": lambda p: p["cases"].pop(),
    "a case twice": lambda p: p["cases"].append(p["cases"][-1]),
    "a proof at more shapes": lambda p: p["proofs"][0].update(
        statement=p["proofs"][0]["statement"].replace(" of ", " of 7777x7777, ", 1)
    ),
    "a proof of everything": lambda p: p["proofs"].append(dict(statement="It is right.", status="proved", how="known")),
    "more elements compared": lambda p: p["cases"][0].update(compared=10**9),
    "other layouts": lambda p: p["cases"][0]["layouts"].append("drawn 9, 1000 threads"),
    "no suite": lambda p: p.pop("suite"),
    "an older suite": lambda p: p["suite"].update(version=2.0, seed=7),
    "another seed": lambda p: [c.update(seed=3) for c in p["cases"]],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", UNTRUE)
def test_what_is_untrue_of_a_whole_suite(whole: Statement, tmp_path: Path, what: str) -> None:
    made = copy.deepcopy(whole)
    UNTRUE[what](made["predicate"])  # type: ignore[no-untyped-call]
    assert made != whole
    assert asked(made, tmp_path) == "invalid", what


def of_every_count(predicate: dict[str, Any], sums: dict[str, str], status: str = "proved") -> None:
    """All that a certificate would say of its kernels if they joined pending sums so."""
    for kernel in predicate["kernels"]:
        kernel["sums"] = sums
    said = [p for p in predicate["proofs"] if " joins pending sums " in p["statement"]]
    like = said[0] if said else dict(
        statement=JOINS, status="proved",
        how="induction over counts below 2**33, its steps by a solver, of the definition with the digest stated",
    )  # fmt: skip
    made = [like | dict(statement=JOINS.replace("it", place, 1), status=status) for place in sorted(sums)]
    predicate["proofs"] = made + [p for p in predicate["proofs"] if p not in said]
    start = "for every count, proved, where pending sums are joined by "
    (at,) = (i for i, c in enumerate(predicate["claims"]) if c.startswith("Order of sums: "))
    known = predicate["claims"][at].rpartition("; else ")[2].removeprefix("Order of sums: ")
    by = f"{start}{', '.join(sorted(sums))}; else " if sums else ""
    predicate["claims"][at] = f"Order of sums: {by}{known}"


JOINS = "order of sums, for every count: it joins pending sums to the balanced tree over blocks"
TREE, CHAIN = "cpu/rows.h tree_over", "cpu/products.h join_chain"
UNPROVED = {
    "another definition": lambda p: of_every_count(p, {TREE: "0" * 64}),
    "a place on a GPU": lambda p: of_every_count(p, {i: known(i) for i in (TREE, "gpu/rows.h BinaryCounter")}),
    "a place that its source does not reach": lambda p: of_every_count(p, {i: known(i) for i in (TREE, CHAIN)}),
    "no place": lambda p: of_every_count(p, {}),
    "no word on places, and yet proved": lambda p: [k.pop("sums") for k in p["kernels"]],
    "no word on the places of one kernel": lambda p: p["kernels"][0].pop("sums"),
    "all trees": lambda p: p["proofs"][-1].update(status="proved"),
    "no word on other trees": lambda p: p["proofs"].pop(),
    "a claim of every count alone": lambda p: p["claims"].append("Order of sums: for every count, proved."),
}  # fmt: skip


def known(place: str) -> str:
    return next(iter(proved()[place]))


@pytest.mark.parametrize("what", UNPROVED)
def test_an_order_of_sums_that_was_not_proved(statements: list[Statement], tmp_path: Path, what: str) -> None:
    made = copy.deepcopy(next(s for s in statements if s["predicate"]["operator"]["name"] == "global_norm"))
    as_it_is = copy.deepcopy(made)
    of_every_count(as_it_is["predicate"], {TREE: known(TREE)})
    assert as_it_is == made and asked(made, tmp_path) == "recomputed"
    UNPROVED[what](made["predicate"])  # type: ignore[no-untyped-call]
    assert made != as_it_is and asked(made, tmp_path) == "invalid"


def test_an_order_of_sums_that_its_source_does_not_reach(statements: list[Statement], tmp_path: Path) -> None:
    """Where no sum is joined, a certificate that is in itself consistent is refused."""
    made = copy.deepcopy(next(s for s in statements if s["predicate"]["operator"]["name"] == "layer_norm"))
    of_every_count(made["predicate"], {})
    assert asked(made, tmp_path) == "recomputed"
    of_every_count(made["predicate"], {TREE: known(TREE)})
    assert asked(made, tmp_path) == "invalid"


def test_what_cannot_be_checked_is_told(statements: list[Statement], tmp_path: Path) -> None:
    """Another device of the same kind is believed, and that it is only believed is said."""
    made = copy.deepcopy(statements[0])
    made["predicate"]["device"]["cpu"] = "a faster one"
    (tmp_path / "x.json").write_text(json.dumps(made))
    found = check_file(tmp_path / "x.json", rerun=0)
    assert found.outcome == "recomputed" and {"device", "output_digests", "compiler"} <= set(found.as_stated)
    assert check_file(tmp_path / "x.json").as_stated == []
    assert set(CASES) <= registry().keys()
