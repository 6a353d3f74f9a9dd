"""AdamW for torch, in place and in one pass over all weights: `ops.adamw` behind torch's interface of optimizers.

Moments are f32 whatever the weights are stored in. Weights of f16 and bf16 are updated from an f32 copy, or, with
``rounding="stochastic"`` and no such copy, rounded at random to one of their two neighbours. A step has the same bits
on every device, and happens as a whole or not at all.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .. import ops
from ..errors import ArgumentError
from ..runtime.binding import check_params
from ..runtime.gpu_lists import CapturedLaunch
from . import graphs
from .assertions import refuse_capture
from .pending import Pending

MOMENTS = ("exp_avg", "exp_avg_sq")
FORMATS = (torch.float16, torch.bfloat16, torch.float32)
SEEDS = 2**32
ROUNDINGS = ("nearest", "stochastic")
# What a group of torch's AdamW also has: how it is computed, which no bit of this one depends on.
OF_TORCH = {"foreach", "fused", "capturable", "differentiable"}
# What torch's schedulers keep in a group.
OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"}


class AdamW(torch.optim.Optimizer):
    """p = p - lr weight_decay p - lr m_hat / (sqrt(v_hat) + eps), as `torch.optim.AdamW`; with ``maximize`` of the
    negated gradients.

    ``master`` keeps an f32 copy of weights that are stored in 16 bits: by default where rounding is to nearest. With
    stochastic rounding ``seed`` gives other random bits. All options may differ from group to group, and are saved with
    them. A step in which any gradient is infinite or NaN changes nothing and is counted in ``skipped`` alone. No step
    waits for a GPU: whether it was skipped is found out by the next one, or by who reads ``skipped`` or the state
    (``param_groups[i]["skipped"]`` is then up to date). Sharded weights (DTensor) are updated shard by shard, and wait.

    Raises ArgumentError for options that there are not, ``amsgrad`` among them, and for weights of other formats than
    f16, bf16 and f32, that are sparse, or whose elements share memory.
    """

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.01, amsgrad: bool = False, *, maximize: bool = False, master: bool | None = None,
        rounding: Literal["nearest", "stochastic"] = "nearest", seed: int = 0,
    ) -> None:  # fmt: skip
        words = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        defaults = words | dict(maximize=maximize, master=master, rounding=rounding, seed=seed, skipped=0)
        _check_group(defaults, defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's. Raises ArgumentError before anything is added, for options and weights that are not accepted."""
        _check_group(self.defaults | {n: v for n, v in param_group.items() if n != "params"}, self.defaults)
        params = param_group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        for p in params:
            _check_weight(p[1] if isinstance(p, tuple) else p)
        super().add_param_group(param_group | {"params": params})

    @property
    def skipped(self) -> int:
        """Steps that changed nothing, as a gradient was infinite or NaN."""
        self._settle()
        return max((int(g["skipped"]) for g in self.param_groups), default=0)

    @property
    def rounding(self) -> str:
        """How weights are rounded, where all groups say the same. Raises ArgumentError where they differ."""
        return str(self._of_all_groups("rounding"))

    @property
    def master(self) -> bool | None:
        """Whether there are f32 copies (None: where rounding is to nearest), where all groups say the same. Raises
        ArgumentError where they differ."""
        made: bool | None = self._of_all_groups("master")
        return made

    @property
    def seed(self) -> int:
        """That of stochastic rounding, where all groups say the same. Raises ArgumentError where they differ."""
        return int(self._of_all_groups("seed"))

    def _of_all_groups(self, name: str) -> Any:
        said = [g[name] for g in self.param_groups]
        if any(value != said[0] for value in said):
            raise ArgumentError(f"{name} of groups: {said}; accepted: param_groups[i][{name!r}], one group's")
        return said[0] if said else self.defaults[name]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, *, loss_scale: float = 1.0) -> Any:
        """One step, from gradients of loss_scale times the loss. Returns what ``closure`` returns.

        Raises ArgumentError for a gradient that is sparse or of another format than its weight, and for options that
        were set to what is not accepted; then no weight and no moment has changed."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        capture = graphs.current()
        if capture is None:
            accepted = "tokitai.torch.graphed, which gives each replay its own"
            refuse_capture("AdamW.step", "a number of steps and a learning rate that stay", accepted)
        lists = list(self._lists(loss_scale))  # with all that can be wrong looked at
        grads = [g for one in lists for g in one.grads]
        finite = _finite(grads)
        if capture is not None and not finite.is_cuda:
            raise ArgumentError("AdamW: weights of the host while a CUDA graph is captured; accepted: weights of a GPU")
        if any(map(_is_sharded, grads)) or not (finite.is_cuda or len(lists) == 1):
            refuse_capture("AdamW.step", "sharded gradients or several devices", "weights of one GPU")
            for one in lists if finite else []:
                one.update(self.state)
        else:  # a list sees itself whether its gradients are finite; of several, each sees it of all
            for one in lists:
                one.update(self.state, finite if len(lists) > 1 else None)
        if capture is not None:
            capture.steps.append(_Replayed(self, lists, finite, capture.taken(), loss_scale))
        else:
            self._count(lists, finite)
        return loss

    # Whether a step was skipped is read when it has arrived from the GPU: by whatever looks at the state.
    _counted: tuple[Pending, list[_List]] | None = None

    def _count(self, lists: list[_List], finite: Tensor) -> None:
        for one in lists:
            for p in one.params:
                self._state[p]["step"] += 1
        self._counted = Pending(finite), lists
        if not finite.is_cuda:
            self._settle()

    def _settle(self) -> None:
        """Take back the count of a step that was skipped."""
        counted, self._counted = self._counted, None
        if counted is not None and not counted[0]:
            for group in self.param_groups:
                group["skipped"] += 1
            for one in counted[1]:
                for p in one.params:
                    self._state[p]["step"] -= 1

    @property
    def state(self) -> Any:
        """The state of each weight. A step that is still running on a GPU is waited for."""
        self._settle()
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        self.__dict__["state"] = state

    @property
    def _state(self) -> Any:
        return self.__dict__["state"]

    def state_dict(self) -> dict[str, Any]:
        """As torch's. A step that is still running on a GPU is waited for."""
        self._settle()
        return super().state_dict()

    def _scalars(self, group: Mapping[str, Any], step: int, number: int, loss_scale: float) -> dict[str, Any]:
        """The scalars of a list of weights, the ``number``-th of a step. Raises ArgumentError."""
        beta1, beta2 = group["betas"]
        scalars = dict(
            step=step, lr=float(group["lr"]), beta1=beta1, beta2=beta2, eps=group["eps"],
            weight_decay=group["weight_decay"], loss_scale=loss_scale, seed=(group["seed"] + number) % SEEDS,
        )  # fmt: skip
        check_params(ops.adamw, scalars)
        return scalars

    def _lists(self, loss_scale: float) -> Iterator[_List]:
        """The weights that have gradients, in lists of one group, device, format, number of steps so far, and with f32
        copies or without: a state that was loaded may have other ones."""
        number, states = 0, self.state
        for group in self.param_groups:
            _check_group(group, self.defaults)
            lists: dict[object, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    _check_gradient(p, p.grad)
                    if _is_sharded(p) and group["rounding"] == "stochastic":
                        raise ArgumentError(
                            "rounding='stochastic' of a sharded weight, whose random bits would depend on the shards; "
                            "accepted: 'nearest'"
                        )
                    self._begin(p, group)
                    kind = p.dtype, p.device, states[p]["step"], "master" in states[p]
                    lists.setdefault(kind, []).append(p)
            for params in lists.values():
                scalars = self._scalars(group, states[params[0]]["step"] + 1, number, loss_scale)
                grads = [p.grad.detach() for p in params if p.grad is not None]
                if group["maximize"]:
                    grads = [-g for g in grads]
                yield _List(params, grads, scalars, group, number)
                number += 1

    def _begin(self, p: Tensor, group: Mapping[str, Any]) -> None:
        """The state of a weight, as the first step finds it; a copy in f32 wherever its group keeps one."""
        state = self.state[p]
        if not state:
            state["step"] = 0
            for name in MOMENTS:
                state[name] = torch.zeros_like(p, dtype=torch.float32, memory_format=torch.contiguous_format)
        if _keeps_copies(group) and p.dtype != torch.float32 and "master" not in state and state["step"] == 0:
            state["master"] = p.detach().to(torch.float32, memory_format=torch.contiguous_format)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, also of a state of `torch.optim.AdamW`; moments and master weights stay f32, which torch would
        round to the format of the weights. Options are those that were saved; those that an older state does not have
        stay as they are here.

        A group that keeps f32 copies and has none in its state begins them from the weights, with a warning, as
        what was below the weights' precision is lost. Raises ArgumentError, with nothing loaded, for ``amsgrad``, for
        decay that is not decoupled, for options that there are not, and for a weight's state that is not of this shape,
        lacks a moment or a whole number of steps, or holds more.
        """
        groups = []
        for saved, here in zip(state_dict["param_groups"], self.param_groups, strict=False):
            if not saved.get("decoupled_weight_decay", True):
                raise ArgumentError("a state of torch.optim.Adam, whose decay is not decoupled; accepted: AdamW's")
            kept = {n: v for n, v in saved.items() if n not in OF_TORCH | {"decoupled_weight_decay"}}
            missing = {n: v for n, v in here.items() if n not in kept and n not in ("params", "param_names")}
            _check_group(missing | {n: v for n, v in kept.items() if n not in ("params", "param_names")}, self.defaults)
            groups.append(missing | kept)
        groups += state_dict["param_groups"][len(groups) :]  # another number of groups: torch says so
        saved_ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(saved_ids, params, strict=False):
            _check_state(i, state_dict["state"].get(i), p)
        super().load_state_dict(state_dict | {"param_groups": groups})
        for i, p in zip(saved_ids, params, strict=True):
            for name, value in state_dict["state"].get(i, {}).items():
                if name == "step":
                    self.state[p]["step"] = int(value)  # torch's is a tensor
                elif isinstance(value, Tensor):
                    self.state[p][name] = value.detach().to(p.device, torch.float32, copy=True)
        self._complete()

    def _complete(self) -> None:
        """Begin f32 copies where a group keeps them and a loaded state has none."""
        begun = 0
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state.get(p)
                if state and _keeps_copies(group) and p.dtype != torch.float32 and "master" not in state:
                    state["master"] = p.detach().to(torch.float32, memory_format=torch.contiguous_format)
                    begun += 1
        if begun:
            warnings.warn(
                f"{begun} weights of 16 bits were loaded without f32 copies, which begin from the weights themselves",
                stacklevel=3,
            )


@dataclass
class _List:
    """Weights that are updated together."""

    params: list[Tensor]
    grads: list[Tensor]
    scalars: dict[str, Any]
    group: Mapping[str, Any]
    number: int

    def update(self, states: Mapping[Tensor, dict[str, Any]], finite: Tensor | None = None) -> None:
        """One step, in place; none unless ``finite``, if that is given."""
        state = [states[p] for p in self.params]
        weights, back = _contiguous([_local(p.detach()) for p in self.params])
        grads = [_local(g).contiguous() for g in self.grads]
        moments = ([_local(s[m]) for s in state] for m in MOMENTS)
        masters = [_local(s["master"]) for s in state] if "master" in state[0] else None
        lists = [weights, grads, *moments, *([masters] if masters is not None else [])]
        if finite is not None:  # one more gradient, which is NaN where another list has one that is not finite
            zero = grads[0].new_zeros(1)
            last = torch.where(finite.to(zero.device, non_blocking=True), zero, math.nan)
            others = (torch.zeros_like(zero, dtype=one[0].dtype) for one in lists[2:])
            lists = [[*one, x] for one, x in zip(lists, (zero, last, *others), strict=True)]
        ops.adamw(*lists, **self.scalars, rounding=self.group["rounding"])
        back()

    def addresses(self, states: Mapping[Tensor, dict[str, Any]]) -> list[int]:
        """Where weights and their state lie."""
        kept = [states[p] for p in self.params]
        names = [n for n in (*MOMENTS, "master") if n in kept[0]]
        return [t.data_ptr() for t in (*self.params, *(s[n] for s in kept for n in names))]


class _Replayed:
    """A step that a CUDA graph holds: its scalars are set before each replay, which is counted after it."""

    def __init__(
        self, optimizer: AdamW, lists: list[_List], finite: Tensor, launches: list[CapturedLaunch], loss_scale: float
    ) -> None:
        self.optimizer, self.lists, self.finite, self.loss_scale = optimizer, lists, finite, loss_scale
        self.launches = launches[-len(lists) :] if lists else []
        self.addresses = [one.addresses(optimizer.state) for one in lists]

    def scalars(self) -> list[tuple[CapturedLaunch, dict[str, Any]]]:
        """Those of the next replay for each launch, from what groups and state say now. Raises ArgumentError where the
        state lies elsewhere than in the graph."""
        states, made = self.optimizer.state, []
        for one, launch, addresses in zip(self.lists, self.launches, self.addresses, strict=True):
            if one.addresses(states) != addresses:
                raise ArgumentError(
                    "AdamW: weights or moments in other memory than when the step was captured; accepted: another "
                    "tokitai.torch.graphed after load_state_dict"
                )
            steps = {states[p]["step"] for p in one.params}
            if len(steps) != 1:
                raise ArgumentError(f"AdamW: weights of one list after {sorted(steps)} steps; accepted: one number")
            made.append((launch, self.optimizer._scalars(one.group, steps.pop() + 1, one.number, self.loss_scale)))
        return made

    def done(self) -> None:
        """A replay is in the stream."""
        self.optimizer._count(self.lists, self.finite)


def _contiguous(tensors: list[Tensor]) -> tuple[list[Tensor], Callable[[], None]]:
    """The tensors, or contiguous copies of those that lie otherwise, and what writes these back: the order of elements
    is that of the shape, however they lie."""
    made = [t if t.is_contiguous() else t.contiguous() for t in tensors]

    def back() -> None:
        for t, copy in zip(tensors, made, strict=True):
            if copy is not t:
                t.copy_(copy)

    return made, back


def _is_sharded(x: Tensor) -> bool:
    return hasattr(x, "to_local")


def _local(x: Tensor) -> Tensor:
    """The part of a sharded tensor that is here, or the tensor."""
    made: Tensor = x.to_local() if _is_sharded(x) else x  # type: ignore[attr-defined]
    return made


def _keeps_copies(group: Mapping[str, Any]) -> bool:
    return bool(group["rounding"] == "nearest" if group["master"] is None else group["master"])


def _check_group(group: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raises ArgumentError for options of a group that there are not, or that are not accepted."""
    for name in group:
        if name not in defaults and name not in {"params", "param_names"} | OF_SCHEDULERS | OF_TORCH:
            accepted = ", ".join(sorted(defaults))
            raise ArgumentError(f"{name}={group[name]!r} in a group of weights; accepted: {accepted}")
    if group["amsgrad"]:
        raise ArgumentError(f"amsgrad={group['amsgrad']!r}, which is not implemented; accepted: False")
    if group["rounding"] not in ROUNDINGS:
        raise ArgumentError(f"rounding={group['rounding']!r}; accepted: {', '.join(map(repr, ROUNDINGS))}")
    for name, flags in (("master", (None, True, False)), ("maximize", (True, False))):
        if not any(group[name] is flag for flag in flags):
            raise ArgumentError(f"{name}={group[name]!r}; accepted: {', '.join(map(repr, flags))}")
    betas = group["betas"]
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        raise ArgumentError(f"betas={betas!r}; accepted: two numbers")
    scalars = dict(lr=float(group["lr"]), beta1=betas[0], beta2=betas[1], eps=group["eps"])
    scalars |= dict(weight_decay=group["weight_decay"], seed=group["seed"])
    check_params(ops.adamw, scalars | dict(step=1, loss_scale=1.0))


def _check_weight(p: Any) -> None:
    """Raises ArgumentError for a weight that no step can update."""
    if not isinstance(p, Tensor):
        return  # torch says what it accepts
    here = f"a weight of shape {tuple(p.shape)}"
    if p.dtype not in FORMATS:
        raise ArgumentError(f"{here} of {p.dtype}; accepted: {', '.join(map(str, FORMATS))}")
    if p.layout != torch.strided:
        raise ArgumentError(f"{here} of layout {p.layout}; accepted: a dense one")
    if p.device.type != "meta" and any(s == 0 and n > 1 for s, n in zip(p.stride(), p.shape, strict=True)):
        raise ArgumentError(f"{here} with strides {p.stride()}, whose elements share memory; accepted: p.contiguous()")


def _check_state(number: Any, state: Mapping[str, Any] | None, p: Tensor) -> None:
    """Raises ArgumentError for a saved state that is not one of this weight."""
    if not state:
        return
    here = f"the state of weight {number}"
    missing, more = {"step", *MOMENTS} - set(state), set(state) - {"step", "master", *MOMENTS}
    if missing or more:
        found = ", ".join(sorted(map(str, state)))
        raise ArgumentError(f"{here} holds {found}; accepted: step, {', '.join(MOMENTS)}, and master where it is kept")
    if (step := float(state["step"])) < 0 or not step.is_integer():
        raise ArgumentError(f"{here}: step={step}; accepted: a whole number of steps")
    for name in (n for n in state if n != "step"):
        if tuple(state[name].shape) != tuple(p.shape):
            raise ArgumentError(f"{here}: {name} of shape {tuple(state[name].shape)}; accepted: {tuple(p.shape)}")


def _check_gradient(p: Tensor, grad: Tensor) -> None:
    """Raises ArgumentError for a gradient that does not fit its weight."""
    if grad.is_sparse or grad.layout != torch.strided:
        raise ArgumentError(f"a sparse gradient of shape {tuple(p.shape)}; accepted: dense ones")
    if grad.dtype != p.dtype or grad.device != p.device or grad.shape != p.shape:
        found = f"a gradient of {grad.dtype}, shape {tuple(grad.shape)} on {grad.device}"
        raise ArgumentError(f"{found}; accepted: its weight's {p.dtype}, {tuple(p.shape)} on {p.device}")
    if _is_sharded(p) is not _is_sharded(grad):
        raise ArgumentError("a gradient that is sharded beside a weight that is not, or the other way; accepted: both")


def _finite(grads: list[Tensor]) -> Tensor:
    """Whether no element of any gradient, on any rank that holds a part, is infinite or NaN; not waited for."""
    flags = []
    if some := [g for g in grads if g.numel() and not _is_sharded(g)]:
        found = None
        if all(g.is_cpu for g in some):  # a sum of squares takes a tenth of the time, and may overflow where none is
            found = torch.nn.utils.get_total_norm(some, 2.0).isfinite()
        flags.append(found if found else torch.nn.utils.get_total_norm(some, math.inf).isfinite())
    if sharded := [g for g in grads if _is_sharded(g)]:
        from .sharded_norm import finite

        flags.append(finite(sharded))
    return functools.reduce(torch.logical_and, flags) if flags else torch.ones((), dtype=torch.bool)


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:  # fmt: skip
    """Scale all gradients in place so that their norm together is at most ``max_norm``, as `ops.clip_global_norm` does.

    ``parameters`` are one weight or several. Gradients of several formats are taken to f32 together, and each is
    rounded once, when it is stored. Returns the norm before, an f32 scalar on their device; 0 where there are no
    gradients. How torch would loop (``foreach``) makes no difference. Gradients that are sharded (DTensor), in any way
    and beside others that each rank has, have the norm and the bits of whole ones; then it is a collective call, which
    waits for the device. Raises ArgumentError for gradients of several devices, sparse ones, sums over ranks that were
    not added up, ones beside sharded ones that ranks have not the same, and another ``norm_type`` than 2; RuntimeError,
    as torch does, for a norm that is infinite or NaN where ``error_if_nonfinite`` is set, with the gradients as they
    were.
    """
    if norm_type != 2:
        raise ArgumentError(f"norm_type={norm_type!r}; accepted: 2")
    several = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    grads = [p.grad.detach() for p in several if p.grad is not None]
    if not grads:
        return torch.zeros(())
    for g in grads:
        if g.layout != torch.strided:
            raise ArgumentError(f"a gradient of layout {g.layout}; accepted: dense ones")
    if len({g.device for g in grads}) > 1:
        raise ArgumentError(f"gradients on {', '.join(sorted({str(g.device) for g in grads}))}; accepted: one device")
    if any(map(_is_sharded, grads)):
        from .sharded_norm import clip_sharded

        return clip_sharded(grads, max_norm, error_if_nonfinite)
    same = len({g.dtype for g in grads}) == 1
    lists = [g.contiguous() if same else g.to(torch.float32, memory_format=torch.contiguous_format) for g in grads]
    if error_if_nonfinite:
        refuse_capture("clip_grad_norm_", "error_if_nonfinite=True", "error_if_nonfinite=False")
    if error_if_nonfinite and not (found := ops.global_norm(lists)).isfinite():
        accepted = "a finite one, or error_if_nonfinite=False"
        raise RuntimeError(f"the norm of the gradients is {found.item()}; accepted: {accepted}")
    norm: Tensor = ops.clip_global_norm(lists, max_norm=max_norm)[1]
    for g, made in zip(grads, lists, strict=True):
        if made is not g and made.data_ptr() != g.data_ptr():
            g.copy_(made)
    return norm
