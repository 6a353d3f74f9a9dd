"""Load a third-party kernel and call it on lent memory: what runs beside the kernel, in its own process.

There is neither definition nor reference here: inputs lie in memory that the judge has filled and looks at again, and
results are copied to such memory. Arrays are NumPy's (bf16 is ml_dtypes' bfloat16) or PyTorch's, on the processor or a
GPU. PyTorch is taken from what the kernel's own file has imported: it is not a dependency here.
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
from .kept import Kept, span

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
STALE = (0xFF, 0x3C)  # what freed memory holds, by turns: NaN in every float format, and a number near 1
WORDS = 600  # characters of what an exception says
REFUSALS = (TypeError, ValueError, RuntimeError, BufferError, AssertionError)  # how a layout may be refused


@dataclass(frozen=True)
class Tensor:
    """One tensor of a call: its format and shape, and where in memory it lies: first byte, and bytes between neighbours
    along each side. ``also``: of a result, another format that is accepted, for whole numbers."""

    name: str
    format: str
    shape: tuple[int, ...]
    offset: int = 0
    strides: tuple[int, ...] = ()
    also: str | None = None

    def view(self, memory: Any) -> Array:
        """It in memory."""
        return np.ndarray(tuple(self.shape), FORMATS[self.format].dtype, memory, self.offset, tuple(self.strides))


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
    return f"{path}{f':{own[-1]}' if own else ''}: {_words(error)}"


def _words(error: BaseException) -> str:
    """An exception in few words, whatever its own text does."""
    try:
        said = str(error)
    except BaseException as other:
        said = f"its text raised {type(other).__name__}"
    return f"{type(error).__name__[:80]}: {said[:WORDS]}{' ...' if len(said) > WORDS else ''}"


# ------------------------------------------------------------------ before the first call
def prepare(arguments: Mapping[str, Any], memory: Sequence[Any] = ()) -> Any:
    """An entry of a worker process: load the kernel. Returns what `ready` does, and raises what it raises."""
    return ready(load(arguments["file"], arguments["name"]), Path(arguments["file"]), arguments)


def ready(function: Function, path: Path, arguments: Mapping[str, Any]) -> list[str]:
    """Which of the keywords ``arguments["offered"]`` a function takes, which is to be called with as many tensors as
    ``arguments["tensors"]`` names and with ``arguments["named"]``.

    Raises UsageError where it cannot be called so or PyTorch is wanted and not there, and DeviceMissingError.
    """
    if arguments["device"] != "numpy":
        _tensor_on(arguments["device"], np.zeros(64, np.uint8))
    tensors, named = arguments["tensors"], arguments["named"]
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # it has none to look at
        return []
    try:
        signature.bind(*tensors, **named)
    except TypeError as error:
        said = ", ".join([*tensors, *(f"{n}={v!r}" for n, v in named.items())])
        raise UsageError(f"{path}: {getattr(function, '__name__', function)} is called as ({said}): {error}") from error
    kinds = {p.name: p.kind for p in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds.values():
        return list(arguments["offered"])
    named_ones = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [n for n in arguments["offered"] if kinds.get(n) in named_ones]


# ------------------------------------------------------------------ a call
def run(arguments: Mapping[str, Any], memory: Sequence[Any]) -> dict[str, Any]:
    """An entry of a worker process: ``memory`` that is lent, and memory for results. Returns what `call` does."""
    function = load(arguments["file"], arguments["name"])
    inputs, results = (
        [Tensor(name, fmt, tuple(shape), first, tuple(strides), also)
         for name, fmt, shape, first, strides, also in arguments[kind]]
        for kind in ("inputs", "results")
    )  # fmt: skip
    return call(function, Path(arguments["file"]), inputs, results, memory, arguments, _kept)


_kept = Kept()


def call(
    function: Function, path: Path, inputs: Sequence[Tensor], results: Sequence[Tensor], memory: Sequence[Any],
    arguments: Mapping[str, Any], kept: Kept,
) -> dict[str, Any]:  # fmt: skip
    """Call ``function`` with arrays over the first ``memory`` and with ``arguments["named"]``; of
    ``arguments["inplace"]`` it replaces what they hold, other results are copied to the second. ``device`` is
    ``numpy``, or a device of PyTorch's.

    Returns ``wrong``: what is wrong with what it did, or None; ``refused``: whether that is an exception by which a
    layout may be refused.
    """
    named, device = arguments["named"], arguments["device"]
    base = _base(memory[0], device)
    lent = [_lend(t, base, device) for t in inputs]
    _leave_stale(results, device, STALE[arguments["turn"] % 2])
    wrong: str | None = None
    refused = False
    try:
        returned = function(*lent, **named)
    except BaseException as error:
        wrong, refused = f"raised {_blame(path, error)}", _refuses(error)
    if wrong is None:
        try:
            wrong = _keep(returned, inputs, results, memory, lent, arguments, kept)
        except BaseException as error:  # objects that are no arrays do what they like
            wrong = f"returned what cannot be read: {_words(error)}"
    if device not in ("numpy", "cpu"):
        try:
            np.frombuffer(memory[0], np.uint8)[...] = base.cpu().numpy()
        except BaseException as error:
            return {"wrong": wrong or f"left its device in a state that cannot be used: {_words(error)}",
                    "refused": False}  # fmt: skip
    return {"wrong": wrong, "refused": refused}


def _refuses(error: BaseException) -> bool:
    """Whether a layout is refused, and nothing has broken."""
    broken = type(error).__name__ == "AcceleratorError" or "CUDA error" in _words(error)
    return isinstance(error, REFUSALS) and not isinstance(error, RecursionError) and not broken


def _keep(
    returned: Any, inputs: Sequence[Tensor], results: Sequence[Tensor], memory: Sequence[Any], lent: Sequence[Any],
    arguments: Mapping[str, Any], kept: Kept,
) -> str | None:  # fmt: skip
    """Copy results to the judge's memory. Returns what is wrong with them, or with earlier ones."""
    fresh = [r for r in results if r.name not in arguments["inplace"]]
    given = list(returned) if isinstance(returned, (tuple, list)) else [] if returned is None else [returned]
    if len(given) == len(results):  # those that replace inputs as well
        given = [x for r, x in zip(results, given, strict=True) if r in fresh]
    if fresh and len(given) != len(fresh):
        names = ", ".join(r.name for r in fresh)
        return f"returned {len(given)} array{'s' * (len(given) != 1)}; accepted: {len(fresh)}, for {names}"
    lent_at = [span(x) for x in lent if math.prod(x.shape)]
    low, high = min((s[0] for s in lent_at), default=0), max((s[1] for s in lent_at), default=0)
    made: list[tuple[str, Any]] = []
    for r, x in zip(fresh, given, strict=False):
        wrong = _take(r, x, memory[1])
        if wrong is not None:
            return wrong
        if isinstance(x, np.generic) or not math.prod(r.shape):  # it has no memory
            continue
        made.append((r.name, x if hasattr(x, "data_ptr") else np.asarray(x)))
        begin, end = span(made[-1][1])
        if begin < high and low < end:
            return f"{r.name}: lies in memory that was lent"
    return kept.add(made)


