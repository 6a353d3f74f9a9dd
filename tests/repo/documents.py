"""The examples in Markdown documents: finding them, and running them as a reader would.

A fenced block's language says how it is run, all blocks of a document in order and in one folder:

    sh        a script, stopped at the first failure
    console   lines that start with `$ ` (and `> ` after a backslash) are commands; the other lines are what they print,
              where `...` stands for anything
    python    a script
    text      (and any other language but the names in ALIASES) is not run

An HTML comment on the line above a block changes that:

    <!-- not run: REASON -->    left out, and listed with the reason
    <!-- file: NAME -->         written to the folder under this name instead of being run
    <!-- continues -->          a python block that goes on where the one before it stopped
    <!-- exits with N -->       the exit code that the last command must have

`make` commands are not run, since a test would start itself; their targets must exist.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUN = ("sh", "console", "python")
ALIASES = {"": "text", "bash": "sh", "shell": "sh", "shell-session": "console", "py": "python", "python3": "python",
           "pycon": "python"}  # fmt: skip
TIME_LIMIT = 600  # seconds for one block

FENCE = re.compile(r"^(?P<indent> {0,3})(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)[^\n`]*$")
DIRECTIVE = re.compile(
    r"^<!-- (?:not run: (?P<reason>.+?)|file: (?P<file>[\w.-]+)|(?P<on>continues)|exits with (?P<exit>\d+)) -->$"
)
VARIABLES = r"(?:\s+[\w.-]+=(?:\"[^\"]*\"|\S+))*"
MAKE = re.compile(rf"^\s*make{VARIABLES}(?:\s+(?P<target>[\w-]+))?{VARIABLES}\s*(?:#.*)?$")


class DocumentError(Exception):
    """An example that is malformed, or does not do what the document says. Starts with `file:line`."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language and text, and what the comment above it says."""

    where: str
    language: str
    text: str
    reason: str | None = None
    file: str | None = None
    continues: bool = False
    exit_code: int = 0


def blocks(name: str, text: str) -> Iterator[Block]:
    """The fenced blocks of a document, in order."""
    lines = iter(enumerate(text.splitlines(), start=1))
    above = ""
    for number, line in lines:
        opening = FENCE.match(line)
        if opening is None:
            above = line.strip() or above
            continue
        where, language = f"{name}:{number}", opening["language"]
        if language in ALIASES:
            raise DocumentError(f"{where}: a block in {language!r}; write {ALIASES[language]!r}")
        inside = []
        for _, line in lines:
            if re.fullmatch(rf"\s*{re.escape(opening['fence'])}[`~]*\s*", line):
                break
            inside.append(line.removeprefix(opening["indent"]))
        else:
            raise DocumentError(f"{where}: the block is not closed")
        said = DIRECTIVE.match(above)
        if above.startswith("<!--") and said is None:
            raise DocumentError(f"{where}: {above!r} above a block (accepted: not run, file, continues, exits with)")
        found = said.groupdict() if said else {}
        yield Block(
            where, language, "\n".join(inside) + "\n", found.get("reason"), found.get("file"),
            found.get("on") is not None, int(found.get("exit") or 0),
        )  # fmt: skip
        above = ""


def make_targets(makefile: str) -> set[str]:
    """The targets that a Makefile declares as phony: its verbs."""
    return {word for line in re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE) for word in line.split()}


def steps(block: Block) -> Iterator[tuple[str, str]]:
    """The (command, printed text) pairs of a console block."""
    command, printed = "", ""
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], ""
        elif not command:
            raise DocumentError(f"{block.where}: {line!r} stands before the first command, which starts with '$ '")
        elif command.endswith("\\") and not printed:
            command += "\n" + line.removeprefix("> ")
        else:
            printed += line + "\n"
    if not command:
        raise DocumentError(f"{block.where}: no command; a command starts with '$ '")
    yield command, printed


class Reader:
    """Somebody who follows a document from top to bottom, in `folder`."""

    def __init__(self, folder: Path, targets: set[str]) -> None:
        self.folder = folder
        self.targets = targets
        self.script = ""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
        self.environment.pop("PYTHONPATH", None)

    def follow(self, block: Block) -> None:
        """Do what a block says. Raises DocumentError."""
        if block.reason is not None:
            return
        if block.file is not None:
            (self.folder / block.file).write_text(block.text)
        elif block.language == "python":
            self.script = self.script + "\n" + block.text if block.continues else block.text
            (self.folder / "example.py").write_text(self.script)
            self._run(block, [sys.executable, "example.py"], block.exit_code)
        elif block.language == "sh":
            kept = [line for line in block.text.splitlines() if not self._is_make(block, line)]
            self._run(block, ["bash", "-euo", "pipefail", "-c", "\n".join(kept)], block.exit_code)
        elif block.language == "console":
            self._converse(block)

    def _converse(self, block: Block) -> None:
        todo = list(steps(block))
        for index, (command, printed) in enumerate(todo, start=1):
            if self._is_make(block, command):
                continue
            code = block.exit_code if index == len(todo) else 0
            got = self._run(block, ["bash", "-uo", "pipefail", "-c", command], code)
            alike = doctest.OutputChecker().check_output(
                printed, got, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.DONT_ACCEPT_BLANKLINE
            )
            if printed and not alike:
                raise DocumentError(f"{block.where}: $ {command}\nshown:\n{printed}\nprinted:\n{got}")

    def _is_make(self, block: Block, command: str) -> bool:
        found = MAKE.match(command)
        if found is None:
            return False
        if found["target"] is not None and found["target"] not in self.targets:
            accepted = ", ".join(sorted(self.targets))
            raise DocumentError(f"{block.where}: {command}: no such target (accepted: {accepted})")
        return True

    def _run(self, block: Block, command: list[str], code: int) -> str:
        """What a command prints, on both streams as in a terminal."""
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, check=False, timeout=TIME_LIMIT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise DocumentError(f"{block.where}: {command[-1]}\nstill running after {TIME_LIMIT} s") from error
        if done.returncode != code:
            ended = f"exit code {done.returncode}, not {code}"
            raise DocumentError(f"{block.where}: {command[-1]}\n{ended}:\n{done.stdout}")
        return done.stdout
