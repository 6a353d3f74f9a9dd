"""The project's pages and messages use the field's words: phrases that readers of the CUDA guide, Higham, PyTorch and
LLVM would have to decode are kept out.

Each row is a phrase and what to write instead. Pages are read whole, code blocks included, and so is the code; of
packages that are named here the string literals that are no docstrings. Headers that kernels include are read whole,
and their identifiers word by word.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md"]
MESSAGES = ("torch/", "families/attention/", "families/matmul/")  # of this code messages are read, of the rest all

BANNED = {
    r"\bcards?\b": "GPU, device",
    r"\bsomebody else|\bother people\b": "third-party kernel, candidate",
    r"\breal results?\b": "the exact value",
    r"\brounding (?:in f32 )?explains\b": "the rounding-error bound",
    r"\berrs? by\b|\boff by\b|\bfurthest off\b": "has error, differs by",
    r"\bknown again\b|\bgoes on by itself\b": "cached, a cache hit; continues",
    r"\b(?:nothing is waited for|waits for nothing)\b": "asynchronous",
    r"\bwait for each other\b|\bsums that wait\b": "pending partials, split-K slices",
    r"\bmemory that is gone\b": "freed memory, a cached block",
    r"\bspread by\b|\bspread over\b": "expanded; distributed",
    r"\bshared? out\b": "partitioned",
    r"\bslabs?\b": "K-tile",
    r"\binner side\b": "the K dimension",
    r"\bproducts? (?:of|in) groups\b": "grouped GEMM, grouped products",
    r"\b(?:CUDA|HIP|C\+\+|source|kernel's|same|LLVM's) texts?\b": "source, translation unit, LLVM IR",
    r"\blast words\b|\brubbish\b": "the tail of stderr; a malformed message",
    r"\bolder hosts\b|\bolder than us\b": "legacy hosts",
    r"\b(?:is|are|was|were) told\b|\btold on\b": "reported",
    r"\b(?:was|were|is|are) seen to\b|\blooked at\b": "checked, inspected",
    r"\bhanded on\b": "saved for backward, passed",
    r"\blacks? registers\b": "spills",
    r"\btheirs\b|\bours\b": "the candidate's, the counterpart's; tokitai's",
}
# Words that no name in a header has, nor a comment.
IN_HEADERS = {
    r"turned": "transposed, swizzled",
    r"slabs?": "K-tile",
    r"tall": "thread-tile M, block M",
    r"inner": "the K dimension",
    r"towers?": "binary counter",
    r"(?<!at )(?:least|most)": "min, max",
    r"waiting": "pending",
    r"together": "chains per slice; interleaved",
    r"rooms?": "capacity, buffers, staging",
    r"ours|theirs": "the canonical one",
    r"feeds?|feeder": "loader, producer",
    r"seen|met": "attended, visible",
    r"brought|chosen": "gathered, selected",
    r"dear": "expensive",
    r"told|tells": "reported",
    r"besides": "ignore_value",
}
ALLOWED = {
    ("src/tokitai/emit/gpu/sim.h", "waiting"): "a fiber waits for another block",
    ("docs/reference/worker.md", "theirs"): "other requests keep their results: no project is meant",
    ("src/tokitai/ops/groups.py", "inner side"): "certificates name the case",
    ("src/tokitai/ops/products.py", "inner side"): "certificates name the case",
    ("src/tokitai/verification/sentences.py", "rounding explains"): "certificates hold the sentence",
    ("src/tokitai/families/attention/tiling.py", "inner side"): "emitted sources hold the sentence",
    ("src/tokitai/families/attention/step_tiling.py", "inner side"): "emitted sources hold the sentence",
    ("src/tokitai/backends/hip/backend.py", "llvm's text"): "certificates hold the sentence",
    ("src/tokitai/backends/hip/backend.py", "same text"): "certificates hold the sentence",
}


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a file that is no docstring and no name, and the line where it begins."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, ast.Constant) and id(node) not in docstrings else None
        if isinstance(node, ast.Constant) and isinstance(value, str) and " " in value:
            yield node.lineno, value


def passages() -> Iterator[tuple[str, int, str]]:
    """What is read: (file, first line, words)."""
    for path in [*(ROOT / page for page in PAGES), *sorted((ROOT / "docs").rglob("*.md"))]:
        yield path.relative_to(ROOT).as_posix(), 1, path.read_text()
    top = ROOT / "src" / "tokitai"
    for path in sorted(top.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not path.relative_to(top).as_posix().startswith(MESSAGES):
            yield name, 1, path.read_text()
            continue
        for number, value in literals(path):
            yield name, number, value


def headers() -> Iterator[tuple[str, int, str]]:
    """The headers of all targets, as `passages` gives them."""
    for path in sorted((ROOT / "src" / "tokitai" / "emit").rglob("*.h")):
        yield path.relative_to(ROOT).as_posix(), 1, path.read_text()


def words_of(source: str) -> str:
    """A source whose names are taken apart into words: packedTiles and PACKED_TILES are packed tiles."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", source)


