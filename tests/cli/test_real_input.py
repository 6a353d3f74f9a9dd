"""`python -m examples.real_input` does not call a verification complete that left something out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import real_input
from examples.real_input import real_cases
from tokitai.errors import DeviceMissingError, UnavailableError, UnknownNameError
from tokitai.report import page
from tokitai.verification import Verdict
from tokitai.verification.run import CaseResult

CERTIFICATE = Path(__file__).parents[1] / "evidence" / "certificates" / "v1.json"
FILES = {"softmax": (Path("softmax.a.safetensors"), Path("softmax.b.safetensors"))}


def case(kind: str, name: str = "normal") -> CaseResult:
    return CaseResult(kind, name, (1, 1), 0, f"{kind}/{name}@1x1#0", {}, ())


def verdict(*results: CaseResult, operator: str = "softmax") -> Verdict:
    evidence = list(dict.fromkeys(r.kind for r in results))
    return Verdict(operator, "f16", "cpu", None, "verified", evidence, list(results))


DRAWN = (case("structure"), case("hard"), case("seeded"))
REAL = (case("yours", "softmax.a.safetensors"), case("yours", "softmax.b.safetensors"))


def test_nothing_is_missing() -> None:
    assert real_input.gaps([verdict(*DRAWN, *REAL)], FILES) == []
    assert real_input.gaps([verdict(*DRAWN, operator="rms_norm")], FILES) == []


@pytest.mark.parametrize(
    ("results", "missing"),
    [
        ((*DRAWN, REAL[0]), ["softmax f16: softmax.b.safetensors was not tried"]),
        ((*DRAWN[1:], *REAL), ["softmax f16: a structure case was not tried"]),
        ((*DRAWN[:2], *REAL), ["softmax f16: a seeded case was not tried"]),
    ],
)
def test_what_is_missing_is_named(results: tuple[CaseResult, ...], missing: list[str]) -> None:
    assert real_input.gaps([verdict(*results)], FILES) == missing


def test_a_verdict_over_no_case_is_incomplete() -> None:
    assert len(real_input.gaps([verdict()], FILES)) == 5


def test_tensors_for_no_operator_are_named() -> None:
    assert real_input.gaps([], {"nope": (Path("nope.a.safetensors"),)}) == [
        "nope: there are real tensors for it, but no such operator"
    ]


@pytest.mark.parametrize(
    ("results", "verdict_", "code"),
    [((*DRAWN, *REAL), "verified", 0), (DRAWN, "verified", 1), (DRAWN, "refuted", 1), ((), "undecided", 3)],
)
def test_exit_codes(
    results: tuple[CaseResult, ...], verdict_: Any, code: int, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    found = verdict(*results)
    found.verdict = verdict_
    monkeypatch.setattr(real_input, "capture", lambda _: [path for paths in FILES.values() for path in paths])
    monkeypatch.setattr(real_input, "verify_many", lambda *_, **__: [found])
    assert real_input.main() == code
    assert f"{verdict_} on cpu: 1 verifications" in capsys.readouterr().out


def test_certificates_end_as_one_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    real_input.OUT.mkdir(parents=True)
    (real_input.OUT / "stale.json").write_text("{")  # of an earlier run: it is not what was verified now
    found = verdict(*DRAWN, *REAL)
    found.certificate = CERTIFICATE
    monkeypatch.setattr(real_input, "capture", lambda _: [path for paths in FILES.values() for path in paths])
    monkeypatch.setattr(real_input, "verify_many", lambda *_, **__: [found])
    assert real_input.main() == 0
    assert "the same as one page, with pictures: out/report.html" in capsys.readouterr().out
    text = Path("out/report.html").read_text(encoding="utf-8")
    assert "<h1>Verified</h1>" in text and "stale" not in text


def test_what_a_page_needs_is_asked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda _: None)
    monkeypatch.setattr(real_input, "capture", lambda _: pytest.fail("captured"))
    with pytest.raises(UnavailableError, match=r"tokitai\[report\]"):
        real_input.main()


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One file in place of those of the model."""
    path = tmp_path / "silu.here.npz"
    np.savez(path, x=np.random.default_rng(2).standard_normal((3, 20)))
    monkeypatch.setattr(real_input, "capture", lambda _: [path])
    return path


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_real_tensors_alone_on_a_device(
    device: str, captured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert real_input.main(["--real", "--device", device]) == 0
    out = capsys.readouterr().out
    assert f"verified on {device}: 3 verifications, 3 cases" in out
    assert "certificates, each" not in out and "one page" not in out
    monkeypatch.setattr(real_input, "real_cases", lambda _: list(real_cases({"silu": (captured,)}))[:2])
    monkeypatch.setattr(real_input, "by_operator", lambda _: {"silu": (captured, captured.with_stem("silu.more"))})
    assert real_input.main(["--real", "--device", device]) == 1
    assert "missing: silu bf16: silu.more.npz was not tried" in capsys.readouterr().err


def test_a_device_that_is_not_there_is_said_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise DeviceMissingError(f"device {name}: none")

    monkeypatch.setattr(real_input, "capture", lambda _: pytest.fail("captured"))
    monkeypatch.setattr(real_input, "device_named", missing)
    with pytest.raises(DeviceMissingError, match=r"^device cuda:3: none$"):
        real_input.main(["--device", "cuda:3"])
    with pytest.raises(UnknownNameError, match=r"'gpu'.*cuda:N"):
        real_input.main(["--device", "gpu"])


def test_no_verdict_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_input, "capture", lambda _: [])
    monkeypatch.setattr(real_input, "verify_many", lambda *_, **__: [])
    with pytest.raises(Exception, match="nothing was verified"):
        real_input.main()
