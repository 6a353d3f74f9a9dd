"""AMD devices, as `hip-python` finds them. Kernels do not run on them yet: this says what is there, what is missing."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

NODES = Path("/sys/class/kfd/kfd/topology/nodes")
HINT = "install it with `pip install 'tokitai[hip]'`"


def probe() -> str:
    """Why no kernel can be run on an AMD device here, in one line."""
    try:
        hip: Any = importlib.import_module("hip.hip")
    except Exception as error:  # a library of ROCm that is missing raises whatever its loader raises
        said = str(error).strip().partition("\n")[0]
        return (
            f"the Python package hip-python, or ROCm's libraries under it, cannot be loaded ({said}); {HINT}, "
            "and with it ROCm's runtime and the amdgpu driver"
        )
    try:
        status, count = hip.hipGetDeviceCount()
    except Exception as error:
        return f"hipGetDeviceCount failed ({error}); install ROCm's runtime and the amdgpu driver"
    if int(status) != 0 or count < 1:
        return f"no AMD device here (hipGetDeviceCount: {getattr(status, 'name', status)}, {count} devices)"
    return f"{count} AMD device{'s' * (count > 1)} here, but running kernels on one is not built yet"


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
