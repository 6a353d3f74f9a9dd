"""A page for people from any number of certificates: what was verified, where, and why one may believe it.

`read` opens certificates and checks each, `content` takes from them what is shown, `pictures` draws it, `page` puts it
into one HTML file. Nothing in a certificate is trusted: one that contradicts itself is shown as invalid, and text from
it is text on the page, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from .content import Content, State, gather, printable
from .page import build, check_installed, check_path, write
from .read import Certificate, certificates, read

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def report(words: Iterable[str | Path], path: Path, key: Ed25519PublicKey | None = None) -> Content:
    """Write a page about certificates to `path`; `words` are files, and folders with all ``*.json`` below them.
    With a key, a certificate that it did not sign is invalid.

    Returns what the page shows. Raises ArgumentError where there is no certificate, or no page can be written there,
    and UnavailableError where Jinja2 or matplotlib is not installed, or there is no room.
    """
    check_installed()
    found = certificates(words, key)
    check_path(path, [c.path for c in found])
    content = gather(found)
    write(build(content), path)
    return content


__all__ = ["Certificate", "Content", "State", "build", "certificates", "check_installed", "gather", "printable",
           "read", "report"]  # fmt: skip
