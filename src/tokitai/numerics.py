"""The versions: of the numerics, which is what bits every operator's results have, and of the package.

That of the numerics is part of every cache key and every certificate. It grows when a rule about formats, primitives,
sums or elementary functions changes, because then the same definition has other bits; speed, layout and messages never
change it.
"""

from __future__ import annotations

NUMERICS_VERSION = 1
VERSION = "0.1.0"
