"""How many threads this system starts for a kernel: OpenMP's runtime ends the process where it cannot have them all."""

from __future__ import annotations

import threading

from ...errors import ArgumentError


class Started:
    """The largest number of threads that could be started here, ``most``, and the attempt to start more."""

    def __init__(self) -> None:
        self.most = 1
        self._lock = threading.Lock()

    def attempt(self, count: int) -> None:
        """Start so many threads, this one among them, and end them again. Raises ArgumentError where that fails."""
        with self._lock:
            go, others = threading.Event(), []
            try:
                for _ in range(count - 1):
                    others.append(threading.Thread(target=go.wait, daemon=True))
                    others[-1].start()
            except (RuntimeError, MemoryError) as error:
                del others[-1]
                most = len(others) + 1
                why = f"the system starts no more now ({error})"
                raise ArgumentError(f"threads={count}; accepted: a whole number, 1 to {most}, as {why}") from error
            finally:
                go.set()
                for thread in others:
                    thread.join()
            self.most = max(self.most, count)
