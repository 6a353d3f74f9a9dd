"""What a call learns of an array without reading it: the memory may be a GPU's."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOCKED = """
import ctypes, mmap, sys
import numpy as np
from tokitai.runtime.layout import view_as
libc = ctypes.CDLL(None, use_errno=True)
pages = mmap.mmap(-1, mmap.PAGESIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
array = np.frombuffer(pages, np.float32)[:96]
assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0  # none may read or write
print(eval(sys.argv[1]), flush=True)
"""
VIEWS = {
    "heads apart": ("view_as(array.reshape(2, 4, 3, 4).swapaxes(1, 2), (24, 4))", "None"),
    "columns apart": ("view_as(array.reshape(8, 12).T, (12, 8))", "None"),
    "rows apart": ("view_as(array.reshape(8, 12)[:, :5], (8, 5)).strides", "(48, 4)"),
    "rows joined": ("view_as(array.reshape(2, 4, 12)[:, :, :5], (8, 5)).strides", "(48, 4)"),
    "too few": ("view_as(array, (8, 11))", "None"),
}


@pytest.mark.parametrize(("view", "printed"), VIEWS.values(), ids=VIEWS)
def test_no_element_is_read(view: str, printed: str) -> None:
    made = subprocess.run([sys.executable, "-c", LOCKED, view], capture_output=True, text=True, timeout=60)
    assert (made.returncode, made.stdout.strip()) == (0, printed), made.stderr[-2000:]
