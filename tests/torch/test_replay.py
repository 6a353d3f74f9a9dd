"""Recorded runs, run again: on any number of ranks to the same bits; and each flipped bit is found and named."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from examples.mixture.training import train
from tests.torch.faulty_runs import BIT, BLOCK, PLACE, RUN, STEP, again, compared, flip, found, recorded, text_in
from tests.torch.world import World, world_of
from tokitai.cli import run as tokitai
from tokitai.errors import ArgumentError, UnavailableError
from tokitai.torch.replay import Record, Replay, replay
from tokitai.torch.replay.record import checkpoint_of, checkpoints
from tokitai.torch.replay.sums import CHUNK, locate, sums


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a fault, on one rank."""
    folder = tmp_path_factory.mktemp("clean")
    recorded(None, folder / "run", text_in(folder))
    return folder


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with world_of(4) as made:
        yield made


# ------------------------------------------------------------------ check sums
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("length", [1, 100, CHUNK, 2 * CHUNK + 3])
def test_one_element_is_located_and_several_are_not(dtype: torch.dtype, length: int) -> None:
    draw = torch.Generator().manual_seed(length)
    x = torch.randint(0, 2, (length,), generator=draw).to(dtype)
    for place in {0, length // 2, length - 1}:
        y = x.clone()
        y[place] = 1 - y[place].to(torch.int64) if dtype != torch.bool else ~y[place]
        a, b = sums(x), sums(y)
        per = 2 if dtype == torch.int64 else 1
        row, unit = divmod(place * per, CHUNK)
        assert (a != b).any(dim=1).nonzero().tolist() == [[row]]
        located = locate(a[row].tolist(), b[row].tolist())
        assert located is not None and located[0] == unit
        kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        was, now = (int(t.view(torch.uint8 if t.dtype == torch.bool else kinds[t.itemsize])[place]) for t in (x, y))
        assert located[1] == was - now
    if length == 100 and dtype == torch.float32:
        y = x.clone()
        y[3], y[4] = x[3] + 1, x[4] - 0.5
        assert locate(sums(x)[0].tolist(), sums(y)[0].tolist()) is None
        x = torch.ones(length)
        z = x.clone()  # differences that a sum, and a sum by places, do not show
        z.view(torch.int32)[:4] += torch.tensor([1, -3, 3, -1], dtype=torch.int32)
        changed = (sums(x)[0] - sums(z)[0]).tolist()
        assert changed[:2] == [0, 0] and changed[2] != 0


def test_parts_have_the_sums_of_the_whole() -> None:
    x = torch.randn(3 * CHUNK + 77)
    cut = (0, 5, CHUNK + 1, 2 * CHUNK, len(x))
    parts = [sums(x[a:b], a, len(x)) for a, b in itertools.pairwise(cut)]
    assert torch.equal(sums(x), torch.stack(parts).sum(0))


# ------------------------------------------------------------------ clean runs
@pytest.mark.slow
def test_a_clean_run_replays_on_any_number_of_ranks(clean: Path, world: World) -> None:
    alone = replay(clean / "run")
    assert alone.difference is None and (alone.first, alone.last, alone.begin) == (1, 6, 0)
    assert alone.tensors > 1000 and alone.missing == 0
    for outcome in world(4, again, clean / "run"):
        assert outcome.difference is None and outcome.ranks == 4
    part = replay(clean / "run", first=5, last=5)
    assert (part.begin, part.difference) == (3, None) and 0 < part.tensors < alone.tensors


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_fewer_ranks_to_the_same_bits(clean: Path, world: World, tmp_path: Path) -> None:
    """Four ranks with shards, then two, then one: checkpoints hold whole tensors, and the record is that of one run."""
    text, want = clean / "text", train((clean / "text").read_bytes(), RUN)
    first = replace(RUN, steps=2)
    assert len(set(world(4, recorded, tmp_path / "run", text, None, "fsdp", first))) == 1
    assert len(set(world(2, recorded, tmp_path / "run", text, None, "fsdp", replace(RUN, steps=4)))) == 1
    assert recorded(None, tmp_path / "run", text) == want.digest
    assert checkpoints(tmp_path / "run") == [0, 2, 3, 4, 6]
    lines = [[json.loads(x) for x in (f / "run" / "steps.jsonl").read_text().splitlines()] for f in (clean, tmp_path)]
    assert [x["step"] for x in lines[1]] == list(range(7)) and [x["ranks"] for x in lines[1]] == [4, 4, 4, 2, 2, 1, 1]
    for a, b in zip(*lines, strict=True):
        digests = {(t["name"], t.get("block")): t["digest"] for t in a["tensors"]}
        there = {(t["name"], t.get("block")): t["digest"] for t in b["tensors"]}
        assert there.items() <= digests.items() and len(there) >= (100 if a["step"] else 10)
    assert replay(tmp_path / "run").difference is None


# ------------------------------------------------------------------ faults
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "tensor", "block"),
    [
        ("activation", "result of blocks.0.norm", BLOCK),
        ("gradient", "gradient of norm.weight from the block", BLOCK),
        ("moment", "exp_avg of embedding.weight", None),
    ],
)
def test_a_flipped_bit_is_named(clean: Path, tmp_path: Path, fault: str, tensor: str, block: int | None) -> None:
    recorded(None, tmp_path / "run", clean / "text", fault)
    made = found(tmp_path / "run")
    assert (made.step, made.tensor, made.block) == (STEP, tensor, block)
    assert made.element is not None and made.element[-1] == PLACE and sum(made.element[:-1]) == 0
    assert made.recorded is not None and made.here is not None
    assert int(made.recorded, 16) ^ int(made.here, 16) == 1 << BIT
    assert found(tmp_path / "run", first=4, last=4) == made
    assert replay(tmp_path / "run", last=STEP - 1).difference is None


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_flipped_bit_of_what_a_rank_received_is_named(
    clean: Path, world: World, tmp_path: Path, parallel: str
) -> None:
    run = replace(RUN, dtype="f32")
    sharded = parallel == "fsdp"  # it exchanges twice a step, once for each sharded module
    assert len(set(world(4, recorded, tmp_path / "run", clean / "text", "buffer", parallel, run))) == 1
    made = found(tmp_path / "run")
    assert made.step == STEP // 2 if sharded else made.step == STEP
    assert made.tensor.startswith("gradient of ") and made.block is None and made.element is not None
    assert made.recorded is not None and made.here is not None and made.recorded != made.here


