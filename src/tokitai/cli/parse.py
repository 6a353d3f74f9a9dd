"""From the words of a command line to operators, shapes and variants."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType

from ..errors import ArgumentError, TokitaiError, UnknownNameError, UsageError
from ..formats import format_of
from ..lang import Operator
from ..ops import get, registry
from ..toolchain.build import ISAS, Isa
from ..toolchain.folders import user_state_folder
from ..verification.verdict import Variant

OWN_FILE = "FILE.py:NAME (runs the file's code)"  # in the help of every command that takes one


def operator_named(word: str) -> Operator:
    """The operator of the package with this name, or the one that ``FILE.py:NAME`` means, of which the file's code is
    run. Raises UsageError."""
    file, colon, name = word.rpartition(":")
    if word.endswith(".py"):
        file, name = word, ""
    elif not colon:
        return get(word)
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"{file}: no such file; accepted: the name of an operator, or FILE.py:NAME")
    if path.suffix != ".py":
        raise UsageError(f"{file}: suffix {path.suffix!r}; accepted: .py")
    module = _load(path)
    found = {n: v for n, v in vars(module).items() if isinstance(v, Operator)}
    if name not in found:
        if hasattr(module, name):
            kind = type(getattr(module, name)).__name__
            accepted = ", ".join(sorted(found)) or "there is none in this file"
            raise UsageError(f"{file}: {name} is of type {kind}; accepted: an operator ({accepted})")
        raise UnknownNameError(f"operator in {file}", name, found)
    return found[name]


def _load(path: Path) -> ModuleType:
    unique = f"tokitai_file_{path.stem}_{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: cannot be imported; accepted: a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # annotations are looked up by the module's name
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that a file beside it shadows nothing
    with blame(path):
        spec.loader.exec_module(module)
    return module


@contextmanager
def blame(path: Path) -> Iterator[None]:
    """What a user's file raises becomes a UsageError with the file and line. Errors that do not pass through the file
    are left alone."""
    try:
        yield
    except TokitaiError:
        raise
    except SyntaxError as error:
        raise UsageError(f"{error.filename or path}:{error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        own = str(path.resolve())
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if str(Path(f.filename).resolve()) == own]
        if not lines:
            raise
        raise UsageError(f"{path}:{lines[-1]}: {type(error).__name__}: {error}") from error


def blame_file_of(operator: Operator) -> AbstractContextManager[None]:
    """`blame` for an operator from a user's file; nothing for those of the package."""
    own = registry().get(operator.name) is operator
    return nullcontext() if own else blame(Path(operator.file))


def isa_named(name: str | None) -> Isa | None:
    """The instruction set with this name. Raises UnknownNameError."""
    known = {isa: isa for rows in ISAS.values() for isa in rows}
    if name is not None and name not in known:
        raise UnknownNameError("instruction set", name, known)
    return None if name is None else known[name]


SIDES = ("rows", "cols", "inner", "batch")


def shape_from(text: str | None) -> dict[str, int] | None:
    """``rows=4,cols=8`` in whichever order. Raises ArgumentError."""
    if text is None:
        return None
    shape: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = (word.strip() for word in part.partition("="))
        if name not in SIDES or name in shape or not re.fullmatch(r"\d{1,18}", size, flags=re.ASCII):
            accepted = "rows=N,cols=N with N at least 0, of a product inner=N as well"
            raise ArgumentError(f"--shape {text!r}: {part!r} is wrong; accepted: {accepted}")
        shape[name] = int(size)
    missing = next((side for side in ("rows", "cols") if side not in shape), None)
    if missing is not None:
        raise ArgumentError(f"--shape {text!r}: {missing} is missing; accepted: rows=N,cols=N")
    return shape


def formats_of(operator: Operator, dtype: str | None) -> list[str]:
    """The storage formats to verify: one, or with None or "all" those of the contract. Raises UnknownNameError."""
    return list(operator.contract.formats) if dtype in (None, "all") else [format_named(operator, dtype, "all")]


def format_named(operator: Operator, dtype: str | None, *also: str) -> str:
    """One of the operator's storage formats; ``also`` names what else would have been accepted. Raises
    UnknownNameError."""
    try:
        name = format_of(dtype).name
    except UnknownNameError:
        name = str(dtype)
    if name not in operator.contract.formats:
        raise UnknownNameError(f"storage format of {operator.name}", name, [*operator.contract.formats, *also])
    return name


def variant_of(operator: Operator, without: Sequence[str], options: Sequence[str]) -> Variant | None:
    """The variant that ``--without`` and ``--option`` ask for, or None where neither is given. Raises UsageError."""
    if not without and not options:
        return None
    optional = {t.name for t in operator.tensors if t.optional}
    for name in without:
        if name not in optional:
            raise UnknownNameError(f"optional input of {operator.name}", name, optional)
    chosen = {}
    for text in options:
        name, equals, value = text.partition("=")
        spec = next((o for o in operator.options if o.name == name), None)
        if not operator.options:
            raise UsageError(f"--option {text}: {operator.name} has no options")
        if spec is None or not equals:
            raise UnknownNameError(f"option of {operator.name}", text, [f"{o.name}=VALUE" for o in operator.options])
        values = {str(v): v for v in spec.accepted}
        if value not in values:
            raise UnknownNameError(f"value of {name}", value, values)
        chosen[name] = values[value]
    return Variant(frozenset(optional - set(without)), tuple(chosen.items()))


def folder_for_certificates(out: Path | None) -> Path:
    """`out`, or where the user's state is kept; made and tried out. Raises ArgumentError."""
    try:
        folder = out or user_state_folder() / "certificates"
    except ArgumentError as error:
        raise ArgumentError(f"{error}, or --out") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise ArgumentError(f"--out {folder}: cannot be written ({error}); accepted: a folder that can") from error


def names_from(text: str | None) -> list[str]:
    """Names between commas; one inside parentheses is part of a name, as in `intermediate:fma(a,b,c)`."""
    found, depth, name = [], 0, ""
    for letter in text or "":
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            found.append(name.strip())
            name = ""
        else:
            name += letter
    return [n for n in [*found, name.strip()] if n]
