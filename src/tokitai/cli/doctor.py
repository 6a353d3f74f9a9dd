"""What can be verified on this machine: found out by doing it, with an operator of one line."""

from __future__ import annotations

from typing import Any

from ..backends.cpu import device as cpu
from ..backends.cuda import device as cuda
from ..backends.cuda import nvrtc
from ..backends.hip import clang as hip
from ..backends.hip import probe as amd
from ..errors import CompilerMissingError, TokitaiError
from ..lang import Matrix, Outputs, operator, outputs, row_sum, storage
from ..numerics import NUMERICS_VERSION
from ..toolchain import cache
from ..toolchain.build import ISAS, machine_here
from ..toolchain.compilers import Compiler, all_compilers, find_compiler
from ..verification import verify
from . import machine


@operator
def probe(x: Matrix[storage]) -> Outputs:
    """y = x * sum(x): small enough to compile at once, and it needs a load, a sum, a product and a store."""
    return outputs(y=x * row_sum(x))


def examine() -> dict[str, Any]:
    """The state of this machine, as plain JSON values."""
    device = {**cpu.describe(), "memory_bytes": machine.memory_bytes()}
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
    simulated, card, amd_card = _sim(), _cuda(), _hip()
    if simulated["problem"] and chosen is not None:
        missing.append(f"sim: {simulated['problem']}")
    for name, target in (("cuda", card), ("hip", amd_card)):
        missing += [f"{name}: {target[what]}" for what in ("build", "run") if target[what]]
    default = next((c for c in compilers if c["path"] == chosen), None)
    works = default is not None and default["works"] and not device["float_mode"]
    targets = {
        "cpu": {"works": works, "claims": _claims(works, default, device)},
        "sim": {**simulated, "claims": _sim_claims(simulated)},
        "cuda": {**card, "claims": _cuda_claims(card)},
        "hip": {**amd_card, "claims": _hip_claims(amd_card)},
    }
    return {
        "numerics_version": NUMERICS_VERSION,
        "device": device,
        "compilers": compilers,
        "compiler": chosen,
        "cache": {"folder": str(folder.path), "problem": folder.problem},
        "targets": targets,
        "claims": [f"{name}: {text}" for name, target in targets.items() for text in target["claims"]],
        "missing": missing,
    }


def _compiler(c: Compiler) -> dict[str, Any]:
    """A compiler, and whether a kernel that it builds runs here with the defined bits."""
    known = {"path": str(c.path), "kind": c.kind, "version": c.title, "digest": c.digest, "machine": c.machine}
    if c.machine != machine_here():
        return {**known, "works": False, "problem": None}  # a cross compiler: its kernels run elsewhere
    try:
        verdict = verify(probe, dtype="f32", compiler=str(c.path), case="seeded/normal@3x33#0")
    except TokitaiError as error:
        return {**known, "works": False, "problem": str(error)}
    return {**known, "works": verdict.verdict == "verified", "problem": verdict.failure}


def _sim() -> dict[str, Any]:
    """Whether the text of a GPU's kernel has the defined bits on the simulated device."""
    try:
        verdict = verify(probe, dtype="f32", device="sim", case="seeded/normal@3x33#0")
    except TokitaiError as error:
        return {"works": False, "problem": str(error)}
    return {"works": verdict.verdict == "verified", "problem": verdict.failure}


def _sim_claims(simulated: dict[str, Any]) -> list[str]:
    return ["the text of GPU kernels can be run and verified on this processor"] if simulated["works"] else []


def _cuda() -> dict[str, Any]:
    """What of the CUDA target is here: ``build`` and ``run`` say what is missing, or are None."""
    build, run = nvrtc.missing(), cuda.probe()
    found: dict[str, Any] = {"works": False, "build": build, "run": run, "nvrtc": None, "nvrtc_digest": None}
    found["device"] = None
    if build is None:
        library = nvrtc.find_nvrtc()
        found["nvrtc"], found["nvrtc_digest"] = library.version, library.digest
    if run is None:
        try:
            found["device"] = cuda.open_device().describe()
        except TokitaiError as error:
            found["run"] = str(error)
    found["works"] = found["build"] is None and found["run"] is None
    return found


