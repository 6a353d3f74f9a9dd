"""Certificates: in-toto statements about what was compared and proved. `schema.json` says what each field means."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import math
import numbers
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import EvidenceError
from ..numerics import VERSION
from .check import problems
from .sign import envelope

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://tokitai.dev/verification/v1"

Verdict = Literal["verified", "refuted", "undecided"]


@dataclass(frozen=True)
class Contract:
    """What the operator accepts: formats by name, largest sizes, and the domain in words."""

    formats: Sequence[str]
    max_rows: int
    max_cols: int
    domain: str


@dataclass(frozen=True)
class OperatorIdentity:
    """The definition that kernels are held against."""

    name: str
    graph_digest: str
    numerics_version: int
    contract: Contract


@dataclass(frozen=True)
class CompilerIdentity:
    """The compiler that built the kernels; `digest` is that of its own binary."""

    kind: str
    version: str
    digest: str


@dataclass(frozen=True)
class KernelIdentity:
    """One build: `digest` of the binary, `source_digest` of the emitted text, both SHA-256 in hexadecimal, and the same
    of the definitions by which its source joins pending sums, by where they are."""

    structure: bool
    fingerprint: str
    digest: str
    source_digest: str
    sums: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One run compared with the oracle.

    `equal` means that every one of the `compared` elements has the oracle's bits, and that nothing else was touched.
    Digests are by tensor name, made with `tensor_digest`. `kind` is "structure" for runs of a structure build.
    """

    kind: str
    name: str
    rows: int
    cols: int
    seed: int | None
    scalars: Mapping[str, float]
    threads: int
    input_digests: Mapping[str, str]
    output_digests: Mapping[str, str]
    oracle_digests: Mapping[str, str]
    compared: int
    equal: bool
    max_ulp_error: float | None = None
    inner: int | None = None  # of a product: the size over which it sums, and how many are in the batch
    batch: int | None = None
    layouts: Sequence[str] = ()  # how each launch laid out its work and its tensors, in words


@dataclass(frozen=True)
class Proof:
    """A statement about all inputs, and how it was proved or why it was not."""

    statement: str
    status: Literal["proved", "not proved"]
    how: str


@dataclass(frozen=True)
class Suite:
    """What was to be run: the version of the suite, the seed from which it draws, the only case or the shape that was
    asked for."""

    version: int
    seed: int
    only: str | None = None
    shape: Mapping[str, int] | None = None


@dataclass(frozen=True)
class ConditionedErrors:
    """Errors in roundings of the magnitudes that their elements' evaluation adds, over the `elements` whose bound is at
    most 1e6 of these: the largest, the largest in roundings of the row's largest result, the largest bound, the largest
    probabilistic bound, and how many errors are nearest to each power of two from 2**-10 to 2**20. `unbounded` elements
    have a larger bound or none; `why` says from which operation on, in sentences."""

    elements: int
    max_error: float
    max_error_of_row: float
    bound: float
    probabilistic_bound: float
    histogram: Sequence[int]
    unbounded: int
    why: Sequence[str]


@dataclass(frozen=True)
class LargestError:
    """The largest error over all cases in units in the last place, the replay line of where, and a proven bound; and
    errors against the condition of their elements, where they were measured, by the format of the results."""

    max_ulp_error: float | None = None
    at: str | None = None
    bound: float | None = None
    condition: Mapping[str, ConditionedErrors] | None = None


@dataclass(frozen=True)
class Tool:
    """What produced a certificate."""

    name: str
    version: str
    python: str
    numpy: str

    @classmethod
    def here(cls) -> Tool:
        """This package in this process."""
        return cls("tokitai", VERSION, platform.python_version(), np.__version__)


@dataclass(frozen=True)
class Verification:
    """All that a certificate says: the predicate, field by field in its order."""

    operator: OperatorIdentity
    dtype: str
    target: str
    device: Mapping[str, Any]
    compiler: CompilerIdentity
    isa: str
    flags: Sequence[str]
    plan: Mapping[str, Any]
    kernels: Sequence[KernelIdentity]
    cases: Sequence[Case]
    proofs: Sequence[Proof]
    error: LargestError
    verdict: Verdict
    failure: str | None
    claims: Sequence[str]
    non_claims: Sequence[str]
    seconds: float
    isolation: Sequence[str] | None = None  # what limited the process of its own in which kernels ran, if they did
    suite: Suite | None = None
    machine_code: Sequence[Any] | None = None  # what was read of each binary, as `backends.machine_code` has it
    created: str = field(default_factory=lambda: utc_now())
    tool: Tool = field(default_factory=Tool.here)


def utc_now() -> str:
    """The time, to the second, as certificates give it: ``2026-01-31T12:00:00Z``."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def tensor_digest(values: NDArray[Any]) -> str:
    """SHA-256 of a tensor's stored bytes: little-endian, in row-major order, without padding between rows."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(np.ascontiguousarray(little).reshape(-1).view(np.uint8).data).hexdigest()


def build_statement(verification: Verification) -> dict[str, Any]:
    """The in-toto statement, as plain JSON values.

    Raises EvidenceError where its parts contradict each other: no statement is made that its own check refuses.
    """
    stem = f"{verification.operator.name}.{verification.dtype}.{verification.target}"
    files = {f"{stem}.{kernel.digest[:12]}.so": kernel.digest for kernel in verification.kernels}
    files |= {f"{stem}.{kernel.source_digest[:12]}.source": kernel.source_digest for kernel in verification.kernels}
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in files.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": _plain(verification, "predicate"),
    }
    for name in ("suite", "machine_code"):
        if statement["predicate"][name] is None:  # as those have it that are of none
            del statement["predicate"][name]

    found = problems(statement)
    if found:
        raise EvidenceError(f"{stem}: no certificate can say this: " + "; ".join(found))
    return statement


def write(statement: Mapping[str, Any], folder: Path, key: Ed25519PrivateKey | None = None) -> Path:
    """Write a statement to ``operator.dtype.target.json`` in `folder`, whole or not at all, and return its path.

    With a key the file is the signed envelope of what else it would be, and its name ends in ``.dsse.json``. A
    certificate that is there is replaced. Raises EvidenceError where the folder cannot be written.
    """
    predicate = statement["predicate"]
    suffix = ".json" if key is None else ".dsse.json"
    path = folder / f"{predicate['operator']['name']}.{predicate['dtype']}.{predicate['target']}{suffix}"
    data = _text(statement)
    if key is not None:
        data = _text(envelope(data, key))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o644)  # temporary files are private, certificates are not
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be written: {error}") from error
    return path


def _text(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def _plain(value: object, at: str) -> Any:
    """A value as JSON has it; numbers that JSON lacks become the strings nan, inf and -inf. Raises EvidenceError."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name), f"{at}.{f.name}") for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item, f"{at}.{name}") for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item, f"{at}[{index}]") for index, item in enumerate(value)]
    accepted = "None, bool, str, numbers, mappings, sequences, dataclasses"
    raise EvidenceError(f"{at}: {value!r} of type {type(value).__name__} (accepted: {accepted})")
