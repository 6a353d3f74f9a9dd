"""Files that are damaged, or made to harm whoever reads them: an error that names the file, or the right answer."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, deserialize
from shards import model, rows, write_distributed, write_safetensors

from tokitai.errors import InputFileError
from tokitai.glue import Glued, Obstruction, glue, read

KEPT = 150  # damaged files of each kind


def outcome(path: Path) -> Glued | Obstruction | None:
    """What is made of a checkpoint; None for a typed error. Anything else that is raised fails the test."""
    try:
        return glue(read(path).sections, threads=1)
    except InputFileError:
        return None


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str = "U8", shape: object = (2,), offsets: object = (0, 2)) -> dict[str, Any]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


def said(sections: object, **more: object) -> bytes:
    return safetensors(
        {"__metadata__": {"tokitai.sections": json.dumps({"sections": sections, **more})}, **entry()}, b"ab"
    )


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", "no header"),
        (b"\0" * 7, "no header"),
        (safetensors({}, length=2**63), "header of 9223372036854775808 bytes"),
        (safetensors({}, length=10**6), "truncated"),
        (safetensors(b"[" * 100_000), "not JSON"),
        (safetensors(b"1" * 100_000), "not JSON"),
        (safetensors(b"\xff\xfe"), "not JSON"),
        (safetensors([]), "accepted: an object"),
        (safetensors({"x": 3}), "accepted: an object"),
        (safetensors(entry("F4"), b"ab"), "dtype 'F4'"),
        (safetensors(entry(["U8"]), b"ab"), "dtype ['U8']"),  # type: ignore[arg-type]
        (safetensors(entry(shape=[-2]), b"ab"), "accepted: at most 32 integers"),
        (safetensors(entry(shape=[2**59, 2**59]), b"ab"), "data_offsets"),
        (safetensors(entry(shape=[True, 2]), b"ab"), "accepted: at most 32 integers"),
        (safetensors(entry(offsets=[0, 3]), b"abc"), "data_offsets"),
        (safetensors(entry(), b"a"), "truncated"),
        (safetensors(entry(), b"abc"), "not a whole safetensors file"),
        (safetensors({**entry(), "y": entry()["x"]}, b"ab"), "not a whole safetensors file"),
        (said([]), "accepted: an object"),
        (said({"x": 3}), "accepted: an object"),
        (said({"x": {"offset": [0.5]}}), "accepted: at most 32 integers"),
        (said({"x": {"offset": [0, 0]}}), "accepted: 1 indices"),
        (said({"x": {"shape": [2**80]}}), "accepted: at most 32 integers"),
        (said({"x": {"offsets": [0]}}), "accepted: dtype, offset, shape, tensor"),
        (said({"x": {"dtype": "float"}}), "dtype 'float'"),
        (said({"x": {"tensor": ""}}), "accepted: a string"),
        (said({}, rank=[]), "accepted: a string"),
    ],
)  # fmt: skip
def test_headers(tmp_path: Path, data: bytes, wanted: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputFileError) as caught:
        read(path)
    assert wanted in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    "file", ["../a.safetensors", "/a.safetensors", "b/../../a", "", "a\0", "a\x1b[2J", "b\\a", ".", 3]
)
def test_files_outside_of_the_folder_are_not_read(tmp_path: Path, file: object) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "a.safetensors").write_bytes(safetensors(entry(), b"ab"))
    texts = {"cover.json": {"files": {file: {}}}, "m.safetensors.index.json": {"weight_map": {"x": file}}}
    for name, text in texts.items():
        if name == "cover.json" and not isinstance(file, str):
            continue
        path = tmp_path / "c" / name
        path.write_text(json.dumps(text))
        with pytest.raises(InputFileError):
            read(tmp_path / "c")
        path.unlink()


@pytest.mark.parametrize("text", [b"", b"{}", b'{"files": 3}', b'{"files": {}, "more": 1}', b"\xff"])
def test_cover_files(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "cover.json").write_bytes(text)
    with pytest.raises(InputFileError, match=r"cover\.json"):
        read(tmp_path)


class Calls:
    """What a pickle calls when it is loaded."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value, value]  # one object twice: printed in full it has 2^depth parts
    return value


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda marker: Calls(Path.touch, marker), "names pathlib.Path"),
        (lambda marker: Calls(eval, f"open({str(marker)!r}, 'w')"), "names builtins.eval"),
        (lambda marker: nested(60), "lacks state_dict_metadata"),
        (lambda marker: {"state_dict_metadata": {}}, "lacks state_dict_metadata"),
    ],
)
def test_pickles_run_nothing(tmp_path: Path, make: Callable[[Path], object], wanted: str) -> None:
    marker = tmp_path / "marker"
    (tmp_path / ".metadata").write_bytes(pickle.dumps(make(marker)))
    with pytest.raises(InputFileError) as caught:
        read(tmp_path)
    assert wanted in str(caught.value)
    assert not marker.exists()


