"""AdamW for torch, in place and in one pass over all weights: `ops.adamw` behind torch's interface of optimizers.

Moments are f32 whatever the weights are stored in. Weights of f16 and bf16 are updated from an f32 copy, or, with
``rounding="stochastic"`` and no such copy, rounded at random to one of their two neighbours. A step has the same bits
on every device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from .. import ops
from ..errors import ArgumentError

MOMENTS = ("exp_avg", "exp_avg_sq")
SEEDS = 2**32


class AdamW(torch.optim.Optimizer):
    """p = p - lr weight_decay p - lr m_hat / (sqrt(v_hat) + eps), as `torch.optim.AdamW`.

    ``master`` keeps an f32 copy of weights that are stored in 16 bits: by default where rounding is to nearest. With
    stochastic rounding ``seed`` gives other random bits. A step in which any gradient is infinite or NaN changes
    nothing and is counted in ``skipped`` alone; to find that out, each step waits for the device once.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.01, *, master: bool | None = None,
        rounding: Literal["nearest", "stochastic"] = "nearest", seed: int = 0,
    ) -> None:  # fmt: skip
        if rounding not in ("nearest", "stochastic"):
            raise ArgumentError(f"rounding={rounding!r}; accepted: 'nearest', 'stochastic'")
        self.rounding = rounding
        self.master = rounding == "nearest" if master is None else master
        self.seed = seed
        self.skipped = 0
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, loss_scale: float = 1.0) -> Any:
        """One step, from gradients of loss_scale times the loss. Returns what ``closure`` returns.

        Raises ArgumentError for weights of other formats than f16, bf16 and f32, and for sparse gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        lists = list(self._lists())
        finite = _finite([g for _, _, grads in lists for g in grads])
        if len(lists) > 1 and not finite:  # one list alone sees to that itself, and need not wait
            lists = []
        for number, (group, params, grads) in enumerate(lists):
            state = [self.state[p] for p in params]
            masters = [s["master"] for s in state] if "master" in state[0] else None
            beta1, beta2 = group["betas"]
            ops.adamw(
                [p.detach() for p in params], grads, *([s[m] for s in state] for m in MOMENTS), masters,
                step=state[0]["step"] + 1, lr=float(group["lr"]), beta1=beta1, beta2=beta2, eps=group["eps"],
                weight_decay=group["weight_decay"], loss_scale=loss_scale, seed=(self.seed + number) % SEEDS,
                rounding=self.rounding,
            )  # fmt: skip
        if not finite:
            self.skipped += 1
            return loss
        for _, params, _ in lists:
            for p in params:
                self.state[p]["step"] += 1
        return loss

    def _lists(self) -> Iterator[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
        """The weights that have gradients, in lists of one group, device, format, number of steps so far, and with f32
        copies or without: a state that was loaded may have other ones."""
        for group in self.param_groups:
            lists: dict[object, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    if p.grad.is_sparse:
                        raise ArgumentError(f"a sparse gradient of shape {tuple(p.shape)}; accepted: dense ones")
                    self._begin(p)
                    kind = p.dtype, p.device, self.state[p]["step"], "master" in self.state[p]
                    lists.setdefault(kind, []).append(p)
            for params in lists.values():
                yield group, params, [p.grad.detach() for p in params if p.grad is not None]

    def _begin(self, p: Tensor) -> None:
        state = self.state[p]
        if not state:
            state["step"] = 0
            for name in MOMENTS:
                state[name] = torch.zeros_like(p, dtype=torch.float32, memory_format=torch.contiguous_format)
            if self.master and p.dtype != torch.float32:
                state["master"] = p.detach().to(torch.float32, memory_format=torch.contiguous_format)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's; moments and master weights stay f32, which torch would round to the format of the weights."""
        super().load_state_dict(state_dict)
        saved = (i for group in state_dict["param_groups"] for i in group["params"])
        for i, p in zip(saved, (p for group in self.param_groups for p in group["params"]), strict=True):
            for name, value in state_dict["state"].get(i, {}).items():
                if isinstance(value, Tensor):
                    self.state[p][name] = value.detach().to(p.device, torch.float32, copy=True)


def _finite(grads: list[Tensor]) -> Tensor:
    """Whether no element of any gradient is infinite or NaN; not waited for."""
    some = [g for g in grads if g.numel()]
    return torch.nn.utils.get_total_norm(some, math.inf).isfinite()


@torch.no_grad()
def clip_grad_norm_(params: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients in place so that their norm together is at most ``max_norm``, as `ops.clip_global_norm` does.

    Returns the norm before, an f32 scalar on their device; 0 where there are no gradients. Raises ArgumentError for
    gradients of several formats or devices.
    """
    grads = [p.grad.detach() for p in params if p.grad is not None]
    if not grads:
        return torch.zeros(())
    norm: Tensor = ops.clip_global_norm(grads, max_norm=max_norm)[1]
    return norm
