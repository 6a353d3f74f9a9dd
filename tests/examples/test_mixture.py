"""The mixture of experts that is trained on the operators: beside plain torch in float64; its bits on any threads."""

from __future__ import annotations

import dataclasses
import doctest
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bench.training import LARGE
from examples.mixture import __main__ as command
from examples.mixture import config, pace
from examples.mixture.model import Mixture, Shape
from examples.mixture.training import (
    BEFORE,
    DRAWN_BY,
    DTYPES,
    SMALL,
    Batches,
    Training,
    digest_of,
    record,
    train,
    trained_again,
)
from tests.examples.plain_mixture import loss_of
from tokitai.backends.cpu import device as cpu
from tokitai.errors import ArgumentError, DeviceMissingError, UnknownNameError
from tokitai.runtime import host_executor, launch_cache
from tokitai.torch.replay import replay

TEXT = Path(command.TEXT).read_bytes()
RECORDED = Path(command.TEXT).parent / "evidence" / "training" / "small.jsonl"  # by `--record`
SHORT = Training(steps=3, batch=2, length=24)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_loss_and_gradients_beside_float64(dtype: str) -> None:
    """Relative to the norm of each weight's gradient. On the way to the loss and back a block stores 11 tensors twice
    (norms, projections, rotated heads, attention, logits, what is dispatched, hidden, made and combined), the rest of
    the model 8 in all; each is off by half a unit at most in 16 bits, as all arithmetic is in f32, and by half a unit
    for each of up to 256 terms of a sum in f32. Softmax, norms and SiLU pass relative errors on, near 1 for noise."""
    model = Mixture(SMALL, DTYPES[dtype], "cpu")
    tokens = Batches(TEXT, replace(SHORT, dtype=dtype))()
    scale = 1024.0 if dtype == "f16" else 1.0
    total, _ = model.loss(tokens)
    (total * scale).backward()  # type: ignore[no-untyped-call]
    wide = {n: p.detach().double().requires_grad_() for n, p in model.named_parameters()}
    want = loss_of(wide, SMALL, tokens)
    want.backward()  # type: ignore[no-untyped-call]
    limit = (22 * SMALL.layers + 8) * torch.finfo(DTYPES[dtype]).eps / 2 * (256 if dtype == "f32" else 1)
    assert abs(total.item() - want.item()) <= limit * abs(want.item())
    for name, p in model.named_parameters():
        assert p.grad is not None
        slope = wide[name].grad
        assert slope is not None and slope.norm() > 0, name
        off = (p.grad.double() / scale - slope).norm() / slope.norm()
        assert off <= limit, f"{name}: off by {off:.2e} of its norm; expected at most {limit:.2e}"


