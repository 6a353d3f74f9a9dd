"""Elements against their allowance: which are wrong, which are not judged, and where the wrong ones lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokitai.elementary.exact import REAL
from tokitai.formats import FORMATS
from tokitai.judging.elements import extent, hold

INF, NAN = np.inf, np.nan
F16 = FORMATS["f16"]
TOP = 65504.0


# A case: what the kernel gives, the definition's bits, the exact value, the allowance; wrong, judged.
@pytest.mark.parametrize(("got", "defined", "exact", "limit", "wrong", "judged"), [
    (1.0, 1.0, 1.0, 0.0, 0, 1),
    (1.001, 1.0, 1.0, 0.0011, 0, 1),
    (1.002, 1.0, 1.0, 0.0011, 1, 1),
    (NAN, 1.0, 1.0, 0.5, 1, 1),
    (INF, 1.0, 1.0, 0.5, 1, 1),
    (-0.0, 0.0, 0.0, 0.0, 0, 1),
    (NAN, NAN, NAN, 0.0, 0, 1),
    (1.0, NAN, NAN, 0.0, 1, 1),
    (INF, NAN, NAN, 0.0, 1, 1),
    (INF, INF, INF, 0.0, 0, 1),
    (-INF, INF, INF, 0.0, 1, 1),
    (TOP, INF, INF, 0.0, 1, 1),
    (NAN, INF, INF, NAN, 1, 1),
    (INF, INF, 1e5, 10.0, 0, 1),  # overflow, whatever rounding does
    (TOP, INF, 1e5, 10.0, 1, 1),
    (INF, INF, 65521.0, 10.0, 0, 1),  # on either side of the last tie before infinity
    (TOP, INF, 65521.0, 20.0, 0, 1),
    (INF, TOP, 65519.0, 20.0, 0, 1),
    (-INF, TOP, 65519.0, 20.0, 1, 1),
    (INF, TOP, 65480.0, 30.0, 1, 1),
    (5.0, 1.0, 1.0, INF, 0, 0),  # nothing can be said
    (5.0, 1.0, 1.0, NAN, 0, 0),
    (5.0, INF, 1.0, 0.1, 0, 0),  # the definition overflows on its way, the mathematics does not
    (5.0, NAN, 1.0, 0.1, 0, 0),
    (5.0, 1.0, NAN, 0.1, 0, 0),
])  # fmt: skip
def test_one_element(got: float, defined: float, exact: float, limit: float, wrong: int, judged: int) -> None:
    as_f16 = [np.array([[x]], np.float16) for x in (got, defined)]
    with np.errstate(all="ignore"):
        found = hold("y", *as_f16, np.array([[exact]], REAL), np.array([[limit]]), F16)
    assert (found.wrong, found.judged, found.compared) == (wrong, judged, 1)
    assert bool(found.first) is bool(wrong) and found.identical is (as_f16[0].tobytes() == as_f16[1].tobytes())
    if wrong:
        assert found.share > 1 and found.first.startswith("y[0,0] is 0x")


def test_whole_numbers_and_results_without_an_allowance_have_the_definitions_bits() -> None:
    i32, f32 = FORMATS["i32"], FORMATS["f32"]
    a, b = np.array([1, 2, 3], np.int32), np.array([1, 2, 4], np.int32)
    assert hold("k", b, a, a, None, i32).wrong == 1 and hold("k", a, a, a, np.ones(3), i32).wrong == 0
    x = np.array([1.0, 2.0], np.float32)
    assert hold("y", np.nextafter(x, np.float32(9)), x, x, None, f32).wrong == 2


def test_the_element_that_is_furthest_beyond_its_allowance_is_told() -> None:
    defined = np.ones((3, 4), np.float32)
    got = defined.copy()
    got[0, 1], got[2, 3] = 1.5, 1.25
    limit = np.full((3, 4), 1e-7)
    limit[0, 1] = 0.4
    found = hold("y", got, defined, defined.astype(REAL), limit, FORMATS["f32"])
    assert found.wrong == 2
    assert found.first.startswith("y[2,3] is 0x3fa00000 (1.25); the definition gives 0x3f800000 (1)")
    assert found.first.endswith("it differs by 2.097e+06 ulp, the rounding-error bound is 0.8389 ulp")
    assert found.share == pytest.approx(2.5e6) and found.max_ulp == 2**22
    assert found.where == "2 of 12 elements, all in columns 1 to 3"


@pytest.mark.parametrize(("positions", "shape", "says"), [
    ([[0, 3], [1, 3], [2, 3]], (3, 4), "3 of 12 elements, all in column 3"),
    ([[1, 0], [1, 3]], (3, 4), "2 of 12 elements, all in row 1"),
    ([[0, 0], [2, 3]], (3, 4), "2 of 12 elements"),
    ([[1, 1], [2, 2]], (3, 4), "2 of 12 elements, all in rows 1 to 2, columns 1 to 2"),
    ([[4]], (7,), "1 of 7 elements, all in index 4"),
    ([[0]], (1,), "1 of 1 element"),
    ([[0, 1, 2]], (2, 2, 3), "1 of 12 elements, all in index 0, index 1, index 2"),
])  # fmt: skip
def test_where_wrong_elements_lie(positions: list[list[int]], shape: tuple[int, ...], says: str) -> None:
    assert extent(np.array(positions), shape) == says


def test_no_elements() -> None:
    empty: Any = np.zeros((0, 3), np.float32)
    found = hold("y", empty, empty, empty, empty, FORMATS["f32"])
    assert (found.compared, found.judged, found.wrong, found.identical) == (0, 0, 0, True)
