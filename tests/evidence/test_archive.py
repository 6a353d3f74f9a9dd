"""Archives of certificates: small, with exactly the bytes of the files, and refused where anything is wrong."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sample import SAMPLE

from tokitai import ops
from tokitai.cli.check import certificates_in
from tokitai.errors import ArgumentError, EvidenceError, UsageError
from tokitai.evidence import archive, check, compact
from tokitai.evidence.archive import ARCHIVE, INDEX
from tokitai.evidence.sign import public_key
from tokitai.evidence.statement import build_statement, write
from tokitai.meaning import structure
from tokitai.report import certificates
from tokitai.verification.recheck import Checked, check_file
from tokitai.verification.verdict import variants
from tools import certificates as tool

EVIDENCE = Path(__file__).parents[2] / "evidence"
V1 = Path(__file__).parent / "v1"
FOLDERS = [EVIDENCE / name for name in ("cuda", "fused16", "fixed8", "fixed16", "fixed24")]
ONE = "matmul.f16.cuda.json"
LARGEST = 12_000  # bytes a certificate: nine tenths of them are digests, which nothing shortens


# ---------------------------------------------------------------------- what is kept
def test_the_evidence_is_small() -> None:
    sizes = {path: path.stat().st_size for path in EVIDENCE.rglob("*") if path.is_file()}
    count = sum(len(archive.members(folder)) for folder in FOLDERS)
    assert sum(sizes.values()) <= LARGEST * count, sorted(sizes.items(), key=lambda item: -item[1])[:5]
    assert [path for path in sizes if path.suffix == ".json"] == [], "python -m tools.certificates pack FOLDER"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_every_certificate_has_a_line_in_the_index(folder: Path) -> None:
    lines = (folder / INDEX).read_text().splitlines()
    assert lines == sorted(lines, key=lambda line: line[66:]) and len(lines) > 20
    assert [path.name for path in archive.members(folder)] == [line[66:] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_every_certificate_comes_out_with_its_digest(folder: Path) -> None:
    for line in (folder / INDEX).read_text().splitlines():
        assert hashlib.sha256(archive.read_bytes(folder / line[66:])).hexdigest() == line[:64]


# ---------------------------------------------------------------------- round trip
def test_bytes_come_out_as_they_went_in(tmp_path: Path) -> None:
    given = {p.name: archive.read_bytes(p) for p in archive.members(EVIDENCE / "fused16") if "matmul.f16" in p.name}
    given |= {p.name: p.read_bytes() for p in V1.glob("*.json")}
    assert any(name.endswith(".dsse.json") for name in given)
    statement = build_statement(SAMPLE)
    given |= {
        "plain.json": json.dumps(statement).encode(),
        "token.json": (json.dumps({**statement, "subject": ["#", "#=rc", "#-1"]}, indent=2) + "\n").encode(),
        "none.json": b"no certificate\n\t\0",
        "empty.json": b"",
    }
    archive.write(given, tmp_path)
    assert {p.name: archive.read_bytes(p) for p in archive.members(tmp_path)} == given
    assert archive.read(tmp_path / ONE) == check.opened(given[ONE])
    assert check_file(tmp_path / ONE).outcome == "well-formed"


def test_a_certificate_takes_its_digests_and_little_more(tmp_path: Path) -> None:
    data = archive.read_bytes(EVIDENCE / "fused16" / ONE)
    archive.write({ONE: data}, tmp_path)
    size = (tmp_path / ARCHIVE).stat().st_size
    digests = {d for d in json.dumps(json.loads(data)).split('"') if len(d) == 64}
    assert size < 32 * len(digests) + 4_000 < len(data) / 8
    once = lzma.compress(data, preset=9)
    assert size < 0.8 * len(once), "what a compressor makes of the file alone"


@pytest.mark.parametrize(("name", "dtype"), [("layer_norm", "bf16"), ("matmul", "f16"), ("adamw", "f32")])
def test_inputs_that_are_left_out_are_those_of_structure_runs(name: str, dtype: str) -> None:
    op = ops.get(name)
    graph = op.trace(dtype, variants(op)[0].present)
    shape = (7, 33)
    tensors, _ = structure.hashes(graph, shape, 5)
    stream = compact._Stream(graph.digest, 5)
    for n, values in tensors.items():
        assert stream.digest(values.size) == hashlib.sha256(values.astype("<u8").tobytes()).hexdigest(), n


def test_most_inputs_of_structure_runs_are_left_out() -> None:
    statement = json.loads(archive.read_bytes(EVIDENCE / "fused16" / ONE))
    short = compact.shortened(statement, compact.Table())
    kinds, inputs = (short["predicate"]["cases"][c] for c in ("kind", "input_digests"))
    drawn = [d for k, some in zip(kinds, inputs, strict=True) if k == "structure" for d in some.values()]
    assert sum(d.startswith("#=") for d in drawn) > 0.9 * len(drawn) > 50


# ---------------------------------------------------------------------- damage
@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an archive of four certificates."""
    folder = tmp_path_factory.mktemp("four")
    names = [f"{op}.{dtype}.cuda.json" for op in ("linear", "matmul") for dtype in ("bf16", "f16")]
    archive.write({name: archive.read_bytes(EVIDENCE / "fused16" / name) for name in names}, folder)
    return folder


