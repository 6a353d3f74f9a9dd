"""Hooks of mkdocs.yml: pages link to files of the repository outside docs/, which the site does not have.

Measured figures (`bench/results/*.md`) become pages of the site. Of other links the words stay. Reference pages take
the names of a module from its `__all__`: without it, names that a package imports from its modules would be left out.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+)((?:bench|evidence|examples|src|tests)/[^)#]*)\)")
DIRECTIVE = re.compile(r"^::: (tokitai[\w.]*)$(?!\n +options)", re.MULTILINE)


def names_of(module: str) -> list[str] | None:
    """The names that the module's `__all__` spells out, or None where there are none: others are made at import."""
    path = ROOT.joinpath("src", *module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            written = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else []
            return [e.value for e in written if isinstance(e, ast.Constant) and isinstance(e.value, str)] or None
    return None


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of figures, which no menu lists."""
    for path in sorted((ROOT / "bench" / "results").glob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, files: Files, **_: Any) -> str:
    """Turn links that leave docs/ to pages of the site, or to words."""

    def replaced(match: re.Match[str]) -> str:
        words, up, target = match.groups()
        if files.get_file_from_path(target) is None:
            return words
        return f"[{words}]({up.removeprefix('../')}{target})"

    def with_members(match: re.Match[str]) -> str:
        names = names_of(match[1])
        return match[0] if names is None else f"{match[0]}\n    options:\n      members: {sorted(names)}"

    return DIRECTIVE.sub(with_members, OUTSIDE.sub(replaced, markdown))
