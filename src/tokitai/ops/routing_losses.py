"""Losses that keep a router healthy: load balance (Fedus et al., 2022, section 2.2) and z-loss (Zoph et al., 2022,
section 3.2).

Load balance takes two steps, as the load is known only after the last token: `expert_load` gives, for each expert, the
fraction of the choices that fell on it and its mean probability; `load_balance_loss` gives for each layer
experts * sum(load * probability), 1 where both are uniform. The load carries no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from ..elementary import exp_down
from ..lang import (
    Cols,
    Contract,
    Gradient,
    HardInput,
    Index,
    Matrix,
    Outputs,
    Rows,
    Slots,
    Value,
    col_sum,
    column_index,
    columns,
    f32,
    i32,
    maximum,
    operator,
    outputs,
    row_max,
    row_sum,
    rows,
    storage,
    stored,
    where,
)  # fmt: skip
from .routing import K
from .softmaxes import log_sum_exp

LOAD = Contract(domain="finite logits", indices={"experts": Index()}, min_cols=1)
FINITE = Contract(domain="finite logits", min_cols=1)


def _softmax(logits: Value) -> Value:
    e = exp_down(logits - row_max(logits))
    return e * (1 / row_sum(e))


@operator(contract=LOAD, gradient=Gradient(constant=("load",), autocast="f32"))
def expert_load(logits: Matrix[storage], experts: Slots[i32], *, k: K = 2) -> Outputs:
    """Of each expert: the fraction of the tokens' k choices that fell on it, and its mean probability; 0 without
    tokens."""
    slots: Any = experts
    chosen: Any = None
    for e in slots:
        hit = where(column_index() == e, 1.0, 0.0)
        chosen = hit if chosen is None else chosen + hit
    tokens = maximum(rows(logits), 1)
    load, probability = col_sum(chosen) / (tokens * float(k)), col_sum(_softmax(logits)) / tokens
    return outputs(load=stored(load, f32), probability=stored(probability, f32))


@operator(contract=FINITE, backward_of=expert_load)
def expert_load_backward(dprobability: Cols[f32], logits: Matrix[storage]) -> Outputs:
    """dlogits = p (dprobability - sum(dprobability p)) / tokens, through the softmax of each row."""
    p = _softmax(logits)
    return outputs(dlogits=p * (dprobability - row_sum(p * dprobability)) / maximum(rows(logits), 1))


@operator(gradient=Gradient(constant=("load",)))
def load_balance_loss(load: Matrix[f32], probability: Matrix[f32]) -> Outputs:
    """experts * sum(load * probability), for each layer that is a row."""
    return outputs(loss=row_sum(load * probability) * columns(load))


@operator(backward_of=load_balance_loss)
def load_balance_loss_backward(dloss: Rows[f32], load: Matrix[f32]) -> Outputs:
    """dprobability = experts * load * dloss."""
    return outputs(dprobability=stored(load * (dloss * columns(load)), f32))


@operator(contract=FINITE, gradient=Gradient(autocast="f32"))
def router_z_loss(logits: Matrix[storage], *, reduction: Literal["none", "sum", "mean"] = "none") -> Outputs:
    """log(sum(exp(logits)))**2 of each row, their sum, or their mean; 0 over no rows."""
    top = row_max(logits)
    _, _, _, lse = log_sum_exp(logits - top)
    full = top + lse
    loss = full * full
    if reduction != "none":
        loss = col_sum(loss)
    return outputs(loss=loss / maximum(rows(logits), 1) if reduction == "mean" else loss)


@operator(contract=FINITE, backward_of=router_z_loss)
def router_z_loss_backward(dloss: Rows[f32], logits: Matrix[storage]) -> Outputs:
    """dlogits = 2 log(sum(exp(logits))) softmax(logits) dloss, for the loss of each row."""
    top = row_max(logits)
    e, _, total, lse = log_sum_exp(logits - top)
    return outputs(dlogits=e * ((top + lse) * 2 * dloss / total))


# ------------------------------------------------------------------------------------------------ textbooks
def _textbook_softmax(logits: Any) -> Any:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@expert_load.set_textbook
def textbook_load(logits: Any, experts: Any, *, k: int) -> dict[str, Any]:
    """f and P of the Switch Transformer, for k choices a token."""
    count = np.zeros((1, logits.shape[1]), logits.dtype)
    np.add.at(count[0], experts.reshape(-1), 1)
    return dict(load=count / (len(logits) * k), probability=_textbook_softmax(logits).mean(axis=0, keepdims=True))


@expert_load_backward.set_textbook
def textbook_load_backward(dprobability: Any, logits: Any) -> dict[str, Any]:
    """The Jacobian of softmax is diag(p) - p p^T."""
    p = _textbook_softmax(logits)
    return dict(dlogits=p * (dprobability - (p * dprobability).sum(axis=1, keepdims=True)) / len(logits))


@load_balance_loss.set_textbook
def textbook_balance(load: Any, probability: Any) -> dict[str, Any]:
    """Equation 4 of Fedus et al., without its factor alpha."""
    return dict(loss=(load * probability).sum(axis=1, keepdims=True) * load.shape[1])


@load_balance_loss_backward.set_textbook
def textbook_balance_backward(dloss: Any, load: Any) -> dict[str, Any]:
    """Linear in the probabilities."""
    return dict(dprobability=load * dloss * load.shape[1])


@router_z_loss.set_textbook
def textbook_z(logits: Any, *, reduction: str = "none") -> dict[str, Any]:
    """Equation 5 of Zoph et al., without its coefficient."""
    top = logits.max(axis=1, keepdims=True)
    loss = (top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True))) ** 2
    if reduction != "none":
        loss = loss.sum(axis=0, keepdims=True) / (len(logits) if reduction == "mean" else 1)
    return dict(loss=loss)


@router_z_loss_backward.set_textbook
def textbook_z_backward(dloss: Any, logits: Any) -> dict[str, Any]:
    """The derivative of log-sum-exp is softmax."""
    top = logits.max(axis=1, keepdims=True)
    lse = top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return dict(dlogits=2 * lse * _textbook_softmax(logits) * dloss)


# ------------------------------------------------------------------------------------------------ hard inputs
def _hard() -> Iterator[HardInput]:
    yield HardInput("uniform", dict(logits=np.zeros((40, 8))))
    yield HardInput("one expert takes all", dict(logits=np.tile([[100.0, 0.0, -100.0]], (33, 1))))
    yield HardInput("a sum of one", dict(logits=np.log([[0.5, 0.25, 0.25], [0.125, 0.5, 0.375]])))


for _op in (expert_load, expert_load_backward, router_z_loss, router_z_loss_backward):
    _op.set_hard_inputs(_hard)


@load_balance_loss.set_hard_inputs
def hard_inputs() -> Iterator[HardInput]:
    """Uniform load, and all on one expert."""
    yield HardInput("uniform", dict(load=np.full((2, 8), 0.125), probability=np.full((2, 8), 0.125)))
    yield HardInput("one takes all", dict(load=[[1.0, 0.0]], probability=[[1.0, 0.0]]))


@load_balance_loss_backward.set_hard_inputs
def hard_inputs_backward() -> Iterator[HardInput]:
    """An expert without tokens; a loss that nobody asks for."""
    yield HardInput("no slope", dict(dloss=[0.0, 1.0], load=np.full((2, 4), 0.25)))
    yield HardInput("one takes all", dict(dloss=[1.0], load=[[1.0, 0.0]]))
