"""Modules of torch made of the operators: each is a subclass of torch's own module of its name.

Arguments, attributes, names and shapes of weights are torch's, so that its checkpoints load and what looks for a
`torch.nn.Linear` finds one. First values are torch's too, but drawn on the host in f32 and rounded once: a model begins
with the same bits on any device. (Where there is no AVX2, torch draws other numbers.) Arguments of torch's modules that
have no meaning here are refused by name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter, init

from ..errors import ArgumentError, UnknownNameError
from ..experts import LOGITS, Logits
from ..runtime.binding import check_entry
from . import functional
from .accumulators import check as check_accumulator
from .experts import experts
from .linears import ACTIVATIONS

Device = torch.device | str | int | None
Shape = int | Sequence[int]
Generator = torch.Generator | None


# ------------------------------------------------------------------ first values
def begin(module: Any, device: Device, generator: Generator) -> None:
    """Memory, and first values, for a module that was made on the meta device."""
    module.to_empty(device=torch.get_default_device() if device is None else device)
    module.reset_parameters(generator)


def fill(weight: Tensor, kind: str, generator: Generator, blank: int | None = None, **options: float) -> None:
    """First values by a function of `torch.nn.init`, drawn on the host in f32 and rounded once to the weight's format;
    0 in the row ``blank``. A weight on the meta device takes nothing from the generator; of one that is sharded over
    ranks, each holds its part of what the first one draws."""
    if weight.is_meta:
        return
    drawn = torch.empty(weight.shape, dtype=torch.float32, device="cpu")
    getattr(init, f"{kind}_")(drawn, **options, generator=generator)
    if blank is not None:
        drawn[blank] = 0
    store(weight, drawn)


def store(weight: Tensor, drawn: Tensor) -> None:
    """Values of the host in a weight, rounded once to its format; of one that is sharded each rank has its part."""
    drawn = drawn.to(weight.dtype)
    sharded = sys.modules.get("torch.distributed.tensor")
    if sharded is not None and isinstance(weight, sharded.DTensor):
        drawn = sharded.distribute_tensor(drawn, weight.device_mesh, weight.placements)
    with torch.no_grad():
        weight.copy_(drawn)


def uniform(weight: Tensor, inputs: int, generator: Generator) -> None:
    """First values that are uniform between -1/sqrt(inputs) and 1/sqrt(inputs)."""
    bound = 1 / math.sqrt(inputs) if inputs else 0.0
    fill(weight, "uniform", generator, a=-bound, b=bound)


def changed_options(module: Module, **defaults: Any) -> str:
    """The options of a module that are not the default ones, as `extra_repr` shows them."""
    return "".join(f", {n}={v}" for n, d in defaults.items() if (v := getattr(module, n)) != d)


# ------------------------------------------------------------------ layers with weights
class Linear(torch.nn.Linear):
    """activation(x weight^T + bias) + residual. The activation is "none", "gelu", "gelu_tanh" or "silu".

    Arguments are torch's, ``activation``, ``generator`` and ``accumulator`` beside them; the weight is (out_features,
    in_features). Without an ``accumulator`` it is that of the context `tokitai.torch.accumulate`, else "f32".
    First values are torch's, from the ``generator`` or the default one of the host. Raises UnknownNameError.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Device = None,
        dtype: torch.dtype | None = None, *, activation: str = "none", generator: Generator = None,
        accumulator: str | None = None,
    ) -> None:  # fmt: skip
        if activation not in ACTIVATIONS:
            raise UnknownNameError("activation", activation, ACTIVATIONS)
        check_accumulator(accumulator)
        super().__init__(in_features, out_features, bias, "meta", dtype)
        self.activation, self.accumulator = activation, accumulator
        begin(self, device, generator)

    def reset_parameters(self, generator: Generator = None) -> None:
        """Weights and bias uniform between -1/sqrt(in_features) and 1/sqrt(in_features)."""
        fill(self.weight, "kaiming_uniform", generator, a=math.sqrt(5))
        if self.bias is not None:
            uniform(self.bias, self.in_features, generator)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """(..., in_features) -> (..., out_features); a residual has the shape of the result. Raises ArgumentError."""
        y: Tensor = functional.linear(x, self.weight, self.bias, residual, self.activation, self.accumulator)
        return y

    def extra_repr(self) -> str:
        """Sizes, and the activation and the accumulator where there is one."""
        changed = changed_options(self, activation="none", accumulator=None)
        return super().extra_repr() + changed