def test_parts_of_metadata_that_are_something_else(tmp_path: Path) -> None:
    """Each part of a folder's metadata, replaced by other kinds of values."""
    pytest.importorskip("torch")
    folder = tmp_path / "c"
    write_distributed(folder, rows(model(), 2))
    original = (folder / ".metadata").read_bytes()
    count = 0
    for value in (None, 3, "x", nested(60), (2**70,), {"a": 1}):
        for path in (
            ("state_dict_metadata",), ("storage_data",), ("state_dict_metadata", "weight"),
            ("state_dict_metadata", "weight", "size"), ("state_dict_metadata", "weight", "chunks"),
            ("state_dict_metadata", "weight", "properties"),
        ):  # fmt: skip
            metadata = pickle.loads(original)
            target: Any = metadata
            for step in path[:-1]:
                target = target[step] if isinstance(target, dict) else getattr(target, step)
            if isinstance(target, dict):
                target[path[-1]] = value
            else:
                setattr(target, path[-1], value)
            try:
                (folder / ".metadata").write_bytes(pickle.dumps(metadata))
            except (AttributeError, TypeError):
                continue  # torch does not write this
            assert outcome(folder) is None, (path, value if not isinstance(value, list) else "nested")
            count += 1
    assert count > 25


@pytest.mark.parametrize("kind", ["safetensors", "distributed"])
def test_damaged_files(tmp_path: Path, kind: str, say: Callable[[str], None]) -> None:
    """Bytes replaced, cut off or inserted anywhere: an error, an obstruction, or whole tensors. What safetensors itself
    refuses is refused."""
    folder = tmp_path / "c"
    if kind == "distributed":
        pytest.importorskip("torch")
        write_distributed(folder, rows(model(), 2))
    else:
        write_safetensors(folder, rows(model(), 2))
    random, counts = Random(5), {"error": 0, "obstruction": 0, "glued": 0}
    files = sorted(folder.iterdir())
    for _ in range(KEPT):
        file = random.choice(files)
        original = file.read_bytes()
        data = bytearray(original)
        near = random.choice([len(data), min(len(data), 2000)])
        for _ in range(random.choice([1, 1, 3])):
            at = random.randrange(near)
            change = random.randrange(4)
            if change == 0:
                del data[at:]
            elif change == 1:
                data[at:at] = random.randbytes(random.randrange(1, 9))
            elif at < len(data):
                data[at] = random.choice([0, 0xFF, 0x2E, 0x80, random.randrange(256), data[at] ^ 1])
        file.write_bytes(data)
        result = outcome(folder)
        if kind == "safetensors" and result is not None:
            try:
                deserialize(bytes(data))
            except SafetensorError as error:
                raise AssertionError(f"safetensors refuses the file: {error}") from error
        counts["error" if result is None else "glued" if isinstance(result, Glued) else "obstruction"] += 1
        file.write_bytes(original)
    say(f"{kind}: {counts}")
    assert counts["error"] > KEPT // 10 and counts["glued"] > KEPT // 30


def test_a_fifo_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(InputFileError):
        read(tmp_path / "a.safetensors")
    with pytest.raises(InputFileError, match="no regular file"):
        read(tmp_path)


def test_arrays_do_not_change_what_was_read(tmp_path: Path) -> None:
    """Results are memory of their own: writing to them changes no file and no section."""
    write_safetensors(tmp_path / "c", rows(model(), 2))
    result = glue(read(tmp_path / "c").sections)
    assert isinstance(result, Glued)
    result.arrays["weight"][...] = np.float32(0)
    assert glue(read(tmp_path / "c").sections).digest == result.digest  # type: ignore[union-attr]
