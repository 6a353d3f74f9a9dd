"""Checkpoints on disk: clean ones have the digest of the unsharded weights; what is wrong is named to the element."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from shards import flip, model, reference_digest, rows, write_distributed, write_safetensors

from tokitai.errors import InputFileError
from tokitai.glue import Glued, Obstruction, Section, glue, read

RANKS = 8
WRITERS = {"safetensors": write_safetensors, "distributed": write_distributed}
FILES = {"safetensors": "rank{}.safetensors", "distributed": "__{}_0.distcp"}


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "distributed":
        pytest.importorskip("torch")
    return str(request.param)


def obstruction(*paths: Path) -> Obstruction:
    found = glue(read(*paths).sections)
    assert isinstance(found, Obstruction), found
    return found


def test_eight_shards_have_the_digest_of_the_weights(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / "c", rows(model(), RANKS))
    into = tmp_path / "whole.safetensors"
    result = glue(read(tmp_path / "c").sections, into=into)
    assert isinstance(result, Glued) and not result.inferred
    assert result.digest == reference_digest(model())
    written = load_file(into)
    assert {n: a.tobytes() for n, a in written.items()} == {n: a.tobytes() for n, a in model().items()}
    assert glue(read(into).sections).digest == result.digest  # type: ignore[union-attr]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_missing_shard(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / "c", rows(model(), RANKS))
    file = FILES[kind].format(3)
    (tmp_path / "c" / file).unlink()
    into = tmp_path / "whole.safetensors"
    found = glue(read(tmp_path / "c").sections, into=into)
    assert isinstance(found, Obstruction) and not into.exists()
    gaps = {g.tensor: (g.index, g.count, g.boxes) for g in found.gaps}
    assert gaps == {"weight": ((9, 0), 111, (((9, 12), (0, 37)),)), "bias": ((9,), 3, (((9, 12),),))}
    if kind == "distributed":
        assert {f for g in found.gaps for f in g.files} == {file}


def test_a_flipped_bit_in_a_replica_of_the_model(kind: str, tmp_path: Path) -> None:
    for name in "ab":
        WRITERS[kind](tmp_path / name, rows(model(), RANKS))
    file = FILES[kind].format(3)
    flip(tmp_path / "b" / file, model()["weight"][9, 1:4].tobytes())
    (found,) = obstruction(tmp_path / "a", tmp_path / "b").disagreements
    ranks = (f"{tmp_path}/a/3", f"{tmp_path}/b/3")
    assert (found.tensor, found.index, found.ranks, found.count) == ("weight", (9, 1), ranks, 1)
    bits = int(model()["weight"].view(np.uint32)[9, 1])
    assert found.bits == (f"0x{bits:08x}", f"0x{bits ^ 1:08x}")
    assert found.origins[1] == f"{tmp_path}/b/{file}"


def test_an_overlap_that_disagrees(kind: str, tmp_path: Path) -> None:
    """Windows that share rows 4 to 6, of which one says something else in two elements."""
    weight = model()["weight"]
    low, high = weight[:7].copy(), weight[4:].copy()
    high[1, 5], high[2, 0] = 8, 9
    parts = [Section("0", "w", low, (0, 0), weight.shape), Section("1", "w", high, (4, 0), weight.shape)]
    WRITERS[kind](tmp_path / "c", parts)
    (found,) = obstruction(tmp_path / "c").disagreements
    assert (found.index, found.ranks, found.count, found.bits[1]) == ((5, 5), ("0", "1"), 2, "0x41000000")


def test_a_wrong_dtype(kind: str, tmp_path: Path) -> None:
    parts = rows(model(), RANKS)
    wrong = next(i for i, s in enumerate(parts) if s.rank == "5" and s.tensor == "weight")
    s = parts[wrong]
    parts[wrong] = Section(s.rank, s.tensor, s.values.astype(np.float16), s.offset, s.shape)
    WRITERS[kind](tmp_path / "c", parts)
    found = obstruction(tmp_path / "c")
    (conflict,) = found.conflicts
    assert (conflict.what, conflict.rank, conflict.found, conflict.expected) == ("dtype", "5", "F16", "F32")
    assert conflict.box == ((15, 18), (0, 37)) and FILES[kind].format(5) in str(conflict)
    assert not found.gaps and not found.disagreements


def test_conflicting_shapes(tmp_path: Path) -> None:
    parts = rows(model(), RANKS)
    parts = [Section(s.rank, s.tensor, s.values, s.offset, (20, 37)) if s.rank == "2" and s.tensor == "weight" else s
             for s in parts]  # fmt: skip
    write_safetensors(tmp_path / "c", parts)
    (conflict,) = obstruction(tmp_path / "c").conflicts
    assert (conflict.what, conflict.rank, conflict.found, conflict.expected) == ("shape", "2", "[20, 37]", "[19, 37]")


def test_columns_of_tensor_parallelism_and_a_transposed_tensor(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight = model()["weight"]
    parts = [
        Section(str(r), "w", torch.from_numpy(np.ascontiguousarray(weight[:, a:b].T)).T, (0, a), weight.shape)
        for r, (a, b) in enumerate([(0, 10), (10, 30), (30, 37)])
    ]
    write_distributed(tmp_path / "c", parts)
    assert glue(read(tmp_path / "c").sections).digest == reference_digest({"w": weight})  # type: ignore[union-attr]


def test_a_cover_file_names_files_ranks_and_shared_weights(tmp_path: Path) -> None:
    table = model()["weight"]
    save_file({"embedding": table[:10]}, tmp_path / "first.safetensors")
    save_file({"head": table[8:].copy(), "norm": model()["bias"]}, tmp_path / "last.safetensors")
    shape = list(table.shape)
    cover = {
        "first.safetensors": {"rank": 0, "sections": {"embedding": {"shape": shape, "offset": [0, 0]}}},
        "last.safetensors": {"sections": {"head": {"tensor": "embedding", "offset": [8, 0], "shape": shape}}},
    }
    file = tmp_path / "cover.json"
    file.write_text(json.dumps({"files": cover}))
    wanted = reference_digest({"embedding": table, "norm": model()["bias"]})
    for path in (tmp_path, file):
        assert glue(read(path).sections).digest == wanted  # type: ignore[union-attr]
    assert {s.rank for s in read(file).sections} == {"0", "last"}
    flip(tmp_path / "last.safetensors", table[9, 3:6].tobytes())
    assert str(obstruction(file)).startswith("embedding[9, 3]: 0x7fa12345 in rank 0 (first.safetensors), 0x7fa12344 in")
    (tmp_path / "last.safetensors").unlink()
    found = obstruction(file)
    assert [(g.tensor, g.index, g.files) for g in found.gaps] == [("embedding", (10, 0), ("last.safetensors",))]


def test_an_index_names_files_that_must_be_there(tmp_path: Path) -> None:
    save_file({"a": np.ones(3, np.float32)}, tmp_path / "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    missing = {(m.tensor, m.file) for m in obstruction(tmp_path).missing}
    assert missing == {("b", "model-1.safetensors"), ("c", "model-2.safetensors")}


def _truncate(folder: Path, file: str) -> None:
    data = (folder / file).read_bytes()
    (folder / file).write_bytes(data[:-5])


def test_a_truncated_file_is_named(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / "c", rows(model(), RANKS))
    _truncate(tmp_path / "c", FILES[kind].format(3))
    with pytest.raises(InputFileError, match=r"3.*truncated"):
        read(tmp_path / "c")


def test_a_file_that_shrinks_while_it_is_read(kind: str, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path / "c", rows(model(), RANKS))
    opened = read(tmp_path / "c")
    os.truncate(tmp_path / "c" / FILES[kind].format(3), 100)
    with pytest.raises(InputFileError, match="became shorter"):
        glue(opened.sections)


SPAWNED = """
import os, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp, torch.multiprocessing as mp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from tokitai.torch import ranks

