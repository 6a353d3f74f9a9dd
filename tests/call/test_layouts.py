"""Every tensor of every operator in memory as callers have it: as its contiguous copy, or refused by name.

Inputs and results, of NumPy and torch, with strides of all kinds, offsets, gaps and alignments from 1 to 64 bytes, in
guard memory. The seed is printed; ``TOKITAI_LAYOUTS_SEED`` sets it, ``TOKITAI_LAYOUTS`` how many calls are drawn.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from layout_calls import drawn_calls, variants

SEED = int(os.environ.get("TOKITAI_LAYOUTS_SEED", "20261130"))
CALLS = int(os.environ.get("TOKITAI_LAYOUTS", "21000"))


@pytest.mark.slow
def test_every_tensor_of_every_operator_in_any_layout(say: Callable[[str], None]) -> None:
    say(drawn_calls(SEED, CALLS, variants()))
