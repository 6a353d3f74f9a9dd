"""The cosine similarity of two sentences, computed on tokitai's operators:

python -m examples.sentence_encoder "sentence one" "sentence two" [--dtype f32|f16|bf16] [--device cpu|cuda|cuda:N|sim]
"""

from __future__ import annotations

import argparse
import sys

from tokitai.errors import ArgumentError, TokitaiError
from tokitai.formats import STORAGE

from . import model as parameters
from .encoder import embed
from .files import locate
from .operators import Encoder, placing, read_back
from .tokenizer import Tokenizer


def similarity(first: str, second: str, dtype: str | None = "f32", device: str = "cpu") -> float:
    """From -1 to 1; near 1 where the sentences mean the same. Without a ``dtype`` in float64, by NumPy.

    On another device than ``cpu`` the model's weights are copied there once, and all lies there until the one number is
    read back; it has the same bits. Raises ArgumentError for a text without words or with too many, UnknownNameError
    for a device, InputFileError where the model is missing, and UnavailableError where there is no compiler or GPU.
    """
    place = placing(device)
    files = locate()
    tokenizer = Tokenizer.load(files.vocabulary)
    for text in (first, second):
        if not tokenizer.tokens(text):
            raise ArgumentError(f"{text!r} holds no words; accepted: a sentence")
    sentences = [tokenizer.encode(text) for text in (first, second)]
    model = parameters.load(files)
    if dtype is None:
        one, other = embed(model, sentences)
        return float(one @ other)
    encoder = Encoder(model, dtype, place)
    vectors = encoder.embed(sentences)
    return float(read_back(encoder.similarities(vectors[:1], vectors[1:]))[0, 0])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.sentence_encoder", description="Cosine similarity.")
    parser.add_argument("first")
    parser.add_argument("second")
    how = parser.add_mutually_exclusive_group()
    formats = [f.name for f in STORAGE]
    how.add_argument("--dtype", choices=formats, default="f32", help="what the operators store; default: f32")
    how.add_argument("--textbook", action="store_true", help="in float64, by NumPy and without operators")
    parser.add_argument("--device", default="cpu", help="cpu (the default), cuda, cuda:N, or sim: GPU text on the CPU")
    arguments = parser.parse_args()
    try:
        dtype = None if arguments.textbook else arguments.dtype
        if arguments.textbook and arguments.device != "cpu":
            raise ArgumentError(f"--device {arguments.device} beside --textbook, which runs in NumPy; accepted: cpu")
        print(f"{similarity(arguments.first, arguments.second, dtype, arguments.device):.6f}")
    except TokitaiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
