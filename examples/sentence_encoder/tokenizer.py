"""BERT's uncased WordPiece tokenizer: text -> token ids.

    clean      control characters vanish, every white space becomes a blank
    normalise  decompose, drop the accents, lower case
    split      at white space; every punctuation mark and every CJK ideograph stands alone
    wordpiece  each word greedily into the longest pieces that the vocabulary holds; pieces inside a word begin "##"

No text is refused: a word that the vocabulary cannot spell becomes [UNK].
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path

from tokitai.errors import InputFileError

LONGEST_WORD = 100  # characters; a longer word is unknown

_CJK_BLOCKS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class Tokenizer:
    """Tokens are numbered by their line in the vocabulary.

    A text that happens to spell "[SEP]" is text: three tokens, not the separator.
    """

    def __init__(self, vocabulary: list[str]) -> None:
        self.vocabulary = vocabulary
        self.id_of = {token: number for number, token in enumerate(vocabulary)}
        if missing := {"[UNK]", "[CLS]", "[SEP]"} - self.id_of.keys():
            raise InputFileError(f"a vocabulary of {len(vocabulary)} tokens, but without {', '.join(sorted(missing))}")

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Reads a vocab.txt, one token a line. Raises InputFileError."""
        return cls(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))

    def encode(self, text: str) -> list[int]:
        """The ids of [CLS], the text's tokens and [SEP]; at least two."""
        return [self.id_of[token] for token in ("[CLS]", *self.tokens(text), "[SEP]")]

    def tokens(self, text: str) -> list[str]:
        return [piece for word in words(text) for piece in self.pieces(word)]

    def pieces(self, word: str) -> list[str]:
        """Greedy, longest match first. A word with any part that no piece covers is unknown as a whole."""
        if len(word) > LONGEST_WORD:
            return ["[UNK]"]
        found: list[str] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self.id_of), None)
            if end is None:
                return ["[UNK]"]
            found.append(mark + word[start:end])
            start = end
        return found


def words(text: str) -> Iterator[str]:
    """The words of a text, normalised, in order. A punctuation mark or an ideograph is a word."""
    for run in normalise(clean(text)).split():
        word = ""
        for char in run:
            if is_punctuation(char) or is_ideograph(char):
                if word:
                    yield word
                yield char
                word = ""
            else:
                word += char
        if word:
            yield word


def clean(text: str) -> str:
    kept = (char for char in text if char != "\ufffd" and not is_control(char))
    return "".join(" " if char.isspace() else char for char in kept)


def normalise(text: str) -> str:
    bare = (char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn")
    return "".join(char.lower() for char in bare)  # one by one: a final sigma is lowered like any other


def is_control(char: str) -> bool:
    """Control, format, private use and surrogates; not the unassigned, which change with every Unicode version."""
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf", "Co", "Cs")


def is_punctuation(char: str) -> bool:
    """Unicode's punctuation, and everything in ASCII that is neither letter, digit, blank nor control."""
    if char.isascii():
        return char.isprintable() and not char.isalnum() and char != " "
    return unicodedata.category(char).startswith("P")


def is_ideograph(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in _CJK_BLOCKS)
