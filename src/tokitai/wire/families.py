"""The families of kernels that the wire mode offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UnknownNameError
from . import adamw, embedding, gemm, layernorm, softmax
from .execute import Runner
from .reply import Buffer


@dataclass(frozen=True)
class Family:
    """A family: the fields of its payload, the first of which has code 3, and what answers a payload."""

    name: str
    fields: tuple[str, ...]
    answer: Callable[[bytearray, Runner], list[Buffer]]


FAMILIES = {
    name: Family(name, module.FIELDS, module.answer)
    for name, module in {
        "layernorm": layernorm, "softmax": softmax, "gemm-bw": gemm, "adamw": adamw, "embedding": embedding,
    }.items()
}  # fmt: skip


def family_named(name: str) -> Family:
    """The family with this name. Raises UnknownNameError."""
    if name not in FAMILIES:
        raise UnknownNameError("family", name, FAMILIES)
    return FAMILIES[name]
