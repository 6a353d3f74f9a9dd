"""Hugging Face models whose modules were replaced: beside the originals, and under what torch does to models.

The bound. The original and its replacement evaluate the same formulas in f32; they differ in the order of sums and in
where results are rounded. Held against the original in f64, an error is the sum of the errors of all operators, each
carried on by the same derivatives. So a factor between the errors of each operator bounds the factor between the whole
ones, in the root of the mean of squares. One operator sums at most n terms. Of terms of random signs a sum of k has
magnitude sqrt(k), so n roundings of partial sums add up to u sqrt(1 + 2 + ... + n) = u n / sqrt(2) in any order that is
worst, and to at least u sqrt(n) in any at all, that of rounding the result once. The quotient is sqrt(n / 2).
`factor` is that of the longest sum of the model, over tokens, features or the vocabulary.
"""

from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from tokitai.errors import ArgumentError
from tokitai.torch import functional, replace, restore
from tokitai.torch.replacement.attention import attend
from tools.replaced_models import MODELS, PAGE, VOCABULARY, page

pytestmark = pytest.mark.slow
each = pytest.mark.parametrize("name", list(MODELS))
TOKENS = (2, 12)


def batch() -> dict[str, Tensor]:
    """Two sequences, the second of which ends in padding."""
    ids = torch.randint(0, VOCABULARY, TOKENS, generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    return dict(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))


def made(name: str) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]()
    for p in model.parameters():  # biases and weights of norms are 0 and 1 at first, which would hide what is left out
        p.data += torch.randn(p.shape) * 0.02
    return model


def replaced(name: str) -> Any:
    model = made(name)
    replace(model)
    return model


def run(model: Any, call: Any = None, **more: Any) -> dict[str, Tensor]:
    """Loss, logits of tokens that are no padding, and the gradient of each parameter."""
    given = batch()
    model.zero_grad()
    y = (model if call is None else call)(**given, **more)
    y.loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    return dict(loss=y.loss.detach(), logits=y.logits.detach()[given["attention_mask"].bool()], **gradients)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def factor(model: Any) -> float:
    longest = max(math.prod(TOKENS), *(n for p in model.parameters() for n in p.shape))
    return math.sqrt(longest / 2)


def in_f64(model: Any) -> Any:
    double = copy.deepcopy(model).double()
    if hasattr(double.config, "num_experts_per_tok"):
        double.config._experts_implementation = "eager"  # torch's grouped products take no f64
    return double


def exact(model: Any, **more: Any) -> dict[str, Tensor]:
    return run(in_f64(model), **more)


def too_far(model: Any, ours: dict[str, Tensor], exactly: dict[str, Tensor], **more: Any) -> list[str]:
    """What is further from the run in f64 than the bound."""
    torchs, most = run(model, **more), factor(model)
    return [
        f"{n}: {distance(ours[n], want)} beside {distance(torchs[n], want)}"
        for n, want in exactly.items()
        if n != "loss" and not distance(ours[n], want) <= most * distance(torchs[n], want)
    ]


def distance(x: Tensor, want: Tensor) -> float:
    return float((x.detach().double() - want.detach()).norm())


@each
def test_results_and_gradients_lie_beside_the_originals(name: str) -> None:
    model, ours = made(name), run(replaced(name))
    exactly = exact(model)
    assert too_far(model, ours, exactly) == []
    # The loss is one number, whose error is no mean of many: its bound is that of the logits, which it changes by less.
    assert distance(ours["loss"], exactly["loss"]) <= factor(model) * distance(run(model)["logits"], exactly["logits"])


@pytest.mark.parametrize("name", ["Qwen3-MoE", "Mixtral"])
def test_losses_of_routers_are_added_in_place(name: str) -> None:
    """Transformers writes them into the loss."""
    more = dict(output_router_logits=True)
    model, ours = made(name), run(replaced(name), **more)
    assert ours["loss"] > run(replaced(name))["loss"]
    assert too_far(model, ours, exact(model, **more), **more) == []