def _base(memory: Any, device: str) -> Any:
    """All lent memory as an array of bytes on the device."""
    whole = np.frombuffer(memory, np.uint8)
    return whole if device == "numpy" else _tensor_on(device, whole)


def _tensor_on(device: str, whole: Array) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise UsageError("the kernel's file does not import torch; accepted: one that does, or --device numpy")
    try:
        return torch.from_numpy(whole).to(device)
    except Exception as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DeviceMissingError(f"device {device}: PyTorch has none here ({said})") from error


_TORCH = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64"}


def _lend(t: Tensor, base: Any, device: str) -> Any:
    if device == "numpy":
        return t.view(base)
    size = FORMATS[t.format].dtype.itemsize
    typed = base.view(getattr(sys.modules["torch"], _TORCH[t.format]))
    return typed.as_strided(tuple(t.shape), tuple(s // size for s in t.strides), t.offset // size)


def _leave_stale(results: Sequence[Tensor], device: str, byte: int) -> None:
    """Memory of the size of each result, filled and freed again: a result that is not written is likely to show it."""
    sizes = [math.prod(r.shape) * FORMATS[r.format].dtype.itemsize for r in results]
    if device == "numpy":
        stale: list[Any] = [np.full(n, byte, np.uint8) for n in sizes]
    else:
        torch = sys.modules["torch"]
        stale = [torch.full((n,), byte, dtype=torch.uint8, device=device) for n in sizes]
    stale.clear()


def _as_numpy(x: Any) -> Array:
    """An array of NumPy with the same bits. Raises whatever an object raises that is no array."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        x = x.detach().resolve_neg().resolve_conj().cpu().contiguous()
        if x.dtype == torch.bfloat16:
            bits: Array = x.view(torch.int16).numpy()
            return bits.view(FORMATS["bf16"].dtype)
        x = x.numpy()
    return np.asarray(x)


def _take(r: Tensor, x: Any, memory: Any) -> str | None:
    """Keep a result. Returns what is wrong with it."""
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        return f"{r.name}: returned {type(x).__name__[:80]}; accepted: an array"
    shape = tuple(int(n) for n in x.shape)
    if [n for n in shape if n != 1] != [n for n in r.shape if n != 1]:
        return f"{r.name}: shape {str(shape)[:80]}; accepted: {r.shape}"
    try:
        array = _as_numpy(x)
    except Exception as error:
        return f"{r.name}: {type(x).__name__[:80]} that is no array: {_words(error)}"
    accepted = [r.format, *([r.also] if r.also else [])]
    if array.dtype not in [FORMATS[name].dtype for name in accepted]:
        return f"{r.name}: an array of {str(array.dtype)[:80]}; accepted: {' or '.join(accepted)}"
    if math.prod(array.shape) != math.prod(r.shape):
        return f"{r.name}: shape {str(tuple(array.shape))[:80]}; accepted: {r.shape}"
    r.view(memory)[...] = array.reshape(r.shape).astype(FORMATS[r.format].dtype)
    return None
