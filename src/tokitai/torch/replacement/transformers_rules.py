"""Rules for modules of Hugging Face's transformers, by their names: it is not imported to look for them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from .. import functional
from ..experts import chosen_experts
from . import attention
from .rule import Rule, accumulator_of
from .torch_rules import silu

MODELS = "transformers.models"
MIXTURES = ("mixtral.modeling_mixtral.Mixtral", "qwen3_moe.modeling_qwen3_moe.Qwen3Moe")
LLAMAS = ("llama.modeling_llama.Llama", "mistral.modeling_mistral.Mistral", "qwen3.modeling_qwen3.Qwen3", *MIXTURES)
CAUSAL = (*(f"{name}ForCausalLM" for name in LLAMAS), "gpt2.modeling_gpt2.GPT2LMHeadModel",
          "bert.modeling_bert.BertLMHeadModel")  # fmt: skip
ROPES = ("default", "linear", "llama3", "yarn")  # whose frequencies do not depend on the input
INSIDE = {
    "CrossEntropyLoss": "made there at each call: no module to swap",
    "load_balancing_loss_func": "a function, called where output_router_logits=True",
}


# ------------------------------------------------------------------ layers
def rms_norm(self: Any, hidden_states: Tensor) -> Tensor:
    """As `functional.rms_norm`, in the wider format of both."""
    wider = torch.promote_types(hidden_states.dtype, self.weight.dtype)
    made: Tensor = functional.rms_norm(
        hidden_states.to(wider), hidden_states.shape[-1:], self.weight.to(wider), self.variance_epsilon
    )
    return made


def transposed_linear(self: Any, x: Tensor) -> Tensor:
    """As `functional.linear`, of a weight that is stored as inputs x outputs."""
    made: Tensor = functional.linear(x, self.weight.t(), self.bias, accumulator=accumulator_of(self))
    return made


def gelu(self: Any, input: Tensor) -> Tensor:
    """As `functional.gelu`."""
    made: Tensor = functional.gelu(input)
    return made


def gelu_tanh(self: Any, input: Tensor) -> Tensor:
    """As `functional.gelu` with ``approximate="tanh"``."""
    made: Tensor = functional.gelu(input, "tanh")
    return made


# ------------------------------------------------------------------ positions
def rotary_angles(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions times frequencies, those of `functional.rotary`, twice side by side."""
    with torch.autocast(x.device.type, enabled=False):
        frequency = self.inv_freq.to(x.device, torch.float32)
        one = torch.ones(*position_ids.shape, len(frequency), dtype=torch.float32, device=x.device)
        pair = functional.rotary(one, torch.zeros_like(one), position_ids, frequency)
        cos, sin = (torch.cat((t, t), dim=-1) * self.attention_scaling for t in pair)
    return cos.to(x.dtype), sin.to(x.dtype)


def refuse_rope(module: Module) -> str | None:
    """Frequencies that depend on the input."""
    kind = getattr(module, "rope_type", None)
    return None if kind in ROPES else f"rope_type={kind!r} changes frequencies; taken: {', '.join(ROPES)}"


# ------------------------------------------------------------------ experts
def route(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, the weights of the chosen experts and these, as `functional.router`: among equal ones the first."""
    tokens = hidden_states.reshape(-1, self.hidden_dim)
    logits = functional.linear(tokens, self.weight, accumulator=accumulator_of(self))
    divided = getattr(self, "norm_topk_prob", True)  # Mixtral has no such attribute and always divides
    weights, chosen = functional.router(logits, k=self.top_k, renormalise=divided)
    return logits, weights.to(logits.dtype) if hasattr(self, "norm_topk_prob") else weights, chosen.long()


def run_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """As `experts.chosen_experts`."""
    given = (hidden_states, top_k_index, top_k_weights, self.gate_up_proj, self.down_proj)
    return chosen_experts(*given, accumulator=accumulator_of(self))


def refuse_experts(module: Any) -> str | None:
    """Experts that are no gated layers with SiLU, or not all here."""
    if not (isinstance(module.act_fn, torch.nn.SiLU) or type(module.act_fn).__name__.endswith("SiLUActivation")):
        return f"act_fn is {type(module.act_fn).__name__}; taken: SiLU"
    return "experts lie on several ranks" if module._is_expert_parallel else None


# ------------------------------------------------------------------ losses
def causal_loss(
    logits: Tensor, labels: Tensor, vocab_size: int, num_items_in_batch: Any = None, ignore_index: int = -100,
    shift_labels: Tensor | None = None, **_: Any,
) -> Tensor:  # fmt: skip
    """The loss of the next token, as `functional.cross_entropy`; arguments as transformers has them."""
    if shift_labels is None:
        shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.reshape(-1).to(logits.device)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss: Tensor = functional.cross_entropy(
        logits.reshape(-1, vocab_size), target, ignore_index=ignore_index, reduction=reduction
    )
    if num_items_in_batch is None:
        return loss
    return loss / (num_items_in_batch.to(loss.device) if isinstance(num_items_in_batch, Tensor) else num_items_in_batch)


def by_loss(module: Module) -> Mapping[str, Any]:
    """The attribute with which a model calls `causal_loss`."""
    return dict(_loss_function=causal_loss)


def refuse_loss(module: Any) -> str | None:
    """A loss that is another."""
    if "_loss_function" in module.__dict__:
        return "loss_function was set"
    kind = getattr(module, "loss_type", None)
    return None if kind in (None, "ForCausalLM") else f"loss_type={kind!r}; taken: 'ForCausalLM'"


def inside(module: Module) -> Iterator[tuple[str, str]]:
    """What the `forward` of a model of transformers computes itself, which no rule can swap, and why."""
    kind = type(module)
    if not kind.__module__.startswith(f"{MODELS}."):
        return
    forward: Any = inspect.unwrap(kind.forward)
    for name in getattr(getattr(forward, "__code__", None), "co_names", ()):
        if name in INSIDE:
            yield name, INSIDE[name]


# ------------------------------------------------------------------ the table
RULES = (
    *(Rule("norm", f"{MODELS}.{name}RMSNorm", rms_norm) for name in LLAMAS),
    *(Rule("rotary", f"{MODELS}.{name}RotaryEmbedding", rotary_angles, refuse=refuse_rope) for name in LLAMAS),
    *(Rule("attention", f"{MODELS}.{name}Attention", attention.rotated_attention, refuse=attention.refuse,
           products=True)
      for name in LLAMAS),
    *(Rule("attention", f"{MODELS}.{name}Attention", attributes=attention.by_config, begin=attention.register,
           refuse=attention.refuse, products=True)
      for name in ("gpt2.modeling_gpt2.GPT2", "bert.modeling_bert.BertSelf", "bert.modeling_bert.BertCross")),
    *(Rule("router", f"{MODELS}.{name}TopKRouter", route, products=True) for name in MIXTURES),
    *(Rule("experts", f"{MODELS}.{name}Experts", run_experts, refuse=refuse_experts, products=True)
      for name in MIXTURES),
    *(Rule("loss", f"{MODELS}.{name}", attributes=by_loss, refuse=refuse_loss) for name in CAUSAL),
    Rule("linear", "transformers.pytorch_utils.Conv1D", transposed_linear, products=True),
    Rule("activation", "transformers.activations.SiLUActivation", silu),
    *(Rule("activation", f"transformers.activations.{name}", gelu) for name in ("GELUActivation",)),
    *(Rule("activation", f"transformers.activations.{name}", gelu_tanh)
      for name in ("NewGELUActivation", "GELUTanh", "FastGELUActivation", "AccurateGELUActivation")),
)  # fmt: skip
