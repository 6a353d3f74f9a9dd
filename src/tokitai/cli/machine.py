"""What `doctor` reads about a machine: its memory and its AMD GPUs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

NODES = Path("/sys/class/kfd/kfd/topology/nodes")


def memory_bytes() -> int | None:
    """The memory of this machine, or None where it does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def amd_devices(nodes: Path = NODES, driver: Path = Path("/sys/module/amdgpu/version")) -> list[dict[str, Any]]:
    """The AMD GPUs that the kernel's driver names: ``name``, ``arch``, ``memory_bytes``, ``driver`` (or None)."""
    found = []
    for folder in sorted(nodes.glob("*"), key=lambda path: path.name.zfill(8)):
        version = _property(folder / "properties", "gfx_target_version")
        if not version:  # a processor
            continue
        banks = [_property(bank, "size_in_bytes") for bank in sorted(folder.glob("mem_banks/*/properties"))]
        found.append({
            "name": _text(folder / "name") or "AMD GPU",
            "arch": f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}",
            "memory_bytes": sum(banks),
            "driver": _text(driver),
        })  # fmt: skip
    return found


def _property(file: Path, name: str) -> int:
    """A number of a file of lines ``name number``; 0 where there is none."""
    line = re.search(rf"^{name} (\d+)$", _text(file) or "", re.MULTILINE)
    return int(line[1]) if line else 0


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except OSError:
        return None
