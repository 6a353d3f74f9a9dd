"""Every exception tokitai raises, as one tree.

    TokitaiError
    ├── UsageError                 the caller asked for something that cannot be: exit code 2
    │   ├── DefinitionError        a definition that the tracer refuses, with the user's file and line
    │   ├── ArgumentError          an argument of a call: rank, size, format, stride, value
    │   ├── UnknownNameError       an operator, format, device or option that does not exist
    │   ├── InputFileError         a tensor file that is missing, truncated or holds other names
    │   ├── PrecisionError         a result that the known digits of a p-adic number do not determine
    │   ├── IntegerRangeError      an exact integer that the type of the result does not hold
    │   ├── KeyFileError           a file that holds no key of the kind that signs, or checks, certificates
    │   └── WireError              a request of the wire mode of which a field is wrong: exit code 3 to 14
    ├── UnavailableError           something this machine lacks: exit code 3
    │   ├── CompilerMissingError   no compiler; the message names the package to install
    │   ├── CompileError           a compiler that failed, with the end of its output
    │   │   └── MachineCodeError         it made code that may compute something else than the source asks for
    │   ├── DeviceMissingError     no such device here
    │   ├── TargetMissingError     a target that has no kernels for this operator yet
    │   ├── DeviceError            a call of the device's driver that failed
    │   │   ├── DeviceOutOfMemoryError   less memory than was asked for; all else is as it was
    │   │   └── DeviceLostError          this process cannot use the device any more
    │   │       └── IllegalAddressError  because a kernel did what it may not: the kernel is wrong
    │   ├── FloatModeError         the process is in a state in which bits cannot be trusted
    │   └── WorkerError            a worker process that gave no answer to a request
    │       ├── WorkerStartError       it could not be started
    │       ├── WorkerCrashedError     it ended, by a signal or by itself
    │       │   └── WorkerFaultError       by a signal that a fault of the code that it ran causes
    │       ├── WorkerTimeoutError     the request's deadline passed
    │       ├── WorkerProtocolError    what it wrote is no answer
    │       ├── WorkerMemoryError      it needed more memory than it may have
    │       ├── WorkerTaskError        the code that it ran raised an exception
    │       ├── SharedMemoryError      there is no room for the tensors of a request
    │       ├── WorkerBusyError        too many requests wait already, or none was free before the deadline
    │       └── WorkerClosedError      the pool has been closed
    ├── CacheError                 a cache folder that can be neither read nor written
    └── EvidenceError              a certificate that is malformed, or does not say what it should

A message shows the value that caused it and what would be accepted: "rows=-1; accepted: at least 0".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any


class TokitaiError(Exception):
    """The root of all errors of this package. Errors can be pickled and copied, whatever they are made of: a process of
    a pool that raises one tells its parent."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuilt, (type(self), self.args, dict(self.__dict__))


def rebuilt(kind: type[TokitaiError], arguments: tuple[Any, ...], attributes: Mapping[str, Any]) -> TokitaiError:
    """An error with the arguments and attributes of another one, made without its constructor."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


class UsageError(TokitaiError):
    """The caller asked for something that cannot be."""

    exit_code = 2


class DefinitionError(UsageError):
    """A definition that the tracer refuses. The message starts with the user's ``file:line``."""


class ArgumentError(UsageError, ValueError):
    """An argument of a call is wrong: its rank, size, format, stride or value."""