@pytest.fixture
def stored(tmp_path: Path, four: Path) -> Path:
    """A folder with an archive of its own."""
    return Path(shutil.copytree(four, tmp_path / "stored"))


def invalid(path: Path) -> str:
    """Why a certificate is invalid; the page about it says the same."""
    found: Checked = check_file(path)
    assert found.outcome == "invalid", found
    (shown,) = certificates([path])
    assert shown.problems == tuple(found.problems) and shown.predicate is None
    return found.problems[0]


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (0.0, "no archive of certificates"),
        (0.0002, "no archive of certificates"),
        (0.3, "truncated: .* digests end at byte"),
        (0.9, "truncated: its xz stream does not end"),
        (0.9999, "truncated: its xz stream does not end"),
    ],
)
def test_a_truncated_archive_is_refused(stored: Path, part: float, why: str) -> None:
    data = (stored / ARCHIVE).read_bytes()
    (stored / ARCHIVE).write_bytes(data[: int(part * len(data))])
    assert re.match(f"{re.escape(str(stored / ARCHIVE))}: {why}", invalid(stored / ONE))


@pytest.mark.slow
def test_a_changed_byte_is_found(stored: Path) -> None:
    data = bytearray((stored / ARCHIVE).read_bytes())
    right = {path: archive.read_bytes(path) for path in archive.members(stored)}
    wrong = 0
    for at in range(0, len(data), len(data) // 50):
        data[at] ^= 1
        (stored / ARCHIVE).write_bytes(data)
        data[at] ^= 1
        os.utime(stored / ARCHIVE, ns=(at, at))
        for path in (stored / ONE, stored / "linear.bf16.cuda.json"):
            try:
                assert archive.read_bytes(path) == right[path]
            except ValueError:
                wrong += 1
    assert wrong > 20


def test_more_behind_the_end_is_refused(stored: Path) -> None:
    with (stored / ARCHIVE).open("ab") as file:
        file.write(b"more")
    assert "4 bytes behind the xz stream" in invalid(stored / ONE)


def indexed(stored: Path, change: Callable[[str], str]) -> Path:
    (stored / INDEX).write_text(change((stored / INDEX).read_text()))
    return stored / ONE


def test_a_wrong_digest_in_the_index_is_found(stored: Path) -> None:
    right = hashlib.sha256(archive.read_bytes(stored / ONE)).hexdigest()
    path = indexed(stored, lambda text: text.replace(right, "0" * 64))
    assert invalid(path) == f"its SHA-256 is {right}, where {stored / INDEX} says {'0' * 64}"
    others = [p for p in archive.members(stored) if p != path]
    assert {check_file(p).outcome for p in others[:2]} == {"well-formed"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text + "0" * 64 + "  another.f16.cuda.json\n", r"lacks \['another.f16.cuda.json'\]"),
        (lambda text: "".join(x for x in text.splitlines(True) if "linear.f16" not in x), r"has \['linear.f16"),
        (lambda text: text + text.splitlines(True)[0], "each name once"),
        (lambda text: text.replace("  ", " "), "two spaces, NAME.json"),
        (lambda text: text.replace("matmul.bf16", "../matmul.bf16"), "two spaces, NAME.json"),
    ],
    ids=["one more", "one less", "twice", "one space", "a path"],
)
def test_an_index_that_is_not_the_archive_s_is_refused(stored: Path, change: Callable[[str], str], said: str) -> None:
    path = indexed(stored, change)
    with pytest.raises(ValueError, match=said):
        archive.read(path)
    assert certificates_in([stored]), "no archive is passed over"
    assert all(check_file(p).outcome == "invalid" for p in certificates_in([stored])[:3])


