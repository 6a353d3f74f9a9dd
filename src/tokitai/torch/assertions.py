"""What is asserted on a GPU, where a look at values would wait for it: indices within their range, no NaN.

Work of the stream behind an assertion that fails does not run: torch raises at a later call, as for its own indices,
and the process cannot use the GPU any more. With ``CUDA_LAUNCH_BLOCKING=1`` it raises at once. In host memory, and in
calls of `tokitai.ops`, a wrong value is an ArgumentError that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..lang import Operator


def assert_in_range(name: str, x: Tensor, count: int, besides: int | None = None) -> None:
    """Whole numbers from 0 to below ``count``, or ``besides``; the device asserts it, and nothing is waited for."""
    if x.numel() == 0:
        return
    good = x.clamp(0, count - 1) == x if count > 0 else torch.zeros_like(x, dtype=torch.bool)
    if besides is not None:
        good = good | (x == besides)
    also = "" if besides is None else f", or {besides}"
    torch._assert_async(good.all(), f"{name}: an index out of range; accepted: 0 to {count - 1}{also}")


def assert_values(operator: Operator, tensors: Mapping[str, Tensor], words: Mapping[str, Any]) -> None:
    """What a call of an operator without tables looks at in its tensors."""
    for name, index in operator.contract.indices.items():
        if name in tensors:
            besides = None if index.besides is None else int(words[index.besides])
            assert_in_range(
                f"{operator.name}: {name}", tensors[name], _columns(operator, tensors) + index.upto, besides
            )
    for name in operator.contract.no_nan:
        if name in tensors and tensors[name].numel():
            message = f"{operator.name}: {name} holds NaN; accepted: rows without NaN"
            torch._assert_async(tensors[name].isnan().logical_not().all(), message)


def _columns(operator: Operator, tensors: Mapping[str, Tensor]) -> int:
    """What a call's columns are: of attention the keys."""
    spaces = {t.space: tensors[t.name] for t in reversed(operator.tensors) if t.name in tensors}
    return int(spaces["ck"].shape[-2] if "ck" in spaces else spaces["rc"].shape[-1])


def refuse_capture(name: str, found: str, accepted: str) -> None:
    """Raises ArgumentError where torch's current stream is being captured: what is ``found`` would wait for the device,
    or would be the same in each replay."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise ArgumentError(f"{name}: {found} while a CUDA graph is captured; accepted: {accepted}")
