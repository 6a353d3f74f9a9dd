"""C++ for the CPU: the source of a kernel with its headers, and what every such kernel is.

One source serves every instruction set, and numbers as well as hashes: the headers in ``emit/cpu`` decide what a value
is and how many a vector holds.

The kernel's one symbol is::

    int32_t tokitai_kernel(void* const* tensors, const int64_t* sizes, const void* scalars, void* workspace,
                           int32_t threads)

``tensors`` are the inputs, then the results; ``sizes`` are rows, columns, then the row stride in elements of every
rows x cols tensor in the same order; ``scalars`` is the table of rounded host scalars. What the sizes of lists and of
products are, `families.elementwise.cpu` and `families.matmul.cpu` say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .files import read

HEADERS = ("lanes.h", "integers.h", "numbers.h", "hashes.h", "many.h", "outside.h", "rows.h")
IN_THREADS = "in_threads(threads, [&]() NOINLINE_LAMBDA"  # how the part of a kernel begins that its threads share
OF_PRODUCTS = ("accumulators.h", "matrix_unit.h", "products.h")


@dataclass(frozen=True)
class KernelText:
    """The emitted source with the headers that it includes, by name."""

    text: str
    headers: Mapping[str, str]


def headers(of_products: bool = False) -> dict[str, str]:
    """The headers of the cpu target, by the name under which a kernel includes them."""
    return read("cpu", HEADERS + OF_PRODUCTS * of_products)


def own(name: str) -> dict[str, str]:
    """A header of one kind of kernels, by its name."""
    return read("cpu", [name])


def segments() -> dict[str, str]:
    """The header of sums over entries, by its name: other kernels do without it."""
    return read("cpu", ["segments.h"])


def first() -> dict[str, str]:
    """The header of first columns, by its name."""
    return read("cpu", ["first.h"])
