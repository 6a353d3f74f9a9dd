"""First values of weights from a seed and their names, in place of a generator: the same bits on every machine.

Functions are named as in `torch.nn.init`, and take ``seed`` and ``name`` beside their arguments. An element's value
depends on these and on its place in the tensor, so not on the order in which weights are drawn, nor on the device. It
is drawn on the host in f32 (`counters` says how) and rounded once to the format of the weight.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, init

from ..errors import ArgumentError
from ..lang import Operator
from . import nn
from .counters import WORD, draw_normal, draw_uniform, name_words

LEAST = 1 / 16
"""The least probability that a number lies within the limits of `trunc_normal_`."""


# ------------------------------------------------------------------ distributions
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, *, seed: int, name: str) -> Tensor:
    """Uniform in [a, b). Raises ArgumentError."""
    if not (math.isfinite(a) and math.isfinite(b) and a <= b):
        raise ArgumentError(f"uniform_: a={a!r}, b={b!r}; accepted: finite numbers, the lower one first")
    return _put("uniform_", tensor, lambda: _draw("uniform_", draw_uniform, tensor, seed, name, low=a, width=b - a))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, *, seed: int, name: str) -> Tensor:
    """Normal. Raises ArgumentError."""
    _check_normal("normal_", mean, std)
    return _put("normal_", tensor, lambda: _draw("normal_", draw_normal, tensor, seed, name, mean=mean, std=std))


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, *, seed: int, name: str
) -> Tensor:
    """Normal within [a, b]: each element is drawn again, with the next attempt in the key, until it lies there.

    Raises ArgumentError, also for limits between which less than one number in 16 lies.
    """
    _check_normal("trunc_normal_", mean, std)
    scale = std * math.sqrt(2)
    within = (math.erf((b - mean) / scale) - math.erf((a - mean) / scale)) / 2 if std else float(a <= mean <= b)
    if not within >= LEAST:
        raise ArgumentError(
            f"trunc_normal_: {within:.2g} of the numbers lie between a={a!r} and b={b!r} for mean={mean!r}, "
            f"std={std!r}; accepted: at least {LEAST}"
        )

    def drawn() -> Tensor:
        made = _draw("trunc_normal_", draw_normal, tensor, seed, name, mean=mean, std=std)
        attempt = 0
        while bool((outside := (made < a) | (made > b)).any()):
            attempt += 1
            again = _draw("trunc_normal_", draw_normal, tensor, seed, name, attempt, mean=mean, std=std)
            made = torch.where(outside, again, made)
        return made

    return _put("trunc_normal_", tensor, drawn)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", *, seed: int, name: str
) -> Tensor:
    """Uniform between -bound and bound, as `torch.nn.init.kaiming_uniform_` has it. Raises ArgumentError."""
    bound = math.sqrt(3.0) * _kaiming("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, seed=seed, name=name)


def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", *, seed: int, name: str
) -> Tensor:
    """Normal, of the deviation of `torch.nn.init.kaiming_normal_`. Raises ArgumentError."""
    return normal_(tensor, 0.0, _kaiming("kaiming_normal_", tensor, a, mode, nonlinearity), seed=seed, name=name)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, *, seed: int, name: str) -> Tensor:
    """Uniform between -bound and bound, as `torch.nn.init.xavier_uniform_` has it. Raises ArgumentError."""
    bound = math.sqrt(3.0) * gain * math.sqrt(2.0 / sum(_fans("xavier_uniform_", tensor)))
    return uniform_(tensor, -bound, bound, seed=seed, name=name)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, *, seed: int, name: str) -> Tensor:
    """Normal, of the deviation of `torch.nn.init.xavier_normal_`. Raises ArgumentError."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans("xavier_normal_", tensor))), seed=seed, name=name)


def _fans(called: str, tensor: Tensor) -> tuple[int, int]:
    """Inputs and outputs of a weight. Raises ArgumentError."""
    if tensor.ndim < 2 or tensor.numel() == 0:
        raise ArgumentError(
            f"{called}: a tensor of shape {tuple(tensor.shape)}; accepted: (outputs, inputs, ...), none of them 0"
        )
    field = tensor[0][0].numel()
    return tensor.shape[1] * field, tensor.shape[0] * field