class UnknownNameError(UsageError, KeyError):
    """A name that does not exist; the message lists the nearest ones that do."""

    def __init__(self, kind: str, name: object, accepted: Iterable[str]) -> None:
        names = sorted(accepted)
        near = get_close_matches(str(name), names, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        self.message = f"no {kind} named {name!r}{hint} (accepted: {', '.join(names) or 'there is none'})"
        super().__init__(self.message)

    def __str__(self) -> str:  # KeyError would print the repr of its argument
        return self.message


class InputFileError(UsageError):
    """A tensor file that is missing, truncated, or does not hold what the operator takes."""


class PrecisionError(UsageError, ArithmeticError):
    """A result that the known digits of a p-adic number do not determine, such as a quotient by what may be zero."""


class IntegerRangeError(UsageError, OverflowError):
    """An exact integer that the type of the result does not hold."""


class KeyFileError(UsageError):
    """A file that holds no private key to sign certificates with, or no public key to check them with."""


class WireError(UsageError):
    """A request of the wire mode of which a field is wrong: `field`, whose number `exit_code` is."""

    def __init__(self, field: str, exit_code: int, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.exit_code = field, exit_code


class UnavailableError(TokitaiError):
    """Something that this machine lacks, so that no verdict can be given."""

    exit_code = 3


class CompilerMissingError(UnavailableError):
    """No usable compiler. The message names the package to install."""


class CompileError(UnavailableError):
    """A compiler that failed. The message ends with what it printed last."""


class MachineCodeError(CompileError):
    """A compiler that made kernels which may compute something else than their source asks for. The message ends with
    what was found in them."""


class DeviceMissingError(UnavailableError):
    """A device that this machine does not have."""


class TargetMissingError(UnavailableError):
    """A target that has no kernels for this operator yet."""


class DeviceError(UnavailableError):
    """A call of the device's driver that failed. ``can_go_on``: whether this process can use the device further."""

    can_go_on = True


class DeviceOutOfMemoryError(DeviceError):
    """The device has less memory than was asked for. Nothing else has changed, and the process can go on."""


class DeviceLostError(DeviceError):
    """The device's context is lost, and with it whatever this process keeps there: only a new process can go on."""

    can_go_on = False


class IllegalAddressError(DeviceLostError):
    """A kernel accessed memory that it may not, or failed in another way, and took the device's context with it."""


class FloatModeError(UnavailableError):
    """The process is in a state in which bits cannot be trusted (flush-to-zero, another rounding mode)."""


class WorkerError(UnavailableError):
    """A worker process that gave no answer to a request. ``reason``: in one line; ``last_words``: the end of what the
    process printed."""

    def __init__(self, message: str, last_words: str = "") -> None:
        self.reason, self.last_words = message, last_words
        super().__init__(f"{message}; the end of its output:\n{last_words}" if last_words else message)


class WorkerStartError(WorkerError):
    """A worker process that could not be started, or did not report in time."""


class WorkerCrashedError(WorkerError):
    """A worker process that ended during a request. ``signal``: its number, or None where it left by itself."""

    def __init__(self, message: str, last_words: str = "", signal: int | None = None) -> None:
        self.signal = signal
        super().__init__(message, last_words)


class WorkerFaultError(WorkerCrashedError):
    """A worker process that was ended by SIGSEGV, SIGBUS, SIGFPE or SIGILL: the code that it ran is wrong."""


class WorkerTimeoutError(WorkerError):
    """A request whose deadline passed. The worker process was killed."""


class WorkerProtocolError(WorkerError):
    """A worker process that wrote something that is no answer, or closed its pipe. It was killed."""


class WorkerMemoryError(WorkerError):
    """A worker process that needed more memory than its limit, or than there is."""


class WorkerTaskError(WorkerError):
    """The code that the worker process ran raised an exception, which is no error of this package."""


class SharedMemoryError(WorkerError):
    """There is no room in shared memory for the tensors of a request. Nothing was run."""


class WorkerBusyError(WorkerError):
    """Too many requests wait already, or no worker was free before the deadline. Nothing was run."""


class WorkerClosedError(WorkerError):
    """The pool has been closed. Nothing was run."""


class ProofError(TokitaiError):
    """A kernel's source or plan that the proofs for all sizes cannot read."""


class CacheError(TokitaiError):
    """A cache folder that can be neither read nor written."""

    exit_code = 3


class EvidenceError(TokitaiError):
    """A certificate that is malformed or does not say what it should."""

    exit_code = 3


class KernelFaultError(TokitaiError):
    """A kernel that leaves an array of its own; or whose threads never come together, or that needs more than it may,
    on the simulated device."""

    exit_code = 1
