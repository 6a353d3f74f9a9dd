"""One record: an operator with and without memory of its own for results, its counterpart, a copy of as many bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from ..binding import bind
from ..call import prepare_lists
from ..device import cpu
from ..errors import ArgumentError, UnavailableError, UnknownNameError
from ..formats import FORMATS
from ..lang import OPERANDS, Operator, extent
from .count import bytes_of, operations_of
from .timing import Copy, alternate
from .workload import Array, Workload, workload

PEERS = ("torch",)


class Peer(Protocol):
    """Somebody else's function on the same inputs."""

    @property
    def results(self) -> tuple[str, ...]:
        """Our names for what is compared."""

    @property
    def version(self) -> str:
        """The library's."""

    def call(self) -> object:
        """Run it once, as it is timed."""

    def outcome(self) -> Mapping[str, Array]:
        """Run it once on the inputs as they were at first, and return its results by our names."""


def check_peer(against: str | None, operators: Sequence[Operator]) -> None:
    """Raise UnknownNameError or UnavailableError where `against` is nobody, is not installed, or lacks an operator."""
    if against is None:
        return
    if against not in PEERS:
        raise UnknownNameError("library to time against", against, PEERS)
    if find_spec("torch") is None:
        raise UnavailableError("--against torch: PyTorch is not installed; install it with `pip install torch`")
    from ..torch.peers import OPERATORS

    for operator in operators:
        if operator.name not in OPERATORS:
            raise UnknownNameError("operator with a counterpart in PyTorch", operator.name, OPERATORS)


def measure(
    operator: Operator, dtype: str, shapes: tuple[tuple[int, int], ...], threads: int, blocks: int, against: str | None
) -> dict[str, Any]:
    """Time one operator. Raises ArgumentError where the counterpart computes something else: times of different
    functions say nothing."""
    work = workload(operator, dtype, shapes)
    peer = _peer(work, threads) if against else None
    once, call, outcome = _ours(work, threads)
    _compare(operator, peer, outcome)
    moved = bytes_of(work.kernel.graph, shapes)
    calls: dict[str, Callable[[], object]] = {"kernel": once, "call": call, "copy": Copy(moved, threads)}
    if peer is not None:
        calls["torch"] = peer.call
    load = os.getloadavg()[0]
    times = alternate(calls, blocks)
    _compare(operator, peer, outcome)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": round(max(load, os.getloadavg()[0]), 2),
        "operator": operator.name,
        "dtype": dtype,
        "rows": max(rows for rows, _ in shapes),
        "cols": sum(cols for _, cols in shapes),
        "tensors": len(shapes),
        "bytes": moved,
        "operations": operations_of(work.kernel.graph, shapes),
        "kernel": work.kernel.fingerprint,
        "build_seconds": round(work.kernel.artifact.seconds, 2),
        "times": {name: t.as_json() for name, t in times.items()},
        "environment": environment(work, threads, peer),
    }


def environment(work: Workload, threads: int, peer: Peer | None) -> dict[str, Any]:
    """What a time depends on."""
    about = cpu.describe()
    return {
        **{key: about[key] for key in ("cpu", "machine", "cores", "os", "libc")},
        "threads": threads,
        "isa": work.kernel.artifact.isa,
        "compiler": work.kernel.artifact.compiler.title,
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "torch": None if peer is None else peer.version,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "not set").lower(),
    }


def _peer(work: Workload, threads: int) -> Peer:
    from ..torch.peers import peer

    return peer(work.operator.name, work.kernel.graph.dtype, work.tensors, work.scalars, threads)


_Calls = tuple[Callable[[], object], Callable[[], object], Callable[[], Mapping[str, Array]]]


def _ours(work: Workload, threads: int) -> _Calls:
    """A call into memory that is there, a call as a user makes it, and the results of the first inputs by name."""
    op, args = work.operator, work.arguments
    outputs = work.kernel.graph.outputs

    def call() -> object:
        return op(*args, threads=threads, **work.scalars)

    if work.lists:
        given, scalars, options = bind(op, args, work.scalars)
        prepared = prepare_lists(op, given, options)
        replaced = {o.name: [a.copy() for a in work.tensors[o.name]] for o in outputs if o.inplace}

        def first() -> Mapping[str, Array]:
            for name, arrays in replaced.items():
                for array, was in zip(work.tensors[name], arrays, strict=True):
                    array[...] = was
            made = prepared(scalars, threads)
            several = made if len(outputs) > 1 else (made,)
            return {o.name: m[0] if isinstance(m, list) else m for o, m in zip(outputs, several, strict=True)}

        return lambda: prepared(scalars, threads), call, first
    shape = work.shapes[0]
    full: dict[str, tuple[int, ...]] = {"rc": shape, "r": shape[:1], "c": shape[1:], "s": ()}
    sizes = [extent(o.space, shape) if o.space in OPERANDS else full[o.space] for o in outputs]
    out = tuple(cpu.aligned_empty(size, FORMATS[o.format].dtype) for size, o in zip(sizes, outputs, strict=True))

    def into() -> object:
        return op(*args, out=out if len(out) > 1 else out[0], threads=threads, **work.scalars)

    def results() -> Mapping[str, Array]:
        into()
        return dict(zip((o.name for o in outputs), out, strict=True))

    return into, call, results


def _compare(operator: Operator, peer: Peer | None, outcome: Callable[[], Mapping[str, Array]]) -> None:
    """What is close enough here says nothing about accuracy: 16-bit gradients of PyTorch were seen 0.07 away."""
    ours = outcome()
    if peer is None:
        return
    theirs = peer.outcome()
    for name in peer.results:
        a, b = (np.asarray(r[name]).astype(np.float64).reshape(-1) for r in (ours, theirs))
        apart = np.abs(a - b).max() / np.abs(b).max()
        if not apart < 0.25:
            raise ArgumentError(
                f"{operator.name}: {name} of the counterpart lies {apart:.3g} of its largest element away from ours; "
                "accepted: the same function"
            )