def _kaiming(called: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    modes = ("fan_in", "fan_out")
    if mode not in modes:
        raise ArgumentError(f"{called}: mode={mode!r}; accepted: {', '.join(modes)}")
    try:
        gain = init.calculate_gain(nonlinearity, a)  # type: ignore[arg-type]
    except ValueError as error:
        raise ArgumentError(
            f"{called}: nonlinearity={nonlinearity!r}; accepted: those of torch.nn.init.calculate_gain"
        ) from error
    return gain / math.sqrt(_fans(called, tensor)[modes.index(mode)])


def _check_normal(called: str, mean: float, std: float) -> None:
    if not (math.isfinite(mean) and 0 <= std < math.inf):
        raise ArgumentError(f"{called}: mean={mean!r}, std={std!r}; accepted: finite numbers, std at least 0")


def _draw(
    called: str, operator: Operator, tensor: Tensor, seed: int, name: str, attempt: int = 0, **scalars: float
) -> Tensor:
    """Numbers in f32, in host memory, in the shape of a tensor. Raises ArgumentError."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not WORD[0] <= seed <= WORD[1]:
        raise ArgumentError(f"{called}: seed={seed!r}; accepted: a whole number from 0 to {WORD[1]}")
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"{called}: name={name!r}; accepted: the name of the weight, as in state_dict()")
    first, second = name_words(name)
    drawn = torch.empty(tensor.numel(), dtype=torch.float32, device="cpu")
    operator(drawn, seed=seed, attempt=attempt, name=first, more=second, **scalars)
    return drawn.view(tensor.shape)


def _put(called: str, tensor: Tensor, draw: Callable[[], Tensor]) -> Tensor:
    """The tensor with what is drawn, but on the meta device. Raises ArgumentError."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ArgumentError(f"{called}: {found}; accepted: a tensor of floats")
    if not tensor.is_meta:
        nn.store(tensor, draw())
    return tensor


# ------------------------------------------------------------------ models
def reset(model: Module, seed: int) -> None:
    """First values for all weights of a model, from the seed and their names.

    Weights have the distributions that torch gives them: those of linear layers and experts uniform between
    -1/sqrt(inputs) and 1/sqrt(inputs), tables of embeddings normal with 0 in the row of ``padding_idx``, weights of
    norms 1 and their biases 0. A weight that is in several modules is drawn under its first name. Raises ArgumentError,
    before any is drawn, where another module has weights of its own.
    """
    for draw in list(_draws(model, seed)):
        draw()


def _draws(model: Module, seed: int) -> Iterator[Callable[[], None]]:
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, p in module.named_parameters(recurse=False):
            if id(p) in seen:
                continue
            seen.add(id(p))
            found = next((d for kind, d in KINDS.items() if isinstance(module, kind)), None)
            full = f"{prefix}.{name}" if prefix else name
            if found is None:
                accepted = ", ".join(sorted({kind.__name__ for kind in KINDS}))
                raise ArgumentError(
                    f"reset: {full} belongs to a {type(module).__name__}; accepted: {accepted}; draw another's by "
                    "init.normal_(weight, seed=..., name=...)"
                )
            yield functools.partial(found, module, name, p, dict(seed=seed, name=full))


def _of_inputs(module: Any, name: str, weight: Tensor, key: dict[str, Any]) -> None:
    inputs = module.in_features if isinstance(module, torch.nn.Linear) else weight.shape[-1]
    bound = 1 / math.sqrt(inputs) if inputs else 0.0
    uniform_(weight, -bound, bound, **key)


def _of_table(module: Any, name: str, weight: Tensor, key: dict[str, Any]) -> None:
    normal_(weight, **key)
    if module.padding_idx is not None and not weight.is_meta:
        with torch.no_grad():
            weight[module.padding_idx] = 0


def _of_norm(module: Any, name: str, weight: Tensor, key: dict[str, Any]) -> None:
    with torch.no_grad():
        weight.fill_(1 if name == "weight" else 0)


KINDS: dict[type[Module], Callable[[Any, str, Tensor, dict[str, Any]], None]] = {
    torch.nn.Linear: _of_inputs, nn.Experts: _of_inputs, torch.nn.Embedding: _of_table, torch.nn.LayerNorm: _of_norm,
    torch.nn.RMSNorm: _of_norm,
}  # fmt: skip