def found_in_header(source: str) -> Iterator[tuple[int, str, str]]:
    """As `found`, with the words that no header has."""
    yield from found(source)
    for word, better in IN_HEADERS.items():
        for match in re.finditer(rf"\b(?:{word})\b", words_of(source), re.IGNORECASE):
            yield source.count("\n", 0, match.start()), match[0].lower(), better


def found(text: str) -> Iterator[tuple[int, str, str]]:
    """Every banned phrase: how many lines it is into the text, the phrase, what to write."""
    for phrase, better in BANNED.items():
        for match in re.finditer(phrase.replace(" ", r"\s+"), text, re.IGNORECASE):
            yield text.count("\n", 0, match.start()), " ".join(match[0].lower().split()), better


def test_pages_and_messages_use_the_words_of_the_field() -> None:
    hits = [
        f"{name}:{first + line}: {phrase!r}; write: {better}"
        for name, first, text in passages()
        for line, phrase, better in found(text)
        if (name, phrase) not in ALLOWED
    ]
    assert not hits, "\n".join(hits)


def test_headers_use_the_words_of_the_field() -> None:
    hits = [
        f"{name}:{first + line}: {phrase!r}; write: {better}"
        for name, first, source in headers()
        for line, phrase, better in found_in_header(source)
        if (name, phrase) not in ALLOWED
    ]
    assert not hits, "\n".join(hits)


def test_what_is_allowed_is_there() -> None:
    there = {(name, phrase) for name, _, text in passages() for _, phrase, _ in found(text)}
    there |= {(name, phrase) for name, _, source in headers() for _, phrase, _ in found_in_header(source)}
    assert set(ALLOWED) - there == set()


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("It runs on a card.", ["card"]),
        ("Discard a cardinal number; the source's text.", []),
        ("which rounding\nexplains", ["rounding explains"]),
        ("the CUDA text of Somebody else's", ["somebody else", "cuda text"]),
    ],
)
def test_a_phrase_is_found(text: str, phrases: list[str]) -> None:
    assert sorted(phrase for _, phrase, _ in found(text)) == sorted(phrases)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("int64_t slab_size;", ["slab"]),
        ("struct RoomOfTile {};", ["room"]),
        ("// at least one, at most two", []),
        ("a = least(b, MOST);", ["least", "most"]),
        ("Returned header; // of the cards", ["cards"]),
    ],
)
def test_a_word_of_a_name_is_found(source: str, words: list[str]) -> None:
    assert sorted(word for _, word, _ in found_in_header(source)) == sorted(words)


def test_literals_are_messages_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(
        '"""A card."""\n\ndef f(card):\n    """Its card."""\n    raise ValueError(f"no card {card[\'card\']}")\n'
    )
    assert list(literals(path)) == [(5, "no card ")]
