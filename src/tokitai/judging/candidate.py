"""Call somebody else's kernel on one case: load it, lend it arrays, look at what it returns.

This runs in a worker process, which a wrong kernel may take down; or, for a function that is given as such, in this
one. Arrays are NumPy's (bf16 is ml_dtypes' bfloat16) or PyTorch's, on the processor or a card. PyTorch is taken from
what the kernel's own file has imported: it is not a dependency here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DeviceMissingError, UsageError
from ..formats import FORMATS

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
STALE = (0xFF, 0x3C)  # what freed memory holds, by turns: NaN in every float format, and a number near 1


@dataclass(frozen=True)
class Tensor:
    """One tensor of a call: its format, its shape, and how many elements lie between two rows of a matrix."""

    name: str
    format: str
    shape: tuple[int, ...]
    gap: int = 0
    also: str | None = None  # of a result: another format that is accepted, for whole numbers

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the memory that holds it, gaps included."""
        return (*self.shape[:-1], self.shape[-1] + self.gap) if self.shape else ()

    @property
    def nbytes(self) -> int:
        """The size of that memory."""
        return math.prod(self.whole) * FORMATS[self.format].dtype.itemsize


_loaded: dict[tuple[str, str], Function] = {}


def load(file: str, name: str) -> Function:
    """The function ``name`` of a Python file. Raises UsageError, with the file's line where it fails."""
    key = (file, name)
    if key not in _loaded:
        _loaded[key] = _load(Path(file), name)
    return _loaded[key]


def _load(path: Path, name: str) -> Function:
    unique = f"tokitai_kernel_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: cannot be imported; accepted: a Python file")
    sys.modules[unique] = module = importlib.util.module_from_spec(spec)
    sys.path.append(str(path.parent))  # last, so that a file beside it shadows nothing
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise UsageError(f"{error.filename or path}:{error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(_blame(path, error)) from error
    found = {n for n, v in vars(module).items() if callable(v) and not n.startswith("_")}
    if not callable(getattr(module, name, None)):
        raise UsageError(f"{path}: no function {name!r}; accepted: {', '.join(sorted(found)) or 'there is none'}")
    function: Function = getattr(module, name)
    return function


def _blame(path: Path, error: BaseException) -> str:
    """What went wrong, with the last line of the file that it passed through."""
    own = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path.resolve()]
    return f"{path}{f':{own[-1]}' if own else ''}: {type(error).__name__}: {error}"


def run(arguments: Mapping[str, Any], memory: Sequence[Any]) -> str | None:
    """An entry of a worker process: ``memory`` of the inputs, then of the results, which are written there. Returns
    what is wrong with what the kernel did, or None."""
    function = load(arguments["file"], arguments["name"])
    inputs, results = (
        [Tensor(name, fmt, tuple(shape), *more) for name, fmt, shape, *more in arguments[kind]]
        for kind in ("inputs", "results")
    )
    return call(function, Path(arguments["file"]), inputs, results, memory, arguments)


