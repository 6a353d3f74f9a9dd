"""The sentence encoder's model, read once; its tests are skipped where its package is missing."""

from __future__ import annotations

import pytest

from examples.sentence_encoder import files
from examples.sentence_encoder import model as parameters
from examples.sentence_encoder.model import Model
from examples.sentence_encoder.tokenizer import Tokenizer
from tokitai.errors import InputFileError


@pytest.fixture(scope="session")
def found() -> files.ModelFiles:
    try:
        return files.locate()
    except InputFileError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def tokenizer(found: files.ModelFiles) -> Tokenizer:
    return Tokenizer.load(found.vocabulary)


@pytest.fixture(scope="session")
def model(found: files.ModelFiles) -> Model:
    return parameters.load(found)
