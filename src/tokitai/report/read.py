"""Certificates from files and folders: found, opened, checked."""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..evidence.check import problems, well_formed

SUFFIX = ".json"
LARGEST = 1 << 26  # bytes of a file: a hundred times the largest certificate so far
PAYLOAD_TYPE = "application/vnd.in-toto+json"
UNSIGNED = "not signed"


@dataclass(frozen=True)
class Certificate:
    """A file that should hold a certificate.

    `problems` says what is wrong with it, one sentence each; empty where nothing is. `predicate` is None where its
    structure is not that of a certificate; of one that only contradicts itself it is there. `signature` says in words
    whether it is signed.
    """

    path: str
    problems: tuple[str, ...]
    predicate: Mapping[str, Any] | None
    signature: str


def certificates(words: Iterable[str | Path]) -> list[Certificate]:
    """Every certificate that is named: a file, or a folder with all ``*.json`` below it; each file once, in the order
    of their names.

    Raises ArgumentError for a path that is neither, for a folder that cannot be read, and where there is none at all.
    """
    named = [Path(word) for word in words]
    found = {path.resolve(): path for one in named for path in _files(one)}
    if not found:
        listed = ", ".join(map(str, named)) or "nothing"
        raise ArgumentError(f"no certificate in {listed} (accepted: files, and folders with {SUFFIX} files below them)")
    return [read(path) for path in sorted(found.values())]


def _files(path: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise ArgumentError(f"{error.filename}: {error.strerror} (accepted: a folder that can be read)") from error

    try:
        if path.is_file():
            return [path]
        if not path.is_dir():
            what = "no file or folder" if path.exists() else "no such file"
            raise ArgumentError(f"{path}: {what} (accepted: certificates, and folders of certificates)")
    except (OSError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{path}: {error} (accepted: certificates, and folders of certificates)") from error
    below = (Path(folder) / name for folder, _, names in os.walk(path, onerror=refuse) for name in names)
    return [file for file in below if file.suffix == SUFFIX and not file.is_dir()]


def read(path: Path) -> Certificate:
    """The certificate in this file, a statement or an envelope round one. Never raises for what a file may hold."""
    try:
        if not path.is_file():  # a pipe would wait for a writer
            raise ValueError("no regular file")
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ValueError(f"more than {LARGEST >> 20} MiB")
        statement, signature = _opened(_parsed(data))
        wrong = problems(statement)
        right = not wrong or well_formed(statement)
    except OSError as error:
        return Certificate(str(path), (f"cannot be read: {error.strerror or error}",), None, UNSIGNED)
    except RecursionError:
        return Certificate(str(path), ("cannot be read as JSON: nested too deeply",), None, UNSIGNED)
    except ValueError as error:
        return Certificate(str(path), (str(error),), None, UNSIGNED)
    return Certificate(str(path), tuple(wrong), statement["predicate"] if right else None, signature)


def _opened(found: Any) -> tuple[Any, str]:
    """The statement, and whether it is signed: a DSSE envelope holds its bytes. Raises ValueError."""
    if not isinstance(found, dict) or not found.keys() & {"payload", "payloadType", "signatures"}:
        return found, UNSIGNED
    payload, kind, signatures = (found.get(key) for key in ("payload", "payloadType", "signatures"))
    if kind != PAYLOAD_TYPE or not isinstance(payload, str):
        raise ValueError(f"an envelope of {json.dumps(kind)[:60]} (accepted: text of {PAYLOAD_TYPE})")
    if not isinstance(signatures, list) or not signatures or not all(isinstance(s, dict) for s in signatures):
        raise ValueError("an envelope without signatures")
    keys = ", ".join(str(s.get("keyid") or "a key without a name") for s in signatures)
    return _parsed(base64.b64decode(payload, validate=True)), f"signed, which was not checked here: {keys}"


def _parsed(data: bytes) -> Any:
    """JSON, read as strictly as `check` reads it. Raises ValueError."""
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite,
            parse_int=_whole,
        )  # fmt: skip
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot be read as JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("cannot be read as JSON: a key stands twice in one object")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON (accepted: the strings nan, inf and -inf)")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _whole(text: str) -> int:
    if len(text) > 19:
        raise ValueError(f"the number {text[:40]} is too large")
    return int(text)
