"""Ways out of the sandbox: all are refused, and all but a few succeed without one, or the table would show nothing."""

from __future__ import annotations

import ctypes
import os
import platform
import random
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.worker.escapes import ESCAPES
from tokitai.errors import WorkerCrashedError
from tokitai.worker import Limits, Pool, sandbox

THIS = "tests.worker.escapes"
REFUSED = {"EPERM", "EACCES", "ENOSYS"}
# What this kernel may lack, or keep from root in a container, without a sandbox.
OFTEN_LACKING = {
    "io_uring", "bpf", "perf_event_open", "userfaultfd", "keyrings", "a key", "chattr", "setxattr", "removexattr",
    "move_pages", "a file without a name", "a filter of its own", "be traced by anybody",
}  # fmt: skip

needs_seccomp = pytest.mark.skipif(platform.machine() not in sandbox.ARCH, reason="no filter for this machine")


@pytest.fixture
def arguments(tmp_path: Path) -> Iterator[dict[str, Any]]:
    (tmp_path / "there").write_text("text")
    with suppress(OSError):  # not every file system has them
        os.setxattr(tmp_path / "there", "user.x", b"y")
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:
        named.bind(str(tmp_path / "socket"))
        named.listen(100)
        name = f"tokitai-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.listen(100)
        libc = ctypes.CDLL(None)
        segment = libc.shmget(0, 4096, 0o1600)
        code = "import time; print('here', flush=True); time.sleep(600)"
        target = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
        assert target.stdout is not None and target.stdout.readline() == b"here\n"
        try:
            word = next(
                int(line.partition("-")[0], 16) for line in Path(f"/proc/{target.pid}/maps").read_text().splitlines()
                if "rw-p" in line and "[heap]" in line
            )  # fmt: skip
            yield {
                "target": target.pid, "group": target.pid, "word": word, "folder": str(tmp_path), "abstract": name,
                "shm": segment,
            }  # fmt: skip
        finally:
            target.kill()
            target.communicate()
            libc.shmctl(segment, 0, None)


@needs_seccomp
@pytest.mark.parametrize("scratch", [False, True])
def test_no_way_out(scratch: bool, arguments: dict[str, Any], tmp_path: Path) -> None:
    own = tmp_path / "scratch"
    own.mkdir()
    limits = Limits(sandbox=True, scratch=str(own) if scratch else None, reads=(str(Path(__file__).parents[2]),))
    with Pool(1, deadline=60, limits=limits) as pool:
        found = pool.run(f"{THIS}:attempt", arguments)
    print("\n".join(f"{name}: {how}" for name, how in found.items()))
    without = "" if any(w.startswith("landlock: version") for w in pool_words(limits)) else "/proc/PID"
    out = {n: how for n, how in found.items() if how not in REFUSED and not (without and without in n)}
    assert found.keys() == ESCAPES.keys() and out == {}
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["scratch", "socket", "there"] and (tmp_path / "there").read_text() == "text"


def pool_words(limits: Limits) -> list[str]:
    with Pool(1, deadline=60, limits=limits) as pool:
        return pool.applied


@pytest.mark.skipif(os.geteuid() != 0, reason="without a sandbox only root may do all of them")
def test_without_a_sandbox_they_are_ways_out(arguments: dict[str, Any], tmp_path: Path) -> None:
    with Pool(1, deadline=60) as pool:
        found = pool.run(f"{THIS}:attempt", arguments)
    Path(f"/dev/shm/tokitai-{os.getpid()}").unlink(missing_ok=True)
    for left in Path("/dev/shm").glob("tokitai-*"):
        left.unlink()
    refused = {name: how for name, how in found.items() if how != "done"}
    print(refused)
    assert not set(refused) - OFTEN_LACKING, refused
    assert len(refused) < len(ESCAPES) / 5


@needs_seccomp
def test_every_call_of_the_list_is_refused() -> None:
    which = list(sandbox.ARCH).index(platform.machine())

    def numbers(calls: sandbox.Calls) -> dict[str, int]:
        return {name: n for name, both in calls.items() if (n := both[which]) is not None}

    with Pool(1, deadline=60, limits=Limits(sandbox=True)) as pool:
        refused = pool.run(f"{THIS}:call", {"calls": numbers({**sandbox.REFUSED, **sandbox.CHANGES})})
        unknown = pool.run(f"{THIS}:call", {"calls": numbers(sandbox.UNKNOWN) | {"of tomorrow": 500}})
    assert {name: how for name, how in refused.items() if how != "EPERM"} == {}
    assert set(unknown.values()) == {"ENOSYS"}


