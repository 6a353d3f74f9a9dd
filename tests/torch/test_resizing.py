"""A vocabulary that grows or shrinks, as Hugging Face's transformers does it to a model's embedding and head."""

from __future__ import annotations

import pytest
import torch

from tests.torch.test_module_properties import SIZE, equal
from tokitai.torch import nn


def resized(model: torch.nn.Module, count: int) -> torch.nn.Module:
    """What `PreTrainedModel.resize_token_embeddings` does: it looks for torch's classes, makes torch's own, copies, and
    puts the new weight into the old embedding, a new product in place of the old one."""
    old, head = model.get_submodule("embedding"), model.get_submodule("head")
    for found, wanted in ((old, torch.nn.Embedding), (head, torch.nn.Linear)):
        if not isinstance(found, wanted):
            raise TypeError(f"Old embeddings are of type {type(found)}, which is not an instance of {wanted}.")
    assert isinstance(old, torch.nn.Embedding) and isinstance(head, torch.nn.Linear)
    entries, features = old.weight.size()
    new = torch.nn.Embedding(count, features, device=old.weight.device, dtype=old.weight.dtype)
    kept = min(entries, count)
    new.weight.data[:kept, :] = old.weight.data[:kept, :]
    old.weight.data = new.weight.data
    old.num_embeddings = new.weight.data.shape[0]
    if old.padding_idx is not None and count - 1 < old.padding_idx:
        old.padding_idx = None
    product = torch.nn.Linear(features, count, bias=head.bias is not None, dtype=head.weight.dtype)
    product.weight.data[:kept, :] = head.weight.data[:kept, :]
    model.set_submodule("head", product)
    return model


@pytest.mark.parametrize("count", [4, 9])
def test_resizing_as_hugging_face_does(count: int) -> None:
    model = torch.nn.ModuleDict({"embedding": nn.Embedding(6, SIZE, 5), "head": nn.Linear(SIZE, 6, bias=False)})
    before = model["embedding"].weight.detach().clone()
    resized(model, count)
    table = model["embedding"]
    assert isinstance(table, nn.Embedding) and repr(table).startswith(f"Embedding({count}, {SIZE}")
    y = table(torch.arange(count))
    assert equal(y[:4], before[:4]) and y.shape == (count, SIZE)
    model["head"](y).sum().backward()
    assert table.weight.grad is not None and table.weight.grad.shape == (count, SIZE)
    assert table.padding_idx == (5 if count == 9 else None)
    assert bool(table.weight.grad[-1].any()) and (count == 4 or not table.weight.grad[5].any())
