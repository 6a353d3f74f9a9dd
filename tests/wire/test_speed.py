"""What the binary payload of adamw saves over the text one."""

from __future__ import annotations

import struct
import subprocess
import threading
import time

import numpy as np
import pytest
from host import F16, F32, adamw_bytes, command, framed, lines, words

N = 4_000_000


@pytest.mark.slow
def test_bytes_give_the_bits_of_text_and_how_much_faster(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = np.random.default_rng(0)
    theta, grad = (drawn.standard_normal(N, F32).astype(F16) for _ in range(2))
    m, v = drawn.standard_normal(N, F32) * F32(1e-3), drawn.random(N, F32) * F32(1e-4)
    binary = adamw_bytes(theta, m, v, grad)
    text = words(N, "0.001", "0.9", "0.999", "1e-08", "0.01", 3, theta, m, v, grad)
    with subprocess.Popen(command("adamw", "--server"), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None

        def ask(payload: bytes) -> tuple[float, bytes]:
            begin = time.perf_counter()
            sender = threading.Thread(target=send, args=(framed(payload),))
            sender.start()
            head = child.stdout.read(4)  # type: ignore[union-attr]
            reply = child.stdout.read(struct.unpack("<I", head)[0])  # type: ignore[union-attr]
            sender.join()
            return time.perf_counter() - begin, reply

        def send(data: bytes) -> None:
            child.stdin.write(data)  # type: ignore[union-attr]
            child.stdin.flush()  # type: ignore[union-attr]

        ask(binary)  # compiles, and brings pages
        fast = [ask(binary) for _ in range(3)]
        slow, said = ask(text)
        child.stdin.close()
        assert child.wait(60) == 0
    quick = sorted(seconds for seconds, _ in fast)[1]
    reply = lines(said)
    theta_words = np.frombuffer(fast[0][1], np.uint16, N, 16)
    assert np.array_equal(np.fromstring(reply["THETA"], np.uint16, sep=","), theta_words), "the same bits"
    with capsys.disabled():
        print(f"\n{N} elements: {quick:.3f} s as bytes, {slow:.2f} s as text, {slow / quick:.0f} times", end="")