@needs_seccomp
@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 alone has other numbers for the same calls")
def test_numbers_of_another_interface_end_the_process() -> None:
    with Pool(1, deadline=60, limits=Limits(sandbox=True)) as pool, pytest.raises(WorkerCrashedError, match="SIGSYS"):
        pool.run(f"{THIS}:other_abi")


# ------------------------------------------------------------------ the filter as a function
def answer(code: list[sandbox.Step], machine: str, number: int, arguments: list[int]) -> int:
    """What the filter says of a call: an interpreter of the few instructions that it uses."""
    words = [number, sandbox.ARCH[machine], 0, 0]
    words += [half for a in arguments for half in (a & 0xFFFFFFFF, a >> 32)]
    word, at = 0, 0
    while True:
        op, yes, no, k = code[at]
        if op == sandbox.LOAD:
            word = words[k // 4]
        elif op == sandbox.AND:
            word &= k
        elif op == sandbox.ANSWER:
            return k
        else:
            holds = word == k if op == sandbox.EQUAL else word > k if op == sandbox.ABOVE else word >= k
            at += yes if holds else no
        at += 1


@pytest.mark.parametrize("machine", sandbox.ARCH)
@pytest.mark.parametrize("writes", [False, True])
def test_the_filter_looks_at_whole_arguments(machine: str, writes: bool) -> None:
    """For 10,000 drawn calls: what the filter lets pass, judged here by what the kernel makes of all 64 bits."""
    which = list(sandbox.ARCH).index(machine)
    code = list(struct.iter_unpack("<HBBI", sandbox.filter_for(machine, 4242, writes)))
    refused = {both[which] for both in {**sandbox.REFUSED, **({} if writes else sandbox.CHANGES)}.values()}
    unknown = {both[which] for both in sandbox.UNKNOWN.values()}
    special = {n: calls for n, calls in {
        "clone": sandbox.CLONE, "open": sandbox.OPEN, "openat": sandbox.OPENAT, "tgkill": sandbox.TGKILL,
        "prctl": sandbox.PRCTL, "prlimit": sandbox.PRLIMIT, "mmap": sandbox.MMAP, "ioctl": sandbox.IOCTL,
    }.items() if calls[which] is not None}  # fmt: skip
    rng = random.Random(16)
    words = [0, 1, 2, 3, 0x21, 0x22, 0x23, 0o100, 0o1000, 0x10000, 0x5401, 0x5412, 15, 4, 4242, 0xFFFFFFFF]
    seen: set[tuple[str, bool]] = set()

    def low(value: int) -> int:
        return value & 0xFFFFFFFF

    for _ in range(10_000):
        name = rng.choice([*special, "any"])
        number = special[name][which] if name != "any" else rng.randrange(600)
        assert number is not None
        arguments = [rng.choice([0, rng.choice(words)]) | rng.choice([0, 0, 1, 0xFFFFFFFF]) << 32 for _ in range(6)]
        a = [low(x) for x in arguments]
        allowed = {
            "clone": bool(a[0] & 0x10000),
            "open": writes or not a[1] & 0o1103,
            "openat": writes or not a[2] & 0o1103,
            "tgkill": a[0] == 4242,
            "prctl": a[0] in sandbox.PRCTL_ALLOWED,
            "prlimit": a[0] == 0 and arguments[2] == 0,
            "mmap": a[3] & 0x21 != 0x21,
            "ioctl": a[1] in sandbox.IOCTL_ALLOWED,
            "any": number not in refused | unknown and number <= sandbox.NEWEST,
        }[name if number in {c[which] for c in special.values()} else "any"]
        if name == "any" and number in {c[which] for c in special.values()}:
            continue
        said = answer(code, machine, number, arguments)
        assert (said == sandbox.ALLOW) is allowed, (name, number, [hex(x) for x in arguments], hex(said))
        seen.add((name, allowed))
    expected = {(n, x) for n in (*special, "any") for x in (True, False)}
    assert seen == (expected - {("open", False), ("openat", False)} if writes else expected)
