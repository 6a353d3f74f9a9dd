"""``judge``: a third-party kernel against a definition.

Its bits need not be the definition's, as it may sum in another order. Each element must be as near the exact value as
the rounding-error bound of any order says (`allowance`): in the first call and in every other, on contiguous tensors,
on views of every kind unless it refuses them, and on some of the rows. It is given hard inputs, every 16-bit value
where an operator takes one tensor element by element, noise of several kinds, exact probes of long sums, and sizes,
scalars and options that are drawn (`trials`). All memory that is lent is compared after every call (`lending`), and so
are the results of earlier calls (`kept`). Without rows the call has to succeed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, UnavailableError, UnknownNameError, UsageError, WorkerError
from ..formats import format_of
from ..lang import Graph, Operator, Sizes, check_operator, shape_text
from ..runtime.shapes import asked_shape
from ..verification.verdict import Variant, named_sizes
from . import special
from .calls import Calls
from .explain import Accepted, Explainer
from .runner import Here, Isolated, Runner, clean
from .shown import Shown
from .trials import Ask, Trial, trials
from .verdict import Failure, Judgement

__all__ = ["Failure", "Judgement", "judge"]

MOST_WORK = 1 << 28  # elements of a case, of a product multiplications: more takes too long and too much memory
MOST_ELEMENTS = 1 << 25  # of a tensor
SECONDS = 60.0
TOTAL_SECONDS = 900.0
EXPLAIN_SECONDS = 60.0
DEATHS = 10  # of its processes that a kernel may cause: starting them takes long
SEEDS = 1 << 32
DEVICES = "numpy, cpu (PyTorch's tensors), cuda or cuda:N"


def judge(
    kernel: Callable[..., Any] | tuple[Path | str, str],
    operator: Operator,
    *,
    dtype: object = "f32",
    device: str = "numpy",
    shape: Mapping[str, int] | None = None,
    seed: int | None = None,
    variant: Variant | None = None,
    results: Sequence[str] | None = None,
    case: str | None = None,
    seconds: float = SECONDS,
    total_seconds: float = TOTAL_SECONDS,
    unconfined: bool = False,
    first: bool = False,
    accept: Sequence[str] = (),
    explain_seconds: float = EXPLAIN_SECONDS,
    progress: Callable[[str], None] | None = None,
) -> Judgement:
    """Judge a third-party kernel by `operator`.

    ``kernel`` is a Python file and the name of a function in it, which is called in a sandboxed process of its own; or
    a function, which is called in this process, where nothing contains it. It is called as the operator is: tensors by
    position, scalars and the options of ``variant`` by name, and other options where its signature takes them; tensors
    have the shapes of the definition, rows x cols. It returns an array or a tuple in the definition's order, of
    ``results`` alone where it has fewer; what replaces an input it writes there. ``device``: of the arrays, ``numpy``
    or a device of PyTorch's. ``seed`` draws sizes, scalars and tensors; without one it is drawn. ``seconds``: within
    which a call must end, where it has its own process; ``total_seconds``: within which all of them must. With
    ``unconfined`` its process may start others, and write files: for kernels that compile. ``first``: end with the
    first wrong case. ``accept``: arithmetic models that are meant (`intermediate:silu`, `ftz`): the kernel is held
    against the definition with these in it; ``explain_seconds``: within which causes of wrong elements are looked for.

    Raises UsageError for wrong arguments, a file that cannot be loaded, and a function that cannot be called so.
    """
    check_operator(operator)
    _check_device(device)
    if isinstance(explain_seconds, bool) or not isinstance(explain_seconds, (int, float)) or not explain_seconds >= 0:
        raise ArgumentError(f"explain_seconds={explain_seconds!r}; accepted: a number of seconds, 0 for no causes")
    for name, value in (("seconds", seconds), ("total_seconds", total_seconds)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
            raise ArgumentError(f"{name}={value!r}; accepted: a number of seconds above 0")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise ArgumentError(f"seed={seed!r}; accepted: a whole number of at least 0")
    fmt = format_of(dtype).name
    if fmt not in operator.contract.formats:
        raise ArgumentError(f"{operator.name}: dtype {fmt}; accepted: {', '.join(operator.contract.formats)}")
    asked = _shape(operator, shape)
    chosen = variant or Variant(frozenset(t.name for t in operator.tensors if t.optional))
    graph = operator.trace(fmt, chosen.present, dict(chosen.options))
    only = _results(graph, results)
    name = kernel[1] if isinstance(kernel, tuple) else str(getattr(kernel, "__name__", kernel))
    drawn = secrets.randbelow(SEEDS) if seed is None else seed
    made = Judgement(operator.name, name, fmt, device, None if asked is None else named_sizes(asked), drawn)
    meant = [n for n in accept if n not in special.ACCEPTED]
    change = Accepted(operator, graph, meant)
    made.accepted = list(accept)
    missing = [o.name for o in graph.outputs if o.name not in only]
    if missing:
        made.notes["not judged"] = f"{', '.join(missing)}: left out"
    started = time.perf_counter()
    try:
        with _runner(kernel, device, seconds, unconfined) as runner:
            made.contained = runner.contained
            free = _prepare(runner, operator, graph, chosen)
            ask = Ask(operator, fmt, chosen.present, dict(chosen.options), free, asked, drawn, device)
            some = trials(ask, case)
            if meant:
                some = (replace(t, graph=change(t.graph), accepted=True) for t in some)
            forgiven = [special.ACCEPTED[n] for n in accept if n in special.ACCEPTED]
            calls = Calls(made, operator, runner, only, forgiven)
            _run(made, calls, some, started + total_seconds, progress, first)
            _adequate(made, calls, whole=case is None)
            if calls.evidence and explain_seconds:
                made.causes = Explainer(time.perf_counter() + explain_seconds, change.named).causes(
                    calls.evidence, calls.right
                )
    except UnavailableError as error:
        made.undecided = made.undecided or _why(error)
    if not made.cases and made.undecided is None:
        raise UsageError(f"{operator.name}: no case {case!r}; accepted: an id as a failure prints it, with its seed")
    made.failures.sort(key=lambda f: f.work)  # the smallest first: it is the one to look at
    made.verdict = "refuted" if made.failures else "undecided" if made.undecided or not made.judged else "verified"
    made.seconds = time.perf_counter() - started
    return made


def _run(
    made: Judgement, calls: Calls, some: Iterator[Trial], until: float, progress: Callable[[str], None] | None,
    first: bool,
) -> None:  # fmt: skip
    """Every trial, until one does not end or the time is over."""
    shown: Shown | None = None
    for one in some:
        if first and made.failures:
            break
        if calls.runner.deaths >= DEATHS:
            made.undecided = f"{one.case.id}: not tried, as the kernel took {DEATHS} processes down"
            return
        if time.perf_counter() > until:
            made.undecided = f"{one.case.id}: not tried, as the time for all calls is over"
            return
        if progress is not None:
            progress(one.case.id)
        shown = shown or Shown(calls.operator, one.graph, calls.only)
        try:
            calls.trial(one, shown)
        except UnavailableError as error:
            made.undecided = f"{one.case.id}: {_why(error)}"
            return
    if shown is not None:
        made.not_shown = [*shown.tensors, *shown.scalars]


def _adequate(made: Judgement, calls: Calls, whole: bool) -> None:
    """Write down which null candidates pass. Of ``whole`` judgements, none is right where a result is never told from
    them: one case alone need not tell."""
    found = calls.adequacy
    made.asked, made.told, made.null_candidates = found.asked, found.told, dict(sorted(found.passed.items()))
    if whole and made.undecided is None:
        for name, passed in found.untold().items():
            made.undecided = f"{name}: no case tells it from null candidates ({'; '.join(passed)})"


def _why(error: UnavailableError) -> str:
    """Why there is no verdict, without what the kernel printed."""
    return clean(error.reason if isinstance(error, WorkerError) else str(error))


def _prepare(runner: Runner, operator: Operator, graph: Graph, chosen: Variant) -> list[str]:
    """Load the kernel. Returns the options that it takes by name."""
    fixed = {n: v for n, v in chosen.options if n not in operator.contract.switches}
    named = {**dict.fromkeys(graph.params, 1), **fixed}
    offered = [o.name for o in operator.options if o.name not in (*fixed, *operator.contract.switches)]
    return runner.prepare([t.name for t in graph.inputs], named, offered)


def _check_device(device: str) -> None:
    kind, _, number = device.partition(":")
    if kind not in ("numpy", "cpu", "cuda") or (":" in device and not (kind == "cuda" and number.isdecimal())):
        raise ArgumentError(f"device={device!r}; accepted: {DEVICES}")


def _shape(operator: Operator, shape: Mapping[str, int] | None) -> tuple[int, int] | None:
    """The shape asked for. Raises ArgumentError where it is too large."""
    asked = asked_shape(operator, shape)
    if asked is None:
        return None
    sides = [asked[0], asked[1], *([asked.inner] if isinstance(asked, Sizes) else [])]
    largest = max(a * b for i, a in enumerate(sides) for b in sides[i + 1 :])
    largest *= asked.batch if isinstance(asked, Sizes) else 1
    steps = asked.steps if isinstance(asked, Sizes) else asked[0] * asked[1]
    if largest > MOST_ELEMENTS or steps > MOST_WORK << 8:
        raise ArgumentError(f"{shape_text(asked)}: {largest} elements of work; accepted: at most {MOST_ELEMENTS}")
    return asked


def _results(graph: Graph, results: Sequence[str] | None) -> list[str]:
    names = [o.name for o in graph.outputs]
    for name in results or ():
        if name not in names:
            raise UnknownNameError(f"result of {graph.name}", name, names)
    return names if results is None else [n for n in names if n in results]


@contextmanager
def _runner(
    kernel: Callable[..., Any] | tuple[Path | str, str], device: str, seconds: float, unconfined: bool
) -> Iterator[Runner]:
    if not isinstance(kernel, tuple):
        if not callable(kernel):
            raise ArgumentError(f"kernel={kernel!r}; accepted: a function, or a file and the name of one")
        yield Here(kernel, device)
        return
    file, name = Path(kernel[0]), kernel[1]
    if not file.is_file() or file.suffix != ".py":
        found = "no such file" if not file.is_file() else f"suffix {file.suffix!r}"
        raise UsageError(f"{file}: {found}; accepted: a Python file")
    isolated = Isolated(file, name, device, seconds, unconfined)
    try:
        yield isolated
    finally:
        isolated.close()