def routers(model: Any) -> list[Any]:
    return [m for n, m in model.named_modules() if n.endswith("mlp.gate")]


def watched(model: Any) -> tuple[dict[str, Tensor], list[tuple[Tensor, Tensor]]]:
    """What `run` gives; of each router the logits, and which experts are chosen, (tokens, experts) of bool."""
    seen: list[tuple[Tensor, Tensor]] = []

    def see(_: Any, __: Any, made: tuple[Tensor, Tensor, Tensor]) -> None:
        seen.append((made[0].detach().double(), torch.zeros_like(made[0]).bool().scatter(1, made[2].long(), True)))

    handles = [router.register_forward_hook(see) for router in routers(model)]
    ran = run(model)
    for handle in handles:
        handle.remove()
    return ran, seen


def held(model: Any, chosen: list[Tensor]) -> Any:
    """A copy whose routers choose these experts, (tokens, experts) of bool: each is called a second time, with its own
    logits, less 10,000 for the others, and one weight for each of them."""
    model = copy.deepcopy(model)
    for router, kept in zip(routers(model), chosen, strict=True):
        again = copy.deepcopy(router)
        again.hidden_dim = kept.shape[1]
        again.weight = torch.nn.Parameter(torch.eye(kept.shape[1], dtype=router.weight.dtype), requires_grad=False)

        def choose(_: Any, __: Any, made: Any, again: Any = again, kept: Tensor = kept) -> tuple[Tensor, ...]:
            return made[0], *again(torch.where(kept, made[0], made[0] - 1e4))[1:]

        router.register_forward_hook(choose)
    return model


@each
def test_results_in_bf16_lie_beside_the_originals(name: str) -> None:
    """With each token at the experts that it is sent to in f64: rounding may send it elsewhere."""
    model = made(name).bfloat16()
    exactly, want = watched(in_f64(model))
    other = copy.deepcopy(model)
    replace(other)
    chosen = [c for _, c in want]
    assert too_far(held(model, chosen), run(held(other, chosen)), exactly) == []


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3-MoE"])
def test_bf16_sends_a_token_elsewhere_for_equal_logits_alone(name: str) -> None:
    """Logits have no larger error than torch's times the bound; of Mixtral a token goes where torch sends it not."""
    model, elsewhere = made(name).bfloat16(), []
    (_, want), (_, torchs) = watched(in_f64(model)), watched(model)
    replace(model)
    every = zip(want, torchs, watched(model)[1], strict=True)
    for layer, ((exactly, right), (theirs, _), (ours, found)) in enumerate(every):
        assert distance(ours, exactly) <= factor(model) * distance(theirs, exactly)
        for token in (right != found).any(1).nonzero().flatten().tolist():
            logits = exactly[token]
            elsewhere.append((layer, token, float(logits[right[token]].min()), float(logits[found[token]].min())))
    if name == "Mixtral":  # by logits between which bf16 has no number
        ((layer, token, right_one, taken),) = elsewhere
        assert (layer, token) == (1, 0) and 0.0822 < taken < right_one < 0.0824
        assert math.floor(taken * 2**11) == math.floor(right_one * 2**11) == 168
    else:
        assert elsewhere == []


@pytest.mark.parametrize("name", ["Llama", "BERT"])
def test_a_change_of_one_constant_is_found(name: str) -> None:
    model = made(name)
    wrong, exactly = replaced(name), exact(model)
    norm = next(m for m in wrong.modules() if "Norm" in type(m).__name__)
    attribute = "variance_epsilon" if hasattr(norm, "variance_epsilon") else "eps"
    setattr(norm, attribute, getattr(norm, attribute) + 1e-6)
    assert too_far(model, run(wrong), exactly)