class Embedding(torch.nn.Embedding):
    """Rows of a table by their ids. Arguments are torch's, ``generator`` beside them.

    First values are normal, of standard deviation 1; the row of ``padding_idx`` is 0 and receives no gradient. Raises
    ArgumentError for a ``padding_idx`` out of range, and for what has no meaning here: ``max_norm``,
    ``scale_grad_by_freq`` and ``sparse``.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False, _weight: Tensor | None = None,
        _freeze: bool = False, device: Device = None, dtype: torch.dtype | None = None, *, generator: Generator = None,
    ) -> None:  # fmt: skip
        for name, value in dict(max_norm=max_norm, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse).items():
            if value is not None and value is not False:
                raise ArgumentError(f"Embedding: {name}={value!r}; accepted: leave it out")
        if padding_idx is not None:
            check_entry("Embedding", "padding_idx", padding_idx, num_embeddings)
        given = dict(padding_idx=padding_idx, norm_type=norm_type, _weight=_weight, _freeze=_freeze, dtype=dtype)
        super().__init__(num_embeddings, embedding_dim, device="meta", **given)  # type: ignore[arg-type]
        if _weight is None:
            begin(self, device, generator)

    def reset_parameters(self, generator: Generator = None) -> None:
        """Normal, of mean 0 and standard deviation 1; 0 in the row of ``padding_idx``."""
        fill(self.weight, "normal", generator, blank=self.padding_idx)

    def forward(self, ids: Tensor) -> Tensor:
        """(...) of int32 or int64 -> (..., embedding_dim). Raises ArgumentError."""
        y: Tensor = functional.embedding(ids, self.weight, self.padding_idx)
        return y


# ------------------------------------------------------------------ norms
def check_eps(name: str, eps: float | None) -> None:
    """Raises ArgumentError for a number below 0, or none at all."""
    if eps is not None and not 0 <= eps < math.inf:
        raise ArgumentError(f"{name}: eps={eps!r}; accepted: a finite number of at least 0")


def added(called: Any, module: Any, x: Tensor, residual: Tensor, *weights: Tensor | None, eps: float) -> Any:
    """h = x + residual, and its norm, over the last dimensions of both. Raises ArgumentError where they are others."""
    shape, name = tuple(module.normalized_shape), type(module).__name__
    for t in (x, residual):
        if tuple(t.shape[-len(shape) :]) != shape:
            raise ArgumentError(f"{name}: x or residual of {tuple(t.shape)}; accepted: its last dimensions are {shape}")
    if len(shape) == 1:
        return called(x, residual, *weights, eps=eps)
    rows = (t.flatten(-len(shape)) for t in (x, residual))
    h, y = called(*rows, *(w if w is None else w.flatten() for w in weights), eps=eps)
    return h.view(x.shape), y.view(x.shape)


class LayerNorm(torch.nn.LayerNorm):
    """Rows of mean 0 and variance 1, times weight, plus bias. Arguments are torch's. Raises ArgumentError for a
    negative ``eps``."""

    def __init__(
        self, normalized_shape: Shape, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        check_eps("LayerNorm", eps)
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """y; or with a residual h = x + residual and y, which is made of h, in one pass. Raises ArgumentError."""
        if residual is None:
            return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return added(functional.add_layer_norm, self, x, residual, self.weight, self.bias, eps=self.eps)


class RMSNorm(torch.nn.RMSNorm):
    """Rows of mean square 1, times weight. Arguments are torch's; without an ``eps`` it is that of float32. Raises
    ArgumentError for a negative one."""

    def __init__(
        self, normalized_shape: Shape, eps: float | None = None, elementwise_affine: bool = True,
        device: Device = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        check_eps("RMSNorm", eps)
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """y; or with a residual h = x + residual and y, which is made of h, in one pass. Raises ArgumentError."""
        if residual is None:
            return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        eps = functional.F32_EPS if self.eps is None else self.eps
        return added(functional.add_rms_norm, self, x, residual, self.weight, eps=eps)


# ------------------------------------------------------------------ functions as modules
def check_not_inplace(name: str, inplace: bool) -> None:
    """Raises ArgumentError for a module that would write into its input."""
    if inplace:
        raise ArgumentError(f"{name}: inplace=True; accepted: inplace=False, as results are new tensors")


def check_dim(name: str, dim: int | None) -> None:
    """Raises ArgumentError where no dimension is named: torch's choice depends on how many there are."""
    if dim is None:
        raise ArgumentError(f"{name}: dim=None; accepted: a dimension, as dim=-1")


