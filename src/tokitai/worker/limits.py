"""Limits that a worker process puts on itself before it runs anything, and ends with its host."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass

PR_SET_PDEATHSIG = 1
PASSED = ("PATH", "LANG", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV")  # of the host's variables, where few are wanted
PASSED_PREFIXES = ("LC_", "OMP_", "MKL_", "OPENBLAS_", "CUDA_", "NVIDIA_")


@dataclass(frozen=True)
class Limits:
    """What a worker process may use.

    ``memory``: bytes of private memory (RLIMIT_DATA: heap, stacks and private mappings; tensors in shared memory and
    program text do not count). ``cpu_seconds``: processor time of all its threads for one request, counted in whole
    seconds. ``open_files``: descriptors. ``sandbox``: forbid what a kernel has no use for (see ``worker.sandbox``): for
    code of third parties. ``scratch``: in the sandbox, the only folder that may be written, as home and current folder;
    with it go a user namespace of its own, files of programs, of ``sys.path`` and of the folders ``reads`` and no
    others, and few of the host's environment variables.
    """

    memory: int | None = None
    cpu_seconds: float | None = None
    open_files: int = 256
    sandbox: bool = False
    scratch: str | None = None
    reads: tuple[str, ...] = ()

    def environment(self) -> dict[str, str] | None:
        """The variables that a process starts with; None: the host's."""
        if not self.sandbox or self.scratch is None:
            return None
        kept = {n: v for n, v in os.environ.items() if n in PASSED or n.startswith(PASSED_PREFIXES)}
        return kept | {"HOME": self.scratch, "TMPDIR": self.scratch, "XDG_CACHE_HOME": self.scratch}


def end_with(host: int) -> None:
    """Be killed when the thread of the host that started this process ends, stopped or not, whatever it does.

    Raises OSError; ends the process where the host is gone already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != host:
        os._exit(0)


def apply(
    memory: int | None, open_files: int, sandbox: bool, scratch: str | None = None, reads: Sequence[str] = ()
) -> list[str]:
    """Put limits on this process. Returns what was applied, and what the kernel does not offer, in words."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    applied = ["no core files"]
    for name, what, value in (
        ("memory", resource.RLIMIT_DATA, memory),
        ("open files", resource.RLIMIT_NOFILE, open_files),
    ):
        if value is not None:
            hard = resource.getrlimit(what)[1]
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(what, (most, most))
            applied.append(f"{name}: {most}")
    if sandbox:
        from . import sandbox as box

        if scratch is not None:
            from . import namespaces

            os.chdir(scratch)
            applied.append(namespaces.enter())
        applied += box.enter(scratch, reads)
    return applied