@pytest.mark.slow
def test_a_compiled_model_has_the_same_bits() -> None:
    found = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager")):
        model = Mixture(SMALL, torch.bfloat16, "cpu")
        total, _ = wrap(model.loss)(Batches(TEXT, SHORT)())
        total.backward()
        found.append([total.detach(), *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_any_number_of_threads_trains_to_the_same_bits(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, found = replace(SHORT, dtype=dtype), []
    launched, before = Counter[int](), torch.get_num_threads()
    launch = cpu.LoadedKernel.prepared

    def seen(self: cpu.LoadedKernel, tensors: Any, sizes: Any, scalars: Any, workspace: Any, threads: int) -> int:
        launched[threads] += 1
        return launch(self, tensors, sizes, scalars, workspace, threads)

    monkeypatch.setattr(cpu.LoadedKernel, "prepared", seen)
    monkeypatch.setattr(host_executor, "ALONE", -1)  # small calls too, which one thread works through else
    launch_cache.LAUNCHES.clear()
    for threads in (1, 2, 7):
        monkeypatch.setattr(cpu, "default_threads", lambda n=threads: n)
        torch.set_num_threads(threads)
        found.append(train(TEXT, run))
    torch.set_num_threads(before)
    assert found[0] == found[1] == found[2]
    assert launched.keys() == {1, 2, 7} and len(set(launched.values())) == 1 and launched[7] > 100
    assert len({found[0].digest, train(TEXT, replace(run, seed=1)).digest}) == 2
    assert digest_of(Mixture(SMALL, DTYPES[dtype], "cpu")) != found[0].digest


@pytest.mark.slow
def test_what_was_trained_on_a_gpu_is_trained_here_to_the_same_bits(capsys: pytest.CaptureFixture[str]) -> None:
    if (drawn_by := torch.backends.cpu.get_cpu_capability()) not in DRAWN_BY:
        pytest.skip(f"torch draws other weights by {drawn_by} than by {' and '.join(DRAWN_BY)}")
    runs = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    assert {r["run"]["dtype"] for r in runs} == set(DTYPES)
    assert all("H200" in r["device"] and len(r["losses"]) == r["run"]["steps"] >= 20 for r in runs)
    large = json.loads(RECORDED.with_name("large.jsonl").read_text())["run"]  # 12 GB of memory: by hand
    assert dataclasses.asdict(Training(**{**BEFORE, **large, "shape": LARGE})) == {**BEFORE, **large}
    assert command.main(["--again", str(RECORDED)]) == 0
    assert capsys.readouterr().out.count("NVIDIA H200: the same bits on cpu") == len(runs)


@pytest.mark.slow
def test_a_run_of_other_bits_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: DRAWN_BY[0])  # it was recorded here
    run, file = replace(SHORT, steps=1), tmp_path / "runs.jsonl"
    good = record(TEXT, run, train(TEXT, run))
    bad = {**good, "losses": ["0x1.8p+2"]}, {**good, "weights": "0" * 64}
    file.write_text("\n".join(map(json.dumps, (good, *bad))))
    assert command.main(["--again", str(file)]) == 1
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "the same bits on cpu", "OTHER BITS on cpu", "OTHER BITS on cpu",
    ]  # fmt: skip
    for text, message in (("", "no runs"), ("{}", "'run'"), ("[1]", "list indices"), ("x", "Expecting value")):
        file.write_text(text)
        assert command.main(["--again", str(file)]) == 2
        assert f"{message}" in capsys.readouterr().err
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    file.write_text(json.dumps(good))
    assert command.main(["--again", str(file)]) == 3 and "torch draws weights by DEFAULT" in capsys.readouterr().err
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: DRAWN_BY[0])
    file.write_text(json.dumps({**good, "text": "0" * 64}))
    assert command.main(["--again", str(file)]) == 2 and "a run of the text 000" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_a_run_that_was_stopped_ends_with_the_same_bits(dtype: str, tmp_path: Path) -> None:
    whole, file = replace(SHORT, dtype=dtype, steps=5), tmp_path / "run.safetensors"
    train(TEXT, replace(whole, steps=2), checkpoint=file)
    some = train(TEXT, replace(whole, steps=4), checkpoint=file)
    assert some.losses[:2] == train(TEXT, replace(whole, steps=2)).losses
    assert train(TEXT, whole, checkpoint=file) == train(TEXT, whole) == train(TEXT, whole, checkpoint=file)
    assert [p.name for p in tmp_path.iterdir()] == [file.name]


@pytest.mark.slow
def test_a_checkpoint_from_before_the_choice_of_logits_goes_on_as_it_began(tmp_path: Path) -> None:
    """Its settings do not name what experts are chosen by: it was the format that all is stored in."""
    run, file = replace(SHORT, router_logits="storage"), tmp_path / "run.safetensors"
    train(TEXT, replace(run, steps=2), checkpoint=file)
    with safe_open(file, "pt") as opened:
        about = json.loads(opened.metadata()["tokitai"])
        tensors = {n: opened.get_tensor(n) for n in opened.keys()}  # noqa: SIM118
    del about["run"]["router_logits"]
    save_file(tensors, file, {"tokitai": json.dumps(about)})
    before = file.read_bytes()
    with pytest.raises(ArgumentError, match=r"router_logits='storage'; accepted beside this run: 'f32'"):
        train(TEXT, SHORT, checkpoint=file)
    assert file.read_bytes() == before
    went_on = train(TEXT, run, checkpoint=file)
    assert went_on == train(TEXT, run) and went_on.digest != train(TEXT, SHORT).digest


