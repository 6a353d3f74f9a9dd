"""The cosine similarity of two sentences: python -m examples.sentence_encoder "sentence one" "sentence two" """

from __future__ import annotations

import argparse
import sys

from tokitai.errors import TokitaiError

from . import model as parameters
from .encoder import embed
from .files import locate
from .tokenizer import Tokenizer


def similarity(first: str, second: str) -> float:
    """From -1 to 1; near 1 where the sentences mean the same. Raises InputFileError and ArgumentError."""
    files = locate()
    model, tokenizer = parameters.load(files), Tokenizer.load(files.vocabulary)
    one, other = embed(model, [tokenizer.encode(first), tokenizer.encode(second)])
    return float(one @ other)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.sentence_encoder", description="Cosine similarity.")
    parser.add_argument("first")
    parser.add_argument("second")
    arguments = parser.parse_args()
    try:
        print(f"{similarity(arguments.first, arguments.second):.6f}")
    except TokitaiError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