class GELU(torch.nn.GELU):
    """x Phi(x), or with ``approximate="tanh"`` what is made of tanh. Raises ArgumentError for another word."""

    def __init__(self, approximate: str = "none") -> None:
        functional.gelu(torch.empty(0, 1, device="meta"), approximate)  # which looks at the word
        super().__init__(approximate)

    def forward(self, x: Tensor) -> Tensor:
        """Each element on its own."""
        y: Tensor = functional.gelu(x, self.approximate)
        return y


class SiLU(torch.nn.SiLU):
    """x sigmoid(x). Raises ArgumentError for ``inplace=True``."""

    def __init__(self, inplace: bool = False) -> None:
        check_not_inplace("SiLU", inplace)
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Each element on its own."""
        y: Tensor = functional.silu(x)
        return y


class Softmax(torch.nn.Softmax):
    """exp(x) / sum(exp(x)) along ``dim``, which must be named. Raises ArgumentError."""

    def __init__(self, dim: int | None = None) -> None:
        check_dim("Softmax", dim)
        super().__init__(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape. Raises ArgumentError for a dimension that x does not have."""
        assert self.dim is not None
        y: Tensor = functional.softmax(x, self.dim)
        return y


class LogSoftmax(torch.nn.LogSoftmax):
    """x - log(sum(exp(x))) along ``dim``, which must be named. Raises ArgumentError."""

    def __init__(self, dim: int | None = None) -> None:
        check_dim("LogSoftmax", dim)
        super().__init__(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape. Raises ArgumentError for a dimension that x does not have."""
        assert self.dim is not None
        y: Tensor = functional.log_softmax(x, self.dim)
        return y


class Dropout(torch.nn.Dropout):
    """x / (1 - p) with probability 1 - p, else 0, while training.

    Each call draws the seed of its mask from torch's default generator of the host: no mask comes twice,
    `torch.manual_seed` repeats a run on any device, and checkpointing, which restores that generator, repeats a mask.
    Raises ArgumentError for ``inplace=True``.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        check_not_inplace("Dropout", inplace)
        super().__init__(p)

    def forward(self, x: Tensor) -> Tensor:
        """Of x's shape; x itself where not training."""
        if not self.training:
            return x
        if self.p == 1:
            return x.masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 0)
        seed = torch.randint(0, 2**32, (), dtype=torch.int64, device="cpu")
        y: Tensor = functional.dropout(x, self.p, seed=seed)
        return y


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """The cross-entropy of logits against classes, in f32, as `functional.cross_entropy`. Arguments are torch's."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """(N, C) and (N), or (N, C, d1, ...) and (N, d1, ...). Raises ArgumentError."""
        options: dict[str, Any] = dict(ignore_index=self.ignore_index, label_smoothing=self.label_smoothing)
        loss: Tensor = functional.cross_entropy(logits, target, self.weight, reduction=self.reduction, **options)
        return loss


class LinearCrossEntropyLoss(Linear):
    """The last projection of a model and the cross-entropy of its logits, which are never in memory as a whole.

    The weight is (out_features, in_features), out_features being the classes; it may be shared with an embedding.
    Options are those of `functional.linear_cross_entropy`.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = False, device: Device = None,
        dtype: torch.dtype | None = None, *, ignore_index: int = -100, reduction: str = "mean",
        label_smoothing: float = 0.0, z_loss: float = 0.0, rows: int = 1024, generator: Generator = None,
        accumulator: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, device, dtype, generator=generator, accumulator=accumulator)
        self.ignore_index, self.reduction, self.label_smoothing = ignore_index, reduction, label_smoothing
        self.z_loss, self.rows = z_loss, rows

    def forward(self, x: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        """(..., in_features) and (...) -> the loss, in f32. Raises ArgumentError."""
        loss: Tensor = functional.linear_cross_entropy(
            x, self.weight, target, self.bias, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing, z_loss=self.z_loss, rows=self.rows, accumulator=self.accumulator,
        )  # fmt: skip
        return loss

    def logits(self, x: Tensor) -> Tensor:
        """(..., in_features) -> (..., out_features), all of them. Raises ArgumentError."""
        return super().forward(x)

    def extra_repr(self) -> str:
        """Sizes, and the options that are not the default ones."""
        changed = changed_options(self, ignore_index=-100, reduction="mean", label_smoothing=0.0, z_loss=0.0, rows=1024)
        return super().extra_repr() + changed


# ------------------------------------------------------------------ experts
class Experts(Module):
    """Each token through the k experts that a router chooses for it: gated layers of ``hidden`` values.

    Options are those of `tokitai.experts.expert_layer`; the ``accumulator`` as in `Linear`, of the products that
    `experts.experts` says. First values are those of linear layers.
    """

    def __init__(
        self, features: int, hidden: int, count: int, k: int = 2, *, renormalise: bool = True,
        capacity: int | None = None, capacity_factor: float | None = None, logits: Logits = "f32",
        device: Device = None, dtype: torch.dtype | None = None, generator: Generator = None,
        accumulator: str | None = None,
    ) -> None:  # fmt: skip
        if logits not in LOGITS:
            raise UnknownNameError("format of logits", logits, LOGITS)
        check_accumulator(accumulator)
        super().__init__()
        self.features, self.hidden, self.count = features, hidden, count
        self.k, self.renormalise, self.logits = k, renormalise, logits
        self.capacity, self.capacity_factor, self.accumulator = capacity, capacity_factor, accumulator
        options: dict[str, Any] = dict(device="meta", dtype=dtype)
        self.router = Parameter(torch.empty(count, features, **options))
        self.gate_up = Parameter(torch.empty(count, 2 * hidden, features, **options))
        self.down = Parameter(torch.empty(count, features, hidden, **options))
        begin(self, device, generator)

    def reset_parameters(self, generator: Generator = None) -> None:
        """All weights uniform between -1/sqrt(inputs) and 1/sqrt(inputs)."""
        for weight in (self.router, self.gate_up, self.down):
            uniform(weight, weight.shape[-1], generator)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """y, logits and chosen experts, as `experts.experts`; what is ``padding``, (...) of bool, gives 0."""
        made: tuple[Tensor, Tensor, Tensor] = experts(
            x, self.router, self.gate_up, self.down, k=self.k, renormalise=self.renormalise, capacity=self.capacity,
            capacity_factor=self.capacity_factor, padding=padding, logits=self.logits, accumulator=self.accumulator,
        )  # fmt: skip
        return made

    def losses(self, logits: Tensor, chosen: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """How unevenly experts are used, 1 where evenly; and the mean square of log(sum(exp(logits))). Tokens that are
        ``padding`` do not count."""
        if padding is not None:
            kept = ~padding.reshape(-1)
            logits, chosen = logits[kept], chosen[kept]
        load, probability = functional.expert_load(logits, chosen, k=self.k, check=False)
        return functional.load_balance_loss(load, probability), functional.router_z_loss(logits, reduction="mean")

    def extra_repr(self) -> str:
        """Sizes, and the options that are not the default ones."""
        shown = f"features={self.features}, hidden={self.hidden}, count={self.count}, k={self.k}"
        return shown + changed_options(
            self, renormalise=True, capacity=None, capacity_factor=None, logits="f32", accumulator=None
        )
