"""One record: an operator with and without memory of its own for results, its counterpart, a copy of as many bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from ..backends.cpu import device as cpu
from ..errors import ArgumentError, UnavailableError, UnknownNameError
from ..formats import FORMATS
from ..lang import OPERANDS, Operator, extent
from ..runtime.binding import bind
from ..runtime.host_executor import prepare_lists
from . import held
from .count import bytes_of, operations_of
from .timing import Copy, alternate
from .workload import Array, Workload, operators, workload

PEERS = ("torch",)
POISON = 0xA5


class Peer(Protocol):
    """A third-party function on the same inputs."""

    @property
    def results(self) -> tuple[str, ...]:
        """Our names for what is compared."""

    @property
    def version(self) -> str:
        """The library's."""

    @property
    def call(self) -> Callable[[], object]:
        """Run it once: what is timed, and what is checked."""

    @property
    def given(self) -> Callable[[], tuple[held.Tensors, Mapping[str, float]]] | None:
        """Its inputs now and its scalars, by tokitai's names, where they have others."""

    def read(self, returned: object) -> Mapping[str, Array]:
        """The results of a call by our names, from what it returned."""


def check_peer(against: str | None, named: Sequence[Operator]) -> list[Operator]:
    """The operators to time: those that are named, else all with a counterpart where one is asked for. Raises
    UnknownNameError or UnavailableError where `against` is nobody, is not installed, or lacks an operator."""
    if against is None:
        return list(named) or operators()
    if against not in PEERS:
        raise UnknownNameError("library to time against", against, PEERS)
    if find_spec("torch") is None:
        raise UnavailableError("--against torch: PyTorch is not installed; install it with `pip install torch`")
    from ..torch.peers import OPERATORS

    for operator in named:
        if operator.name not in OPERATORS:
            raise UnknownNameError("operator with a counterpart in PyTorch", operator.name, OPERATORS)
    return list(named) or [o for o in operators() if o.name in OPERATORS]


def measure(
    operator: Operator, dtype: str, shapes: tuple[tuple[int, int], ...], threads: int, blocks: int, against: str | None
) -> dict[str, Any]:
    """Time one operator. The results of the timed calls themselves are held against the definition, before the timing
    and after it. Raises ArgumentError where they are wrong, or where the counterpart computes something else: times of
    different functions say nothing."""
    work = workload(operator, dtype, shapes)
    own = _own_calls(work, threads)
    peer = _peer(work, threads) if against else None
    shares, left_out = _hold(work, own, peer)
    moved = bytes_of(work.kernel.graph, shapes)
    calls: dict[str, Callable[[], object]] = {name: call for name, (call, _) in own.items()}
    calls["copy"] = Copy(moved, threads)
    if peer is not None:
        calls["torch"] = peer.call
    load = os.getloadavg()[0]
    last: dict[str, object] = {}
    times = alternate(calls, blocks, last)
    again, _ = _hold(work, own, peer, last)
    shares = {name: max(share, again[name]) for name, share in shares.items()}
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
        "share_of_bound": {name: round(share, 4) for name, share in shares.items()},
        "not_held": left_out,
        "flags": held.flags(times, moved, shares),
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


_Call = tuple[Callable[[], object], Callable[[object], held.Results]]  # and how its results are read by name


def _own_calls(work: Workload, threads: int) -> dict[str, _Call]:
    """A call into memory that is there (``kernel``), and a call as a user makes it (``call``)."""
    op, args = work.operator, work.arguments
    names = [o.name for o in work.kernel.graph.outputs]

    def call() -> object:
        return op(*args, threads=threads, **work.scalars)

    def read(returned: object) -> held.Results:
        several = returned if isinstance(returned, tuple) else (returned,)
        return {n: a if isinstance(a, list) else [a] for n, a in zip(names, several, strict=True)}

    if work.lists:
        given, scalars, options = bind(op, args, work.scalars)
        prepared = prepare_lists(op, given, options)
        return {"kernel": (lambda: prepared(scalars, threads), read), "call": (call, read)}
    outputs, shape = work.kernel.graph.outputs, work.shapes[0]
    full: dict[str, tuple[int, ...]] = {"rc": shape, "r": shape[:1], "c": shape[1:], "s": ()}
    sizes = [
        extent(o.space, shape) if o.space in OPERANDS else (*full[o.space], *((o.slots,) if o.slots else ()))
        for o in outputs
    ]
    kinds = ("i32" if o.name in op.contract.places else o.format for o in outputs)
    out = tuple(cpu.aligned_empty(size, FORMATS[kind].dtype) for size, kind in zip(sizes, kinds, strict=True))

    def into() -> object:
        op(*args, out=out if len(out) > 1 else out[0], threads=threads, **work.scalars)
        return out

    for array in out:
        array.reshape(-1).view(np.uint8)[...] = POISON  # what no call has written is no result
    return {"kernel": (into, read), "call": (call, read)}


def _hold(
    work: Workload, own: Mapping[str, _Call], peer: Peer | None, last: Mapping[str, object] | None = None
) -> tuple[dict[str, float], dict[str, str]]:
    """Hold the results of everything that is timed: of the ``last`` timed call, or of one more where there is none, or
    where each call finds other inputs. Gives the counterpart's shares of the bound, and which results were not held.
    Raises ArgumentError."""
    name, dtype, graph = work.operator.name, work.kernel.graph.dtype, work.kernel.graph
    _, params, _ = bind(work.operator, work.arguments, work.scalars)
    replaced = any(o.inplace for o in graph.outputs)
    expected, left_out = held.wanted(work, work.tensors, params)
    for what, (call, read) in own.items():
        if replaced:  # by every call: what its inputs are now
            expected, left_out = held.wanted(work, work.tensors, params)
        returned = call() if replaced or last is None else last[what]
        held.hold_ours(name, what, expected, read(returned))
    if peer is None:
        return {}, left_out
    if peer.given is not None:
        tensors, scalars = peer.given()
        expected, _ = held.wanted(work, tensors, {**params, **scalars})
    elif replaced:
        expected, _ = held.wanted(work, work.tensors, params)
    returned = peer.call() if replaced or last is None else last["torch"]
    results = {n: a if isinstance(a, list) else [a] for n, a in peer.read(returned).items()}
    missing = sorted(set(peer.results) - set(results))
    if missing:
        raise ArgumentError(f"{name}: the timed call of the counterpart gives no {', '.join(missing)}")
    return held.hold_theirs(name, "the counterpart", expected, results, peer.results, dtype), left_out
