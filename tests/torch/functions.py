"""A call of every function for torch: small inputs in f32, keyword arguments, which inputs get gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tests.torch.test_derived import CALLS, CHOSEN, noise, scaled_square, scaled_square_backward, target, whole
from tokitai import ops
from tokitai.torch import functional, operators
from tokitai.torch.derive import differentiable

ROWS, COLS = (2, 3), 8
OWN = differentiable(scaled_square, scaled_square_backward)


@dataclass(frozen=True)
class Call:
    """``tensors`` makes the positional inputs anew; those of floats get gradients, but for ``constant`` places."""

    function: Callable[..., Any]
    tensors: Callable[[], tuple[Any, ...]]
    words: dict[str, Any] = field(default_factory=dict)
    constant: tuple[int, ...] = ()
    rule: str = "widest"  # of autocast, as the reference page has it
    single: tuple[int, ...] = ()  # inputs that are f32 whatever the others are
    changing: tuple[str, ...] = ()  # numbers that may change from step to step

    def leaves(self, *dtypes: torch.dtype) -> tuple[Any, ...]:
        """Inputs with a gradient to come, those of the storage format converted from one dtype to the next."""
        made = list(self.tensors())
        for i in self.stored(tuple(made)):
            for dtype in dtypes:
                made[i] = made[i].to(dtype)
        return tuple(x.requires_grad_() if self.sloped(i, x) else x for i, x in enumerate(made))

    def sloped(self, i: int, x: Any) -> bool:
        return isinstance(x, Tensor) and x.is_floating_point() and i not in self.constant

    def stored(self, inputs: tuple[Any, ...]) -> list[int]:
        """Places of the inputs of the storage format: of floats, but for those that are f32 whatever it is."""
        floats = [i for i, t in enumerate(inputs) if isinstance(t, Tensor) and t.is_floating_point()]
        return [i for i in floats if i not in self.single]

    def results(self, *inputs: Any, **words: Any) -> tuple[Tensor, ...]:
        made = self.function(*inputs, **{**self.words, **words})
        return made if isinstance(made, tuple) else (made,)

    def gradients(self, *inputs: Any, **words: Any) -> list[Tensor]:
        """Results, then gradients of inputs, of a loss that weighs results with noise."""
        made = self.results(*inputs, **words)
        with_slopes = [m for m in made if m.requires_grad and m.grad_fn.name() != "_NoGradientBackward"]  # type: ignore[union-attr]
        slopes = [noise(50 + i, *m.shape, dtype=m.dtype) for i, m in enumerate(with_slopes)]
        leaves = [x for i, x in enumerate(inputs) if self.sloped(i, x)]
        return [*made, *torch.autograd.grad(with_slopes, leaves, slopes)]


def x(seed: int = 1, *shape: int) -> Tensor:
    return noise(seed, *(shape or (*ROWS, COLS)))


def heads() -> tuple[Tensor, ...]:
    return tuple(noise(i, 2, h, 5, COLS) for i, h in enumerate((4, 2, 2)))


def matrix(seed: int = 1) -> tuple[Tensor]:
    return (x(seed),)


def classes() -> Tensor:
    return whole(3, COLS, 2, 3)


F32 = {"softmax", "log_softmax", "masked_softmax", "layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm",
       "cross_entropy", "cross_entropy of probabilities", "soft_cross_entropy", "router",
       "expert_load", "router_z_loss"}  # fmt: skip
LOWER = {"linear", "linear_cross_entropy", "matmul", "router_logits", "attention", "scaled_dot_product_attention",
         "attention by scores"}  # fmt: skip
SHAPED = {
    "linear": Call(functional.linear, lambda: (x(), x(2, 4, COLS), x(3, 4), x(4, *ROWS, 4)), {"activation": "silu"}),
    "matmul": Call(functional.matmul, lambda: (x(), x(2, 2, COLS, 5))),
    "router_logits": Call(functional.router_logits, lambda: (x(1, 6, COLS), x(2, 4, COLS))),
    "embedding": Call(functional.embedding, lambda: (whole(1, 6, 2, 3), x(2, 6, COLS)), {"padding_idx": -1}),
    "layer_norm": Call(functional.layer_norm, lambda: (x(), (3, COLS), x(2, 3, COLS), x(3, 3, COLS))),
    "rms_norm": Call(functional.rms_norm, lambda: (x(), (COLS,), x(2, COLS))),
    "softmax": Call(functional.softmax, matrix, {"dim": 1}),
    "log_softmax": Call(functional.log_softmax, matrix, {"dim": 0}),
    "gelu": Call(functional.gelu, matrix, {"approximate": "tanh"}),
    "dropout": Call(functional.dropout, matrix, {"p": 0.3, "seed": 5, "stream": 2}, changing=("seed", "stream")),
    "cross_entropy": Call(
        functional.cross_entropy, lambda: (x(1, 2, COLS, 3), classes()), {"return_lse": True, "ignore_index": 1},
        changing=("ignore_index",),
    ),
    "cross_entropy of probabilities": Call(
        functional.cross_entropy, lambda: (x(1, 2, COLS, 3), x(2, 2, COLS, 3).softmax(1)),
        {"label_smoothing": 0.1, "reduction": "sum"}, constant=(1,),
    ),
    "linear_cross_entropy": Call(
        functional.linear_cross_entropy,
        lambda: (x(), x(2, 4, COLS), whole(3, 4, *ROWS), x(4, 4)), {"label_smoothing": 0.1, "z_loss": 0.01},
    ),
    "scaled_dot_product_attention": Call(
        functional.scaled_dot_product_attention, lambda: (*heads(), torch.ones(5, 5, dtype=torch.bool).tril()),
        {"enable_gqa": True},
    ),
    "attention": Call(
        functional.attention, heads, {"lengths": torch.tensor([3, 5]), "causal": True},
    ),
    "attention by scores": Call(
        functional.attention, heads,
        dict(causal=True, window=3, softcap=2.0, bias=x(4, 4, 1, 5), sinks=x(5, 4), dropout_p=0.2, seed=7),
        changing=("seed",),
    ),
    "rotary by cos and sin": Call(
        functional.rotary, lambda: (x(), x(2)), {"cos": x(3, 3, COLS).cos(), "sin": x(3, 3, COLS).sin()},
    ),
    "rotary": Call(
        functional.rotary, lambda: (x(), x(2), torch.arange(3), x(3, COLS).abs()), constant=(3,), single=(3,),
    ),
    "rotary_heads by cos and sin": Call(
        functional.rotary_heads, lambda: (x(),), {"cos": x(3, 3, COLS // 2).cos(), "sin": x(3, 3, COLS // 2).sin()},
    ),
    "rotary_heads": Call(
        functional.rotary_heads, lambda: (x(), torch.arange(3), x(3, COLS // 2).abs()), constant=(2,), single=(2,),
    ),
}  # fmt: skip


def _derived(name: str) -> Call:
    """A function that follows from the definition, as `test_derived` calls it."""
    given = CALLS[name]
    constant = tuple(i for i, t in enumerate(ops.get(name).tensors) if t.name in ops.get(name).gradient.constant)
    changing = tuple(p.name for p in ops.get(name).params if p.whole and p.name != "ignore_index")  # its targets use it
    single = tuple(i for i, t in enumerate(ops.get(name).tensors) if t.format == "f32")
    return Call(
        getattr(operators, name), lambda: given.tensors(torch.float32), dict(given.words), constant, single=single,
        changing=changing,
    )  # fmt: skip


def _rule(name: str) -> str:
    own = name.removeprefix("operators.")
    if own in CALLS and own not in CHOSEN:
        return ops.get(own).gradient.autocast
    return "f32" if own in F32 else "lower" if own in LOWER else "widest"


def _named(name: str) -> str:
    """Where a function of torch has the operator's name."""
    return name if getattr(functional, name, None) is getattr(operators, name) else f"operators.{name}"


DERIVED = {_named(n): _derived(n) for n in CALLS}
EVERY: dict[str, Call] = {
    name: replace(call, rule=_rule(name))
    for name, call in {**SHAPED, **DERIVED, "a reader's own": Call(OWN, matrix)}.items()
}
__all__ = ["EVERY", "Call", "target"]
