"""The user's own tensors, from .npz or .safetensors files."""

from __future__ import annotations

import json
import math
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import ArgumentError, InputFileError, UnknownNameError
from ..families import family_of
from ..formats import FORMATS, Format, boolean, format_of
from ..lang import Graph, Operator
from .cases import Case, defaults, size_of, to_format

Array = np.ndarray[Any, Any]


def read_tensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays of a file by name, and its metadata. Raises InputFileError."""
    if not path.is_file():
        there = "a folder" if path.is_dir() else "no such file"
        raise InputFileError(f"{path}: {there}; accepted: .npz or .safetensors")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as data:
                return {name: _native(data[name]) for name in data.files}, {}
        if path.suffix == ".safetensors":
            return _safetensors(path)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, struct.error) as error:
        raise InputFileError(f"{path}: cannot be read, perhaps truncated: {error}") from error
    raise InputFileError(f"{path}: suffix {path.suffix!r}; accepted: .npz, .safetensors")


def _native(array: Array) -> Array:
    """The same numbers in this machine's order of bytes."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _safetensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    from safetensors import SafetensorError, deserialize

    data = path.read_bytes()
    try:
        entries = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise InputFileError(f"{path}: not a whole safetensors file: {error}") from error
    (length,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    kinds = {
        "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32, "F64": np.float64, "I32": np.int32,
        "I64": np.int64,
    }  # fmt: skip
    tensors = {}
    for name, entry in entries:
        if entry["dtype"] not in kinds:
            raise InputFileError(f"{path}: {name} has format {entry['dtype']}; accepted: {', '.join(kinds)}")
        tensors[name] = np.frombuffer(entry["data"], kinds[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata


def _shape(operator: Operator, graph: Graph, path: Path, tensors: Mapping[str, Array]) -> tuple[tuple[int, int], str]:
    """The sizes of a case, and the tensor that tells them."""
    try:
        bound = family_of(graph).bind(operator, graph, tensors)
    except ArgumentError as error:
        raise InputFileError(f"{path}: {error}") from error
    if bound is not None:
        return bound.sizes, "the operands"
    first = next((t for t in graph.inputs if t.space == "rc"), None) or next(t for t in graph.inputs if t.space == "t")
    if tensors[first.name].ndim < 1:
        raise InputFileError(f"{path}: {first.name} is a scalar; accepted: rows x cols")
    *lead, cols = tensors[first.name].shape
    if first.space == "t":  # its rows are its own: those of the call are those of its index
        of_rows = ((tensors[t.name].shape, t.slots) for t in graph.inputs if t.space == "r")
        lead = next((list(s[:-1] if slots else s) for s, slots in of_rows), [0])
    return (math.prod(lead), cols), first.name


def _in_format(path: Path, name: str, array: Array, fmt: Format) -> Array:
    """The numbers of a tensor in the format of the operator's input. Raises InputFileError."""
    accepted = [f.name for f in FORMATS.values() if f.is_float == fmt.is_float and f is not boolean]
    try:
        given = format_of(array.dtype)
    except UnknownNameError:  # such as long double, or the bytes of a format that NumPy does not know
        given = boolean
    if given.name not in accepted:
        raise InputFileError(f"{path}: {name} has format {array.dtype}; accepted: {', '.join(accepted)}")
    if not fmt.is_float and array.size:
        limits = np.iinfo(fmt.dtype)
        outside = next((int(v) for v in (array.min(), array.max()) if not limits.min <= v <= limits.max), None)
        if outside is not None:
            raise InputFileError(f"{path}: {name} holds {outside}; accepted: what {fmt} holds")
    return array if given is fmt else to_format(array, fmt)


def case_from_file(operator: Operator, path: Path, dtype: str) -> tuple[Graph, Case]:
    """A case of the user's own tensors: named like the operator's inputs, of any float format, rounded once to `dtype`.

    Scalars may stand in a safetensors file's metadata, or as 0-d arrays in an .npz file.
    Raises InputFileError where the file lacks an input or holds a name that the operator does not take.
    """
    tensors, metadata = read_tensors(path)
    names = {t.name for t in operator.tensors}
    params = {p.name for p in operator.params}
    try:
        given = {p: float(metadata[p]) for p in params if p in metadata}
        given |= {p: float(tensors.pop(p).item()) for p in params if p in tensors and tensors[p].size == 1}
    except (TypeError, ValueError) as error:
        raise InputFileError(f"{path}: a scalar is no number: {error}") from error
    missing = [t.name for t in operator.tensors if not t.optional and t.name not in tensors]
    other = sorted(set(tensors) - names)
    if missing or other:
        found = ", ".join(sorted(tensors)) or "nothing"
        accepted = ", ".join(t.name for t in operator.tensors)
        raise InputFileError(f"{path}: holds {found}; accepted for {operator.name}: {accepted}")
    graph = operator.trace(dtype, present=set(tensors))
    shape, beside = _shape(operator, graph, path, tensors)
    stored = {}
    for t in graph.inputs:
        fmt = FORMATS[str(t.format)]
        array = tensors[t.name]
        size = size_of(t.space, shape, len(array) if t.space == "t" else None, t.slots)
        if array.size != math.prod(size):
            accepted = f"accepted beside {beside}: {math.prod(size)} elements"
            raise InputFileError(f"{path}: {t.name} has shape {array.shape}; {accepted}")
        stored[t.name] = _in_format(path, t.name, array, fmt).reshape(size)
    try:
        return graph, Case("yours", path.name, shape, 0, stored, {**defaults(operator), **given})
    except ArgumentError as error:
        raise InputFileError(f"{path}: {error}") from error
