"""Frames: what is written is read, and nothing else is."""

from __future__ import annotations

import json
import random
import socket
import threading
import time

import pytest

from tokitai.worker.channel import Channel, Closed
from tokitai.worker.messages import (
    HEADER,
    MAX_REPLY,
    Attach,
    MalformedMessageError,
    Message,
    Reply,
    Request,
    Start,
    Status,
    decode,
    encode,
    payload_size,
)

MESSAGES: list[Message] = [
    Start(["a", "b"], None, 64, True),
    Attach([[1, 1 << 40]], [2, 3]),
    Request(7, "module:function", {"by": [1, 2.5, None], "text": "ä\n"}, [[1, 0, 5 << 32]]),
    Reply(7, Status.DONE, {"x": [1.5, float("inf")]}),
    Reply(8, Status.RAISED, None, "ValueError", "wrong"),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_comes_back(message: Message) -> None:
    frame = encode(message)
    assert payload_size(frame[: HEADER.size], MAX_REPLY) == len(frame) - HEADER.size
    assert decode(frame[HEADER.size :]) == message


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"null", b"[]", b"{}", b'{"type": "Reply"}', b'{"type": "Nothing"}', b'{"type": ["Reply"]}',
        b"[" * 100_000,
        b'{"type": "Reply", "number": 1, "status": 99}', b'{"type": "Reply", "number": "1", "status": 1}',
        b'{"type": "Reply", "number": true, "status": 1}', b'{"type": "Reply", "number": 1, "status": 1, "kind": 3}',
        b'{"type": "Reply", "number": 1, "status": 1, "more": 3}', b"\xff\xfe", b"1" * 10_000,
        b'{"type": "Reply", "number": ' + b"9" * 5000 + b', "status": 1}',
    ],
)  # fmt: skip
def test_rubbish_is_named_as_such(payload: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode(payload)


def test_fuzzed_replies_are_replies_or_rubbish() -> None:
    rng = random.Random(6)
    good = encode(Reply(3, Status.DONE, {"a": [1, 2, 3], "b": "text"}))
    outcomes = {"reply": 0, "rubbish": 0}
    for _ in range(20_000):
        frame = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        try:
            payload_size(bytes(frame[: HEADER.size]), MAX_REPLY)
            found = decode(bytes(frame[HEADER.size :]))
            assert isinstance(found, Reply) and isinstance(found.status, Status) and isinstance(found.number, int)
            outcomes["reply"] += 1
        except MalformedMessageError:
            outcomes["rubbish"] += 1
    assert min(outcomes.values()) > 100, outcomes


def test_frames_pass_in_pieces_of_one_byte() -> None:
    here, there = socket.socketpair()
    frame = encode(MESSAGES[2])

    def dribble() -> None:
        for byte in frame:
            there.sendall(bytes([byte]))

    thread = threading.Thread(target=dribble)
    thread.start()
    assert Channel(here).receive(MAX_REPLY, time.monotonic() + 10) == MESSAGES[2]
    thread.join()
    here.close(), there.close()


def test_a_wait_ends_at_its_deadline() -> None:
    here, there = socket.socketpair()
    there.sendall(encode(MESSAGES[2])[:-1])
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        Channel(here).receive(MAX_REPLY, started + 0.2)
    with pytest.raises(TimeoutError):  # nobody reads
        Channel(there).send(Request(1, "x" * (1 << 24), {}, []), until=time.monotonic() + 0.2)
    assert 0.3 < time.monotonic() - started < 5
    here.close(), there.close()


def test_the_end_of_the_other_side_is_told() -> None:
    here, there = socket.socketpair()
    there.sendall(encode(MESSAGES[2])[:-1])
    there.close()
    with pytest.raises(Closed):
        Channel(here).receive(MAX_REPLY, time.monotonic() + 5)
    with pytest.raises(Closed):
        Channel(here).send(MESSAGES[2], until=time.monotonic() + 5)
    here.close()


def test_a_reply_that_is_too_long_is_rubbish() -> None:
    header = HEADER.pack(b"TKW1", MAX_REPLY + 1)
    with pytest.raises(MalformedMessageError):
        payload_size(header, MAX_REPLY)
    with pytest.raises(MalformedMessageError):
        payload_size(b"TKW2" + header[4:], MAX_REPLY)


def test_what_json_cannot_hold_is_refused_before_it_is_sent() -> None:
    with pytest.raises(TypeError):
        encode(Request(1, "m:f", {"x": {1, 2}}, []))
    assert json.loads(encode(MESSAGES[0])[HEADER.size :])["type"] == "Start"
