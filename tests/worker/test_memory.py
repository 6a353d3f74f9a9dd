"""Shared memory: none left, none too much, and no way to take it from under the host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.worker import left
from tokitai.errors import SharedMemoryError
from tokitai.worker import Limits, Pool
from tokitai.worker.memory import Memory, available

THIS = "tests.worker.misbehaving"


def test_a_segment_lives_as_long_as_an_array_in_it() -> None:
    memory = Memory()
    segment, whole = memory.new(10_000)
    assert segment.size == 12288 and not whole.any()
    part = whole[100:200]
    assert memory.find(part.ctypes.data, 100) == (segment, 100)
    assert memory.find(part.ctypes.data, 12288) is None
    del whole
    assert left.segments(os.getpid()) == 2 and memory.used == 12288, "a descriptor and a mapping"
    address = part.ctypes.data
    del part
    assert left.segments(os.getpid()) == 0 and memory.used == 0 and memory.find(address, 1) is None
    assert memory.gone({segment.number}) == [segment.number]


def test_no_more_than_the_limit() -> None:
    memory = Memory(limit=1 << 20)
    kept = memory.new(1 << 19)
    with pytest.raises(SharedMemoryError, match="accepted: 1048576 in all"):
        memory.new((1 << 19) + 1)
    del kept
    memory.new((1 << 19) + 1)


def test_more_than_the_machine_has() -> None:
    with pytest.raises(SharedMemoryError, match="this machine has"):
        Memory().new(1 << 50)


def test_a_full_file_system(small_filesystem: Path) -> None:
    memory = Memory(folder=small_filesystem)
    kept = memory.new(12 << 20)
    with pytest.raises(SharedMemoryError, match="No space left"):
        memory.new(8 << 20)
    assert list(small_filesystem.iterdir()) == [], "segments have names"
    del kept
    memory.new(8 << 20)
    with pytest.raises(SharedMemoryError, match="No such file"):
        Memory(folder=small_filesystem / "none").new(1)


def test_the_kernel_refuses() -> None:
    """A limit on the size of files holds for shared memory too: here it stands for any refusal of the kernel's."""
    program = (
        "import resource; from tokitai.errors import SharedMemoryError; from tokitai.worker.memory import Memory\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "Memory().new(1 << 20)\n"
        "try: Memory().new((1 << 20) + 1)\n"
        "except SharedMemoryError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1052672 bytes of shared memory: File too large\n"


def test_a_process_cannot_shrink_a_segment() -> None:
    with Pool(1, deadline=10) as pool:
        shared = pool.empty(1 << 20, np.uint8)
        shared[:] = 7
        assert pool.run(f"{THIS}:shrinks", {}, [shared], [shared]) >= 1
        assert (shared == 7).all()


def test_memory_is_given_back_while_a_process_still_maps_it() -> None:
    with Pool(1, deadline=10) as pool:
        pool.run(f"{THIS}:echo")
        (process,) = left.processes(os.getpid())

        def shared_bytes() -> int:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssShmem"))

        before = shared_bytes()
        array = pool.empty(1 << 25, np.uint8)
        pool.run(f"{THIS}:echo", {}, [array])
        assert shared_bytes() >= before + (1 << 25)
        del array
        assert shared_bytes() <= before + (1 << 20)


def test_a_forked_child_does_not_take_its_parents_memory() -> None:
    program = (
        "import os, numpy as np; from tokitai.worker import Pool\n"
        "pool = Pool(1, deadline=20); shared = pool.empty(1000, np.uint8); shared[:] = 5\n"
        "run = lambda: pool.run('tests.worker.misbehaving:echo', {}, [shared])['bytes']\n"
        "assert run() == [1000]\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert run() == [1000]; del shared; pool.close(); os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert (shared == 5).all() and run() == [1000]; print('both', pool.counts.started)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        timeout=60,
    )  # fmt: skip
    assert done.stdout == "both 1\n", done.stderr


@pytest.mark.slow
def test_tensors_beyond_4_gib() -> None:
    size = (1 << 32) + 12345
    if (available() or 0) < size + (3 << 30):
        pytest.skip(f"needs {size + (3 << 30)} bytes of memory, there are {available()}")
    with Pool(1, deadline=120, limits=Limits(memory=1 << 28)) as pool:
        shared = pool.empty(size, np.uint8)
        shared[-3:] = 1, 2, 3
        assert pool.run(f"{THIS}:last", {}, [shared], [shared]) == {"bytes": size, "last": [1, 2, 3]}
        assert shared[-1] == 4 and shared[0] == 9
