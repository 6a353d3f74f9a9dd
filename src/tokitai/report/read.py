"""Certificates from files and folders: found, opened, checked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..evidence import archive, check
from ..evidence.sign import is_signed_by, keyid

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SUFFIX = ".json"
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


def certificates(words: Iterable[str | Path], key: Ed25519PublicKey | None = None) -> list[Certificate]:
    """Every certificate that is named: a file, or a folder with all ``*.json`` and archives below it; each file once,
    in the order of their names. With a key, those that it did not sign are wrong.

    Raises ArgumentError for a path that is neither, for a folder that cannot be read, and where there is none at all.
    """
    named = [Path(word) for word in words]
    found = {path.resolve(): path for one in named for path in _files(one)}
    if not found:
        listed = ", ".join(map(str, named)) or "nothing"
        raise ArgumentError(f"no certificate in {listed} (accepted: files, and folders with {SUFFIX} files below them)")
    return [read(path, key) for path in sorted(found.values())]


def _files(path: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise ArgumentError(f"{error.filename}: {error.strerror} (accepted: a folder that can be read)") from error

    try:
        if path.name == archive.ARCHIVE:
            return archive.members(path.parent)
        if path.is_file() or archive.holds(path):
            return [path]
        if not path.is_dir():
            what = "no file or folder" if path.exists() else "no such file"
            raise ArgumentError(f"{path}: {what} (accepted: certificates, and folders of certificates)")
    except (OSError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{path}: {error} (accepted: certificates, and folders of certificates)") from error
    found = []
    for folder, _, names in os.walk(path, onerror=refuse):
        files = (Path(folder) / name for name in names)
        found += [file for file in files if file.suffix == SUFFIX and not file.is_dir()]
        found += archive.members(folder)
    return found


def read(path: Path, key: Ed25519PublicKey | None = None) -> Certificate:
    """The certificate in this file, a statement or an envelope round one. With a key, one that is not signed by it is
    wrong. Never raises for what a file may hold."""
    try:
        if not path.is_file() and not archive.holds(path):  # a pipe would wait for a writer
            raise ValueError("no regular file")
        found = archive.read(path)
        statement = check.parse(found.payload)
        wrong = check.problems(statement)
        right = not wrong or check.well_formed(statement)
    except OSError as error:
        return Certificate(str(path), (f"cannot be read: {error.strerror or error}",), None, UNSIGNED)
    except RecursionError:
        return Certificate(str(path), ("nested too deeply",), None, UNSIGNED)
    except ValueError as error:
        return Certificate(str(path), (str(error),), None, UNSIGNED)
    signature = _signature(found, key)
    if key is not None and not signature.startswith("good"):
        wrong = [*wrong, f"{signature}, where a signature by the key {keyid(key)} is asked for"]
    return Certificate(str(path), tuple(wrong), statement["predicate"] if right else None, signature)


def _signature(found: check.Certificate, key: Ed25519PublicKey | None) -> str:
    """The state of the signature, in words. Key ids, which anyone can write, are shown only where none is checked."""
    if found.signatures is None:
        return UNSIGNED
    if key is None:
        names = ", ".join(s.keyid or "a key without a name" for s in found.signatures)
        return f"signed, not checked: {names}"
    return f"good, by the key {keyid(key)}" if is_signed_by(found, key) else "no signature by the key"
