"""Attention of Hugging Face models by `functional.attention`, with their masks as counts of keys."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...errors import ArgumentError
from .. import functional
from ..masks import limits_of_mask, seen_by_scores
from .rule import accumulator_of

NAME = "tokitai"
TAKEN = ("sdpa", "eager")  # implementations whose masks say for each query which keys it sees
OTHERS = dict(softcap="softcap", sinks="s_aux", bias="position_bias")  # our words, and those of transformers
OF_CONFIG = ("MistralConfig", "MixtralConfig")  # where a window is an attribute of the configuration alone


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """What transformers calls an attention function: (batch, heads, queries, dim) -> (batch, queries, heads, dim).

    Without a window, a soft cap, sinks and a bias of positions a mask is taken where each query sees the first keys
    alone; with one of them any mask of what is seen is. Raises ArgumentError for any other mask, and for dropout and a
    request for the weights.
    """
    for name, asked in dict(dropout=dropout, output_attentions=more.get("output_attentions")).items():
        if asked:
            raise ArgumentError(f"attention: {name}={asked!r}; accepted: leave it out, or tokitai.torch.restore(model)")
    seen = attention_mask
    if attention_mask is not None and attention_mask.is_floating_point():
        seen = seen_by_scores(attention_mask)
    of_module = getattr(module, "is_causal", True) if is_causal is None else is_causal
    words: dict[str, Any] = dict(
        scale=scaling, causal=seen is None and query.shape[2] > 1 and bool(of_module), check=seen is None,
        accumulator=accumulator_of(module),
    )  # fmt: skip
    others: dict[str, Any] = {ours: more.get(theirs) for ours, theirs in OTHERS.items()}
    window = window_of(module)
    if window is None and all(x is None for x in others.values()):
        y = functional.attention(query, key, value, None if seen is None else limits_of_mask(seen, query, key), **words)
    else:  # a mask of transformers has the window in it
        y = functional.attention(
            query, key, value, **words, **others, mask=seen, window=window if seen is None else None
        )
    return y.transpose(1, 2).contiguous(), None


def window_of(module: Any) -> int | None:
    """How many keys a query of the module sees, where transformers limits them."""
    if hasattr(module, "sliding_window"):
        found = module.sliding_window
    else:
        found = getattr(module.config, "sliding_window", None) if type(module.config).__name__ in OF_CONFIG else None
    return found if found is None else int(found)


def rotated_attention(
    self: Any, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], attention_mask: Tensor | None = None,
    cache: Any = None, past_key_values: Any = None, **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The attention of Llama and those like it: projections, norms of heads where there are some, rotary positions."""
    cache = past_key_values if cache is None else cache
    shape = hidden_states.shape[:-1]
    query, key, value = (
        project(hidden_states).view(*shape, -1, self.head_dim) for project in (self.q_proj, self.k_proj, self.v_proj)
    )
    if hasattr(self, "q_norm"):
        query, key = self.q_norm(query), self.k_norm(key)
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    cos, sin = position_embeddings
    query, key = rotated(query, cos, sin), rotated(key, cos, sin)
    if cache is not None:
        key, value = cache.update(key, value, self.layer_idx, kwargs=more)
    dropout = self.attention_dropout if self.training else 0.0
    y, _ = attend(self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **more)
    return self.o_proj(y.reshape(*shape, -1)), None


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads of (batch, heads, tokens, dim) turned by angles of (batch, tokens, dim), whose halves are the same."""
    half = x.shape[-1] // 2
    made: Tensor = functional.rotary_heads(x, cos=cos[..., :half].unsqueeze(1), sin=sin[..., :half].unsqueeze(1))
    return made


def refuse(module: Any) -> str | None:
    """What a module asks for that `attend` does not have."""
    config = module.config
    if config._attn_implementation not in TAKEN:
        return f"attn_implementation={config._attn_implementation!r}; taken: {', '.join(TAKEN)}"
    if config.sub_configs:
        return f"{type(config).__name__} has configurations inside it"
    dropouts = dict(attention_dropout=getattr(module, "attention_dropout", 0))
    for name in ("dropout", "attn_dropout"):
        dropouts[name] = getattr(getattr(module, name, None), "p", 0)
    for name, p in dropouts.items():
        if p:
            return f"{name}={p}: dropout of the weights of attention is not offered"
    if getattr(module, "reorder_and_upcast_attn", False):
        return "reorder_and_upcast_attn=True computes inside forward"
    return None


def by_config(module: Any) -> Mapping[str, Any]:
    """The attribute with which a module calls `attend`: a configuration of its own, as transformers finds an attention
    function by the name in it."""
    config = copy.copy(module.config)
    config._attn_implementation = NAME
    return dict(config=config)


def register() -> None:
    """Tell transformers of `attend`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
