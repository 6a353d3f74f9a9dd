"""Cache keys and fingerprints: digests over everything that can change the bytes of a binary.

There are two, because a compiler says which files it reads only after it has read them:

* the *key* is known before a build and names the cache entry: the emitted text, the headers that come with it, the
  compiler's identity, every flag and define, the environment variables that steer compilers, the numerics version;
* the *fingerprint* adds the digests of all other files that the compiler and the linker report that they read. A hit on
  the key counts only while those files are unchanged, so an edit in a header of a header is never missed.

What neither sees: a new file that would shadow a recorded one on the include path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..numerics import NUMERICS_VERSION

SCHEMA = 1  # grows when the meaning of a key or the layout of a cache entry changes

# What GCC, Clang and the linker read besides their arguments.
ENVIRONMENT = (
    "CCC_OVERRIDE_OPTIONS", "COMPILER_PATH", "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "GCC_EXEC_PREFIX",
    "GCC_ROOT", "LDEMULATION", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_RUN_PATH", "LIBRARY_PATH", "SOURCE_DATE_EPOCH",
)  # fmt: skip


def digest_of(value: object) -> str:
    """sha256 (hex) of `value`'s canonical JSON: quoted, so that no two values run together, and mappings sorted."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 (hex) of a file's bytes. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def environment() -> dict[str, str]:
    """The variables of `ENVIRONMENT` that are set."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


def cache_key(target: str, text: str, headers: Mapping[str, str], toolchain: Mapping[str, Any]) -> str:
    """The key of a build. `toolchain` holds what else decides its bytes (compiler, flags, names), as JSON values."""
    parts = {
        "schema": SCHEMA,
        "numerics": NUMERICS_VERSION,
        "target": target,
        "text": text,
        "headers": dict(headers),
        "toolchain": dict(toolchain),
        "environment": environment(),
    }
    return digest_of(parts)


def fingerprint(key: str, files: Iterable[FileStamp]) -> str:
    """The key together with the digests of the files that the compiler read besides the emitted ones."""
    return digest_of([key, sorted([file.path, file.digest] for file in files)])


@dataclass(frozen=True)
class FileStamp:
    """A file as it was: size, time of last change, and digest."""

    path: str
    size: int
    mtime_ns: int
    digest: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """The stamp of `path` now. Raises OSError."""
        status = path.stat()
        size, mtime_ns = status.st_size, status.st_mtime_ns
        return cls(str(path), size, mtime_ns, _digest(str(path), size, mtime_ns))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises KeyError or TypeError where `value` is not what `to_json` gives."""
        return cls(**value)

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "mtime_ns": self.mtime_ns, "digest": self.digest}

    def unchanged(self) -> bool:
        """Whether the file still has these bytes. It is read only where its size or time differ."""
        try:
            status = os.stat(self.path)
            if (status.st_size, status.st_mtime_ns) == (self.size, self.mtime_ns):
                return True
            return status.st_size == self.size and file_digest(Path(self.path)) == self.digest
        except OSError:
            return False


_digests: dict[tuple[str, int, int], str] = {}


def _digest(path: str, size: int, mtime_ns: int) -> str:
    """`file_digest`, remembered in this process: compilers and system headers are large and stay as they are."""
    key = (path, size, mtime_ns)
    if key not in _digests:
        _digests[key] = file_digest(Path(path))
    return _digests[key]


def parse_depfile(text: str) -> list[str]:
    r"""The prerequisites in the first rule of a dependency file, in make's notation: ``out: a.cpp a\ b.h``."""
    rule = text.replace("\\\n", " ").lstrip().partition("\n")[0]
    words = re.findall(r"(?:\\[ #]|\$\$|\S)+", re.split(r":(?:\s|$)", rule, maxsplit=1)[-1])
    return [re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in words]


def parse_linker_depfile(text: str) -> list[str]:
    r"""The same of a linker, which writes each name on a line of its own. GNU ld escapes nothing in it, LLD does."""
    rule = text.partition("\n\n")[0].split(" \\\n")[1:]
    names = [line.strip("\n").removeprefix("  ") for line in rule]
    return [name if os.path.exists(name) else re.sub(r"\\([ #])", r"\1", name).replace("$$", "$") for name in names]
