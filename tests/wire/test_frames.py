"""Frames: pieces of one byte, inputs that are cut off, hosts that disappear, lengths that nothing follows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from host import F16, Done, Input, command, framed, frames, here, lines, process, words

from tokitai.wire import SHORT_LENGTH, SHORT_PAYLOAD, UNHEARD, Runner, family_named, serve

pytestmark = pytest.mark.slow  # each starts processes and waits for their end
X = np.linspace(-2, 2, 21).astype(F16).reshape(3, 7)
REQUEST = framed(words(0, 3, 7, X))


def without_time(done: Done) -> list[dict[str, str]]:
    return [{k: v for k, v in lines(reply).items() if k != "KERNEL_TIME_MS"} for reply in frames(done.out)]


def test_pieces_of_every_size_give_the_same() -> None:
    whole = here("softmax", REQUEST * 3, server=True)
    for piece in (1, 2, 3, 5, 64):
        done = here("softmax", REQUEST * 3, server=True, piece=piece)
        assert (done.code, without_time(done)) == (0, without_time(whole))


def test_one_byte_at_a_time_through_a_pipe() -> None:
    child = subprocess.Popen(
        command("softmax", "--server"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert child.stdin is not None
    for byte in REQUEST * 2:
        child.stdin.write(bytes([byte]))
    out, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, b"")
    assert without_time(Done(0, out)) == without_time(here("softmax", REQUEST * 2, server=True))


@pytest.mark.parametrize("server", [True, False])
def test_no_input_at_all(server: bool) -> None:
    done = process("softmax", b"", *["--server"] * server)
    assert done.code == (0 if server else 3)
    assert done.out == b"" if server else lines(done.out)["FIELD"] == "mode"


@pytest.mark.parametrize("before", [0, 2])
def test_input_that_is_cut_off_anywhere(before: int) -> None:
    for cut in range(len(REQUEST) + 1):
        done = here("softmax", REQUEST * before + REQUEST[:cut], server=True)
        want = 0 if cut in (0, len(REQUEST)) else SHORT_LENGTH if cut < 4 else SHORT_PAYLOAD
        assert done.code == want, cut
        assert len(frames(done.out)) == before + (cut == len(REQUEST))


@pytest.mark.parametrize(("data", "code"), [(REQUEST, 0), (REQUEST + b"\1\0", 20), (REQUEST[:-1], 21), (b"\5", 20)])
def test_exit_codes_of_the_process(data: bytes, code: int) -> None:
    done = process("softmax", data, "--server")
    assert (done.code, done.err) == (code, "")
    assert len(frames(done.out)) == (code == 0 or data.startswith(REQUEST))


def test_an_empty_frame_is_a_payload_without_fields() -> None:
    done = here("softmax", framed(b""), server=True)
    assert (done.code, lines(frames(done.out)[0])["ERROR"][:16]) == (3, "mode: is missing")


def test_a_host_that_reads_no_reply() -> None:
    read, write = os.pipe()
    os.close(read)  # nobody will ever read
    try:
        ran = subprocess.run(
            command("softmax", "--server"), input=REQUEST, stdout=write, stderr=subprocess.PIPE, timeout=120
        )
    finally:
        os.close(write)
    assert (ran.returncode, ran.stderr) == (UNHEARD, b"")


def test_a_host_that_disappears_while_a_large_reply_is_written() -> None:
    wide = np.zeros((64, 4096), F16)
    with subprocess.Popen(
        command("softmax", "--server"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        child.stdin.write(framed(words(0, 64, 4096, wide)))
        child.stdin.flush()
        child.stdout.read(10)
        child.stdout.close()
        assert child.wait(120) == UNHEARD
        assert child.stderr.read() == b""


HOST = """
import subprocess, sys
code, *child = sys.argv[1:]
started = subprocess.Popen(["bash", "-c", '"$@"; echo $? > "$0"', code, *child], stdin=-1, stdout=-1, bufsize=0)
started.stdin.write(sys.stdin.buffer.read())
left = int.from_bytes(started.stdout.read(4), "little")
while left:
    left -= len(started.stdout.read(left))
print("answered", flush=True)
started.wait()
"""


@pytest.mark.parametrize(("rest", "code"), [(b"", 0), (REQUEST[:2], SHORT_LENGTH), (REQUEST[:20], SHORT_PAYLOAD)])
def test_a_host_that_is_killed(tmp_path: Path, rest: bytes, code: int) -> None:
    """Its child, which waits for the rest of a frame, ends by itself."""
    file = tmp_path / "code"
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(file), *command("softmax", "--server")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert host.stdin is not None and host.stdout is not None
        host.stdin.write(REQUEST + rest)
        host.stdin.close()
        assert host.stdout.readline() == b"answered\n"
        assert not file.exists(), "the child waits for more"
    finally:
        host.kill()
        host.wait()
    limit = time.monotonic() + 60
    while not (file.exists() and file.read_text()) and time.monotonic() < limit:
        time.sleep(0.05)
    assert file.read_text() == f"{code}\n"


@pytest.mark.parametrize("length", [2**32 - 1, 2**31, 10**8])
def test_a_length_alone_sets_nothing_aside(length: int) -> None:
    asked: list[int] = []

    class Watched(Input):
        def read(self, room: memoryview) -> int:
            asked.append(len(room))
            return super().read(room)

    data = Watched(length.to_bytes(4, "little") + b"0 1 1" * 100)
    tracemalloc.start()
    try:
        code = serve(family_named("softmax"), Runner("cpu"), data.read, lambda _: None, framed=True)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert code == SHORT_PAYLOAD
    assert max(asked) <= 1 << 20 and most < 4 << 20


def test_sizes_alone_set_nothing_aside() -> None:
    head = np.array([0x57414441, 2**32 - 1], "<u4").tobytes() + np.array([0, 0.5, 0.5, 0, 0], "<f4").tobytes()
    binary = head + np.array([1, 0], "<i4").tobytes()
    for family, payload in (
        ("layernorm", b"1 100000 1000 64 0"), ("softmax", b"0 100000 1000"), ("gemm-bw", b"1 10000 10000 10000"),
        ("embedding", b"100000 1000 9 0"), ("embedding", b"0 1000 100000 0"), ("adamw", b"9999999 0 0 0 0 0 1"),
        ("adamw", binary),
    ):  # fmt: skip
        tracemalloc.start()
        try:
            done = here(family, payload)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert done.code > 2 and most < 4 << 20, (family, payload, most)


def test_what_a_library_prints_is_no_reply() -> None:
    program = (
        "import os, sys; from tokitai.wire import execute; from tokitai import cli\n"
        "run = execute.Runner.run\n"
        "execute.Runner.run = lambda *a, **k: (print('noise', flush=True), os.write(1, b'more'), run(*a, **k))[2]\n"
        "sys.exit(cli.run(['kernel', 'softmax', '--server']))"
    )
    ran = subprocess.run([*command("")[:1], "-c", program], input=REQUEST, capture_output=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, b"noise\nmore")
    assert without_time(Done(0, ran.stdout)) == without_time(here("softmax", REQUEST, server=True))


def test_closed_streams_are_told() -> None:
    ran = subprocess.run(
        ["bash", "-c", '"$@" <&-', "_", *command("softmax")], capture_output=True, timeout=120, check=False
    )
    assert ran.returncode == 2 and b"must be open" in ran.stderr and b"Traceback" not in ran.stderr
