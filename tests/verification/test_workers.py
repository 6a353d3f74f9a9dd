"""Verifications in several processes: the verdicts of one process, in order; what fails there is told here."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tokitai.backends.cuda import backend as cuda_backend
from tokitai.ops import get
from tokitai.verification import Verdict, batch
from tokitai.verification.batch import Job, verify_many
from tokitai.verification.workers import run_tasks

HERE = os.getpid()


def verdict(name: str) -> Verdict:
    return Verdict(name, "f16", "cpu", None, verdict="verified", failure=str(os.getpid()))


def task(name: str) -> Callable[[], Verdict]:
    return lambda: verdict(name)


def test_verdicts_come_in_order_from_other_processes() -> None:
    names = [f"op{i}" for i in range(7)]
    found = list(run_tasks([task(n) for n in names], 2))
    assert [v.operator for v in found] == names
    assert {v.failure for v in found}.isdisjoint({str(HERE)}) and len({v.failure for v in found}) <= 2


def test_processes_have_ended_when_the_last_verdict_is_taken() -> None:
    found = run_tasks([task("a"), task("b")], 2)
    assert [next(found).operator, next(found).operator] == ["a", "b"] and len(multiprocessing.active_children()) == 2
    found.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("processes", "count"), [(1, 3), (2, 1)])
def test_one_process_is_this_one(processes: int, count: int) -> None:
    assert {v.failure for v in run_tasks([task("x")] * count, processes)} == {str(HERE)}


def fails_elsewhere() -> Verdict:
    if os.getpid() != HERE:
        raise ValueError("there")
    return verdict("again")


def dies_elsewhere() -> Verdict:
    if os.getpid() != HERE:
        os.kill(os.getpid(), signal.SIGKILL)
    return verdict("again")


@pytest.mark.parametrize("bad", [fails_elsewhere, dies_elsewhere])
def test_what_fails_there_is_run_again_here(bad: Any) -> None:
    found = list(run_tasks([task("a"), bad, task("b")], 2))
    assert [v.operator for v in found] == ["a", "again", "b"] and found[1].failure == str(HERE)


def test_an_error_is_the_tasks_own() -> None:
    def wrong() -> Verdict:
        raise LookupError("as it is")

    with pytest.raises(LookupError, match="as it is"):
        list(run_tasks([task("a"), wrong], 2))


@pytest.mark.slow
def test_two_processes_find_what_one_does() -> None:
    jobs = [Job(get(name), fmt) for name in ("clip", "scale") for fmt in ("f16", "f32")]
    one, two = ([v.as_json() for v in verify_many(jobs, processes=n)] for n in (1, 2))
    for a, b in zip(one, two, strict=True):
        a.pop("seconds"), b.pop("seconds")
    assert one == two and [v["verdict"] for v in one] == ["verified"] * 4
    order: list[str] = []
    verify_many(
        jobs[:2], processes=2, started=lambda job: order.append(f"+{job.dtype}"),
        ended=lambda v: order.append(f"-{v.dtype}"),
    )  # fmt: skip
    assert order == ["+f16", "-f16", "+f32", "-f32"]


@pytest.mark.parametrize(("used", "device", "isolate", "processes"), [
    (False, "cpu", True, 4), (False, "cuda:1", False, 4), (True, "cuda:1", False, 1), (True, "sim", False, 4),
    (False, "sim", True, 1), (False, "hip", False, 1),
])  # fmt: skip
def test_no_process_is_forked_that_could_not_use_the_device(
    used: bool, device: str, isolate: bool, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(cuda_backend, "in_use", lambda: used)
    monkeypatch.setattr(batch, "run_tasks", lambda tasks, n: (asked.append(n), iter([verdict("silu")]))[1])
    verify_many([Job(get("silu"), "f16")], device=device, processes=4, isolate=isolate)
    assert asked == [processes]
