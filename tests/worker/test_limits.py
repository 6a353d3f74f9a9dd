"""What a process may use, and what foreign code may not do."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker import left
from tokitai.errors import WorkerCrashedError, WorkerMemoryError, WorkerTaskError
from tokitai.worker import Limits, Pool, sandbox

THIS = "tests.worker.foreign"


@pytest.fixture(scope="module")
def boxed() -> Iterator[Pool]:
    with Pool(1, deadline=20, limits=Limits(memory=1 << 29, cpu_seconds=1, open_files=32, sandbox=True)) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """In place of the check after each test: this module's pool lives longer."""


def test_what_was_applied_is_told(boxed: Pool) -> None:
    applied = boxed.applied
    assert applied[:3] == ["no core files", f"memory: {1 << 29}", "open files: 32"]
    assert [word.partition(":")[0] for word in applied[3:]] == ["capabilities", "landlock", "seccomp"]


def test_memory(boxed: Pool) -> None:
    with pytest.raises(WorkerMemoryError, match=f"its limit of {1 << 29} bytes"):
        boxed.run("tests.worker.misbehaving:hoards")
    assert boxed.run(f"{THIS}:allocate", {"bytes": 1 << 28}) == 1 << 28


@pytest.mark.slow
def test_processor_time_of_each_request(boxed: Pool) -> None:
    for _ in range(3):  # together more than one request may use
        boxed.run(f"{THIS}:compute", {"seconds": 0.6})
    started = time.monotonic()
    with pytest.raises(WorkerCrashedError, match=r"SIGXCPU \(it may use 1 s of processor time\)"):
        boxed.run("tests.worker.misbehaving:hangs")
    assert time.monotonic() - started < 15


def test_open_files(boxed: Pool) -> None:
    assert boxed.run(f"{THIS}:open_files") <= 32


needs_seccomp = pytest.mark.skipif(platform.machine() not in sandbox.ARCH, reason="no filter for this machine")


@needs_seccomp
@pytest.mark.parametrize(
    "what", ["fork", "execute", "signal the host", "socket", "memfd", "raise a limit", "survive the host", "shared"]
)
def test_system_calls_that_are_refused(boxed: Pool, what: str) -> None:
    if not any(word.startswith("seccomp: ") and "refused" in word for word in boxed.applied):
        pytest.skip(f"this kernel offers no seccomp: {boxed.applied}")
    with pytest.raises(WorkerTaskError, match="PermissionError"):
        boxed.run(f"{THIS}:attempt", {"what": what, "host": os.getpid()})


def test_threads_are_allowed(boxed: Pool) -> None:
    assert boxed.run(f"{THIS}:threads") == 4


def test_files_are_read_but_not_written(boxed: Pool, tmp_path: Path) -> None:
    if not any(word.startswith("landlock: version") for word in boxed.applied):
        pytest.skip(f"this kernel offers no Landlock: {boxed.applied}")
    (tmp_path / "there").write_text("text")
    assert boxed.run(f"{THIS}:read", {"path": str(tmp_path / "there")}) == "text"
    for path in ("there", "new"):
        with pytest.raises(WorkerTaskError, match="PermissionError"):
            boxed.run(f"{THIS}:write", {"path": str(tmp_path / path)})
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


def test_without_a_sandbox_the_same_attempts_succeed(tmp_path: Path) -> None:
    """Otherwise the tests above would show nothing."""
    with Pool(1, deadline=20) as pool:
        for what in ("fork", "execute", "signal the host", "socket", "memfd", "shared"):
            assert pool.run(f"{THIS}:attempt", {"what": what, "host": os.getpid()}) == "done"
        pool.run(f"{THIS}:write", {"path": str(tmp_path / "new")})
    assert (tmp_path / "new").read_text() == "written"
    assert left.until(lambda: len(left.processes(os.getpid())) <= 1)


@pytest.mark.slow
def test_with_a_scratch_folder_nothing_else_is_written_and_little_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "word")
    scratch, shown, other = (tmp_path / n for n in ("scratch", "shown", "other"))
    for folder in (scratch, shown, other):
        folder.mkdir()
        (folder / "there").write_text("text")
    with Pool(1, deadline=60, limits=Limits(sandbox=True, scratch=str(scratch), reads=(str(shown),))) as pool:
        if not any(word.startswith("landlock: version") for word in pool.applied):
            pytest.skip(f"this kernel offers no Landlock: {pool.applied}")
        assert pool.run(f"{THIS}:environment") == {"SECRET": None, "HOME": str(scratch), "here": str(scratch)}
        pool.run(f"{THIS}:write", {"path": str(scratch / "new")})
        assert pool.run(f"{THIS}:read", {"path": str(shown / "there")}) == "text"
        attempts = [("write", str(shown / "new")), ("write", str(other / "new")), ("read", str(other / "there"))]
        attempts += [("read", f"/proc/{os.getpid()}/{name}") for name in ("mem", "environ", "maps")]
        for what, path in attempts:
            with pytest.raises(WorkerTaskError, match="PermissionError"):
                pool.run(f"{THIS}:{what}", {"path": path})
        assert pool.run(f"{THIS}:ends_with_its_host") == 9
    assert (scratch / "new").read_text() == "written"


@pytest.mark.parametrize("machine", sandbox.ARCH)
def test_jumps_of_the_filter_stay_inside(machine: str) -> None:
    code = sandbox.filter_for(machine, 1)
    steps = [code[i : i + 8] for i in range(0, len(code), 8)]
    for i, step in enumerate(steps):
        if int.from_bytes(step[:2], "little") & 7 == 5:
            assert i + 1 + max(step[2], step[3]) < len(steps)
    assert len(steps) < 4096 and steps[-1][:2] == b"\x06\x00"
