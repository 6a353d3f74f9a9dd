"""Ranks end by themselves: no thread of the process group is left with work when the interpreter ends."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import pytest

start = import_module("tokitai.torch.ranks.start")  # the package gives the function that name

STARVED = """
import os
import torch
import torch.distributed as dist
from tokitai.torch import ranks

ranks.start("cpu")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))  # keeps the group's threads
model(torch.ones(2, 3)).sum().backward()
for task in os.listdir("/proc/self/task"):
    if "pt_gloo" in open(f"/proc/self/task/{task}/comm").read():
        os.sched_setscheduler(int(task), os.SCHED_IDLE, os.sched_param(0))


def exchange():
    sent = torch.ones(4_000_000)
    dist.all_to_all_single(torch.empty_like(sent), sent)


for _ in range(3):
    exchange()
ranks.stop()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads are starved by Linux's SCHED_IDLE")
def test_a_rank_whose_threads_are_late_ends_without_being_aborted(tmp_path: Path) -> None:
    """The group's threads run only where nobody else wants a core, and all cores are wanted."""
    (tmp_path / "starved.py").write_text(STARVED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "starved.py"]
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        for _ in range(2):
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="states of threads are read from Linux's /proc")
def test_stop_waits_for_a_thread_of_the_group_and_not_for_ever() -> None:
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("pt_gloo_runloop")
        ready.set()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000)  # half a second or more without Python's lock
        done.set()

    threading.Thread(target=work, daemon=True).start()
    ready.wait()
    begun = time.monotonic()
    start._rest(0.1)
    waited = time.monotonic() - begun
    assert waited >= 0.1 and not done.is_set()
    start._rest(60.0)
    assert done.is_set()
