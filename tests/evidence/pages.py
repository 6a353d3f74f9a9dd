"""Certificates as files, and a page as what a browser would make of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from sample import SAMPLE, SEEDED, WRONG

from tokitai.evidence.statement import Verification, build_statement
from tokitai.report import build, certificates, gather

VOID = {"meta", "link", "br", "hr", "img"}
REPLAY = "tokitai verify rms_norm --dtype f32 --case 'seeded/large values@4x8#8': y[0,0]: got 0x1, want 0x2"
REFUTED = replace(SAMPLE, cases=(SEEDED, WRONG), verdict="refuted", failure=REPLAY)
UNDECIDED = replace(SAMPLE, verdict="undecided", target="hip")


class Page(HTMLParser):
    """The elements of a page: each with its tag, its attributes, and the text in it. Fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.open: list[Element] = []
        self.feed(text)
        self.close()
        assert self.open == [], [e.tag for e in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, [e.tag for e in self.open])
        assert len(element.attributes) == len(attrs), (tag, attrs)
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert any(e.tag == "svg" for e in self.open) or tag == "svg", f"<{tag}/> outside a picture"
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1].tag == tag, (tag, [e.tag for e in self.open])
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.parts.append(data)

    def all(self, *tags: str) -> list[Element]:
        """The elements with one of these tags, in order."""
        return [e for e in self.elements if e.tag in tags]

    @property
    def text(self) -> str:
        return self.all("body")[0].text

    def marks(self, group: str) -> list[Element]:
        """The marks of the groups of a picture whose id begins so."""
        found, inside = [], 0
        for e in self.elements:
            if e.tag == "g" and e.attributes.get("id", "").startswith(group):
                inside = len(e.above) + 1
            elif len(e.above) < inside:
                inside = 0
            if inside and e.tag == "use":
                found.append(e)
        return found


class Element:
    """One element: `above` are the tags that it is in, from the outermost on."""

    def __init__(self, tag: str, attributes: dict[str, str], above: list[str]) -> None:
        self.tag, self.attributes, self.above = tag, attributes, above
        self.parts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.parts)


def files(folder: Path, **wanted: Any) -> Path:
    """Certificates in a folder, by name: verifications, statements, or texts."""
    for name, what in wanted.items():
        if isinstance(what, Verification):
            what = build_statement(what)
        (folder / f"{name}.json").write_text(what if isinstance(what, str) else json.dumps(what))
    return folder


def page(folder: Path) -> Page:
    """The page about all certificates in a folder."""
    return Page(build(gather(certificates([folder]))))


def strings(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of all strings in a JSON value."""
    if isinstance(value, str):
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from strings(item, (*at, key))


def repeated(values: list[str]) -> list[str]:
    """Those that occur more than once."""
    return [value for value, number in Counter(values).items() if number > 1]
