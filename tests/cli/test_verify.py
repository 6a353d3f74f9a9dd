"""`tokitai verify`: verdicts, exit codes, JSON, certificates, replay."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import KEYS, Command

from tokitai import errors
from tokitai.cli.output import verdict_text
from tokitai.evidence.check import check
from tokitai.ops import get, registry
from tokitai.verification import Verdict, batch, verdict
from tokitai.verification.conditioned import ByFormat, Conditioned
from tokitai.verification.run import CaseResult

CASE = "seeded/normal@3x17#0"


def break_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the emitted text adds where the definition multiplies."""
    real = verdict.verify

    def edit(text: str) -> str:
        return re.sub(r"(const auto v\d+ = )mul\(", r"\1add(", text)

    def wrong(*args: Any, **kwargs: Any) -> Verdict:
        return real(*args, edit=edit, **kwargs)

    monkeypatch.setattr(batch, "verify", wrong)


def test_one_operator_in_one_format_is_one_object(tokitai: Command, small: str) -> None:
    done = tokitai.process("verify", small, "--dtype", "f16", "--without", "w", "--json")
    assert (done.code, set(done.object)) == (0, KEYS), done
    found = done.object
    assert (found["operator"], found["dtype"], found["device"], found["shape"]) == ("small", "f16", "cpu", None)
    assert found["verdict"] == "verified"
    assert found["cases"] > 80
    assert {"structure", "exhaustive", "seeded"} <= set(found["evidence"])
    assert found["max_ulp_error"] == 0, "doubling is exact, or overflows as the exact value does"
    assert found["failure"] is None
    assert found["certificate"] == str(tokitai.folder / "state" / "tokitai" / "certificates" / "small.f16.cpu.json")
    assert check(found["certificate"]) == []
    assert Path(found["certificate"]).with_suffix(".md").is_file()


@pytest.mark.slow
def test_without_a_format_all_of_the_contract_are_tried(tokitai: Command, small: str) -> None:
    done = tokitai("verify", small, "--without", "w", "--json", "--out", "here")
    assert done.code == 0
    assert set(done.object) == {"results", "verdict"}
    assert [r["dtype"] for r in done.object["results"]] == ["f16", "bf16", "f32"]
    assert all(set(r) == KEYS for r in done.object["results"])
    assert sorted(p.name for p in (tokitai.folder / "here").glob("*.json")) == [
        "small.bf16.cpu.json", "small.f16.cpu.json", "small.f32.cpu.json",
    ]  # fmt: skip


def test_results_go_to_standard_output_and_notes_to_standard_error(tokitai: Command, small: str) -> None:
    done = tokitai("verify", small, "--dtype", "f32", "--without", "w", "--out", "here")
    assert done.code == 0
    (line,) = done.out.splitlines()
    assert line.split()[:3] == ["small", "f32", "verified"]
    assert done.err == "certificates: here\n"


@pytest.mark.slow
def test_a_shape_that_is_asked_for_is_tried(tokitai: Command, small: str) -> None:
    done = tokitai("verify", small, "--dtype", "f32", "--shape", "cols=77, rows=9", "--without", "w", "--json")
    assert done.object["shape"] == {"rows": 9, "cols": 77}
    cases = json.loads(Path(done.object["certificate"]).read_text())["predicate"]["cases"]
    assert {c["kind"] for c in cases if (c["rows"], c["cols"]) == (9, 77)} == {"structure", "seeded"}


def test_one_case_alone_replaces_no_certificate(tokitai: Command, small: str) -> None:
    done = tokitai("verify", small, "--dtype", "f32", "--without", "w", "--case", CASE, "--json")
    assert (done.code, done.object["evidence"]) == (0, ["seeded"])
    assert 1 <= done.object["cases"] < 5
    assert done.object["certificate"] is None
    assert not (tokitai.folder / "state").exists()


