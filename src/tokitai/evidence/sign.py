"""Signatures of certificates: DSSE envelopes (protocol 1.0.0), signed with Ed25519.

`check` reads envelopes with the standard library alone; what is here takes the package `cryptography` as well, which is
imported by the first call.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ArgumentError, KeyFileError, UnavailableError
from .check import PAYLOAD_TYPE, Certificate, open_regular

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SigningKey: TypeAlias = "Path | str | Ed25519PrivateKey"
"""What certificates are signed with: a private key, or the path of its PEM file."""

LARGEST_KEY = 1 << 16  # bytes of a key file, of which a key takes about a hundred
PRIVATE = "an Ed25519 private key in PEM without a passphrase, as `openssl genpkey -algorithm ed25519` writes it"
PUBLIC = "an Ed25519 public key in PEM, as `openssl pkey -in KEY.pem -pubout` writes it"


def signing_key(sign: SigningKey | None, out: Path | str | None) -> Ed25519PrivateKey | None:
    """The key that signs a certificate in the folder ``out``. Raises ArgumentError where none will be written, and what
    `private_key` raises."""
    if sign is not None and out is None:
        raise ArgumentError("a key to sign with, and no folder for a certificate (out=None); accepted: both")
    return None if sign is None else private_key(sign)


def private_key(given: SigningKey) -> Ed25519PrivateKey:
    """The key to sign with: itself, or that of a PKCS#8 PEM file. No message shows any of the file.

    Raises KeyFileError for a file that holds none, UnavailableError where `cryptography` is missing.
    """
    _need_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if isinstance(given, Ed25519PrivateKey):
        return given
    data = _read(given, PRIVATE)
    try:
        key = load_pem_private_key(data, None)
    except TypeError:
        raise KeyFileError(f"{given}: the private key is encrypted; accepted: {PRIVATE}") from None
    except Exception:  # of several kinds, for whatever a file may hold
        there = "a public key" if b"PUBLIC KEY-----" in data else "no private key that can be read"
        raise KeyFileError(f"{given}: {there}; accepted: {PRIVATE}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{given}: a key of another kind, {_kind(key)}; accepted: {PRIVATE}")
    return key


def public_key(given: Path | str | Ed25519PublicKey) -> Ed25519PublicKey:
    """The key to check signatures with: itself, or that of a SubjectPublicKeyInfo PEM file.

    Raises KeyFileError for a file that holds none, UnavailableError where `cryptography` is missing.
    """
    _need_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if isinstance(given, Ed25519PublicKey):
        return given
    data = _read(given, PUBLIC)
    try:
        key = load_pem_public_key(data)
    except Exception:  # of several kinds, for whatever a file may hold
        there = "a private key" if b"PRIVATE KEY-----" in data else "no public key that can be read"
        raise KeyFileError(f"{given}: {there}; accepted: {PUBLIC}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{given}: a key of another kind, {_kind(key)}; accepted: {PUBLIC}")
    return key


def keyid(key: Ed25519PublicKey) -> str:
    """SHA-256 of the key's 32 bytes, in hexadecimal."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()


def pae(payload_type: str, payload: bytes) -> bytes:
    """What is signed: DSSE's pre-authentication encoding of a payload and its type."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def envelope(payload: bytes, key: Ed25519PrivateKey) -> dict[str, Any]:
    """A statement's JSON text in an envelope with one signature, as plain JSON values."""
    signature = {"keyid": keyid(key.public_key()), "sig": _base64(key.sign(pae(PAYLOAD_TYPE, payload)))}
    return {"payloadType": PAYLOAD_TYPE, "payload": _base64(payload), "signatures": [signature]}


def is_signed_by(certificate: Certificate, key: Ed25519PublicKey) -> bool:
    """Whether one of a certificate's signatures is by this key. Their key ids, which anyone can write, do not count."""
    from cryptography.exceptions import InvalidSignature

    message = pae(PAYLOAD_TYPE, certificate.payload)
    for signature in certificate.signatures or ():
        try:
            key.verify(signature.value, message)
        except InvalidSignature:
            continue
        return True
    return False


def _need_library() -> None:
    if find_spec("cryptography") is None:
        raise UnavailableError(
            "signatures need the package cryptography, which is not installed; install it with "
            "`pip install 'tokitai[sign]'`"
        )


def _read(given: Path | str, accepted: str) -> bytes:
    if not isinstance(given, Path | str):
        raise ArgumentError(f"a key of type {type(given).__name__}; accepted: the path of {accepted}")
    try:
        with open_regular(given) as file:
            data = file.read(LARGEST_KEY + 1)
    except (OSError, ValueError) as error:
        said = (isinstance(error, OSError) and error.strerror) or error
        raise KeyFileError(f"{given}: cannot be read ({said}); accepted: {accepted}") from error
    if len(data) > LARGEST_KEY:
        raise KeyFileError(f"{given}: more than {LARGEST_KEY} bytes; accepted: {accepted}")
    return data


def _kind(key: object) -> str:
    return type(key).__name__.removesuffix("PrivateKey").removesuffix("PublicKey").lstrip("_")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