def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(37, 19), torch.nn.LayerNorm(19)).to(torch.bfloat16)

def run(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    sharded = fully_shard(model(), mesh=init_device_mesh("cpu", (2,)))
    dcp.save(sharded.state_dict(), checkpoint_id=f"{folder}/dcp")
    writer = HuggingFaceStorageWriter(f"{folder}/hf", save_distributed=True)
    dcp.save(sharded.state_dict(), storage_writer=writer)
    ranks.stop()

if __name__ == "__main__":
    mp.spawn(run, (sys.argv[1],), 2)
    from tokitai.glue import digest
    print(digest(model().state_dict()))
"""


@pytest.mark.slow
def test_what_fully_shard_and_torch_write(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "save.py").write_text(SPAWNED)
    ran = subprocess.run([sys.executable, tmp_path / "save.py", tmp_path], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    wanted = ran.stdout.split()[-1]
    for folder in ("dcp", "hf"):
        result = glue(read(tmp_path / folder).sections)
        assert isinstance(result, Glued), str(result)
        assert result.digest == wanted, folder
        assert bool(result.inferred) == (folder == "hf"), "torch writes no shapes into safetensors files"
    assert {s.rank for s in read(tmp_path / "dcp").sections} == {"0", "1"}


MEASURED = """
import re, sys
from pathlib import Path
from tokitai.glue import Glued, glue, read
def most():  # of this program alone: what getrusage tells begins with the most of the process that started it
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = most()
result = glue(read(sys.argv[1]).sections, into=sys.argv[2], threads=2)
assert isinstance(result, Glued), result
print((most() - before) * 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    """Half a gigabyte of tensors, in files without data: what is glued is written in pieces."""
    size = 2**28
    for rank in range(2):
        places = {"sections": {"w": {"offset": [rank, 0], "shape": [2, size]}}}
        entry = {"dtype": "U8", "shape": [1, size], "data_offsets": [0, size]}
        header = json.dumps({"__metadata__": {"tokitai.sections": json.dumps(places)}, "w": entry}).encode()
        file = tmp_path / f"rank{rank}.safetensors"
        file.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(file, 8 + len(header) + size)
    command = [sys.executable, "-c", MEASURED, str(tmp_path), str(tmp_path / "whole.bin")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 2**26
    assert (tmp_path / "whole.bin").stat().st_size > 2 * size


@pytest.mark.parametrize(
    "lay",
    [
        lambda folder: folder / "nothing",
        lambda folder: folder,
        lambda folder: _written(folder / "a.bin", b""),
        lambda folder: _written(folder / "a.safetensors", b""),
        lambda folder: _written(folder / "a.json", b"[]"),
        lambda folder: Path("a\0b"),
    ],
)
def test_what_is_no_checkpoint(tmp_path: Path, lay: Callable[[Path], Path]) -> None:
    with pytest.raises(InputFileError):
        read(lay(tmp_path))


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
