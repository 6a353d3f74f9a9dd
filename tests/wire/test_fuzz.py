"""Frames from strangers: whatever arrives, the process answers and ends as the protocol says."""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections import Counter

import numpy as np
import pytest
from host import F16, F32, Input, adamw_bytes, framed, frames, lines, words

from tokitai.wire import FAMILIES, SHORT_LENGTH, SHORT_PAYLOAD, Runner, family_named, serve

pytestmark = pytest.mark.slow

COUNT = 100_000
RUNNER = Runner("cpu")
ONES, HALVES = np.ones(6, F16), np.full(6, 0.5, F32)

# A right payload of each kind, to be altered.
SEEDS: list[tuple[str, bytes]] = [
    ("layernorm", words(1, 2, 3, 64, "1e-5", ONES[:3], ONES[:3], ONES)),
    ("layernorm", words(2, 2, 3, 64, "1e-5", 32, ONES[:3], ONES[:3], ONES, ONES, ONES[:4], HALVES[:4])),
    ("softmax", words(0, 2, 3, ONES)),
    ("softmax", words(1, 2, 3, ONES, ONES)),
    ("gemm-bw", words(1, 2, 3, 1, ONES, ONES[:3])),
    ("gemm-bw", words(2, 2, 3, 1, ONES, ONES[:2])),
    ("embedding", words(2, 3, 4, 0, 1, 3, *[15360] * 12)),
    ("embedding", words(2, 3, 4, 1, 1, 3, ONES)),
    ("adamw", words(2, "1e-3", ".9", ".999", "1e-8", "1e-2", 3, ONES[:2], HALVES[:2], HALVES[:2], ONES[:2])),
    ("adamw", adamw_bytes(ONES[:3], HALVES[:3], HALVES[:3], ONES[:3])),
]
PIECES = [
    b"", b" ", b"0", b"-1", b"1", b"7", b"65535", b"65536", b"nan", b"inf", b"1e39", b"1e-400", b"-", b".", b"e", b"\0",
    b"\xff\xfe", b"ADAW", b"1e5", b"99999999999999999999", b"2147483648", b"\r\n\t\v\f", b",", b"0x10", b"1_0",
    b"\xd9\xa1",
]  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few elements a frame: threads would only wait for each other."""
    monkeypatch.setenv("TOKITAI_NUM_THREADS", "1")


def altered(drawn: random.Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    for _ in range(drawn.choice((0, 1, 1, 2, 5))):
        at = drawn.randrange(len(data) + 1)
        match drawn.randrange(6):
            case 0:
                data[at:at] = drawn.choice(PIECES)
            case 1:
                data[at : at + drawn.randrange(1, 9)] = b""
            case 2 if at < len(data):
                data[at] = drawn.randrange(256)
            case 3:  # another word in place of one
                found = bytes(data).split()
                if found:
                    found[drawn.randrange(len(found))] = drawn.choice(PIECES)
                    data = bytearray(b" ".join(found))
            case 4:
                data += drawn.choice(PIECES) * drawn.randrange(4)
            case _ if at < len(data):
                data[at] ^= 1 << drawn.randrange(8)
    return bytes(data)


def frame(drawn: random.Random) -> tuple[str, bytes]:
    """A family, and what a server of it gets: mostly one frame, at times cut off or with a wrong length."""
    family, payload = drawn.choice(SEEDS)
    kind = drawn.random()
    if kind < 0.05:
        payload = drawn.randbytes(drawn.randrange(80))
    elif kind < 0.1:
        payload = drawn.choice(SEEDS)[1]
    else:
        payload = altered(drawn, payload)
    data = framed(payload)
    if drawn.random() < 0.05:
        data = data[: drawn.randrange(len(data) + 1)]
    elif drawn.random() < 0.02:
        data = struct.pack("<I", drawn.choice((0, 1, 2**31, 2**32 - 1, len(payload) + 1))) + payload
    return family, data


def check(family: str, code: int, out: bytes) -> None:
    """A whole reply for every request that is answered, and the code that the last one says."""
    *_, last = [None, *frames(out)]
    codes = range(3, 3 + len(FAMILIES[family].fields))
    if code in (0, SHORT_LENGTH, SHORT_PAYLOAD):
        assert last is None or not last.startswith(b"ERROR")
        return
    assert last is not None and code in codes, (code, out)
    said = lines(last)
    assert said["CODE"] == str(code) and said["ERROR"].isprintable()
    assert said["FIELD"] == FAMILIES[family].fields[code - 3] and said["ERROR"].startswith(said["FIELD"] + ": ")


@pytest.mark.slow
def test_a_hundred_thousand_frames(capsys: pytest.CaptureFixture[str]) -> None:
    drawn, ended = random.Random(0), Counter[int]()
    begin = time.process_time()
    for i in range(COUNT):
        family, data = frame(drawn)
        out = bytearray()
        try:
            code = serve(family_named(family), RUNNER, Input(data).read, out.extend, framed=True)
            check(family, code, bytes(out))
        except BaseException:
            print(f"frame {i}: {family} {data!r}")
            raise
        ended[code] += 1
    taken = time.process_time() - begin
    with capsys.disabled():
        print(f"\n{COUNT} frames in {taken:.1f} s of processor time; exit codes {dict(sorted(ended.items()))}", end="")
    assert sum(ended.values()) == COUNT
    assert set(ended) >= {0, *range(3, 15), 20, 21} and ended[0] > COUNT // 20 and 70 not in ended


def test_thousands_of_frames_through_pipes() -> None:
    """A reader and a writer in their own threads, pieces of any size, several frames one after another."""
    drawn, ended, answered = random.Random(1), Counter[int](), 0
    for _ in range(3000):
        family = drawn.choice(sorted(FAMILIES))
        data = b""
        for _ in range(drawn.randrange(1, 8)):
            one = family, b""
            while one[0] != family or not one[1]:
                one = frame(drawn)
            data += one[1]
        requests, replies = os.pipe(), os.pipe()
        out = bytearray()
        pieces = [drawn.randrange(1, 40) for _ in range(len(data))]

        def send(data: bytes = data, pieces: list[int] = pieces, end: int = requests[1]) -> None:
            for size in pieces:
                if not data:
                    break
                try:
                    os.write(end, data[:size])
                except BrokenPipeError:  # the server has ended
                    break
                data = data[size:]
            os.close(end)

        def receive(end: int = replies[0], out: bytearray = out) -> None:
            while part := os.read(end, 1 << 16):
                out.extend(part)

        both = [threading.Thread(target=send), threading.Thread(target=receive)]
        for thread in both:
            thread.start()

        def read(room: memoryview, end: int = requests[0]) -> int:
            return os.readv(end, [room])

        def write(part: bytes, end: int = replies[1]) -> None:
            left = memoryview(part)
            while left:
                left = left[os.write(end, left) :]

        code = serve(family_named(family), RUNNER, read, write, framed=True)  # type: ignore[arg-type]
        os.close(requests[0])
        os.close(replies[1])
        for thread in both:
            thread.join()
        os.close(replies[0])
        check(family, code, bytes(out))
        ended[code] += 1
        answered += len(frames(bytes(out)))
    assert answered > 3000 and set(ended) >= {0, 20, 21}