def _cuda_claims(card: dict[str, Any]) -> list[str]:
    if card["works"]:
        return [f"kernels for {card['device']['arch']} can be run and verified here"]
    if card["build"] is None:
        return [f"kernels for {', '.join(nvrtc.ARCHITECTURES)} can be compiled and inspected here, not run"]
    return []


def _hip() -> dict[str, Any]:
    """What of the HIP target is here: ``build`` and ``run`` say what is missing; kernels are not run on a card yet."""
    found: dict[str, Any] = {"works": False, "build": hip.missing(), "run": amd.probe(), "clang": None, "digest": None}
    found["devices"] = machine.amd_devices()
    if found["build"] is None:
        clang = hip.find_hip().clang
        found["clang"], found["digest"] = clang.title, clang.digest
        try:
            found["build"] = verify(probe, dtype="f32", device="hip", case="seeded/normal@3x33#0").failure
        except TokitaiError as error:
            found["build"] = str(error)
    return found


def _hip_claims(card: dict[str, Any]) -> list[str]:
    if card["build"]:
        return []
    return [
        f"kernels for {', '.join(hip.ARCHITECTURES)} can be compiled by {card['clang']} and inspected, "
        "and their text can be run on this processor; nothing about an AMD device"
    ]


def _claims(works: bool, compiler: dict[str, Any] | None, device: dict[str, Any]) -> list[str]:
    if not works or compiler is None:
        return []
    other = sorted({isa for rows in ISAS.values() for isa in rows} - set(device["isas"]))
    here = f"kernels by {compiler['version']} for {', '.join(device['isas'])} can be run and verified here"
    there = f"nothing about {', '.join(other)}, which this machine does not run"
    return [here, there] if other else [here]


def report_text(report: dict[str, Any]) -> str:
    """The report for people."""
    device, folder, targets = report["device"], report["cache"], report["targets"]
    lines = [
        f"machine     {device['cpu']}, {device['machine']}, {device['os']}, {device['libc']}",
        f"memory      {_size(device['memory_bytes'])}",
        f"runs        {', '.join(device['isas']) or 'no instruction set that is known here'}",
        f"threads     {device['threads']} of {device['cores']} cores",
        f"float mode  {device['float_mode'] or 'as IEEE 754 has it by default'}",
        f"cache       {folder['folder']}",
        f"devices     cpu: {'works' if report['targets']['cpu']['works'] else 'does not work'}",
        f"            sim: {'works' if report['targets']['sim']['works'] else 'does not work'}",
        f"            cuda: {_cuda_text(targets['cuda'])}",
        f"            hip: {_hip_text(targets['hip'])}",
    ]
    for c in report["compilers"]:
        chosen = " (used by default)" if c["path"] == report["compiler"] else ""
        elsewhere = f"compiles for {c['machine']}, not for this machine"
        state = "works" if c["works"] else "does not work" if c["problem"] else elsewhere
        known = f"{c['kind']}, {c['version']}, sha256 {c['digest'][:12]}"
        lines.append(f"compiler    {c['path']}: {known}: {state}{chosen}")
    if targets["cuda"]["nvrtc"]:
        lines.append(f"compiler    NVRTC {targets['cuda']['nvrtc']}, sha256 {targets['cuda']['nvrtc_digest'][:12]}")
    lines += [f"claim       {text}" for text in report["claims"]]
    lines += [f"no claim    {name}: nothing" for name, target in targets.items() if not target["claims"]]
    lines += [f"missing     {text}" for text in report["missing"]]
    return "\n".join(lines)


def _cuda_text(card: dict[str, Any]) -> str:
    compiler = f"NVRTC {card['nvrtc']}" if card["nvrtc"] else "no NVRTC"
    if card["device"] is None:
        return f"{compiler}, no usable GPU" + ("; kernels can be built and examined" if card["nvrtc"] else "")
    device = card["device"]
    return f"{device['name']}, {device['arch']}, {_size(device['memory_bytes'])}, driver {device['driver']}, {compiler}"


def _hip_text(card: dict[str, Any]) -> str:
    built = f"{card['clang']}, sha256 {card['digest'][:12]}" if card["clang"] else "no clang"
    cards = [f"{d['name']}, {d['arch']}, {_size(d['memory_bytes'])}, driver {d['driver']}" for d in card["devices"]]
    return "; ".join([built, *(cards or ["no AMD GPU"])])


def _size(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**30:.1f} GiB"
