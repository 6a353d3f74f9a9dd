"""Compilers that hang, print without end or leave processes behind, and hosts that are interrupted or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from sample_kernels import scale_of, scaling

from tokitai.errors import CompileError, CompilerMissingError, TokitaiError
from tokitai.toolchain import build as building
from tokitai.toolchain import compilers
from tokitai.toolchain.build import build, native_isa
from tokitai.toolchain.compilers import Compiler, find_compiler
from tokitai.toolchain.process import MOST, Stop, run, shown

Wrapped = Callable[..., Compiler]


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def gone(pids: list[int], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


def pids_in(file: Path, count: int, seconds: float = 60) -> list[int]:
    """The process numbers in a file, as soon as it has so many."""
    deadline = time.monotonic() + seconds
    while not file.exists() or len(file.read_text().split()) < count:
        assert time.monotonic() < deadline, f"{file} does not have {count} numbers"
        time.sleep(0.02)
    return [int(word) for word in file.read_text().split()]


@pytest.fixture
def hanging(tmp_path: Path, wrapped: Wrapped) -> Iterator[tuple[Compiler, Path]]:
    """A compiler that hangs in a child of a child, and the file in which they write their numbers."""
    pids = tmp_path / "pids"
    child = f"echo $$ >> {pids}; sleep 600 & echo $! >> {pids}; wait"
    yield wrapped(f"sh -c '{child}' & echo $$ >> {pids}; wait"), pids
    for pid in pids_in(pids, 0) if pids.exists() else []:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_children_of_a_hung_compiler_end_with_it(
    hanging: tuple[Compiler, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, pids = hanging
    monkeypatch.setattr(building, "COMPILE_SECONDS", 1.0)
    with pytest.raises(CompileError, match="did not end within 1 s"):
        build(scaling("2"), compiler, native_isa())
    assert gone(pids_in(pids, 3))


def test_children_of_a_compiler_that_hangs_when_it_is_asked(
    wrapped: Wrapped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers, "_PROBE_SECONDS", 1.0)
    pids = tmp_path / "pids"
    with pytest.raises(CompilerMissingError, match="did not end within 1 s"):
        wrapped(always=f"sleep 600 & echo $! >> {pids}; wait")
    assert gone(pids_in(pids, 1))


def test_what_a_compiler_leaves_running_is_not_waited_for(wrapped: Wrapped, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    compiler = wrapped(f"sleep 600 & echo $! >> {pids}")
    started = time.monotonic()
    assert scale_of(build(scaling("2"), compiler, native_isa())) == 2
    assert time.monotonic() - started < 60
    assert gone(pids_in(pids, 1))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_compilers_of_a_killed_process_end(how: signal.Signals, hanging: tuple[Compiler, Path]) -> None:
    compiler, pids = hanging
    code = (
        "import sys; from sample_kernels import scaling; from tokitai.toolchain.build import build, native_isa; "
        "from tokitai.toolchain.compilers import find_compiler; "
        "build(scaling('2'), find_compiler(sys.argv[1]), native_isa())"
    )
    paths = [str(Path(building.__file__).parents[2]), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    host = subprocess.Popen([sys.executable, "-c", code, str(compiler.path)], env=environment)
    found = pids_in(pids, 3)
    host.send_signal(how)
    host.wait(30)
    assert gone(found)


@pytest.mark.parametrize(
    "words",
    ["verify softmax --dtype f32", "verify --all --dtype f32", "verify softmax --dtype f32 --isolate --device sim",
     "doctor"],
)  # fmt: skip
def test_an_interrupt_is_heard_in_a_build(words: str, hanging: tuple[Compiler, Path], tmp_path: Path) -> None:
    """As from a keyboard: the whole process group of the command gets SIGINT."""
    compiler, pids = hanging
    environment = {**os.environ, compilers.ENV_COMPILER: str(compiler.path)}
    command = [sys.executable, "-m", "tokitai", *words.split()]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores it
    )  # fmt: skip
    try:
        pids_in(pids, 3)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130 and b"interrupted" in said, said
    assert gone(pids_in(pids, 3))


def test_compilers_of_other_threads_can_be_ended(hanging: tuple[Compiler, Path]) -> None:
    """And those threads neither begin another one nor wait for a lock."""
    compiler, pids = hanging
    found: list[BaseException] = []
    stop = Stop()

    def attempt() -> None:
        try:
            with stop:
                build(scaling("2"), compiler, native_isa())
        except TokitaiError as error:
            found.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(3)]  # one compiles, the others wait for its lock
    for thread in threads:
        thread.start()
    numbers = pids_in(pids, 3)
    stop.now()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads) and len(found) == 3
    assert gone(numbers) and len(pids_in(pids, 3)) == 3


def test_messages_are_bounded_and_plain(wrapped: Wrapped, cache_root: Path) -> None:
    """64 MiB of messages with escape sequences: neither memory, nor disk, nor terminal gets them."""
    compiler = wrapped(
        r"printf '\033[31mfirst\n'; head -c 67108864 /dev/zero | tr '\0' 'x'; "
        r"printf '\n\033]0;title\007last\r\n'; exit 3"
    )
    with pytest.raises(CompileError) as caught:
        build(scaling("2"), compiler, native_isa())
    said = str(caught.value)
    assert len(said) < 8000
    assert r"\x1b]0;title\x07last" in said and not any(ord(c) < 32 and c != "\n" for c in said)
    (kept,) = cache_root.glob("failed/*/messages.txt")
    assert kept.stat().st_size < MOST + 100
    text = kept.read_text()
    assert text.startswith("\x1b[31mfirst\n") and "bytes left out" in text and text.rstrip().endswith("last")


def test_a_compiler_that_prints_without_end_is_ended_in_time(wrapped: Wrapped, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = wrapped("exec yes")
    monkeypatch.setattr(building, "COMPILE_SECONDS", 1.0)
    started = time.monotonic()
    with pytest.raises(CompileError, match="did not end within 1 s"):
        build(scaling("2"), compiler, native_isa())
    assert time.monotonic() - started < 15


def test_what_is_shown() -> None:
    assert shown("") == "(it printed nothing)"
    assert shown("\n".join(map(str, range(100)))).splitlines()[0] == "80"
    assert shown("\n".join(map(str, range(100))), first=True).splitlines()[-1] == "19"
    assert len(shown("x" * 10**6)) < 500


def test_output_and_messages_are_kept_apart() -> None:
    ran = run(["sh", "-c", "echo out; echo words >&2; exit 4"], None, 10, os.environ, output=True)
    assert (ran.status, ran.output, ran.messages) == (4, "out\n", "words\n")


# ------------------------------------------------------------------ paths
ODD = ["a b", "tab\there", "new\nline", "quote'\"s", "$HOME", "a#b", "a:b", "a,b", "a%b", "ü-ñ", "back\\slash", "a=b;c"]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", ["gcc", "clang"])
def test_a_cache_folder_of_any_name(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [c for c in compilers.all_compilers() if c.kind == kind and c.machine == building.machine_here()]
    if not found:
        pytest.skip(f"no compiler of the kind {kind}")
    monkeypatch.setenv("TOKITAI_CACHE_DIR", str(tmp_path / name / "cache"))
    artifact = build(scaling("2"), found[0], native_isa())
    assert artifact.path.is_relative_to(tmp_path / name) and scale_of(artifact) == 2
    monkeypatch.setenv("TOKITAI_CACHE_DIR", str(tmp_path / "plain"))
    plain = build(scaling("2"), found[0], native_isa())
    assert (plain.fingerprint, plain.digest) == (artifact.fingerprint, artifact.digest), "the path shows in the binary"
    monkeypatch.setenv("TOKITAI_CACHE_DIR", str(tmp_path / name / "cache"))
    assert build(scaling("2"), found[0], native_isa()).cached


def test_a_compiler_in_a_folder_with_a_space(tmp_path: Path, compiler: Compiler) -> None:
    """What GNU ld reports of it is not escaped."""
    folder = tmp_path / "my compilers"
    folder.mkdir()
    extra = folder / "extra.o"
    subprocess.run([str(compiler.path), "-x", "c", "-c", "/dev/null", "-fPIC", "-o", str(extra)], check=True)
    path = folder / "wrapper"
    path.write_text(f'#!/bin/sh\ncase " $* " in *" -o "*) set -- "$@" "{extra}";; esac\nexec {compiler.path} "$@"\n')
    path.chmod(0o755)
    named = find_compiler(str(path))
    first = build(scaling("2"), named, native_isa())
    assert scale_of(first) == 2 and build(scaling("2"), named, native_isa()).cached
    os.utime(extra, (1, 1))
    extra.write_bytes(extra.read_bytes() + b"\0")
    assert not build(scaling("2"), named, native_isa()).cached, "a change of a file that was linked is not seen"
