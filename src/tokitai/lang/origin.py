"""Whose line it is: where in a definition a value was made, and refusals that name it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from ..errors import DefinitionError

_LANGUAGE = str(Path(__file__).resolve().parent) + os.sep
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


def where_from(through_functions: bool = False) -> str:
    """``file:line`` of the innermost frame of the definition, or function of the language, that is traced: the user's
    line. A function of this package that a definition calls is not the user's, unless the definition is the package's.

    With ``through_functions`` the line is that of the definition, if a function is the package's.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LANGUAGE):
        frame = frame.f_back
    innermost, outer = frame, frame
    while outer is not None:
        name = outer.f_code.co_filename
        if not name.startswith(_PACKAGE):
            return f"{name}:{outer.f_lineno}"
        ends = ("_trace",) if through_functions else ("_trace", "_result")
        if name.startswith(_LANGUAGE) and outer.f_code.co_name in ends:
            break
        outer = outer.f_back  # type: ignore[assignment]
    return f"{innermost.f_code.co_filename}:{innermost.f_lineno}"


def refuse(what: str, accepted: str) -> NoReturn:
    """Refuse a definition at the user's line, saying what was found and what would be accepted."""
    raise DefinitionError(f"{where_from(through_functions=True)}: {what}; accepted: {accepted}")
