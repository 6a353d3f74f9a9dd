"""The library that an array comes from: which it is, whether its elements lie where it says, what it must be told.

None of these libraries is imported: an array of one means that it is there already.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..formats import FORMATS

_LIBRARIES = {"torch", "cupy"}
_known: dict[type, str] = {}
IMMUTABLE = ("jax", "jaxlib")  # whose arrays nobody may write


def library_of(x: Any) -> str:
    """The library that a type comes from, also where a class of the user's (torch.nn.Parameter) derives from it."""
    kind = type(x)
    if kind not in _known:
        names = [base.__module__.partition(".")[0] for base in kind.__mro__]
        _known[kind] = next((name for name in names if name in _LIBRARIES), names[0])
    return _known[kind]


def namespace_of(name: str, x: Any) -> Any:
    """The module that makes arrays of the library of `x`. Raises ArgumentError where there is none."""
    module: Any = sys.modules.get(library_of(x))
    if hasattr(x, "__array_namespace__"):
        module = x.__array_namespace__()
    if not hasattr(module, "from_dlpack"):
        raise ArgumentError(
            f"{name}: {type(x).__name__}, whose library makes no arrays for results; accepted: arrays with "
            f"__array_namespace__, or of a module with from_dlpack"
        )
    return module


def refuse_traced(name: str, x: Any) -> None:
    """Raises ArgumentError for what stands for an array while JAX traces a function."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(x, jax.core.Tracer):
        raise ArgumentError(
            f"{name}: {type(x).__name__}, which holds no elements while JAX traces a function (jit, grad, vmap); "
            f"accepted: an array, or a call through jax.pure_callback"
        )


# ------------------------------------------------------------------ torch
@lru_cache(maxsize=64)
def format_of_torch(dtype: Any) -> str | None:
    """The name of the format that a dtype of torch is, if it is one."""
    name = str(dtype).removeprefix("torch.")
    known = {f.dtype.name: f.name for f in FORMATS.values()}
    return known.get(name)


def holds_its_elements(x: Any) -> bool:
    """Whether a tensor of torch is its own memory: a type that takes torch's operations over (DTensor, FakeTensor,
    quantized tensors) keeps its elements elsewhere, or has none."""
    return bool(type(x).__torch_dispatch__ is sys.modules["torch"].Tensor.__torch_dispatch__)


def place_of_torch(name: str, x: Any) -> tuple[int, str]:
    """Where a tensor of torch begins in memory, and the name of its format. Raises ArgumentError for one that cannot be
    read there, or that requires a gradient."""
    kind = type(x).__name__
    if not holds_its_elements(x):
        local = "x.to_local()" if hasattr(x, "to_local") else "a tensor that holds its elements"
        raise ArgumentError(f"{name}: a {kind}, whose elements lie elsewhere; accepted: {local}")
    if x.requires_grad:
        raise ArgumentError(f"{name}: requires a gradient, which this call would lose; accepted: x.detach()")
    fmt = format_of_torch(x.dtype)
    if fmt is None:
        raise ArgumentError(f"{name}: {x.dtype} is not a format of this package (accepted: {', '.join(FORMATS)})")
    if x.is_neg():  # a bit that is in no element: every sign would be wrong
        raise ArgumentError(f"{name}: a view whose signs are turned; accepted: x.resolve_neg()")
    if str(x.layout) != "torch.strided":
        raise ArgumentError(f"{name}: layout {x.layout}; accepted: a dense tensor (x.to_dense())")
    try:
        address = x.data_ptr()
    except RuntimeError:  # batched by vmap, or wrapped by another transform
        address = 0
    if not address and x.numel():
        raise ArgumentError(f"{name}: a {kind} without memory; accepted: a tensor that holds values")
    return address, fmt


def written(arrays: Iterable[Any]) -> None:
    """Tell torch that tensors of its were written: a backward pass that saved one before raises, as it should."""
    tensors = [x for x in arrays if library_of(x) == "torch"]
    if tensors:
        sys.modules["torch"].autograd.graph.increment_version(tensors)


# ------------------------------------------------------------------ arrays over memory
def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a C-contiguous array."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class _Interface:
    def __init__(self, interface: dict[str, Any], owner: Any) -> None:
        self.__array_interface__, self.owner = interface, owner


def array_at(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], fmt: str, read_only: bool, owner: Any
) -> np.ndarray[Any, Any]:
    """A NumPy array over memory that `owner` keeps; strides count elements. It exports nothing: the owner may resize
    its memory afterwards. Elements in the memory of a device must not be touched."""
    kind = FORMATS[fmt].dtype
    if 0 in shape:
        empty = np.empty(shape, kind)
        empty.flags.writeable = not read_only
        return empty
    plain = np.dtype(f"u{kind.itemsize}") if kind.kind == "V" else kind  # NumPy's interface has no name for bfloat16
    interface = {
        "shape": shape, "typestr": plain.str, "data": (address, read_only), "version": 3,
        "strides": tuple(s * kind.itemsize for s in strides),
    }  # fmt: skip
    seen: np.ndarray[Any, Any] = np.asarray(_Interface(interface, owner))
    return seen if plain is kind else seen.view(kind)
