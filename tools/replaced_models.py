"""The list of what `tokitai.torch.replace` swaps in Hugging Face models: small ones, made of configurations alone.

`python -m tools.replaced_models` writes docs/reference/replaced-modules.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from tokitai.torch import replace

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "replaced-modules.md"
VOCABULARY = 96
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCABULARY,
             max_position_embeddings=64, **NO_TOKENS)  # fmt: skip
GROUPED = dict(**SIZES, num_key_value_heads=2)
HEADS = dict(**GROUPED, head_dim=8)
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=VOCABULARY, **NO_TOKENS)
NO_DROPOUT = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
BERT_NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def made(model: str, config: str, **options: Any) -> Callable[[], torch.nn.Module]:
    """A function that makes a model."""
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**options))


MODELS = {
    "Llama": made("LlamaForCausalLM", "LlamaConfig", **GROUPED),
    "Mistral, sliding window": made("MistralForCausalLM", "MistralConfig", **GROUPED, sliding_window=4),
    "Qwen3": made("Qwen3ForCausalLM", "Qwen3Config", **HEADS),
    "Qwen3-MoE": made(
        "Qwen3MoeForCausalLM", "Qwen3MoeConfig", **HEADS, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, norm_topk_prob=True,
    ),
    "Mixtral": made("MixtralForCausalLM", "MixtralConfig", **GROUPED, num_local_experts=4),
    "GPT-2": made("GPT2LMHeadModel", "GPT2Config", **GPT2, **NO_DROPOUT),
    "BERT": made("BertForMaskedLM", "BertConfig", **SIZES, **BERT_NO_DROPOUT),
}  # fmt: skip
DEFAULTS = {
    "GPT-2 with dropout, as it comes": made("GPT2LMHeadModel", "GPT2Config", **GPT2),
    "BERT with dropout, as it comes": made("BertModel", "BertConfig", **SIZES),
}


def page() -> str:
    """The page of the documentation."""
    lines = [
        "# What is swapped in Hugging Face models",
        "",
        f"`tokitai.torch.replace(model)` of transformers {transformers.__version__}, on models of two layers. Names",
        "have `*` in place of numbers. `python -m tools.replaced_models` writes this page.",
    ]
    for name, model in {**MODELS, **DEFAULTS}.items():
        lines += ["", f"## {name}", "", "```text", *replace(model()).lines(), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    PAGE.write_text(page())
    print(f"{PAGE.name}: {len(MODELS) + len(DEFAULTS)} models")


if __name__ == "__main__":
    main()