@pytest.mark.parametrize("name", [ARCHIVE, INDEX])
def test_one_of_the_two_files_alone_is_refused(stored: Path, name: str) -> None:
    (stored / name).unlink()
    assert f"{stored / name}: no such file (accepted: {ARCHIVE} and {INDEX} together)" in invalid(
        certificates_in([stored])[0]
    )


@pytest.mark.parametrize("name", [ARCHIVE, INDEX])
def test_a_pipe_is_not_waited_for(stored: Path, name: str) -> None:
    (stored / name).unlink()
    os.mkfifo(stored / name)
    assert "no regular file" in invalid(stored / ONE)


# ---------------------------------------------------------------------- bombs
def made(folder: Path, text: bytes, compressed: bytes | None = None) -> Path:
    """A folder with an archive of this text, and an index that lists one certificate."""
    folder.mkdir(exist_ok=True)
    body = lzma.compress(text, preset=0) if compressed is None else compressed
    (folder / ARCHIVE).write_bytes(archive._HEAD.pack(archive.MAGIC, 0) + body)
    (folder / INDEX).write_text(f"{'0' * 64}  {ONE}\n")
    return folder / ONE


def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST_TEXT", 1 << 20)
    path = made(tmp_path, b"\0" * (1 << 26))
    assert (tmp_path / ARCHIVE).stat().st_size < 1 << 16
    tracemalloc.start()
    try:
        said = invalid(path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "more than 1 MiB when decompressed" in said and most < 1 << 23


def test_a_stream_that_asks_for_a_large_dictionary_is_refused(tmp_path: Path) -> None:
    data = bytearray(lzma.compress(b"x", preset=0))
    size = 4 * (data[12] + 1)  # of the block's header, which ends with its CRC
    data[16] = 40  # 4 GiB
    data[12 + size - 4 : 12 + size] = zlib.crc32(data[12 : 12 + size - 4]).to_bytes(4, "little")
    assert "Memory usage limit" in invalid(made(tmp_path, b"", bytes(data)))


def short(change: Callable[[Any], object]) -> bytes:
    """A line of an archive, with the digests written out, changed."""
    statement = build_statement(SAMPLE)
    predicate = statement["predicate"]
    change(predicate)
    return f"{ONE}\t0\t".encode() + json.dumps({**statement, "subject": None}).encode()


def test_more_random_inputs_than_anybody_needs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(size: str) -> Path:
        return made(tmp_path, short(lambda p: p["cases"][0].update(input_digests={"x": size, "y": size})))

    assert "4194305 random inputs of one tensor" in invalid(drawn("#=4194305"))
    assert "a size of 100000 letters" in invalid(drawn("#=" + "r" * 100_000))
    monkeypatch.setattr(compact, "MOST_IN_ALL", 1000)
    assert "1200 so far" in invalid(drawn("#=600"))
    assert "its SHA-256 is" in invalid(drawn("#=500")), "so many are drawn"


def test_short_text_that_would_become_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LARGEST", 1 << 20)
    longest = "k" * 10_000

    def columns(p: Any) -> None:
        p["cases"] = {longest: [0] * 1000, **{n: [c] * 1000 for n, c in p["cases"][0].items()}}

    line = short(columns)
    assert len(line) < 1 << 19 and "more than 1 MiB" in invalid(made(tmp_path, line))
    assert "an operator's name" in invalid(made(tmp_path, short(lambda p: p["operator"].update(name=longest))))
    monkeypatch.setattr(archive, "LARGEST_LINE", 100)
    assert "(accepted: at most 100)" in invalid(made(tmp_path, line))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "the line b''"),
        (b"a.json 0 {}", "the line"),
        (b"a.json\t-1\t{}", "the line"),
        (b"a.json\t0\t{}\na.json\t0\t{}", "each name once"),
        (f"{ONE}\t0\t{{}}".encode(), "KeyError: 'predicate'"),
        (f"{ONE}\t0\t7".encode(), "TypeError"),
        (f"{ONE}\t0\t{'[' * 900}{']' * 900}".encode(), "damaged"),
        (f"{ONE}\t0\t{'[' * 90000}".encode(), "nested too deeply"),
        (short(lambda p: p["cases"][0].update(seed=None, input_digests={"x": "#=rc"})), "TypeError"),
        (short(lambda p: p["cases"][0].update(seed=-7, input_digests={"x": "#=rc"})), "ValueError"),
        (short(lambda p: p["cases"][0].update(input_digests={"x": "#=q"})), "KeyError: 'q'"),
        (short(lambda p: p["cases"][0].update(output_digests={"y": "#"})), "a digest with the number 0"),
        (short(lambda p: p.update(kernels={"digest": [1, 2], "structure": [True]})), "ValueError"),
    ],
)  # fmt: skip
def test_text_that_is_no_archive_s_is_refused(tmp_path: Path, text: bytes, said: str) -> None:
    assert said in invalid(made(tmp_path, text))


