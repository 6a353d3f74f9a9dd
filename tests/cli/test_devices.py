"""`--device`: cuda without a GPU, the simulated device, names that there are not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from command import KEYS, Command

from tokitai.backends.cuda import device as cuda
from tokitai.backends.hip import clang as hip
from tokitai.evidence.check import check
from tokitai.families.elementwise.schedule import TILE
from tokitai.families.rowwise.plan import plan_rows
from tokitai.families.rowwise.schedule import schedule_rows
from tokitai.ops import get, registry
from tokitai.verification import Verdict, batch, verdict, verify

CASE = "seeded/normal@3x17#0"

without_gpu = pytest.mark.skipif(cuda.probe() is None, reason="there is an NVIDIA GPU here")


@pytest.mark.slow
@without_gpu
def test_cuda_without_a_gpu_is_undecided(tokitai: Command) -> None:
    done = tokitai.process("verify", "softmax", "--device", "cuda", "--dtype", "f16", "--json")
    assert (done.code, set(done.object), done.err) == (3, KEYS, "")
    found = done.object
    assert (found["device"], found["verdict"], found["cases"], found["evidence"]) == ("cuda", "undecided", 0, [])
    assert found["certificate"] is None
    missing = r"device cuda:0: .*(no NVIDIA driver here \(.+\): install it|no NVIDIA GPU|cuda-bindings)"
    assert re.search(missing, found["failure"]), found["failure"]
    people = tokitai.process("verify", "softmax", "--device", "cuda", "--dtype", "f16", "--out", "here")
    assert people.code == 3
    assert people.out.split()[:3] == ["softmax", "f16", "undecided"]
    assert found["failure"] in people.out
    assert not list((tokitai.folder / "here").glob("*")), "nothing was shown, so nothing is certified"


@without_gpu
def test_a_gpu_by_its_number_is_asked_for(tokitai: Command) -> None:
    done = tokitai("verify", "softmax", "--device", "cuda:1", "--dtype", "f16", "--json")
    assert (done.code, done.object["verdict"], done.object["device"]) == (3, "undecided", "cuda:1")
    assert done.object["failure"].startswith("device cuda:1: ")


@without_gpu
def test_every_format_is_told_as_undecided(tokitai: Command) -> None:
    done = tokitai("verify", "softmax", "--device", "cuda", "--json")
    assert (done.code, done.object["verdict"]) == (3, "undecided")
    assert [r["verdict"] for r in done.object["results"]] == ["undecided"] * 3


def test_no_kernel_of_the_cpu_is_compiled_ahead_for_another_device(
    tokitai: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "kernel_on", lambda *_: pytest.fail("compiled"))
    monkeypatch.setattr(batch, "verify", lambda o, dtype, device, **_: Verdict(o.name, dtype, device, None, "verified"))
    asked: list[object] = []
    monkeypatch.setattr(batch, "_fill", lambda *rest: asked.append(rest))
    assert tokitai("verify", "softmax", "--device", "sim", "--json").code == 0
    assert asked == []


def test_the_simulated_device(tokitai: Command, small: str) -> None:
    words = ("--dtype", "f16", "--without", "w", "--device", "sim")
    done = tokitai.process("verify", small, *words, "--case", CASE, "--json", "--out", "here")
    assert (done.code, done.object["device"], done.object["verdict"]) == (0, "sim", "verified"), done
    assert done.object["evidence"] == ["seeded"]
    certificate = tokitai.folder / "here" / "small.f16.sim.json"
    assert done.object["certificate"] == str(certificate.relative_to(tokitai.folder)) and check(certificate) == []
    people = tokitai("verify", small, *words, "--case", "structure/all inputs@3x257#0")
    assert people.code == 0 and people.out.split()[:3] == ["small", "f16", "verified"]


def test_a_wrong_kernel_is_refuted_with_a_line_that_replays_it(
    tokitai: Command, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = verdict.verify
    edited: list[str] = []

    def edit(text: str) -> str:
        changed = re.sub(r"(const S v\d+ = )mul\(", r"\1add(", text)
        edited.extend([text] * (changed != text))
        return changed

    def wrong(*args: Any, **kwargs: Any) -> Verdict:
        return real(*args, edit=edit, **kwargs)

    monkeypatch.setattr(batch, "verify", wrong)
    done = tokitai("verify", small, "--dtype", "f32", "--device", "sim", "--without", "w", "--json")
    assert (done.code, done.object["verdict"]) == (1, "refuted"), done
    assert edited, "the edit is applied to the text for GPUs"
    line, _, says = done.object["failure"].partition("': ")
    program, *words = shlex.split(line + "'")
    assert program == "tokitai" and "--device sim" in line
    again = tokitai(*words, "--json")
    assert (again.code, again.object["cases"]) == (1, 1), "it stops where the line says"
    assert again.object["failure"].partition("': ")[2] == says
    monkeypatch.undo()
    monkeypatch.chdir(tokitai.folder)
    assert tokitai(*words).code == 0, "the line does not depend on the fault that it shows"


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:", "cuda:-1", "cuda:1:2", "sim:0", "CUDA", "", "simulator"])
def test_a_device_that_there_is_not(tokitai: Command, name: str) -> None:
    done = tokitai("verify", "softmax", "--device", name)
    assert (done.code, done.out) == (2, "")
    assert f"no device named {name!r}" in done.err and "(accepted: cpu, cuda, cuda:N, hip, hip:ARCH, sim)" in done.err
    found = tokitai("verify", "softmax", "--device", name, "--json")
    assert (found.code, found.object["kind"]) == (2, "UnknownNameError")
    assert "(accepted: cpu, cuda, cuda:N, hip, hip:ARCH, sim)" in found.object["error"]


def test_the_cases_of_a_gpu_kernel_do_not_depend_on_the_processor() -> None:
    """A case that one machine names can be replayed on any other."""
    for isa in ("scalar", "avx512"):
        found = verify(get("silu"), device="sim", dtype="f16", isa=isa, case="seeded/wide@3x17#0")
        assert (found.verdict, found.cases) == ("verified", 1)


# ------------------------------------------------------------------ show
Show = Callable[..., str]


@pytest.fixture
def show(tokitai: Command) -> Show:
    def run(*words: str) -> str:
        done = tokitai("show", *words)
        assert done.code == 0, done
        return done.out

    return run


def test_show_gives_the_schedule_of_a_shape(show: Show) -> None:
    plan = plan_rows(get("layer_norm_backward").trace("f16"))
    words = ("layer_norm_backward", "--device", "cuda", "--dtype", "f16", "--what", "plan")
    usual = show(*words)
    assert f"schedule         {schedule_rows(plan, 4096, 8)}\n" in usual and "rows x cols      4096 x 4096\n" in usual
    assert f"passes           {len(plan.passes)}\n" in usual
    assert re.search(r"launches         work: \d+ blocks of \d+ threads; finish: 128 blocks of 1024 threads\n", usual)
    for cols, width in ((100_001, 1), (64, 8)):
        asked = show(*words, "--shape", f"rows=3,cols={cols}")
        assert f"schedule         {schedule_rows(plan, cols, width)}\n" in asked and f"3 x {cols}\n" in asked


def test_show_gives_the_source_of_a_shape(show: Show) -> None:
    words = ("softmax", "--device", "cuda", "--dtype", "bf16", "--what", "source")
    usual = show(*words)
    assert usual.count("KERNEL(") == 1 and "bf16* const out_y" in usual and "FIT = FULL" in usual
    assert "BinaryCounter" not in usual and "BinaryCounter" in show(*words, "--shape", "rows=1,cols=65536")
    assert "FIT = RAGGED" in show(*words, "--shape", "rows=1,cols=1001")
    assert usual == show(*(w.replace("cuda", "sim") for w in words)), "one text"


def test_show_of_an_elementwise_operator(show: Show) -> None:
    plan = show("global_norm", "--device", "cuda", "--what", "plan", "--shape", f"rows=1,cols={3 * TILE + 1}")
    assert "totals: 6 blocks" in plan and f"tiles of {TILE} elements" in plan and "16384" not in plan
    assert show("global_norm", "--device", "cuda", "--what", "source").count("KERNEL(") == 1
    assert "elements in a tile" in show("silu", "--what", "plan"), "the plan that is compiled"


@pytest.mark.parametrize("name", registry())
def test_show_has_text_for_every_operator(show: Show, name: str) -> None:
    text = show(name, "--device", "cuda")
    assert "KERNEL(" in text and "schedule " in text


def test_show_of_a_product_follows_its_sizes(show: Show) -> None:
    words = ("linear_backward_weight", "--device", "cuda", "--dtype", "f16", "--what", "plan")
    usual, long = show(*words), show(*words, "--shape", "rows=1024,cols=1024,inner=32768")
    assert "tiles of 128 x 256" in usual and "launches         work: 512 blocks of 256 threads\n" in usual
    assert "1024x1024x32768" in long and "finish: 4096 blocks of 256 threads" in long
    assert "tiles of 32 x 32" in show(*words, "--shape", "rows=3,cols=4,inner=5")
    assert "#define PLAN_COLS 256\n" in show(*words[:-1], "source")


def test_show_refuses_wrong_shapes(tokitai: Command) -> None:
    for shape in ("rows=1", "rows=1,cols=1048577"):
        done = tokitai("show", "softmax", "--device", "cuda", "--shape", shape)
        assert (done.code, done.out) == (2, "") and "accepted: " in done.err


def test_doctor_tells_what_the_simulated_device_lacks(tokitai: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokitai.cli import doctor

    monkeypatch.setattr(doctor, "all_compilers", lambda: [])
    monkeypatch.setattr("tokitai.families.rowwise.gpu_kernels.headers", lambda: {})
    report = tokitai("doctor", "--json").object
    assert not report["devices"]["sim"]["works"]
    assert any(text.startswith("sim: ") and "rows.h" in text for text in report["missing"])
    assert not any(text.startswith("sim: ") for text in report["claims"])


# ------------------------------------------------------------------ AMD GPUs
needs_clang = pytest.mark.skipif(hip.missing() is not None, reason=str(hip.missing()))


@pytest.mark.slow
@needs_clang
def test_hip_is_compiled_and_inspected_and_stays_undecided(tokitai: Command) -> None:
    where = ("--device", "hip", "--arch", "gfx1201", "--out", "here")
    words = ("verify", "silu", *where, "--dtype", "f16", "--case", CASE)
    done = tokitai(*words, "--json")
    assert (done.code, set(done.object)) == (3, KEYS)
    found = done.object
    assert (found["verdict"], found["cases"], found["evidence"]) == ("undecided", 1, ["seeded", "compiled"])
    assert re.search(r"compiled and inspected for gfx1201, not run: .*(hip-python|AMD device)", found["failure"])
    certificate = tokitai.folder / "here" / "silu.f16.hip.json"
    assert certificate.is_file() and check(certificate) == []
    people = tokitai(*words)
    assert people.code == 3 and "silu" in people.out and found["failure"] in people.out


def test_hip_without_a_clang_says_what_to_install(tokitai: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hip.ENV_COMPILER, "no-such-clang")
    done = tokitai("verify", "silu", "--device", "hip", "--dtype", "f16", "--case", CASE, "--json")
    assert (done.code, done.object["verdict"], done.object["certificate"]) == (3, "undecided", None)
    assert "no-such-clang" in done.object["failure"] and "apt install clang-19 lld-19" in done.object["failure"]
    report = tokitai("doctor", "--json").object
    assert report["devices"]["hip"]["clang"] is None
    assert any(text.startswith("hip: ") and "apt install clang-19 lld-19" in text for text in report["missing"])
    assert not any(text.startswith("hip: ") for text in report["claims"])


@needs_clang
def test_doctor_tells_what_hip_can_and_cannot(tokitai: Command) -> None:
    report = tokitai("doctor", "--json").object
    found = report["devices"]["hip"]
    assert (found["works"], found["build"]) == (False, None) and "clang" in found["clang"]
    assert any(text.startswith("hip: ") and text.endswith("nothing about an AMD device") for text in report["claims"])
    assert f"hip: {found['run']}" in report["missing"]
    assert f"hip: {found['clang']}, sha256 {found['digest'][:12]}; no AMD GPU" in tokitai("doctor").out


def test_show_takes_the_wavefronts_of_an_architecture(tokitai: Command, show: Show) -> None:
    words = ("softmax", "--device", "hip", "--dtype", "f16", "--what", "source", "--shape", "rows=3,cols=1000")
    narrow, wide = show(*words, "--arch", "gfx1101"), show(*words, "--arch", "gfx942")
    assert "THREADS = 32" in narrow and "THREADS = 64" in wide and wide == show(*words)
    assert narrow == show(*(w.replace("hip", "cuda") for w in words)), "one text where lanes are as many"
    for arch, says in (("gfx803", "no architecture named 'gfx803'"), ("sm_90", "no architecture")):
        done = tokitai("show", *words, "--arch", arch)
        assert done.code == 2 and says in done.err
    done = tokitai("show", "softmax", "--arch", "gfx942")
    assert done.code == 2 and "goes with a device of several architectures, not with cpu" in done.err


def test_an_architecture_goes_with_hip_alone(tokitai: Command) -> None:
    done = tokitai("verify", "silu", "--device", "cuda", "--arch", "gfx942")
    assert (done.code, done.out) == (
        2,
        "",
    ) and "goes with a device of several architectures, not with cuda" in done.err
