"""What keeps a third-party kernel from the judge, its files and this machine, and what does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..worker import Limits
from ..worker.memory import available

LEAST_MEMORY = 1 << 31  # bytes that a process may always have: PyTorch alone maps more than half of it
MOST_MEMORY = 1 << 34
OPEN_FILES = 1024


def limits_for(device: str, file: Path, scratch: str, unconfined: bool) -> Limits:
    """Limits for the process of a kernel: a kernel for a GPU needs the driver's files and calls, which the sandbox
    refuses, and compilers; one that is ``unconfined`` has limits alone."""
    free = available()
    memory = None if free is None or _on_gpu(device) else min(max(LEAST_MEMORY, free // 2), MOST_MEMORY)
    if unconfined or _on_gpu(device):
        return Limits(memory=memory, open_files=OPEN_FILES)
    return Limits(memory=memory, open_files=OPEN_FILES, sandbox=True, scratch=scratch, reads=(str(file.parent),))


def _on_gpu(device: str) -> bool:
    return device not in ("numpy", "cpu")


def not_contained(applied: Sequence[str], device: str, unconfined: bool) -> list[str]:
    """What was put in force, and what was not, in words."""
    said = ["a process of its own", *applied]
    if unconfined or _on_gpu(device):
        why = "as asked" if unconfined else "a GPU's driver and compilers need what a sandbox refuses"
        return [*said, f"not contained ({why}): files, network, processes and memory of this user"]
    missing = [word for word in applied if "not offered" in word or "refused by this kernel" in word]
    missing += [word for word in applied if word.startswith("seccomp: no filter")]
    if missing:
        said.append(f"not contained on this machine: {'; '.join(missing)}")
    return [*said, "not contained: processor time up to the limits, and what programs of this machine let anyone read"]
