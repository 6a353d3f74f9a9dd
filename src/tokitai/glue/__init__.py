"""Gluing: whether the parts of tensors that ranks hold agree where they overlap, and the whole of which they are parts.

    states = {"rank 0": {"w": w0}, "rank 1": {"w": w1}}
    check(replicas(states))                          # None: the same bits, else an Obstruction that names the elements
    glue(read("checkpoint/").sections)               # Glued, with the digest of the whole, or an Obstruction
    glue([Section("0", "w", top, (0, 0), (8, 4)), Section("1", "w", bottom, (3, 0), (8, 4))]).arrays["w"]

A *section* is what one rank holds of a tensor, a box of its indices: a shard of FSDP or of tensor parallelism, a
replica, a window that overlaps others, a weight that two pipeline stages share. Sections glue when any two have the
same bits on the elements that both hold; the *obstruction* says where they do not. NaNs and zeros are bits as all else.
"""

from .checkpoint import Checkpoint, read
from .digest import TensorDigest
from .join import Glued, check, digest, glue
from .obstruction import Conflict, Disagreement, Gap, Missing, Obstruction
from .section import Absent, Section, renamed, replicas

__all__ = [
    "Absent", "Checkpoint", "Conflict", "Disagreement", "Gap", "Glued", "Missing", "Obstruction", "Section",
    "TensorDigest", "check", "digest", "glue", "read", "renamed", "replicas",
]  # fmt: skip
