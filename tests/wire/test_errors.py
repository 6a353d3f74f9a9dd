"""Every error code of every family: the reply names the field, shows what was found and what would be accepted."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest
from host import F16, F32, adamw_bytes, framed, frames, here, lines, process

from tokitai.wire import DEVICES, FAMILIES
from tokitai.wire.fields import MOST_RESULTS

pytestmark = pytest.mark.slow

FORWARD = "1 2 2 64 1e-5 | 1 2 | 3 4 | 5 6 7 8"
BACKWARD = "2 1 2 64 1e-5 32 | 1 2 | 3 4 | 5 6 | 7 8 | 9 10 | 0.5 1.5"
ADAMW = "2 1e-3 .9 .999 1e-8 1e-2 3 | 1 2 | 3 4 | 5 6 | 7 8"

# family, payload, code, field, and what the message says
WRONG = [
    ("layernorm", "", 3, "op", "is missing; accepted: a whole number from 1 to 2"),
    ("layernorm", " \n ", 3, "op", "is missing"),
    ("layernorm", FORWARD.replace("1", "3", 1), 3, "op", "'3'; accepted: a whole number from 1 to 2"),
    ("layernorm", "0" * 50, 3, "op", "..."),
    ("layernorm", "1", 4, "rows", "is missing"),
    ("layernorm", "1 -1 2 64 1e-5", 4, "rows", "'-1'; accepted: a whole number from 0 to "),
    ("layernorm", "1 2.0 2 64 1e-5", 4, "rows", "'2.0'"),
    ("layernorm", "1 99999 99999 64 1e-5", 4, "rows", f"9999800001 values; accepted: at most {MOST_RESULTS}"),
    ("layernorm", "1 2 -2 64 1e-5", 5, "cols", "'-2'; accepted: a whole number from 0 to "),
    ("layernorm", "1 2 9999999999999999999999999 64 1e-5", 5, "cols", "'9999999999999999999999999'"),
    ("layernorm", "1 2 2 1025 1e-5", 6, "block", "'1025'; accepted: a whole number from 0 to 1024"),
    ("layernorm", "1 2 2 64 -1e-5", 7, "eps", "'-1e-5'; accepted: a finite number of at least 0"),
    ("layernorm", "1 2 2 64 nan", 7, "eps", "'nan'"),
    ("layernorm", "1 2 2 64 1e39", 7, "eps", "'1e39'"),
    ("layernorm", "1 2 2 64 0x1p-3", 7, "eps", "'0x1p-3'"),
    ("layernorm", "1 2 2 64 1_0", 7, "eps", "'1_0'"),
    ("layernorm", BACKWARD.replace("32", "x"), 8, "grad_block", "'x'; accepted: a whole number from 0 to 1024"),
    ("layernorm", FORWARD.replace("1 2 |", "1 65536 |"), 9, "gamma", "[1] is '65536'; accepted: an f16 pattern"),
    ("layernorm", "1 2 2 64 1e-5 7", 9, "gamma", "1 values; accepted: 2"),
    ("layernorm", FORWARD.replace("3 4 |", "3 -1 |"), 10, "beta", "[1] is '-1'"),
    ("layernorm", BACKWARD.replace("5 6", "5 6e0"), 11, "grad_output", "[1] is '6e0'; accepted: an f16 pattern"),
    ("layernorm", FORWARD.replace("7 8", "7 18446744073709551616"), 12, "input", "[3] is '18446744073709551616'"),
    ("layernorm", FORWARD + " 9 10", 12, "input", "2 values more than there are places for, first '9'"),
    ("layernorm", FORWARD.replace("7 8", "7"), 12, "input", "3 values; accepted: 4"),
    ("layernorm", BACKWARD.replace("7 8", "7 --8"), 12, "input", "[1] is '--8'"),
    ("layernorm", BACKWARD.replace("9 10", "9 1.0"), 13, "statistics_f16", "[1] is '1.0'"),
    ("layernorm", BACKWARD.replace("0.5", "0.5.5"), 14, "statistics", "[0] is '0.5.5'; accepted: a decimal"),
    ("layernorm", BACKWARD.replace("1.5", "1e39"), 14, "statistics", "[1] is '1e39'; accepted: within the range"),
    ("layernorm", BACKWARD + " 1", 14, "statistics", "1 values more"),
    ("softmax", "2 1 1 0", 3, "mode", "'2'; accepted: a whole number from 0 to 1"),
    ("softmax", "0 1e3 1", 4, "rows", "'1e3'"),
    ("softmax", "0 1 9999999", 5, "cols", "'9999999'"),
    ("softmax", "0 1 3 1 2 \x00", 6, "input", r"[2] is '\x00'"),
    ("softmax", "0 1 3 1,2,3", 6, "input", "1 values; accepted: 3"),
    ("softmax", "0 1 1 1,2", 6, "input", "[0] is '1,2'"),
    ("softmax", "1 1 1 70000 1", 7, "grad_output", "[0] is '70000'"),
    ("softmax", "1 1 1 1 \u0663", 8, "softmax_output", "[0] is "),
    ("softmax", "1 1 1 1", 8, "softmax_output", "0 values; accepted: 1"),
    ("gemm-bw", "3 1 1 1", 3, "id", "'3'; accepted: a whole number from 1 to 2"),
    ("gemm-bw", "1 -1 1 1", 4, "M", "'-1'"),
    ("gemm-bw", "1 1 x 1", 5, "N", "'x'"),
    ("gemm-bw", "1 1 1", 6, "K", "is missing"),
    ("gemm-bw", "1 99999 0 99999", 6, "K", "a reply of 9999800001 values"),
    ("gemm-bw", "2 0 99999 99999", 6, "K", "a reply of 9999800001 values"),
    ("gemm-bw", "1 2 1 1 1", 7, "grad_C", "1 values; accepted: 2"),
    ("gemm-bw", "1 1 1 1 1 x", 8, "B", "[0] is 'x'"),
    ("gemm-bw", "1 1 1 1 1 1 1", 8, "B", "1 values more"),
    ("gemm-bw", "2 1 1 2 1 1", 9, "A", "1 values; accepted: 2"),
    ("embedding", "x", 3, "queries", "'x'"),
    ("embedding", "99999 99999 1 0", 3, "queries", "a reply of 9999800001 values"),
    ("embedding", "1 0 1 0", 4, "dim", "'0'; accepted: a whole number from 1 to "),
    ("embedding", "1 1 -5 0", 5, "vocab", "'-5'"),
    ("embedding", "0 99999 99999 1", 5, "vocab", "a reply of 9999800001 values"),
    ("embedding", "1 1 1 2", 6, "op", "'2'; accepted: a whole number from 0 to 1"),
    ("embedding", "2 1 3 0 0 3 1 2 3", 7, "ids", "[1] is '3'; accepted: 0 to 2"),
    ("embedding", "1 1 3 1 -1 1", 7, "ids", "[0] is '-1'; accepted: 0 to 2"),
    ("embedding", "1 1 0 1 0 1", 7, "ids", "[0] is '0'; accepted: none, as there are no entries"),
    ("embedding", "1 1 2 0 1 5", 8, "table", "1 values; accepted: 2"),
    ("embedding", "1 1 2 1 1 x", 9, "grad_output", "[0] is 'x'"),
    ("adamw", "-1", 3, "n", "'-1'"),
    ("adamw", "99999999", 3, "n", "'99999999'"),
    ("adamw", "1 inf", 4, "lr", "'inf'; accepted: a finite number of at least 0"),
    ("adamw", ADAMW.replace(".9 ", "1 "), 5, "beta1", "'1'; accepted: at least 0 and below 1"),
    ("adamw", ADAMW.replace(".999", "0.99999999999"), 6, "beta2", "'0.99999999999'; accepted: at least 0 and below 1"),
    ("adamw", ADAMW.replace("1e-8", "-0.1"), 7, "eps", "'-0.1'"),
    ("adamw", ADAMW.replace("1e-2", "w"), 8, "weight_decay", "'w'"),
    ("adamw", ADAMW.replace(" 3 |", " 0 |"), 9, "t", "'0'; accepted: a whole number from 1 to 2147483647"),
    ("adamw", ADAMW.replace("| 1 2", "| 1 2.5"), 10, "theta", "[1] is '2.5'"),
    ("adamw", ADAMW.replace("| 3 4", "| 3 e"), 11, "m", "[1] is 'e'; accepted: a decimal"),
    ("adamw", ADAMW.replace("| 5 6", "| nanan 6"), 12, "v", "[0] is 'nanan'"),
    ("adamw", ADAMW.replace("| 7 8", "| 7"), 13, "grad", "1 values; accepted: 2"),
    ("adamw", ADAMW + " 9", 13, "grad", "1 values more than there are places for, first '9'"),
]  # fmt: skip

WHOLE = adamw_bytes(np.ones(2, F16), np.ones(2, F32), np.ones(2, F32), np.ones(2, F16))


def altered(at: int, form: str, value: float) -> bytes:
    changed = bytearray(WHOLE)
    struct.pack_into(form, changed, at, value)
    return bytes(changed)


WRONG_BYTES = [
    (WHOLE[:4], 3, "n", "the header ends in it, at byte 4; accepted: 36 bytes"),
    (WHOLE[:11], 4, "lr", "at byte 11"),  # bytes 8 to 11 are lr
    (altered(8, "<f", -1.0), 4, "lr", "-1.0; accepted: a finite number of at least 0"),
    (WHOLE[:12], 5, "beta1", "at byte 12"),
    (altered(12, "<f", 1.0), 5, "beta1", "1.0; accepted: at least 0 and below 1"),
    (altered(16, "<f", float("nan")), 6, "beta2", "nan"),
    (altered(20, "<f", float("inf")), 7, "eps", "inf"),
    (altered(24, "<f", -0.5), 8, "weight_decay", "-0.5"),
    (altered(28, "<i", 0), 9, "t", "0; accepted: a whole number from 1 to 2147483647"),
    (altered(28, "<i", -7), 9, "t", "-7"),
    (WHOLE[:38], 10, "theta", "2 bytes; accepted: 4, as n is 2"),
    (altered(4, "<I", 2**32 - 1), 10, "theta", "as n is 4294967295"),
    (WHOLE[:40], 11, "m", "0 bytes; accepted: 8"),
    (WHOLE[:55], 12, "v", "7 bytes; accepted: 8"),
    (WHOLE[:-1], 13, "grad", "3 bytes; accepted: 4"),
    (WHOLE + b"\0", 13, "grad", "1 bytes more than there are places for, as n is 2"),
    (WHOLE[:34], 14, "padding", "at byte 34"),
]


def check(code: int, reply: bytes, field: str, want: int, says: str) -> None:
    said = lines(reply)
    assert list(said) == ["ERROR", "FIELD", "CODE"]
    assert (code, said["CODE"], said["FIELD"]) == (want, str(want), field), said
    assert said["ERROR"].startswith(f"{field}: ") and says in said["ERROR"], said


@pytest.mark.parametrize(("family", "payload", "code", "field", "says"), WRONG)
def test_a_wrong_field_is_named(family: str, payload: str, code: int, field: str, says: str) -> None:
    data = payload.replace(" |", "").encode()
    done = here(family, data)
    check(done.code, done.out, field, code, says)
    done = here(family, framed(data), server=True)
    (reply,) = frames(done.out)
    check(done.code, reply, field, code, says)


@pytest.mark.parametrize(("payload", "code", "field", "says"), WRONG_BYTES)
def test_a_wrong_field_of_bytes_is_named(payload: bytes, code: int, field: str, says: str) -> None:
    done = here("adamw", payload)
    check(done.code, done.out, field, code, says)


def test_every_code_is_tested() -> None:
    tested = {(family, code, field) for family, _, code, field, _ in WRONG}
    tested |= {("adamw", code, field) for _, code, field, _ in WRONG_BYTES}
    every = {(f.name, 3 + i, field) for f in FAMILIES.values() for i, field in enumerate(f.fields)}
    assert tested == every and max(code for _, code, _ in every) == 14


@pytest.mark.parametrize("payload", [FORWARD, BACKWARD])
def test_the_examples_are_right_but_for_what_is_changed(payload: str) -> None:
    assert here("layernorm", payload.replace(" |", "").encode()).code == 0
    assert here("adamw", ADAMW.replace(" |", "").encode()).code == 0
    assert here("adamw", WHOLE).code == 0


@pytest.mark.parametrize("row", [0, 14, len(WRONG) - 2])
def test_the_process_ends_with_the_code(row: int) -> None:
    family, payload, code, field, says = WRONG[row]
    data = payload.replace(" |", "").encode()
    done = process(family, data)
    check(done.code, done.out, field, code, says)
    more = framed(data) + framed(b"0 1 1 0")  # not answered
    done = process(family, more, "--server")
    (reply,) = frames(done.out)
    check(done.code, reply, field, code, says)
    assert done.err == ""


def test_wrong_words_of_the_command() -> None:
    for words, says in (
        (("rmsnorm",), "no family named 'rmsnorm'"),
        (("softmax", "--device", "tpu"), "no device named 'tpu'"),
    ):
        done = process(*words[:1], b"0 1 1 0", *words[1:])
        assert done.code == 2 and says in lines(done.out)["ERROR"] and says in done.err
        done = process(*words[:1], framed(b"0 1 1 0"), *words[1:], "--server")
        (reply,) = frames(done.out)
        assert done.code == 2 and lines(reply)["CODE"] == "2" and says in lines(reply)["ERROR"]
    done = process("softmax", b"", "--servant")
    assert done.code == 2 and "No such option: --servant" in done.err
    assert DEVICES == ("cpu", "sim", "cuda")


def test_what_this_machine_lacks_is_no_field() -> None:
    done = process("softmax", b"0 1 1 0", TOKITAI_CXX="no-such-compiler")
    assert done.code == 69 and list(lines(done.out)) == ["ERROR", "CODE"]
    assert "no-such-compiler" in lines(done.out)["ERROR"] and "install it" in lines(done.out)["ERROR"]


def test_a_fault_of_our_own_is_answered_too(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def wrong(error: Exception) -> Callable[..., object]:
        def run(*_: object, **__: object) -> object:
            raise error

        return run

    for error, code, says in (
        (ZeroDivisionError("x"), 70, "a fault of tokitai itself"),
        (MemoryError("all of it"), 69, "not enough memory: all of it"),
    ):
        monkeypatch.setattr("tokitai.wire.execute.Runner.run", wrong(error))
        done = here("softmax", framed(b"0 1 1 0"), server=True)
        (reply,) = frames(done.out)
        assert done.code == code and says in lines(reply)["ERROR"]
    assert "ZeroDivisionError" in capfd.readouterr().err