@each
def test_weights_names_and_bits_survive_both_ways(name: str) -> None:
    model, untouched = made(name), run(made(name))
    kinds, modules = [type(m) for m in model.modules()], list(model.modules())
    names, parameters = list(model.state_dict()), list(model.parameters())
    attributes = [dict(m.__dict__) for m in modules]
    report = replace(model)
    assert restore(made(name)) == 0
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True)), "parameters stay, tied ones tied"
    made(name).load_state_dict(model.state_dict())
    model.load_state_dict(made(name).state_dict())
    assert replace(model) == report, "what is swapped already is swapped"
    restore(model)
    assert [type(m) for m in model.modules()] == kinds
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert [dict(m.__dict__) for m in modules] == attributes
    assert same(run(model), untouched)


@pytest.mark.parametrize("name", ["Qwen3-MoE", "GPT-2"])
def test_copies_pickles_and_checkpoints_have_the_same_bits(name: str) -> None:
    model = replaced(name)
    want = run(model)
    assert same(run(copy.deepcopy(model)), want)
    assert same(run(pickle.loads(pickle.dumps(model))), want)
    model.activation_checkpointing_enable()
    assert same(run(model.train(), use_cache=False), want)


@pytest.mark.parametrize("name", ["Mixtral", "BERT"])
def test_one_graph_has_the_same_bits(name: str) -> None:
    model = replaced(name)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert same(run(model, compiled, **({} if name == "BERT" else dict(use_cache=False))), run(model))


def test_a_pickle_is_read_by_a_process_that_has_imported_nothing(tmp_path: Path) -> None:
    model = replaced("GPT-2")
    torch.save(dict(model=model, given=batch(), want=model(**batch()).logits), tmp_path / "model.pt")
    code = (
        "import sys, torch; f = torch.load(sys.argv[1], weights_only=False); "
        "assert torch.equal(f['model'](**f['given']).logits, f['want'])"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.pt")], check=True)


@pytest.mark.parametrize("name", ["Llama", "GPT-2"])
def test_export(name: str) -> None:
    model, given = replaced(name).eval(), {n: t for n, t in batch().items() if n != "labels"}
    given |= dict(use_cache=False)
    program = torch.export.export(model, (), given, strict=False)
    assert torch.equal(program.module()(**given).logits, model(**given).logits)


def test_autocast_and_a_scaled_loss() -> None:
    dtype = torch.float16
    model, scaler = replaced("Llama"), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    with torch.autocast("cpu", dtype):
        y = model(**batch())
    assert y.logits.dtype == dtype
    scaler.scale(y.loss).backward()
    scaler.step(optimizer)
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    # The model in f32 is within what rounding its operands to the format changes: u times the sum of n terms, a layer.
    plain = made("Llama")(**batch()).logits
    with torch.autocast("cpu", dtype):
        torchs = made("Llama")(**batch()).logits
    assert distance(y.logits.detach(), plain.double()) <= factor(model) * distance(torchs, plain.double())


def test_an_optimizer_made_before_goes_on() -> None:
    model = made("Llama")
    optimizer = torch.optim.AdamW(model.parameters())
    replace(model)
    losses = []
    for _ in range(3):
        losses.append(float(run(model)["loss"]))
        optimizer.step()
    assert losses == sorted(losses, reverse=True)


def test_a_decoder_generates_what_the_original_does() -> None:
    ids = batch()["input_ids"][:1]
    words = dict(max_new_tokens=5, do_sample=False)
    assert torch.equal(replaced("Qwen3").generate(ids, **words), made("Qwen3").generate(ids, **words))


# ------------------------------------------------------------------ masks and refusals
@pytest.mark.parametrize("name", ["Llama", "BERT"])
def test_masks_that_are_added_to_scores_are_taken(name: str) -> None:
    model = made(name)
    model.set_attn_implementation("eager")
    want = run(replaced(name))
    replace(model)
    assert same(run(model), want)


def test_masks_that_hide_first_keys_are_refused() -> None:
    given = batch()
    with pytest.raises(ArgumentError, match="does not show the first keys alone"):
        replaced("Llama")(given["input_ids"], attention_mask=given["attention_mask"].flip(1))


def test_a_window_takes_masks_that_hide_first_keys() -> None:
    """Padding on the left changes nothing for the tokens behind it but the order of sums over keys."""
    given = batch()
    ids, mask = (given[n].flip(1) for n in ("input_ids", "attention_mask"))
    model = made("Mistral, sliding window")
    exactly = copy.deepcopy(model).double()(ids, attention_mask=mask).logits[mask.bool()]
    torchs = model(ids, attention_mask=mask).logits[mask.bool()]
    replace(model)
    ours = model(ids, attention_mask=mask).logits[mask.bool()]
    assert distance(ours, exactly) <= factor(model) * distance(torchs, exactly)


def test_soft_caps_sinks_and_biases_of_transformers_are_those_of_the_function() -> None:
    q, k, v = (torch.randn(2, h, 5, 8, generator=torch.Generator().manual_seed(h)) for h in (4, 2, 2))
    bias, sinks = torch.randn(1, 4, 5, 5), torch.randn(4)
    module = made("Llama").model.layers[0].self_attn
    found, _ = attend(module, q, k, v, None, scaling=0.3, softcap=2.0, s_aux=sinks, position_bias=bias)
    want = functional.attention(q, k, v, scale=0.3, causal=True, softcap=2.0, sinks=sinks, bias=bias)
    assert torch.equal(found, want.transpose(1, 2))


def test_masks_with_other_numbers_are_refused() -> None:
    model = made("Llama")
    model.set_attn_implementation("eager")
    replace(model)
    bias = torch.zeros(2, 1, 12, 12)
    bias[0, 0, 3, 2] = 0.5
    with pytest.raises(ArgumentError, match=r"mask\[0, 0, 3, 2\] is 0\.5, added to a score; accepted"):
        model(batch()["input_ids"], attention_mask=bias)


def test_weights_of_attention_are_refused() -> None:
    with pytest.raises(ArgumentError, match="output_attentions=True; accepted: leave it out"):
        replaced("Llama")(batch()["input_ids"], output_attentions=True)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("Llama", dict(attention_dropout=0.5), "attention_dropout=0.5"),
        ("Llama", dict(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0)), "rope_type='dynamic'"),
        ("Mixtral", dict(hidden_act="relu"), "act_fn is ReLU"),
    ],
)
def test_what_is_left_says_why(name: str, change: dict[str, Any], reason: str) -> None:
    config = copy.deepcopy(made(name).config)
    for key, value in change.items():
        setattr(config, key, value)
    model = type(made(name))(config)
    before = run(model)
    report = replace(model)
    assert reason in str(report)
    assert any(reason in (e.reason or "") for e in report.left)
    after = run(model)  # and what is left works on beside what is swapped
    assert math.isfinite(float(after["loss"])) and after.keys() == before.keys()