def test_an_option_selects_the_graph(tokitai: Command, small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[batch.Job] = []
    real = batch.verify_many

    def spy(jobs: list[batch.Job], **kwargs: Any) -> list[Verdict]:
        seen.extend(jobs)
        return real(jobs, **kwargs)

    monkeypatch.setattr("tokitai.cli.app.verify_many", spy)
    words = ("--dtype", "f32", "--case", CASE, "--json")
    assert tokitai("verify", small, *words, "--option", "sign=minus", "--without", "w").code == 0
    (job,) = seen
    assert job.variant == verdict.Variant(frozenset(), (("sign", "minus"),))


def test_your_own_tensors_are_tried(tokitai: Command, small: str) -> None:
    np.savez(tokitai.folder / "mine.npz", x=np.linspace(-3, 3, 40).reshape(5, 8), w=np.arange(8.0), by=np.float64(3))
    done = tokitai("verify", small, "--dtype", "bf16", "--inputs", "mine.npz", "--option", "sign=plus", "--json")
    assert done.code == 0
    assert "yours" in done.object["evidence"]
    cases = json.loads(Path(done.object["certificate"]).read_text())["predicate"]["cases"]
    (mine, *_) = [c for c in cases if c["kind"] == "yours"]
    assert (mine["name"], mine["rows"], mine["cols"], mine["scalars"]) == ("mine.npz", 5, 8, {"by": 3.0})


def test_a_wrong_kernel_is_refuted_with_a_line_that_replays_it(
    tokitai: Command, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_kernels(monkeypatch)
    done = tokitai("verify", small, "--dtype", "f32", "--isa", "scalar", "--without", "w", "--json", "--out", "here")
    assert (done.code, done.object["verdict"]) == (1, "refuted"), done
    assert check(done.object["certificate"]) == []
    line, _, says = done.object["failure"].partition(": ")
    program, *words = shlex.split(line)
    assert (program, words[:4]) == ("tokitai", ["verify", small, "--isa", "scalar"])
    again = tokitai(*words, "--json")
    assert (again.code, again.object["cases"]) == (1, 1), "it stops where the line says"
    assert again.object["failure"] == f"{line}: {says}"
    monkeypatch.undo()
    monkeypatch.chdir(tokitai.folder)
    assert tokitai(*words).code == 0, "the line does not depend on the fault that it shows"


def test_all_takes_every_operator_and_format(tokitai: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Callable[..., None]] = {}

    def pretend(jobs: list[batch.Job], **kwargs: Any) -> list[Verdict]:
        told.update(jobs=jobs, **kwargs)
        kinds = {("softmax", "bf16"): "undecided"}
        return [
            Verdict(j.operator.name, j.dtype, "cpu", None, kinds.get((j.operator.name, j.dtype), "verified"))  # type: ignore[arg-type]
            for j in jobs
        ]

    monkeypatch.setattr("tokitai.cli.app.verify_many", pretend)
    done = tokitai("verify", "--all", "--json", "--seed", "5")
    everything = [(o.name, f) for o in registry().values() for f in o.contract.formats]
    assert [(r["operator"], r["dtype"]) for r in done.object["results"]] == everything
    assert (done.code, done.object["verdict"], told["seed"]) == (3, "undecided", 5)


@pytest.mark.parametrize(
    ("found", "together"),
    [("vv", "verified"), ("vu", "undecided"), ("uv", "undecided"), ("vr", "refuted"), ("ru", "refuted")],
)
def test_several_verdicts_together(found: str, together: str) -> None:
    names = {"v": "verified", "u": "undecided", "r": "refuted"}
    assert batch.overall(Verdict("o", "f32", "cpu", None, names[c]) for c in found) == together  # type: ignore[arg-type]


def test_no_verdict_is_no_verification() -> None:
    with pytest.raises(errors.UsageError, match="nothing was verified"):
        batch.overall([])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, ""),
        ({"f16": Conditioned(7, 0.75, 0.5, 1.5)}, "; 0.75 units, bound 1.5"),
        ({"bf16": Conditioned(7, 9.0, 9.0, 9.5), "f16": Conditioned(7, 0.123456, 0.1, 2.0, unbounded=3)},
         "; 0.1235 units, bound 2*"),
        ({"f32": Conditioned(7, 3.0, 3.0, 4.0)}, "; 3 units, bound 4"),
    ],
)  # fmt: skip
def test_a_line_has_the_error_and_its_bound_against_the_condition(found: ByFormat, said: str) -> None:
    """Of results in the format under test if there are any; a star where elements have no bound."""
    result = CaseResult("seeded", "normal", (3, 5), 0, "", {}, max_ulp=0.5, conditioned=found)
    assert verdict_text(Verdict("o", "f16", "cpu", None, "verified", results=[result])).endswith(f"error 0.5 ulp{said}")


def test_numbers_that_json_lacks_are_strings(tokitai: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Verdict, "max_ulp_error", float("inf"))
    done = tokitai("verify", "softmax", "--dtype", "f32", "--case", "seeded/normal@1x1#0", "--json")
    assert done.object["max_ulp_error"] == "inf"


def test_nothing_is_compiled_before_every_argument_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "kernel_on", lambda *_: pytest.fail("compiled"))
    monkeypatch.setattr(batch, "verify", lambda *_, **__: pytest.fail("verified"))
    good = batch.Job(get("softmax"), "f16")
    missing = batch.Job(get("softmax"), "f16", (Path("missing.npz"),))
    with pytest.raises(errors.InputFileError):
        batch.verify_many([good, missing])
    with pytest.raises(errors.ArgumentError):
        batch.verify_many([good], shape=dict(rows=-1, cols=4))
    with pytest.raises(errors.UnknownNameError):
        batch.verify_many([good], device="tpu")
    with pytest.raises(errors.UnknownNameError):
        batch.verify_many([good, batch.Job(get("softmax"), "f64")])


def test_kernels_are_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both builds of every variant are in the cache, or under way, before the oracle asks for them."""
    asked: list[tuple[str, frozenset[str], bool]] = []

    def spy(device: str, operator: Any, graph: Any, structure: bool, *rest: Any) -> None:
        asked.append((graph.dtype, frozenset(t.name for t in graph.inputs) - {"x"}, structure))

    monkeypatch.setattr(batch, "kernel_on", spy)
    monkeypatch.setattr(batch, "verify", lambda o, dtype, **_: Verdict(o.name, dtype, "cpu", None, "verified"))
    jobs = [batch.Job(get("rms_norm"), "f16"), batch.Job(get("rms_norm"), "f32")]
    with batch._compiled_ahead(jobs, "cpu", None, None):
        deadline = time.monotonic() + 10
        while len(asked) < 8 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert sorted(asked, key=str) == sorted(
        ((d, p, s) for d in ("f16", "f32") for p in (frozenset({"gamma"}), frozenset()) for s in (False, True)), key=str
    )
