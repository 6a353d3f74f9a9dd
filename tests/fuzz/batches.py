"""Kernels of many graphs in a few shared libraries: a compiler that starts once for each would take hours.

The sources are those that every kernel is made of, each in a namespace of its own, and the flags are those of a build,
but for the level of optimisation, on which no bit depends.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokitai.backends.backend import Identity
from tokitai.backends.cpu import device as cpu
from tokitai.backends.sim.device import OUTSIDE, LoadedSim
from tokitai.backends.sim.target import SimProgram, SimTarget
from tokitai.emit.cpp import KernelText
from tokitai.lower.gpu import Step
from tokitai.toolchain.build import SIMULATED, Isa, flags_of
from tokitai.toolchain.compilers import find_compiler
from tokitai.toolchain.outside import messages_of

MOST = 60  # kernels of a translation unit


@dataclass
class Library:
    """Sources that wait to be compiled together, and what they become."""

    folder: Path
    isa: Isa
    structure: bool
    simulated: bool = False
    waiting: dict[str, KernelText] = field(default_factory=dict)  # by a name that is a part of a C++ identifier
    loaded: dict[str, Any] = field(default_factory=dict)  # the library of each
    failed: dict[str, str] = field(default_factory=dict)  # what the compiler says of it
    made: int = 0

    def add(self, name: str, text: KernelText) -> None:
        """Compile this source with the others."""
        self.waiting[name] = text

    def build(self) -> None:
        """Compile what waits."""
        groups: dict[object, list[str]] = {}
        for name, text in self.waiting.items():
            heads = tuple(line for line in text.text.splitlines() if line.startswith("#"))
            groups.setdefault(heads, []).append(name)
        for heads, names in groups.items():
            for start in range(0, len(names), MOST):
                self._compile(names[start : start + MOST], list(heads))  # type: ignore[call-overload]
        self.waiting.clear()

    def _compile(self, names: list[str], heads: list[str]) -> None:
        self.made += 1
        place = self.folder / f"{'sim' if self.simulated else self.isa}{'h' * self.structure}{self.made}"
        place.mkdir()
        for text in (self.waiting[n] for n in names):
            for header, content in text.headers.items():
                (place / header).write_text(content)
        parts = [*heads, *(f'#line 1 "{n}.kernel"\n{inside(n, self.waiting[n].text)}' for n in names)]
        (place / "kernels.cpp").write_text("\n".join([*parts, *([OUTSIDE] if self.simulated else [])]))
        compiler = find_compiler(None)
        flags = flags_of(compiler, self.isa, self.structure, [SIMULATED, "TOKITAI_WARP=32"] if self.simulated else [])
        fast = [f for f in flags if f not in ("-O3", "-Og")]
        command = [str(compiler.path), "kernels.cpp", "-O0", "-w", *fast, "-o", "kernels.so"]
        made = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        if made.returncode:
            wrong = [n for n in names if f"{n}.kernel:" in made.stderr] or names
            for n in wrong:
                said = [line for line in made.stderr.splitlines() if f"{n}.kernel:" in line]
                self.failed[n] = "it does not compile:\n" + "\n".join(said[:6] or [made.stderr[:2000]])
            if len(wrong) < len(names):
                self._compile([n for n in names if n not in wrong], heads)
            return
        library = ctypes.CDLL(str(place / "kernels.so"))
        for n in names:
            self.loaded[n] = library

    def of(self, name: str) -> Any:
        """The library that holds a source. Raises AssertionError where it did not compile."""
        assert name not in self.failed, self.failed[name]
        return self.loaded[name]


def inside(name: str, text: str) -> str:
    """A source without its headers, in a namespace of its own, whose symbols bear this name."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    body = "\n".join(lines).replace("namespace tokitai {", f"namespace tokitai {{ namespace {name} {{")
    body = body.replace("}  // namespace tokitai", "}}").replace("tokitai_kernel(", f"tokitai_kernel_{name}(")
    return re.sub(r"KERNEL\((\w+),", rf"KERNEL({name}_\1,", body)


def cpu_kernel(library: Library, name: str) -> cpu.LoadedKernel:
    """A kernel for the CPU."""
    loaded = library.of(name)
    function = loaded[f"tokitai_kernel_{name}"]
    function.restype = ctypes.c_int32
    pointers, integers = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
    function.argtypes = [pointers, integers, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32]
    return cpu.LoadedKernel(None, function, loaded)  # type: ignore[arg-type]


class _Later:
    """A program that is not compiled yet: it computes nothing."""

    def spills(self, name: str) -> int:
        return 0

    def launch(self, step: Step, call: bytes, order: int, stream: int) -> None:
        pass


class _Named(SimProgram):
    """The kernels of one source among those of others."""

    def __init__(self, loaded: Any, name: str) -> None:
        super().__init__(loaded)
        self.name = name

    def launch(self, step: Step, call: bytes, order: int, stream: int) -> None:
        super().launch(replace(step, name=f"{self.name}_{step.name}"), call, order, stream)


class BatchedSim(SimTarget):
    """The simulated device, whose sources are first gathered, then compiled together."""

    def __init__(self, numbers: Library, hashes: Library) -> None:
        super().__init__()
        self.libraries = {False: numbers, True: hashes}
        self.names: dict[tuple[bool, str], str] = {}
        self.sims: dict[int, LoadedSim] = {}

    def build(self, text: KernelText, stem: str, structure: bool) -> tuple[Any, Identity]:
        library = self.libraries[structure]
        name = self.names.setdefault((structure, text.text), f"s{len(self.names)}")
        if name not in library.loaded and name not in library.failed:
            library.add(name, text)
            return _Later(), None  # type: ignore[return-value]
        loaded = library.of(name)
        if id(loaded) not in self.sims:
            self.sims[id(loaded)] = of_library(loaded)
        return _Named(self.sims[id(loaded)], name), None  # type: ignore[return-value]


def of_library(library: ctypes.CDLL) -> LoadedSim:
    """The kernels of a library, as `LoadedSim` has them."""
    made = LoadedSim.__new__(LoadedSim)
    made._library = library
    made._message = library.tokitai_sim_message
    made._message.restype = ctypes.c_char_p
    made._outside = messages_of(library)
    library.tokitai_sim_stack_bytes.restype = ctypes.c_size_t
    library.tokitai_sim_use_stacks.argtypes = [ctypes.c_void_p]
    made._running, made._kernels = threading.Lock(), {}
    return made
