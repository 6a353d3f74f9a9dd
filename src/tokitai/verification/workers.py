"""Several verifications at a time, each in a process of its own: one interpreter keeps one core busy."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from .verdict import Verdict

Task = Callable[[], Verdict]
_tasks: Sequence[Task] = ()  # what the processes inherit: operators and their graphs cannot be sent to them


def run_tasks(tasks: Sequence[Task], processes: int) -> Iterator[Verdict]:
    """The verdict of each task, in order. Those of other processes have no kernels.

    A task that raises there, or ends its process, is run once more in this one, where it can be told.
    """
    global _tasks
    if processes < 2 or len(tasks) < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield from (task() for task in tasks)
        return
    _tasks = tasks
    # All processes are forked by the first submission, before the pool starts a thread.
    pool = ProcessPoolExecutor(min(processes, len(tasks)), multiprocessing.get_context("fork"), _begin)
    over = False
    try:
        futures = [pool.submit(_run, i) for i in range(len(tasks))]
        for task, future in zip(tasks, futures, strict=True):
            try:
                found = future.result()
            except BrokenProcessPool:
                found = None
            over = future is futures[-1]  # whoever takes as many verdicts as there are tasks never asks for the end
            yield task() if found is None else found
    finally:
        # Left to itself, a pool that ends while the interpreter does may print a traceback: its last thread and the
        # interpreter close one pipe. What is interrupted does not wait for tasks under way: it ends them.
        if not over:
            for process in list((pool._processes or {}).values()):
                process.kill()  # its compilers are ended by their guards
        pool.shutdown(wait=over, cancel_futures=True)
        _tasks = ()


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says what an interrupt means


def _run(i: int) -> Verdict | None:
    try:
        verdict = _tasks[i]()
    except Exception:
        return None
    verdict.kernels = []
    return verdict
