"""The wire mode: a child process that computes what arrives on a pipe, in the protocol of legacy hosts.

A request is a payload of text, or for adamw of bytes; the reply is text, or bytes. With frames a little-endian u32 byte
length stands before each, and one process answers request after request until its input ends or a request is wrong.
The protocol is written down in docs/reference/wire.md.

    fields      from the text of a payload to numbers and arrays, each error with the field that it is in
    reply       from arrays to text
    execute     run an operator on one of our devices
    layernorm, softmax, adamw, gemm, embedding    one family each
    frames      read requests, write replies, end with the right exit code
"""

from __future__ import annotations

from .execute import DEVICES, Runner
from .families import FAMILIES, Family, family_named
from .frames import SHORT_LENGTH, SHORT_PAYLOAD, UNAVAILABLE, UNHEARD, Refused, answer, refuse, serve

__all__ = [
    "DEVICES", "FAMILIES", "SHORT_LENGTH", "SHORT_PAYLOAD", "UNAVAILABLE", "UNHEARD", "Family", "Refused", "Runner",
    "answer", "family_named", "refuse", "serve",
]  # fmt: skip
