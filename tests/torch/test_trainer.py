"""A model whose modules were replaced, trained by `transformers.Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from tokitai.torch import replace
from tokitai.torch.optim import AdamW
from tools.replaced_models import MODELS, VOCABULARY

STEPS = 3


def model() -> Any:
    torch.manual_seed(0)
    made = MODELS["Llama"]()
    assert replace(made).lines()
    return made


@pytest.mark.slow
def test_it_has_the_bits_of_a_loop_by_hand(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    rows = [dict(input_ids=torch.randint(0, VOCABULARY, (12,), generator=draw)) for _ in range(2 * STEPS)]
    rows = [r | dict(labels=r["input_ids"]) for r in rows]
    trained, calls = model(), []
    trained.register_forward_pre_hook(lambda _, args, given: calls.append(given), with_kwargs=True)
    optimizer = AdamW(trained.parameters(), lr=1e-2)
    options: dict[str, Any] = dict(
        output_dir=str(tmp_path), use_cpu=True, max_steps=STEPS, per_device_train_batch_size=2, max_grad_norm=0.0,
        lr_scheduler_type="constant", learning_rate=1e-2, save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    constant = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    trainer = Trainer(trained, TrainingArguments(**options), train_dataset=rows, optimizers=(optimizer, constant))
    trainer.train()
    assert "TokitaiLinear" in str(trainer.model)
    assert trainer.state.global_step == STEPS == len(calls)

    alone = model()
    before = {n: p.detach().clone() for n, p in alone.named_parameters()}
    optimizer = AdamW(alone.parameters(), lr=1e-2)
    for given in calls:
        optimizer.zero_grad()
        alone(**given).loss.backward()
        optimizer.step()
    for name, p in trained.named_parameters():
        assert torch.equal(p, dict(alone.named_parameters())[name]), name
        assert not torch.equal(p, before[name]), name