# ---------------------------------------------------------------------- finding, packing
def test_certificates_are_found_by_folder_archive_and_path(stored: Path, tmp_path: Path) -> None:
    every = archive.members(stored)
    assert certificates_in([tmp_path]) == certificates_in([stored / ARCHIVE]) == sorted(every)
    assert certificates_in([stored / ONE]) == [stored / ONE]
    for words in ([stored / ARCHIVE], [tmp_path, stored / ONE]):
        assert len(certificates(words)) == len(every)
    with pytest.raises(UsageError, match="no such file"):
        certificates_in([stored / "none.json"])
    with pytest.raises(ArgumentError, match="no such file"):
        certificates([stored / "none.json"])
    with pytest.raises(ValueError, match="an archive of 4 certificates"):
        archive.read(stored / ARCHIVE)


def test_a_file_is_taken_in_place_of_the_archive_s(stored: Path) -> None:
    (stored / ONE).write_bytes((V1 / "rms_norm.f32.cpu.json").read_bytes())
    assert check_file(stored / ONE).operator == "rms_norm"
    assert len(certificates_in([stored])) == len(certificates([stored])) == 4


def test_signatures_in_an_archive_are_checked(tmp_path: Path) -> None:
    archive.write({p.name: p.read_bytes() for p in V1.glob("*.json")}, tmp_path)
    key = public_key(V1 / "key.pub.pem")
    assert check_file(tmp_path / "silu.bf16.cpu.dsse.json", key=key).signature == "good"
    assert check_file(tmp_path / "rms_norm.f32.cpu.json", key=key).outcome == "invalid"


@pytest.mark.slow
def test_certificates_are_renewed_by_packing(
    stored: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["certificates", *words])
        return tool.main()

    before = {p.name: archive.read_bytes(p) for p in archive.members(stored)}
    new = write(build_statement(SAMPLE), stored)
    (stored / ONE).write_bytes(b"{}\n")
    new.with_suffix(".md").write_text("its rendering")
    data = new.read_bytes()
    assert main("pack", str(stored), "--without", "linear.f16.cuda.json") == 0
    assert capsys.readouterr().out == f"{stored / ARCHIVE}: 4 certificates\n"
    assert sorted(os.listdir(stored)) == [ARCHIVE, INDEX]
    del before["linear.f16.cuda.json"]
    want = {**before, ONE: b"{}\n", new.name: data}
    assert {p.name: archive.read_bytes(p) for p in archive.members(stored)} == want

    target = stored.parent / "files"
    assert main("unpack", str(stored), str(target)) == 0
    assert {p.name: p.read_bytes() for p in target.glob("*.json")} == want
    assert main("pack", str(stored), "--without", "none.json") == 3
    assert "no certificate none.json" in capsys.readouterr().err
    (stored / ARCHIVE).write_bytes(b"")
    assert main("pack", str(stored)) == main("unpack", str(stored), str(target)) == 3


def test_what_no_archive_can_hold_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ({"a b.json": b"{}"}, {"../a.json": b"{}"}, {"a.txt": b"{}"}, {"a.json": b"\xff"}):
        with pytest.raises(EvidenceError):
            archive.write(given, tmp_path)
    monkeypatch.setattr(archive, "LARGEST_LINE", 100)
    with pytest.raises(EvidenceError, match="at most 100"):
        archive.write({"a.json": b"{" + b" " * 100 + b"}"}, tmp_path)
    assert not list(tmp_path.iterdir())