@pytest.mark.slow
def test_what_is_recorded_decides_what_is_named(clean: Path, tmp_path: Path) -> None:
    """Without layers the block is named, by its loss; without check sums the tensor; of a state with a checkpoint the
    first of several elements."""
    text = clean / "text"
    recorded(None, tmp_path / "a", text, "activation", layers=0)
    made = found(tmp_path / "a")
    assert (made.step, made.tensor, made.block, made.rank) == (STEP, "loss", BLOCK, 0)
    recorded(None, tmp_path / "b", text, "moment", layers=0, detail=0)
    made = found(tmp_path / "b")
    assert (made.tensor, made.element) == ("exp_avg of embedding.weight", None)
    assert made.note is not None and "digests were recorded" in made.note
    recorded(None, tmp_path / "c", text, "moment", layers=0, detail=0, every=1)
    made = found(tmp_path / "c")
    assert made.element == (0, PLACE) and made.note == "1 elements differ from the checkpoint of this step"
    assert made.recorded is not None and made.here is not None
    assert int(made.recorded, 16) ^ int(made.here, 16) == 1 << BIT


@pytest.mark.slow
def test_a_checkpoint_with_other_bits_is_named(clean: Path, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    folder = tmp_path / "run"
    shutil.copytree(clean / "run", folder)
    file = checkpoint_of(folder, 3)
    with safe_open(file, "pt") as opened:
        about, tensors = opened.metadata(), {n: opened.get_tensor(n) for n in opened.keys()}  # noqa: SIM118
    flip(tensors["model.norm.weight"])
    save_file(tensors, file, about)
    made = found(folder, first=4)
    assert (made.step, made.tensor, made.element) == (3, "weight norm.weight", (PLACE,))
    assert replay(folder, last=2).difference is None


@pytest.mark.slow
def test_the_rank_of_an_unequal_replica_is_named(world: World) -> None:
    assert world.same(4, compared, ()) == []
    assert world.same(4, compared, (2,)) == ["b: rank 2 has other bits at element [42, 5] than the other ranks"]
    assert world.same(2, compared, (1,)) == ["b: no bits that most of the 2 ranks have"]


# ------------------------------------------------------------------ the command, and wrong usage
@pytest.mark.slow
def test_the_command(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tokitai(["replay", str(clean / "run"), "--steps", "5:"]) == 0
    assert capsys.readouterr().out.startswith(
        "steps 5 to 6: the same bits on cpu, 1 rank, from the checkpoint of step 3"
    )
    recorded(None, tmp_path / "run", clean / "text", "activation")
    assert tokitai(["replay", str(tmp_path / "run"), "--json"]) == 1
    made = json.loads(capsys.readouterr().out)
    assert (made["verdict"], made["difference"]["step"], made["difference"]["block"]) == ("different", STEP, BLOCK)
    assert tokitai(["replay", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().out
    assert (
        f"step {STEP}: result of blocks.0.norm, block {BLOCK} of the batch (recorded on rank 0), element [0, 0, 5]:"
        in said
    )
    for steps, code in (("7:", 2), ("0:2", 2), ("3:2", 2), ("x", 2), ("1:2", 0)):
        assert tokitai(["replay", str(tmp_path / "run"), "--steps", steps]) == code, steps
    capsys.readouterr()
    assert (
        tokitai(["replay", str(tmp_path)]) == 2 and "accepted: the folder of a recorded run" in capsys.readouterr().err
    )
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    for entry, message in (("nowhere:run", "No module"), ("json:nothing", "no attribute"), ("json:loads", "failed")):
        (tmp_path / "run" / "run.json").write_text(json.dumps(about | {"entry": entry}))
        assert tokitai(["replay", str(tmp_path / "run")]) == 3 and message in capsys.readouterr().err
    (tmp_path / "run" / "run.json").write_text(json.dumps(about | {"entry": "builtins:max"}))
    with pytest.raises(UnavailableError, match="builtins:max"):
        replay(tmp_path / "run")
    checkpoint_of(tmp_path / "run", 0).unlink()
    with pytest.raises(ArgumentError, match="no checkpoint ahead of step 1"):
        Replay(tmp_path / "run")


def test_wrong_records_are_refused(clean: Path, tmp_path: Path) -> None:
    for options, message in ((dict(every=0), "every=0; accepted: 1 or more"), (dict(layers=-1), "layers=-1")):
        with pytest.raises(ArgumentError, match=message):
            Record(tmp_path, "a:b", {}, **options)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="entry='a'; accepted: 'module:function'"):
        Record(tmp_path, "a", {})
    shutil.copytree(clean / "run", tmp_path / "run")
    with pytest.raises(ArgumentError, match=r"run=.*accepted beside this run"):
        recorded(None, tmp_path / "run", clean / "text", run=replace(RUN, lr=1.0))
    with pytest.raises(ArgumentError, match="steps=5; accepted behind the 6"):
        recorded(None, tmp_path / "run", clean / "text", run=replace(RUN, steps=5))
