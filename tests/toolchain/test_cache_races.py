"""Many builders of one kernel at once, and builders that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sample_kernels import scale_of, scaling

import tokitai.toolchain
from tokitai.toolchain.build import build, native_isa
from tokitai.toolchain.compilers import Compiler

# Builds and runs the kernel as soon as the file named last exists; prints what it found.
BUILDER = """
import sys, time
from pathlib import Path
from sample_kernels import scale_of, scaling
from tokitai.toolchain.build import build, native_isa
from tokitai.toolchain.compilers import find_compiler
compiler, ready, start = find_compiler(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
ready.touch()
while not start.exists():
    time.sleep(0.002)
artifact = build(scaling("2"), compiler, native_isa())
print(artifact.digest, artifact.cached, artifact.healed, scale_of(artifact))
"""


def start_builder(compiler: Compiler, ready: Path, start: Path) -> subprocess.Popen[str]:
    paths = [Path(tokitai.toolchain.__file__).parents[2], Path(__file__).parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-c", BUILDER, str(compiler.path), str(ready), str(start)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(path: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.005)


def logging_compiler(wrapped: Callable[..., Compiler], log: Path) -> Compiler:
    return wrapped(f"echo compile >> {log}; sleep 0.2")


def test_threads_share_one_compile(wrapped: Callable[..., Compiler], tmp_path: Path) -> None:
    compiler = logging_compiler(wrapped, tmp_path / "log")
    with ThreadPoolExecutor(8) as pool:
        artifacts = list(pool.map(lambda _: build(scaling("2"), compiler, native_isa()), range(8)))
    assert (tmp_path / "log").read_text() == "compile\n"
    assert sorted(artifact.cached for artifact in artifacts) == [False] + [True] * 7
    assert {scale_of(artifact) for artifact in artifacts} == {2}


@pytest.mark.parametrize("count", [3, pytest.param(32, marks=pytest.mark.slow)])
def test_processes_share_one_compile(count: int, wrapped: Callable[..., Compiler], tmp_path: Path) -> None:
    """C109: one recorded compile, and every process has the right numbers."""
    compiler = logging_compiler(wrapped, tmp_path / "log")
    builders = [start_builder(compiler, tmp_path / f"ready-{i}", tmp_path / "start") for i in range(count)]
    for i in range(count):
        wait_for(tmp_path / f"ready-{i}")
    (tmp_path / "start").touch()
    answers = [builder.communicate(timeout=120) for builder in builders]
    assert [builder.returncode for builder in builders] == [0] * count, [errors for _, errors in answers]
    assert (tmp_path / "log").read_text() == "compile\n"
    found = [output.split() for output, _ in answers]
    assert len({digest for digest, *_ in found}) == 1
    assert sorted(cached for _, cached, _, _ in found) == ["False"] + ["True"] * (count - 1)
    assert {(healed, scale) for _, _, healed, scale in found} == {("None", "2.0")}


def test_a_killed_builder_blocks_nobody(wrapped: Callable[..., Compiler], tmp_path: Path, cache_root: Path) -> None:
    """C106: SIGKILL in the middle of a compile; the next builder is done in bounded time."""
    marker = tmp_path / "compiling"
    compiler = wrapped(f"if ! test -e {marker}; then echo half > kernel.so; echo $$ > {marker}; exec sleep 60; fi")
    (tmp_path / "start").touch()
    victim = start_builder(compiler, tmp_path / "ready", tmp_path / "start")
    wait_for(marker)
    waiter = start_builder(compiler, tmp_path / "waiting", tmp_path / "start")
    wait_for(tmp_path / "waiting")
    time.sleep(0.3)
    assert waiter.poll() is None, "it must wait for the lock"
    victim.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    output, errors = waiter.communicate(timeout=30)
    assert time.monotonic() - killed < 15
    assert waiter.returncode == 0, errors
    assert output.split()[1:] == ["False", "None", "2.0"]
    victim.communicate()
    os.kill(int(marker.read_text()), signal.SIGKILL)  # the compiler that the victim left behind
    assert not list(cache_root.glob("*.build-*"))
    assert build(scaling("2"), compiler, native_isa()).cached


@pytest.mark.slow
def test_readers_and_damage_at_once(wrapped: Callable[..., Compiler], tmp_path: Path, cache_root: Path) -> None:
    """Readers take no lock: while others break and heal the entry, each still gets the right kernel or none."""
    compiler = wrapped(f"echo compile >> {tmp_path / 'log'}")
    first = build(scaling("2"), compiler, native_isa())
    deadline = time.monotonic() + 5

    def read(_: int) -> int:
        turns = 0
        while time.monotonic() < deadline:
            artifact = build(scaling("2"), compiler, native_isa())
            assert artifact.digest == first.digest
            turns += 1
        return turns

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read, i) for i in range(4)]
        damages = 0
        while time.monotonic() < deadline:
            for record in cache_root.glob("*/entry.json"):
                record.write_text("")
                damages += 1
            time.sleep(0.3)
        assert all(reader.result() > 0 for reader in readers)
    assert (tmp_path / "log").read_text().count("compile") >= damages // 2 > 0
