"""An operator in a file of its own: each row scaled to unit length."""

from typing import Any

import numpy as np

from tokitai.lang import Contract, HardInput, Matrix, Outputs, operator, outputs, row_sum, sqrt, storage


@operator(contract=Contract(domain="rows whose squares do not overflow f32: |x| below 1.8e19/sqrt(columns)"))
def l2_normalize(x: Matrix[storage], *, eps: float = 1e-12) -> Outputs:
    """y = x / sqrt(sum(x**2) + eps), each row on its own."""
    return outputs(y=x / sqrt(row_sum(x * x) + eps))


@l2_normalize.set_textbook
def textbook(x: Any, *, eps: float) -> dict[str, Any]:
    return dict(y=x / np.sqrt((x**2).sum(axis=1, keepdims=True) + eps))


@l2_normalize.set_hard_inputs
def hard_inputs() -> Any:
    yield HardInput("a row of zeros", dict(x=[[0.0, -0.0, 0.0], [3.0, 4.0, 0.0]]))
    yield HardInput("squares overflow f16", dict(x=[[300.0, -400.0]]))
