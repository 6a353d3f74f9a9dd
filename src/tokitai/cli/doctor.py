"""What can be verified on this machine: found out by doing it, with an operator of one line."""

from __future__ import annotations

from typing import Any

from ..device import cpu, cuda
from ..device import hip as amd
from ..errors import CompilerMissingError, TokitaiError
from ..lang import Matrix, Outputs, operator, outputs, row_sum, storage
from ..numerics import NUMERICS_VERSION
from ..toolchain import cache, hip, nvrtc
from ..toolchain.build import ISAS, machine_here
from ..toolchain.compilers import Compiler, all_compilers, find_compiler
from ..verification import verify


@operator
def probe(x: Matrix[storage]) -> Outputs:
    """y = x * sum(x): small enough to compile at once, and it needs a load, a sum, a product and a store."""
    return outputs(y=x * row_sum(x))


def examine() -> dict[str, Any]:
    """The state of this machine, as plain JSON values."""
    device = cpu.describe()
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
    missing += [f"cuda: {problem}" for problem in (card["build"], card["run"]) if problem]
    missing += [f"hip: {problem}" for problem in (amd_card["build"], amd_card["run"]) if problem]
    default = next((c for c in compilers if c["path"] == chosen), None)
    works = default is not None and default["works"] and not device["float_mode"]
    return {
        "numerics_version": NUMERICS_VERSION,
        "device": device,
        "compilers": compilers,
        "compiler": chosen,
        "cache": {"folder": str(folder.path), "problem": folder.problem},
        "targets": {"cpu": {"works": works}, "sim": simulated, "cuda": card, "hip": amd_card},
        "claims": [
            *_claims(works, default, device), *_sim_claims(simulated), *_cuda_claims(card), *_hip_claims(amd_card),
        ],
        "missing": missing,
    }  # fmt: skip


def _compiler(c: Compiler) -> dict[str, Any]:
    """A compiler, and whether a kernel that it builds runs here with the defined bits."""
    known = {"path": str(c.path), "kind": c.kind, "version": c.title, "machine": c.machine}
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
    return ["sim: the text of GPU kernels can be run and verified on this processor"] if simulated["works"] else []


def _cuda() -> dict[str, Any]:
    """What of the CUDA target is here: ``build`` and ``run`` say what is missing, or are None."""
    build, run = nvrtc.missing(), cuda.probe()
    found: dict[str, Any] = {"works": False, "build": build, "run": run, "nvrtc": None, "device": None}
    if build is None:
        found["nvrtc"] = nvrtc.find_nvrtc().version
    if run is None:
        try:
            found["device"] = cuda.open_device().describe()
        except TokitaiError as error:
            found["run"] = str(error)
    found["works"] = found["build"] is None and found["run"] is None
    return found


def _cuda_claims(card: dict[str, Any]) -> list[str]:
    if not card["works"]:
        return []
    return [f"cuda: kernels for {card['device']['arch']} can be run and verified here"]


def _hip() -> dict[str, Any]:
    """What of the HIP target is here: ``build`` and ``run`` say what is missing; kernels are not run on a card yet."""
    found: dict[str, Any] = {"works": False, "build": hip.missing(), "run": amd.probe(), "clang": None}
    if found["build"] is None:
        found["clang"] = hip.find_hip().clang.title
        try:
            found["build"] = verify(probe, dtype="f32", device="hip", case="seeded/normal@3x33#0").failure
        except TokitaiError as error:
            found["build"] = str(error)
    return found


def _hip_claims(card: dict[str, Any]) -> list[str]:
    if card["build"]:
        return []
    return [
        f"hip: kernels for {', '.join(hip.ARCHITECTURES)} can be compiled by {card['clang']} and inspected, "
        "and their text can be run on this processor; nothing about an AMD device"
    ]


def _claims(works: bool, compiler: dict[str, Any] | None, device: dict[str, Any]) -> list[str]:
    if not works or compiler is None:
        return []
    other = sorted({isa for rows in ISAS.values() for isa in rows} - set(device["isas"]))
    here = f"kernels by {compiler['version']} for {', '.join(device['isas'])} can be run and verified here"
    there = f"nothing about {', '.join(other)}, which this machine does not run"
    return [f"cpu: {text}" for text in ([here, there] if other else [here])]


def report_text(report: dict[str, Any]) -> str:
    """The report for people."""
    device, folder = report["device"], report["cache"]
    lines = [
        f"machine     {device['cpu']}, {device['machine']}, {device['os']}, {device['libc']}",
        f"runs        {', '.join(device['isas']) or 'no instruction set that is known here'}",
        f"threads     {device['threads']} of {device['cores']} cores",
        f"float mode  {device['float_mode'] or 'as IEEE 754 has it by default'}",
        f"cache       {folder['folder']}",
        f"devices     cpu: {'works' if report['targets']['cpu']['works'] else 'does not work'}",
        f"            sim: {'works' if report['targets']['sim']['works'] else 'does not work'}",
        f"            cuda: {_cuda_text(report['targets']['cuda'])}",
        f"            hip: {_hip_text(report['targets']['hip'])}",
    ]
    for c in report["compilers"]:
        chosen = " (used by default)" if c["path"] == report["compiler"] else ""
        elsewhere = f"compiles for {c['machine']}, not for this machine"
        state = "works" if c["works"] else "does not work" if c["problem"] else elsewhere
        lines.append(f"compiler    {c['path']}: {c['kind']}, {c['version']}: {state}{chosen}")
    lines += [f"claim       {text}" for text in report["claims"]]
    lines += [f"missing     {text}" for text in report["missing"]]
    return "\n".join(lines)


def _hip_text(card: dict[str, Any]) -> str:
    return "kernels cannot be built" if card["build"] else f"{card['clang']}; kernels can be built and examined"


def _cuda_text(card: dict[str, Any]) -> str:
    compiler = f"NVRTC {card['nvrtc']}" if card["nvrtc"] else "no NVRTC"
    if card["device"] is None:
        return f"{compiler}, no usable card" + ("; kernels can be built and examined" if card["nvrtc"] else "")
    device = card["device"]
    return f"{device['name']}, {device['arch']}, driver {device['driver']}, {compiler}"
