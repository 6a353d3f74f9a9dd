"""What `doctor` finds out about a machine by looking: its memory, AMD cards, and compilers for them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from ..errors import CompilerMissingError
from ..kernel import TARGETS
from ..toolchain.compilers import identify

CLANGS = ("clang++", *(f"clang++-{release}" for release in range(22, 16, -1)), "/opt/rocm/llvm/bin/clang++")
OLDEST_CLANG = 17
NO_CLANG = "no clang of release 17 or newer that compiles for AMD GPUs; install one with `apt install clang-19 lld-19`"
NO_CARD = "no AMD GPU (/sys/class/kfd names none); with one, install the amdgpu driver"
NO_BINDINGS = "the Python package hip-python is missing; install it with `pip install 'tokitai[hip]'`"
NO_TARGET = "this version has no target hip"
NODES = Path("/sys/class/kfd/kfd/topology/nodes")


def memory_bytes() -> int | None:
    """The memory of this machine, or None where it does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def hip() -> dict[str, Any]:
    """What of the HIP target is here: ``build`` and ``run`` say what is missing, or are None."""
    compiler, devices = amd_clang(), amd_devices()
    build = NO_CLANG if compiler is None else NO_TARGET if "hip" not in TARGETS else None
    run = NO_CARD if not devices else NO_BINDINGS if importlib.util.find_spec("hip") is None else None
    claims = []
    if build is None and compiler is not None:
        claims = [f"kernels for AMD GPUs can be compiled by {compiler['version']} and inspected here, not run"]
    return {
        "works": build is None and run is None, "build": build, "run": run, "compiler": compiler,
        "hipcc": shutil.which("hipcc"), "devices": devices, "claims": claims,
    }  # fmt: skip


def amd_clang() -> dict[str, Any] | None:
    """The first clang of release 17 or newer with LLVM's back end for AMD GPUs."""
    for name in CLANGS:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            found = identify(path)
        except CompilerMissingError:
            continue
        if found.kind == "clang" and (found.major or 0) >= OLDEST_CLANG and _compiles_for_amd(path):
            return {"path": path, "version": found.title, "digest": found.digest}
    return None


def _compiles_for_amd(path: str) -> bool:
    try:
        said = subprocess.run([path, "-print-targets"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(r"^\s*amdgcn\s", said.stdout, re.MULTILINE) is not None


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