def call(
    function: Function, path: Path, inputs: Sequence[Tensor], results: Sequence[Tensor], memory: Sequence[Any],
    arguments: Mapping[str, Any],
) -> str | None:  # fmt: skip
    """Call ``function`` with arrays over ``memory`` and with ``arguments["named"]``; of ``arguments["inplace"]`` it
    replaces what they hold. ``arguments["device"]`` is ``numpy``, or a device of PyTorch's. Returns what is wrong.

    Raises UsageError where the function cannot take such a call, or where PyTorch is wanted and not there, and
    DeviceMissingError.
    """
    named, device = arguments["named"], arguments["device"]
    lent = [_lend(t, m, device) for t, m in zip(inputs, memory, strict=False)]
    try:
        inspect.signature(function).bind(*lent, **named)
    except TypeError as error:
        said = ", ".join([*(t.name for t in inputs), *(f"{n}={v!r}" for n, v in named.items())])
        raise UsageError(f"{path}: {getattr(function, '__name__', function)} is called as ({said}): {error}") from error
    except ValueError:  # it has no signature to look at
        pass
    _leave_stale(results, device, STALE[arguments["turn"] % 2])
    try:
        returned = function(*lent, **named)
    except MemoryError:
        raise
    except BaseException as error:
        return f"raised {_blame(path, error)}"
    fresh = [r for r in results if r.name not in arguments["inplace"]]
    given = list(returned) if isinstance(returned, (tuple, list)) else [] if returned is None else [returned]
    if len(given) == len(results):  # those that replace inputs as well
        given = [x for r, x in zip(results, given, strict=True) if r in fresh]
    if fresh and len(given) != len(fresh):
        names = ", ".join(r.name for r in fresh)
        return f"returned {len(given)} array{'s' * (len(given) != 1)}; accepted: {len(fresh)}, for {names}"
    taken = dict(zip((r.name for r in fresh), given, strict=False))
    taken |= {t.name: x for t, x in zip(inputs, lent, strict=True) if t.name in arguments["inplace"]}
    for i, r in enumerate(results, len(inputs)):
        wrong = _take(r, taken[r.name], memory[i])
        if wrong is not None:
            return wrong
    if device != "numpy":  # a card's copies of inputs: whether they still hold what they held is seen here
        for t, x, m in zip(inputs, lent, memory, strict=False):
            _array(t, m)[...] = _as_numpy(x).reshape(t.shape)
    return None


def _array(t: Tensor, memory: Any) -> Array:
    """A tensor's memory as an array of NumPy."""
    whole = np.frombuffer(memory, FORMATS[t.format].dtype).reshape(t.whole)
    return whole[..., : t.shape[-1]] if t.gap else whole


def _lend(t: Tensor, memory: Any, device: str) -> Any:
    array = _array(t, memory)
    if device == "numpy":
        return array
    torch = _torch()
    bits = np.frombuffer(memory, np.int16) if t.format == "bf16" else np.frombuffer(memory, FORMATS[t.format].dtype)
    try:
        there = torch.from_numpy(bits).to(device)
    except Exception as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DeviceMissingError(f"device {device}: PyTorch has none here ({said})") from error
    there = (there.view(torch.bfloat16) if t.format == "bf16" else there).reshape(t.whole)
    return there[..., : t.shape[-1]] if t.gap else there


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise UsageError("the kernel's file does not import torch; accepted: one that does, or --arrays numpy")
    return torch


def _leave_stale(results: Sequence[Tensor], device: str, byte: int) -> None:
    """Memory of the size of each result, filled and freed again: a result that is not written is likely to show it."""
    if device == "numpy":
        kept: list[Any] = [np.full(r.nbytes, byte, np.uint8) for r in results]
    else:
        torch = _torch()
        kept = [torch.full((r.nbytes,), byte, dtype=torch.uint8, device=device) for r in results]
    kept.clear()


def _as_numpy(x: Any) -> Array:
    """An array of NumPy with the same bits. Raises whatever an object raises that is no array."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().contiguous()
        if str(x.dtype) == "torch.bfloat16":
            bits: Array = x.view(sys.modules["torch"].int16).numpy()
            return bits.view(FORMATS["bf16"].dtype)
        x = x.numpy()
    return np.asarray(x)


def _take(r: Tensor, x: Any, memory: Any) -> str | None:
    """Keep a result. Returns what is wrong with it."""
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        return f"{r.name}: returned {type(x).__name__}; accepted: an array"
    try:
        array = _as_numpy(x)
    except Exception as error:
        return f"{r.name}: {type(x).__name__} that is no array: {type(error).__name__}: {error}"
    accepted = [r.format, *([r.also] if r.also else [])]
    if array.dtype not in [FORMATS[name].dtype for name in accepted]:
        return f"{r.name}: an array of {array.dtype}; accepted: {' or '.join(accepted)}"
    if [n for n in array.shape if n != 1] != [n for n in r.shape if n != 1]:
        return f"{r.name}: shape {tuple(array.shape)}; accepted: {r.shape}"
    _array(r, memory)[...] = array.reshape(r.shape).astype(FORMATS[r.format].dtype)
    return None
