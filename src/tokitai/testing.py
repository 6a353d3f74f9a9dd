"""Judge kernels in a test suite of pytest: a function, and a plugin with a fixture and a marker of the same name.

pytest loads the plugin by its entry point. ``@pytest.mark.tokitai(seed=0, total_seconds=60)`` on a test, a class or a
module sets what `judge` is called with where the fixture ``assert_verified`` is not told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .judging import Judgement

__all__ = ["assert_verified"]


def assert_verified(kernel: Any, op: Any, **how: Any) -> Judgement:
    """Judge a kernel, and fail the test unless it is verified.

    ``kernel``: a function, or a file and the name of one; ``op``: an operator or its name; ``how``: as `judge` takes it
    (dtype, device, shape, seed, accept ...). The failure says what is wrong, and the cause where one is found."""
    __tracebackhide__ = True
    from .cli.judge import judgement_text
    from .judging import judge
    from .ops import get

    made = judge(kernel, get(op) if isinstance(op, str) else op, **how)
    if made.verdict != "verified":
        replay = f"tokitai.judge(..., seed={made.seed}, dtype={made.dtype!r})"
        raise AssertionError(judgement_text(made, replay))
    return made


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "tokitai(**how): what assert_verified passes to tokitai.judge in this test")


@pytest.fixture(name="assert_verified")
def _assert_verified(request: pytest.FixtureRequest) -> Callable[..., Judgement]:
    """`assert_verified` with what the markers of the test say, the closest one first."""
    said: dict[str, Any] = {}
    for mark in reversed(list(request.node.iter_markers("tokitai"))):
        said |= mark.kwargs

    def call(kernel: Any, op: Any, **how: Any) -> Judgement:
        __tracebackhide__ = True
        return assert_verified(kernel, op, **{**said, **how})

    return call