@pytest.mark.slow
def test_what_is_no_checkpoint_of_a_run_is_named(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    train(TEXT, replace(SHORT, steps=2), checkpoint=file)
    kept = file.read_bytes()
    for run, message in (
        (replace(SHORT, lr=1.0), "lr=0.003; accepted beside this run: 1.0"),
        (replace(SHORT, steps=1), "steps=1; accepted behind the 2 of"),
    ):
        with pytest.raises(ArgumentError, match=message):
            train(TEXT, run, checkpoint=file)
    with pytest.raises(ArgumentError, match="text='cfc7"):
        train(TEXT[1:], SHORT, checkpoint=file)
    assert file.read_bytes() == kept
    with pytest.raises(ArgumentError, match="none is no folder"):
        train(TEXT, replace(SHORT, steps=1), checkpoint=tmp_path / "none" / "run.safetensors")
    for broken in (kept[:1000], b"", b"something else"):
        file.write_bytes(broken)
        with pytest.raises(ArgumentError, match=r"accepted: a file that a checkpoint was saved to"):
            train(TEXT, SHORT, checkpoint=file)
        assert file.read_bytes() == broken


@pytest.mark.slow
def test_it_learns_a_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    assert command.main(["--steps", "30", "--record", str(file)]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "1 rank, 1 block of 256 tokens, bf16 on cpu" and len(lines) == 2
    first, last = (float(x) for x in lines[1].split(",")[0].removeprefix("loss ").split(" -> "))
    assert first > 5.5 and last < 3  # log(256) = 5.55 knows nothing; the letters' frequencies alone give about 3.1
    assert len(said.out.split()[-1]) == 64 and "step 30: loss" in said.err
    assert json.loads(file.read_text())["weights"] == said.out.split()[-1]


def test_wrong_usage_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, exit_code, message in (
        ([str(tmp_path / "none.txt")], 2, "none.txt: No such file"),
        (["--steps", "0"], 2, "steps=0; accepted: 1 or more"),
        (["--device", "tpu"], 2, "tpu"),
    ):
        assert command.main(given) == exit_code
        assert message in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="a text of 5 bytes; accepted: more than 64"):
        train(b"short", Training())
    with pytest.raises(UnknownNameError, match="nowhere"):
        train(TEXT, Training(device="nowhere"))
    with pytest.raises(ArgumentError, match="60 features, 4 heads"):
        Shape(vocabulary=9, features=60, layers=1, heads=4, key_heads=2, experts=2, hidden=8)
    if not torch.cuda.is_available():
        with pytest.raises(DeviceMissingError, match="torch sees 0 CUDA devices"):
            train(TEXT, Training(device="cuda"))


@pytest.mark.slow
def test_ranks_and_a_record_change_no_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `torchrun` starts it, on two ranks with shards, beside one rank that records; which one rank goes on with."""
    given = ["--batch", "4", "--length", "16", "--block", "32", "--folder", str(tmp_path)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run(
        [*torchrun, "-m", "examples.mixture", *given, "--parallel", "fsdp", "--steps", "2"],
        capture_output=True, text=True, check=True, env=os.environ | {"TOKITAI_NUM_THREADS": "1"},
    )  # fmt: skip
    lines = ran.stdout.splitlines()
    assert lines[0] == "2 ranks, fsdp, 2 blocks of 32 tokens, bf16 on cpu" and len(lines) == 2
    assert command.main([*given[:-2], "--steps", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "1 rank, 2 blocks of 32 tokens, bf16 on cpu" and said[1] == lines[1]
    assert command.main([*given, "--steps", "3"]) == 0
    went_on = capsys.readouterr().out.splitlines()[-1]
    assert command.main([*given[:-2], "--steps", "3"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == went_on
    assert command.main([*given, "--checkpoint", "x"]) == 2 and "accepted: one of both" in capsys.readouterr().err
    assert (
        command.main([*given, "--block", "24"]) == 2 and "accepted: a multiple of length=16" in capsys.readouterr().err
    )


FUSED = replace(SHORT, dtype="f16", accumulator="fused16")  # in f16 a few steps show which accumulator it was


@pytest.mark.slow
def test_an_accumulator_is_a_part_of_the_run(tmp_path: Path) -> None:
    """It is recorded, repeated and taken up again; another one is refused."""
    file, found = tmp_path / "run.safetensors", train(TEXT, FUSED)
    assert found != train(TEXT, replace(FUSED, accumulator="f32"))
    recorded = json.loads(json.dumps(record(TEXT, FUSED, found)))
    assert recorded["run"]["accumulator"] == "fused16" and recorded["tokens_per_second"] > 0
    if torch.backends.cpu.get_cpu_capability() in DRAWN_BY:
        assert trained_again(TEXT, recorded, "cpu", lambda _: None)
        assert not trained_again(TEXT, {**recorded, "run": {**recorded["run"], "accumulator": "f32"}}, "cpu", print)
    train(TEXT, replace(FUSED, steps=2), checkpoint=file)
    with pytest.raises(ArgumentError, match="accumulator='fused16'; accepted beside this run: 'f32'"):
        train(TEXT, replace(FUSED, accumulator="f32"), checkpoint=file)
    assert train(TEXT, FUSED, checkpoint=file) == found
    with pytest.raises(ArgumentError, match=r"a run: accumulator='fused16' of operands of torch.float32"):
        replace(FUSED, dtype="f32")


@pytest.mark.slow
def test_the_two_ranks_of_the_readme_are_recorded_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = (Path(command.TEXT).parent / "README.md").read_text().partition("$ torchrun ")[2].partition("```")[0]
    line, printed = shown.split("\n", 1)
    ranks, given = line.split("-m examples.mixture ")
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *ranks.split(), "-m", "examples.mixture", *given.split(),
         "--folder", str(tmp_path)],
        capture_output=True, text=True, check=True, env=os.environ | {"TOKITAI_NUM_THREADS": "1"},
    )  # fmt: skip
    assert doctest.OutputChecker().check_output(printed, ran.stdout, doctest.ELLIPSIS), ran.stdout
    assert command.main(given.split()) == 0
    assert capsys.readouterr().out.splitlines()[-1] == ran.stdout.splitlines()[-1]
    assert "the same bits" in str(replay(tmp_path, "cpu"))
    assert command.main([*given.split(), "--accumulator", "f32", "--steps", "11", "--folder", str(tmp_path)]) == 2
    assert "accepted" in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_of_settings_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "small.toml", tmp_path / "loss.svg"
    sizes = dict(vocabulary=256, features=16, layers=1, heads=2, key_heads=1, experts=3, hidden=8)
    table = "[shape]\n" + "\n".join(f"{n} = {v}" for n, v in sizes.items())
    file.write_text(f"steps = 9\nbatch = 2\nlength = 16\nlr = 1e-2\n{table}")
    assert command.main(["--config", str(file), "--steps", "2", "--picture", str(picture)]) == 0
    run = Training(steps=2, batch=2, length=16, lr=1e-2, shape=Shape(**sizes))
    assert capsys.readouterr().out.split()[-1] == train(TEXT, run).digest
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    for text, message in (
        ("steps = true", "steps=True; accepted: int, float, str"),
        ("[shape]\nfeatures = 8", "accepted: a table of vocabulary, features"),
        (f"{table}\nwide = 3", "no size named 'wide'"),
        ("steps", "accepted: a file of TOML"),
    ):
        file.write_text(text)
        assert command.main(["--config", str(file)]) == 2
        assert message in capsys.readouterr().err
    assert command.main(["--picture", str(tmp_path / "loss.txt")]) == 2
    assert "--picture" in capsys.readouterr().err
    large = config.read(Path(command.__file__).with_name("0.7b.toml"))
    assert large[1] == LARGE and "--accumulator=fused16" in large[0]


def test_the_pace_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 10.0, 12.0, 12.0, 12.0])
    monkeypatch.setattr(pace, "perf_counter", lambda: next(now))
    run = pace.Pace(tokens=100, flops=989.4e12, device="NVIDIA H200", ranks=2, begin=0.0)
    assert run.text(3) == "" and run.tokens_per_second == 0
    now = iter([10.0, 12.0, 12.0])
    run.step()
    run.step()
    assert run.text(3) == ", 50 tokens/s (25.0% of the peak in 16 bits), 6 s left"


@pytest.mark.gpu
def test_a_card_trains_with_an_accumulator_to_the_same_bits() -> None:
    assert train(TEXT, replace(FUSED, device="cuda")) == train(TEXT, FUSED)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_a_gpu_trains_to_the_same_bits(dtype: str) -> None:
    run = replace(SHORT, dtype=dtype)
    assert train(TEXT, replace(run, device="cuda")) == train(TEXT, run)


@pytest.mark.gpu
def test_a_run_that_was_begun_on_the_cpu_ends_on_a_gpu_with_the_same_bits(tmp_path: Path) -> None:
    file = tmp_path / "run.safetensors"
    train(TEXT, replace(SHORT, steps=2), checkpoint=file)
    whole = replace(SHORT, steps=4)
    assert train(TEXT, replace(whole, device="cuda"), checkpoint=file) == train(TEXT, whole)
