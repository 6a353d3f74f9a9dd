"""Check certificates: their form, their signature, and on request whatever can be recomputed.

A certificate is called by what was checked of it, and no more: *well-formed* where its parts agree; *recomputed* where
the inputs and the oracle of every case, the errors, the claims, the contract and the suite were computed again, and
*partly recomputed* where not every case was; *signed by* a key. One that honestly says `refuted` or `undecided` is
well-formed, and still no yes. That a kernel ran, and where, is the word of whoever signed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import UsageError
from ..evidence.archive import read
from ..evidence.check import Certificate, parse, printable, problems
from ..evidence.sign import is_signed_by, keyid
from ..lang import Operator
from ..ops import registry
from .again import Again, compute_again

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

Outcome = Literal["invalid", "refuted", "undecided", "well-formed", "partly recomputed", "recomputed"]
WORST_FIRST: Sequence[Outcome] = get_args(Outcome)
EXIT_CODES: Mapping[Outcome, int] = {
    "invalid": 1, "refuted": 1, "undecided": 3, "well-formed": 0, "partly recomputed": 0, "recomputed": 0,
}  # fmt: skip
AS_STATED = (
    "subject", "output_digests", "threads", "device", "compiler", "isa", "flags", "kernels", "machine_code",
    "isolation", "created", "seconds", "tool",
)  # fmt: skip
"""What no computation can check, whatever is recomputed: the word of whoever signed."""
FIRST_AS_STATED = ("bound", "figures of derivatives")
"""What is computed in another way since the first version of the suite."""


@dataclass
class Checked:
    """What the check of one file showed. What the certificate says of itself is None where that could not be read, or
    does not count since its signature is wrong."""

    file: str
    outcome: Outcome = "well-formed"
    problems: list[str] = field(default_factory=list)  # what is wrong, or why that cannot be told; a sentence each
    operator: str | None = None
    dtype: str | None = None
    device: str | None = None
    verdict: str | None = None
    cases: int | None = None
    signature: Literal["none", "not checked", "good", "wrong"] | None = None
    keyids: list[str] = field(default_factory=list)  # of the envelope's signatures, as it says
    signer: str | None = None  # the id of the key whose signature is good
    rerun: dict[str, int] | None = None  # how many cases were recomputed, and of how many that can be
    lacking: str | None = None  # how many cases of the suite are not there
    as_stated: list[str] = field(default_factory=list)  # parts that were recomputed by nobody, where the others were

    def as_json(self) -> dict[str, Any]:
        """The documented, stable keys of ``--json``."""
        return asdict(self)


def check_file(
    path: Path | str,
    *,
    key: Ed25519PublicKey | None = None,
    rerun: int | None = None,
    seed: int = 0,
    operators: Mapping[str, Operator] | None = None,
    progress: Callable[[str], object] = str,
) -> Checked:
    """Check the certificate in a file. Nothing that a file holds raises.

    With a ``key`` the certificate must be signed by it. ``rerun``: recompute so many of its cases, drawn by ``seed``
    (0: all), and whatever follows from its parts; None: nothing. Its operator is looked up in ``operators`` (default:
    those of the package), and where it is not there, or is another definition, the outcome is `undecided`.
    ``progress`` is called with each case.
    """
    found = Checked(str(path))
    try:
        certificate = read(path)
    except OSError as error:
        return _ended(found, "undecided", f"cannot be read: {error.strerror or error}")
    except ValueError as error:
        return _ended(found, "invalid", str(error))
    if not _signature(found, certificate, key):
        return found
    try:
        statement = parse(certificate.payload)
    except ValueError as error:
        return _ended(found, "invalid", str(error))
    wrong = problems(statement)
    if wrong:
        return _ended(found, "invalid", *wrong)
    predicate = statement["predicate"]
    found.operator, found.device = predicate["operator"]["name"], predicate["target"]
    found.dtype, found.cases = printable(predicate["dtype"]), len(predicate["cases"])
    found.verdict = predicate["verdict"]
    if rerun is not None:
        _again(found, predicate, rerun, seed ^ zlib.crc32(certificate.payload), operators, progress)
    if found.verdict != "verified" and found.outcome != "invalid":
        why = f": {predicate['failure']}" if predicate["failure"] else ""
        outcome: Outcome = "refuted" if found.verdict == "refuted" else "undecided"
        _ended(found, outcome, printable(f"well-formed, but its verdict is {found.verdict}{why}"))
    return found


def overall(results: Sequence[Checked]) -> Outcome:
    """The worst outcome: what was checked least, where nothing is wrong. Raises UsageError where there is none."""
    if not results:
        raise UsageError("nothing was checked; accepted: at least one certificate")
    return next(outcome for outcome in WORST_FIRST if any(r.outcome == outcome for r in results))


def recheck(path: Path | str, operator: Operator, sample: int = 6, seed: int = 0) -> list[str]:
    """What is wrong with a file as a certificate of `operator`, verified, one sentence each; empty where nothing is.

    ``sample`` of its cases, drawn by ``seed``, are recomputed. Never raises for what a file holds.
    """
    return check_file(path, rerun=sample, seed=seed, operators={operator.name: operator}).problems


def _ended(found: Checked, outcome: Outcome, *said: str) -> Checked:
    found.outcome = outcome
    found.problems += map(printable, said)
    return found


def _signature(found: Checked, certificate: Certificate, key: Ed25519PublicKey | None) -> bool:
    """Fill in the state of the signature; False where it is not as the key demands."""
    signatures = certificate.signatures
    found.keyids = [printable(s.keyid) for s in signatures or () if s.keyid]
    found.signature = "none" if signatures is None else "not checked"
    if key is None:
        return True
    if signatures is not None and is_signed_by(certificate, key):
        found.signature, found.signer = "good", keyid(key)
        return True
    if signatures is None:
        _ended(found, "invalid", f"it is not signed (accepted: signed by the key {keyid(key)})")
        return False
    found.signature = "wrong"
    said = f"it says by {', '.join(found.keyids)}" if found.keyids else "it does not say by whom"
    _ended(found, "invalid", f"no signature on it is one by the key {keyid(key)} ({said})")
    return False


def _again(
    found: Checked, predicate: Mapping[str, Any], sample: int, seed: int, operators: Mapping[str, Operator] | None,
    progress: Callable[[str], object],
) -> None:  # fmt: skip
    known = registry() if operators is None else operators
    operator = known.get(predicate["operator"]["name"])
    if operator is None:
        made = Again(unable=f"it is about {found.operator}, which is no operator known here")
    else:
        made = compute_again(predicate, operator, sample, seed, progress)
    found.rerun = {"cases": made.cases, "of": made.able}
    if made.unable is not None:
        _ended(found, "undecided", f"nothing was recomputed: {made.unable}")
    elif made.problems:
        _ended(found, "invalid", *made.problems)
    else:
        whole = made.cases == found.cases and made.lacking is None
        found.outcome, found.lacking = "recomputed" if whole else "partly recomputed", made.lacking
        found.as_stated = [*AS_STATED, *([] if "suite" in predicate else FIRST_AS_STATED)]
