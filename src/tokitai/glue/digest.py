"""The digest of tensors, which does not depend on how they were cut into sections.

Of a tensor: BLAKE3 of the concatenated BLAKE3 digests of its blocks (`boxes.Blocks`), each over the bytes of its
elements in row-major order, least significant byte first. Of several tensors: BLAKE3 of one line for each, in the
order of their names: ``["name","F32",[2,3],"digest of the tensor"]``, as JSON without spaces, with escapes for all but
ASCII.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3


@dataclass(frozen=True)
class TensorDigest:
    """A whole tensor's name, type, shape and digest."""

    tensor: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


def digest_of_blocks(leaves: Iterable[bytes]) -> str:
    """The digest of a tensor from those of its blocks."""
    return blake3(b"".join(leaves)).hexdigest()


def digest_of_tensors(tensors: Iterable[TensorDigest]) -> str:
    """The digest of several tensors."""
    ordered = sorted(tensors, key=lambda t: t.tensor)
    lines = (json.dumps([t.tensor, t.dtype, t.shape, t.digest], separators=(",", ":")) + "\n" for t in ordered)
    return blake3("".join(lines).encode("ascii")).hexdigest()
