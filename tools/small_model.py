"""A copy of the sentence encoder's model with no more of the vocabulary than some texts use, for a machine that the
whole is too large to be brought to.

    python3 -m tools.small_model FOLDER [--half] ["a text" ...]

The texts are page.txt, which `examples.real_input` reads, and those that are given. Put FOLDER on PYTHONPATH there. For
these texts every tensor of the model is the same but for the numbers of the tokens, and so is every result; a word of
another text may become [UNK]. With --half the weights are rounded to f16, which halves the file; that is another model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from examples.sentence_encoder.capture import sentences
from examples.sentence_encoder.files import MODULE, ModelFiles, locate
from examples.sentence_encoder.tokenizer import Tokenizer
from tokitai.errors import TokitaiError

TOKENS = "embeddings.word_embeddings.weight"


def write(files: ModelFiles, folder: Path, texts: list[str], half: bool = False) -> ModelFiles:
    """Writes a package below `folder`; with `half`, of weights that are rounded to f16."""
    tokenizer = Tokenizer.load(files.vocabulary)
    special = {tokenizer.id_of[name] for name in ("[UNK]", "[CLS]", "[SEP]")}
    used = sorted(special.union(*(tokenizer.encode(text) for text in texts)))
    into = folder / MODULE / "model"
    into.mkdir(parents=True, exist_ok=True)
    (folder / MODULE / "__init__.py").touch()
    made = ModelFiles(into / "config.json", into / "vocab.txt", into / "model.safetensors")
    tensors = load_file(files.weights)
    tensors[TOKENS] = tensors[TOKENS][used]
    if half:
        tensors = {name: t.astype(np.float16) if t.dtype.kind == "f" else t for name, t in tensors.items()}
    save_file(tensors, made.weights)
    made.vocabulary.write_text("".join(f"{tokenizer.vocabulary[i]}\n" for i in used), encoding="utf-8")
    made.config.write_bytes(files.config.read_bytes())
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tools.small_model", description="The model, with fewer words.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--half", action="store_true", help="round the weights to f16")
    asked = parser.parse_intermixed_args()
    try:
        made = write(locate(), asked.folder, [*sentences(), *asked.texts], asked.half)
    except TokitaiError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{made.weights}: {made.weights.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