def test_hooks_and_parametrizations_stay() -> None:
    model, seen = made("Llama"), []
    layer = model.model.layers[0].mlp.up_proj
    layer.register_forward_hook(lambda m, args, y: seen.append(y.shape))

    class Twice(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    parametrize.register_parametrization(layer, "weight", Twice())
    later = model.model.layers[1].mlp.up_proj
    before, kind = run(model), type(layer)
    names = list(model.state_dict())
    replace(model)
    parametrize.register_parametrization(later, "weight", Twice())
    x = torch.randn(3, 32)
    assert "Tokitai" in type(layer).__mro__[1].__name__
    assert torch.equal(layer(x), functional.linear(x, layer.parametrizations.weight.original * 2))
    seen.clear()
    run(model)
    assert len(seen) == 1
    copied = copy.deepcopy(model)
    restore(model)
    assert type(layer) is kind and type(later).__mro__[1] is torch.nn.Linear
    parametrize.remove_parametrizations(later, "weight", leave_parametrized=False)
    assert list(model.state_dict()) == names and same(run(model), before)
    assert "Tokitai" in type(copied.model.layers[0].mlp.up_proj).__mro__[1].__name__


def test_the_page_of_the_documentation_is_what_is_swapped() -> None:
    assert PAGE.read_text() == page(), "run python -m tools.replaced_models"
