"""What can be verified on this machine: found out by doing it, with an operator of one line."""

from __future__ import annotations

import os
from typing import Any

from ..backends import DEFAULT, backend_named, backends
from ..backends.backend import size_shown
from ..backends.cpu import device as cpu
from ..errors import CompilerMissingError, TokitaiError
from ..lang import Matrix, Outputs, operator, outputs, row_sum, storage
from ..numerics import NUMERICS_VERSION
from ..toolchain import cache
from ..toolchain.build import machine_here
from ..toolchain.compilers import Compiler, all_compilers, find_compiler
from ..verification import verify


@operator
def probe(x: Matrix[storage]) -> Outputs:
    """y = x * sum(x): small enough to compile at once, and it needs a load, a sum, a product and a store."""
    return outputs(y=x * row_sum(x))


def trial(device: str, compiler: str | None = None) -> str | None:
    """Why one small case is not verified on a device; None where it is, or nothing was found wrong."""
    try:
        return verify(probe, dtype="f32", device=device, compiler=compiler, case="seeded/normal@3x33#0").failure
    except TokitaiError as error:
        return str(error)


def examine() -> dict[str, Any]:
    """The state of this machine, as plain JSON values."""
    device = {**cpu.describe(), "memory_bytes": memory_bytes()}
    compilers = [_compiler(c) for c in all_compilers()]
    missing, chosen = [], None
    try:
        chosen = str(find_compiler().path)
    except CompilerMissingError as error:
        missing.append(str(error))
    for c in compilers:
        if c["problem"]:
            missing.append(f"{c['path']}: {c['problem']}")
    if device["float_mode"]:
        missing.append(f"floating-point mode: {device['float_mode']}")
    folder = cache.folder()
    if folder.problem:
        missing.append(folder.problem)
    devices = {}
    for backend in backends():
        found = backend.examine(trial)
        devices[backend.name] = found
        missing += [f"{backend.name}: {text}" for text in backend.lacks(found)]
    return {
        "numerics_version": NUMERICS_VERSION,
        "device": device,
        "compilers": compilers,
        "compiler": chosen,
        "cache": {"folder": str(folder.path), "problem": folder.problem},
        "devices": devices,
        "claims": [f"{name}: {text}" for name, found in devices.items() for text in found["claims"]],
        "missing": missing,
    }


def _compiler(c: Compiler) -> dict[str, Any]:
    """A compiler, and whether a kernel that it builds runs here with the defined bits."""
    known = {"path": str(c.path), "kind": c.kind, "version": c.title, "digest": c.digest, "machine": c.machine}
    if c.machine != machine_here():
        return {**known, "works": False, "problem": None}  # a cross compiler: its kernels run elsewhere
    problem = trial(DEFAULT, str(c.path))
    return {**known, "works": problem is None, "problem": problem}


def memory_bytes() -> int | None:
    """The memory of this machine, or None where it does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def report_text(report: dict[str, Any]) -> str:
    """The report for people."""
    device, folder, devices = report["device"], report["cache"], report["devices"]
    lines = [
        f"machine     {device['cpu']}, {device['machine']}, {device['os']}, {device['libc']}",
        f"memory      {size_shown(device['memory_bytes'])}",
        f"runs        {', '.join(device['isas']) or 'no instruction set that is known here'}",
        f"threads     {device['threads']} of {device['cores']} cores",
        f"float mode  {device['float_mode'] or 'as IEEE 754 has it by default'}",
        f"cache       {folder['folder']}",
    ]
    shown = [(name, backend_named(name), found) for name, found in devices.items()]
    lines += [f"            {name}: {backend.shown(found)}" for name, backend, found in shown]
    lines[-len(shown)] = lines[-len(shown)].replace("       ", "devices", 1)
    for c in report["compilers"]:
        chosen = " (used by default)" if c["path"] == report["compiler"] else ""
        elsewhere = f"compiles for {c['machine']}, not for this machine"
        state = "works" if c["works"] else "does not work" if c["problem"] else elsewhere
        known = f"{c['kind']}, {c['version']}, sha256 {c['digest'][:12]}"
        lines.append(f"compiler    {c['path']}: {known}: {state}{chosen}")
    own = [backend.compiler_shown(found) for _, backend, found in shown]
    lines += [f"compiler    {text}" for text in own if text is not None]
    lines += [f"claim       {text}" for text in report["claims"]]
    lines += [f"no claim    {name}: nothing" for name, found in devices.items() if not found["claims"]]
    lines += [f"missing     {text}" for text in report["missing"]]
    return "\n".join(lines)
