"""What a build reads: parsing a vector header that nobody uses takes longer than compiling the kernel."""

from __future__ import annotations

import pytest

from tokitai import ops
from tokitai.runtime.kernel import host_kernel
from tokitai.toolchain.build import Isa, machine_here, native_isa
from tokitai.toolchain.compilers import find_compiler
from tokitai.toolchain.fingerprint import parse_depfile


def read(isa: Isa, structure: bool, report: str = "compiler.d") -> set[str]:
    """The names of the files that a build of softmax reads."""
    kernel = host_kernel(ops.softmax, dtype="f16", isa=isa, structure=structure)
    listed = parse_depfile((kernel.artifact.path.parent / report).read_text())
    return {name.rpartition("/")[2] for name in listed}


@pytest.mark.parametrize("isa", ["avx2", "avx512", "scalar"])
def test_a_build_reads_the_headers_it_needs(isa: Isa) -> None:
    if machine_here() != "x86_64" or find_compiler().kind != "gcc":
        pytest.skip("about GCC's headers for x86-64")
    hashes, numbers = read(isa, structure=True), read(isa, structure=False)
    assert "hashes.h" in hashes and not {"numbers.h", "xmmintrin.h", "stdlib.h"} & hashes
    assert "numbers.h" in numbers and "hashes.h" not in numbers
    for found in (hashes, numbers):
        assert not {"immintrin.h", "avx512bwintrin.h", "amxtileintrin.h", "string", "algorithm"} & found
    assert ("xmmintrin.h" in numbers) == (isa != "scalar")
    assert ("avx2intrin.h" in numbers) == (isa != "scalar") and "avx2intrin.h" not in hashes
    assert ("avx512fintrin.h" in numbers) == (isa == "avx512")


@pytest.mark.parametrize("structure", [False, True])
def test_a_build_is_linked_without_the_cpp_library(structure: bool) -> None:
    libraries = read(native_isa(), structure, "linker.d")
    assert any(name.startswith("libm.") for name in libraries)
    assert not [name for name in libraries if "c++" in name]
