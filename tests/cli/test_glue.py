"""``tokitai glue`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Command
from safetensors.numpy import load_file, save_file

from tokitai.cli.transfer import Transfer
from tokitai.glue import digest

WEIGHTS = {"w": np.arange(40, dtype=np.float32).reshape(8, 5), "b": np.ones(3, np.float16)}


def shards(folder: Path, *, ranks: int = 8) -> Path:
    """A file for each row of `w`, in the first one `b`."""
    folder.mkdir()
    for rank in range(ranks):
        tensors = {"w": WEIGHTS["w"][rank : rank + 1].copy()} | ({"b": WEIGHTS["b"]} if rank == 0 else {})
        places = {"sections": {"w": {"offset": [rank, 0], "shape": [8, 5]}}}
        save_file(tensors, folder / f"rank{rank}.safetensors", {"tokitai.sections": json.dumps(places)})
    return folder


def test_clean_shards(tokitai: Command, tmp_path: Path) -> None:
    shards(tmp_path / "c")
    done = tokitai("glue", "c", "--output", "whole.safetensors")
    assert (done.code, done.out) == (0, f"{digest(WEIGHTS)}  2 tensors, written to whole.safetensors\n")
    assert (load_file(tmp_path / "whole.safetensors")["w"] == WEIGHTS["w"]).all()
    found = tokitai("glue", "whole.safetensors", "--json", "--threads", "1").object
    assert (found["verdict"], found["digest"], found["output"]) == ("glued", digest(WEIGHTS), None)
    assert [(t["tensor"], t["dtype"], t["shape"]) for t in found["tensors"]] == [
        ("b", "F16", [3]),
        ("w", "F32", [8, 5]),
    ]


def test_an_obstruction(tokitai: Command, tmp_path: Path) -> None:
    save_file({**WEIGHTS, "w": -WEIGHTS["w"]}, shards(tmp_path / "c").parent / "other.safetensors")
    (tmp_path / "c" / "rank6.safetensors").unlink()
    done = tokitai("glue", "c", "--output", "whole.safetensors")
    assert (done.code, done.out) == (1, "w[6:7, 0:5]: no section holds 5 elements, from [6, 0] on\n")
    assert not (tmp_path / "whole.safetensors").exists()
    done = tokitai("glue", "c", "other.safetensors", "--json")
    assert (done.code, done.object["verdict"]) == (1, "obstruction")
    first = done.object["disagreements"][0]
    assert first == {
        "tensor": "w", "index": [0, 0], "ranks": ["c/rank0", "other"], "bits": ["0x00000000", "0x80000000"], "count": 5,
        "files": ["c/rank0.safetensors", "other.safetensors"],
    }  # fmt: skip
    assert done.object["classes"] == [[f"c/rank{n}" for n in (0, 1, 2, 3, 4, 5, 7)], ["other"]]


def test_many_findings_are_cut(tokitai: Command, tmp_path: Path) -> None:
    for name, value in (("a", 0), ("b", 1)):
        save_file({f"t{i:02}": np.full(2, value, np.uint8) for i in range(25)}, tmp_path / f"{name}.safetensors")
    done = tokitai("glue", "a.safetensors", "b.safetensors")
    assert done.out.splitlines()[19:] == [
        "t19[0]: 0x00 in rank a (a.safetensors), 0x01 in rank b (b.safetensors); they differ in 2 elements of it",
        "... and 5 more; --json has all", "agree among themselves: a", "agree among themselves: b",
    ]  # fmt: skip


def test_shared_weights(tokitai: Command, tmp_path: Path) -> None:
    save_file({"embedding": WEIGHTS["w"]}, tmp_path / "first.safetensors")
    save_file({"head": WEIGHTS["w"] + 1}, tmp_path / "last.safetensors")
    files = ("first.safetensors", "last.safetensors")
    assert tokitai("glue", *files).code == 0
    done = tokitai("glue", *files, "--same", "head=embedding")
    assert done.code == 1 and done.out.startswith("embedding[0, 0]: 0x00000000 in rank first")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing argument"),
        (("nothing",), "nothing: no such file or folder; accepted: a .safetensors file"),
        (("cut.safetensors",), "truncated"),
        (("c", "--same", "a"), "--same 'a'; accepted: NAME=NAME"),
        (("c", "--threads", "0"), "Invalid value for '--threads'"),
        (("whole.safetensors", "--output", "./whole.safetensors"), "is read; accepted: another file"),
        (("c", "--output", "no/such/folder"), "cannot be written"),
        (("whole.safetensors", "--output", "c"), "cannot be written"),
    ],
)
def test_wrong_usage(tokitai: Command, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    shards(tmp_path / "c")
    save_file(WEIGHTS, tmp_path / "whole.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:-1])
    done = tokitai("glue", *arguments)
    assert done.code == 2 and said in done.err
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]
    as_json = tokitai("glue", *arguments, "--json")
    assert as_json.code == 2 and said in as_json.object["error"]


def test_names_that_would_steer_a_terminal_are_escaped(tokitai: Command, tmp_path: Path) -> None:
    for name in "ab":
        save_file({"\x1b[2J": np.full(1, ord(name), np.uint8)}, tmp_path / f"{name}.safetensors")
    done = tokitai("glue", "a.safetensors", "b.safetensors")
    assert done.code == 1 and "\x1b" not in done.out and "\\x1b[2J[0]: 0x61" in done.out


def test_the_bar_counts_bytes_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("tokitai.cli.transfer.DELAY", 0)
    monkeypatch.setattr("tokitai.cli.transfer.INTERVAL", 0)
    with Transfer() as bar:
        bar.progress(0, 100)
        bar.progress(60, 100)
        assert bar._progress is not None
        shown = [(t.completed, t.total) for t in bar._progress.tasks]
    assert shown == [(60, 100)]
    assert bar._progress.finished is False
