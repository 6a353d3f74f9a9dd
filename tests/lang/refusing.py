"""Definitions that must be refused, with what the message says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tokitai.errors import DefinitionError
from tokitai.lang import operator

Definition = Callable[..., Any]
Refused = tuple[Definition, str, str]


def collector() -> tuple[list[Refused], Callable[[str, str], Callable[[Definition], Definition]]]:
    """A list of refused definitions, and the decorator that adds to it: with words of what is found and accepted.

    The line that must be blamed ends in `# here`.
    """
    collected: list[Refused] = []

    def refused(found: str, accepted: str) -> Callable[[Definition], Definition]:
        def note(definition: Definition) -> Definition:
            collected.append((definition, found, accepted))
            return definition

        return note

    return collected, refused


def check_refused(definition: Definition, found: str, accepted: str) -> None:
    """The message starts with file and line, and says both."""
    lines, first = inspect.getsourcelines(definition)
    start = f"{inspect.getsourcefile(definition)}:"
    start += f"{first + next(i for i, text in enumerate(lines) if text.rstrip().endswith('# here'))}: "
    with pytest.raises(DefinitionError) as caught:
        operator(definition).trace("f16")
    message = str(caught.value)
    assert message.startswith(start), message
    what, separator, would_do = message.removeprefix(start).partition("; accepted: ")
    assert separator and found in what and accepted in would_do, message
