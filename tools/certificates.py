"""Put the certificates of a folder into its archive, or take them out as files.

    python -m tools.certificates pack FOLDER [--without NAME ...]
    python -m tools.certificates unpack FOLDER TARGET

`pack` takes every .json file of the folder, in place of what has its name in the archive, and removes the files with
their renderings. `unpack` writes all of an archive, each with the bytes that it had, and beside them its index:
``sha256sum -c certificates.sha256`` then compares them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokitai.errors import EvidenceError
from tokitai.evidence import archive


def unpack(folder: Path, target: Path) -> list[str]:
    """Write every certificate of an archive into a folder, with the index; returns their names.

    Raises EvidenceError where one cannot be read or written.
    """
    try:
        found = {path.name: archive.read_bytes(path) for path in archive.members(folder)}
        target.mkdir(parents=True, exist_ok=True)
        for name, data in found.items():
            (target / name).write_bytes(data)
        if found:
            (target / archive.INDEX).write_bytes((folder / archive.INDEX).read_bytes())
    except (OSError, ValueError) as error:
        raise EvidenceError(f"{folder}: {error}") from error
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("pack", help="put .json files into the archive of their folder")
    one.add_argument("folder", type=Path)
    one.add_argument("--without", nargs="*", default=[], metavar="NAME", help="certificates to take out")
    other = commands.add_parser("unpack", help="write all of an archive as files")
    other.add_argument("folder", type=Path)
    other.add_argument("target", type=Path)
    options = parser.parse_args()
    try:
        if options.command == "pack":
            names, where = archive.pack(options.folder, options.without), options.folder / archive.ARCHIVE
        else:
            names, where = unpack(options.folder, options.target), options.target
    except EvidenceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{where}: {len(names)} certificates")
    return 0


if __name__ == "__main__":
    sys.exit(main())
