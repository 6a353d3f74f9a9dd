"""One HTML file that needs nothing else: no script, no network, no other file."""

from __future__ import annotations

import json
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, UnavailableError
from ..numerics import VERSION
from .content import KINDS, Content, plural, printable, shown

HERE = Path(__file__).parent
NEEDED = {"jinja2": "Jinja2", "matplotlib": "matplotlib"}


def check_installed() -> None:
    """Raise UnavailableError where a library that pages are made with is missing."""
    missing = [title for module, title in NEEDED.items() if find_spec(module) is None]
    if missing:
        raise UnavailableError(
            f"report: {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed; install with "
            "`pip install 'tokitai[report]'`"
        )


def build(content: Content) -> str:
    """The page, as HTML. The same certificates at the same paths always give the same page.

    Raises UnavailableError where Jinja2 or matplotlib is not installed.
    """
    check_installed()
    import jinja2
    from markupsafe import Markup

    from . import pictures

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=_finalize,
    )  # fmt: skip
    with pictures.style():
        drawn = {}
        if measured := [e for e in content.readable if e.error is not None]:
            drawn["errors"] = pictures.errors(measured)
        if counted := [e for e in content.valid if e.condition]:
            drawn["histogram"] = pictures.histogram(counted)
        if content.valid:
            drawn["cases"] = pictures.cases(content)
        coverage_of = pictures.Coverage(content.valid)
        coverage = {
            name: coverage_of.draw(name, valid, f"coverage-{number}")
            for number, (name, found) in enumerate(content.by_operator.items(), start=1)
            if (valid := [e for e in found if e.state != "invalid"])
        }
    return environment.get_template("page.html.j2").render(
        content=content, version=VERSION, kinds_about=KINDS, shown=shown, plural=plural, plain=_plain,
        style=Markup((HERE / "style.css").read_text(encoding="utf-8")),
        pictures={name: Markup(drawn.get(name, "")) for name in ("errors", "histogram", "cases")},
        coverage={name: Markup(coverage.get(name, "")) for name in content.by_operator},
    )  # fmt: skip


def check_path(path: Path, certificates: list[str]) -> None:
    """Raise ArgumentError where a page cannot be written to this path; told before anything is drawn."""
    accepted = "accepted: a file in a folder that can be written"
    try:
        if "\0" in str(path):
            raise ValueError("a null byte in its name")
        if path.is_dir():
            raise ArgumentError(f"--html {path}: a folder ({accepted})")
        if path.exists() and any(path.samefile(one) for one in certificates if os.path.exists(one)):
            raise ArgumentError(f"--html {path}: one of the certificates ({accepted}, that is no certificate)")
        if path.exists() and not path.is_file():
            raise ArgumentError(f"--html {path}: no regular file ({accepted})")
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
    except (OSError, ValueError) as error:
        if isinstance(error, ArgumentError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"--html {printable(str(path))}: cannot be written: {reason} ({accepted})") from error


def write(text: str, path: Path) -> None:
    """Put a page in place at once: whoever opens it meanwhile sees the old one or the new one.

    Raises UnavailableError where there is no room for it.
    """
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.absolute().parent, delete=False) as file:
            try:
                file.write(text)
                file.close()
                os.chmod(file.name, 0o666 & ~_umask())  # a temporary file is its owner's alone
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise UnavailableError(f"--html {path}: cannot be written: {error.strerror or error}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _finalize(value: Any) -> Any:
    """What a template prints: text from a certificate cannot turn the line round or be impossible to write."""
    return printable(value) if type(value) is str else value


def _plain(value: Any) -> str:
    """A JSON value as text: strings as they are, lists of them joined."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return ", ".join(map(str, value))
    return json.dumps(value, ensure_ascii=False)
