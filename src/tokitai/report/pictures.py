"""Pictures of certificates, as SVG text to be put into a page.

They have no colours of their own: ink and data are CSS variables of the page, so that one picture does in light and in
dark. Every group of marks has an id that starts with the picture's name, ``errors-f16`` say; each mark is a ``use``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import log10
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from ..evidence.check import LEAST_BIN, MOST_BIN
from .content import Content, Entry, plural, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
# What matplotlib draws in these stands for a variable of the page: no other colour occurs in a picture.
COLOURS = {
    "#010101": "ink", "#020202": "grid", "#030303": "band", "#040404": "bad", "#050505": "c1", "#060606": "c2",
    "#070707": "c3", "#080808": "c4", "#090909": "c5", "#0a0a0a": "c6", "#0b0b0b": "c7",
}  # fmt: skip
_NAMED = {name: colour for colour, name in COLOURS.items()}
_STAND_INS = re.compile("|".join(COLOURS))
INK, GRID, BAND, BAD = (_NAMED[name] for name in ("ink", "grid", "band", "bad"))
KIND_COLOURS = {"structure": "c1", "exhaustive": "c4", "hard": "c3", "seeded": "c2", "list": "c5", "yours": "c6"}
FORMATS = {"f32": ("c1", "o"), "bf16": ("c2", "s"), "f16": ("c3", "^")}
MARKS = {"structure": "s", "exhaustive": "D", "hard": "x", "seeded": "o", "list": "+", "yours": "^"}
DIFFERENT = "not equal"  # no name of a kind, which has no space
LEAST, MOST = -2, 6  # powers of ten of errors in units: what lies outside is drawn at the edge
DRAWN = 2000  # shapes of a kind in one picture
INCH = 72  # points


def colour(name: str) -> str:
    """The stand-in for a variable."""
    return _NAMED[name]


@contextmanager
def style() -> Iterator[None]:
    """matplotlib as it comes, whatever the user has set, and such that the same data give the same bytes."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({
            "svg.hashsalt": "tokitai", "svg.fonttype": "none", "text.parse_math": False, "font.size": 9,
            "text.color": INK, "axes.edgecolor": GRID, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
            "xtick.major.size": 0, "ytick.major.size": 0, "legend.frameon": False, "legend.handletextpad": 0.3,
            "axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": "none", "figure.facecolor": "none",
        })  # fmt: skip
        yield


def errors(entries: Sequence[Entry]) -> str:
    """The largest error of each entry beside its proven bound, in units on a logarithmic axis."""
    from matplotlib.figure import Figure

    height, places = _places(entries)
    figure = Figure(figsize=(8.6, 1.2 + 0.095 * height))
    axes = _axes(figure, left=190, right=12, bottom=40, top=36)
    _operators(axes, entries, places, height)
    axes.set_xlim(LEAST - 0.75, MOST + 1.3)
    axes.set_xticks(
        [LEAST - 0.5, *range(LEAST, MOST + 1), MOST + 0.75],
        ["0", *(_power(n) for n in range(LEAST, MOST + 1)), "more"],
    )
    axes.grid(axis="x", color=GRID, linewidth=0.5, clip_on=False)
    axes.axvline(0, color=INK, linewidth=0.8, dashes=(3, 3))
    axes.annotate("one rounding", (0, 1), (3, 17), ("data", "axes fraction"), "offset points", fontsize=8)
    axes.tick_params(labeltop=True)
    axes.set_xlabel("largest error against the exact value, in roundings of the magnitudes that were added (units)")
    titles: dict[str, list[str]] = {}
    for beyond in (False, True):
        for dtype, chosen in _by_format([e for e in entries if e.beyond is beyond]).items():
            hue, mark = FORMATS.get(dtype, ("c5", "D"))
            ink = BAD if beyond else colour(hue)
            rows, ends = [places[e.anchor] for e in chosen], [_bound_at(e) for e in chosen]
            axes.hlines(rows, ends, [_error_at(e) for e in chosen], ink, linewidth=3 if beyond else 0.7,
                        zorder=1 + beyond, clip_on=False)  # fmt: skip
            name = "beyond" if beyond else "errors"
            titles |= {gid: [_said(e) for e in chosen] for gid in (f"bounds-{name}-{dtype}", f"{name}-{dtype}")}
            _marks(axes, ends, rows, "|", 5, ink, gid=f"bounds-{name}-{dtype}", zorder=3)
            mark, size = ("X", 9.5) if beyond else (mark, 3.9)
            _marks(axes, [_error_at(e) for e in chosen], rows, mark, size, ink, gid=f"{name}-{dtype}", zorder=4)
            if beyond:
                for e in chosen:
                    left = _error_at(e) > (LEAST + MOST) / 2
                    axes.annotate(
                        f"{e.operator} {e.dtype}: beyond its bound", (_error_at(e), places[e.anchor]),
                        (-30 if left else 8, 0), textcoords="offset points", ha="right" if left else "left",
                        va="center", color=BAD, weight="bold",
                    )  # fmt: skip
    title = "Largest error and proven bound of every operator and format"
    return _svg(_written(figure), figure.get_size_inches(), "errors", title, titles)


def histogram(entries: Sequence[Entry]) -> str:
    """How many errors lie at each power of two, in units, by the format of the results; both axes are logarithmic."""
    from matplotlib.figure import Figure

    bins = range(LEAST_BIN, MOST_BIN + 1)
    counts: dict[str, list[int]] = {}
    for fmt, said in (item for e in entries for item in e.condition.items()):
        before = counts.get(fmt, [0] * len(bins))
        counts[fmt] = [a + b for a, b in zip(before, said["histogram"], strict=True)]
    figure = Figure(figsize=(8.6, 2.9))
    axes = _axes(figure, left=60, right=12, bottom=36, top=24)
    decades = range(int(LEAST_BIN * log10(2)), int(MOST_BIN * log10(2)) + 1)
    axes.set_xticks(list(decades), list(map(_power, decades)))
    most = range(len(str(max(max(found) for found in counts.values()))) + 1)
    axes.set_yticks([-0.5, *most], ["0", *map(_power, most)])
    axes.grid(color=GRID, linewidth=0.5, clip_on=False)
    axes.set_axisbelow(True)
    axes.set_xlabel("error against the exact value, in units")
    axes.set_ylabel("elements")
    for fmt, found in sorted(counts.items()):
        hue, _ = FORMATS.get(fmt, ("c5", "D"))
        axes.step([k * log10(2) for k in bins], [_side(n) for n in found], where="mid", color=colour(hue), label=fmt,
                  linewidth=1.2, gid=f"histogram-{fmt}")  # fmt: skip
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=7, borderpad=0.2, columnspacing=1, handlelength=1)
    said_of = "; ".join(f"{fmt}: {sum(found):,} elements" for fmt, found in sorted(counts.items()))
    return _svg(_written(figure), figure.get_size_inches(), "histogram", f"Histogram of errors. {said_of}")


def cases(content: Content) -> str:
    """How many cases of each kind every operator has, over its valid certificates; those that differ apart."""
    from matplotlib.figure import Figure

    of = {name: [e for e in found if e.state != "invalid"] for name, found in content.by_operator.items()}
    of = {name: found for name, found in of.items() if found}
    figure = Figure(figsize=(8.6, 0.95 + 0.19 * len(of)))
    axes = _axes(figure, left=190, right=30, bottom=36, top=24)
    places, starts = range(len(of)), [0] * len(of)
    segments = [(k, KIND_COLOURS.get(k, "c7")) for k in content.kinds]
    for name, hue in [*segments, (DIFFERENT, "bad")]:
        numbers = [sum(_number(e, name) for e in found) for found in of.values()]
        if any(numbers):
            bars = axes.barh(places, numbers, 0.72, starts, color=colour(hue), label=name, linewidth=0, clip_on=False)
            for bar, number in zip(bars, numbers, strict=True):
                bar.set_gid(f"cases-{name.replace(' ', '-')}-{number}")
        starts = [s + n for s, n in zip(starts, numbers, strict=True)]
    for place, total in zip(places, starts, strict=True):
        axes.annotate(f"{total:,}", (total, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(places, list(of))
    axes.set_ylim(len(of) - 0.4, -0.6)
    axes.set_xlabel("cases over all formats, by kind")
    axes.grid(axis="x", color=GRID, linewidth=0.5, clip_on=False)
    axes.set_axisbelow(True)
    if any(starts):
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=7, borderpad=0.2, columnspacing=1.2,
                    handlelength=1)  # fmt: skip
    return _svg(_written(figure), figure.get_size_inches(), "cases", "Cases of every operator, by kind")


class Coverage:
    """The shapes of operators: rows over columns, shown for all inputs or tried with numbers, on logarithmic axes.

    All operators have the same axes, so that they can be compared, and so that these are made only once.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        from matplotlib.figure import Figure

        found = {shape for e in entries for shapes in e.shapes.values() for shape in shapes}
        rows, cols = (max((shape[side] for shape in found), default=1) for side in (0, 1))
        self.figure = Figure(figsize=(5.2, 2.9))
        self.axes = axes = _axes(self.figure, left=44, right=10, bottom=36, top=24)
        for largest, set_ticks, set_limits in (
            (cols, axes.set_xticks, axes.set_xlim), (rows, axes.set_yticks, axes.set_ylim),
        ):  # fmt: skip
            decades = range(max(2, min(18, len(str(largest)))) + 1)
            set_ticks([-0.5, *decades], ["0", *map(_power, decades)])
            set_limits(-0.75, decades[-1] + 0.2)
        axes.grid(color=GRID, linewidth=0.5, clip_on=False)
        axes.set_axisbelow(True)
        axes.set_xlabel("columns (elements)")
        axes.set_ylabel("rows")
        self._drawn: dict[frozenset[tuple[str, frozenset[tuple[int, int]]]], bytes] = {}

    def draw(self, name: str, entries: Sequence[Entry], picture: str) -> str:
        """The picture of one operator; `picture` goes into its ids."""
        found: dict[str, frozenset[tuple[int, int]]] = {}
        for e in entries:
            for kind, shapes in e.shapes.items():
                found[kind] = found.get(kind, frozenset()) | shapes
        key = frozenset(found.items())
        if key not in self._drawn:  # operators of one family are tried at the same shapes
            self._drawn[key] = self._draw(found)
        counts = ", ".join(f"{plural(len(shapes), 'shape')} {kind}" for kind, shapes in sorted(found.items()))
        size = self.figure.get_size_inches()
        return _svg(self._drawn[key], size, picture, f"Shapes at which {name} was tried: {counts or 'none'}")

    def _draw(self, found: Mapping[str, frozenset[tuple[int, int]]]) -> bytes:
        axes = self.axes
        for marks in list(axes.lines):
            marks.remove()
        if (legend := axes.get_legend()) is not None:
            legend.remove()
        for kind in sorted(found, key=lambda k: (k != "structure", k)):
            shapes = sorted(found[kind])[:DRAWN]
            x, y = [_side(cols) for _, cols in shapes], [_side(rows) for rows, _ in shapes]
            label = kind if len(shapes) == len(found[kind]) else f"{kind} ({len(shapes):,} of {len(found[kind]):,})"
            hue, mark = colour(KIND_COLOURS.get(kind, "c7")), MARKS.get(kind, "*")
            size = {"structure": 6.8, "seeded": 3}.get(kind, 4.7)
            _marks(axes, x, y, mark, size, hue, label=label, gid=f"shapes-{kind}", zorder=2 + (kind != "structure"))
        if found:
            axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1), ncols=4, borderpad=0.2, columnspacing=1,
                        handlelength=1)  # fmt: skip
        return _written(self.figure)


# ---------------------------------------------------------------------- parts
def _axes(figure: Figure, left: float, right: float, bottom: float, top: float) -> Axes:
    """Axes that leave margins in points."""
    width, height = (INCH * float(inches) for inches in figure.get_size_inches())
    return figure.add_axes((
        left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height,
    ))  # fmt: skip


def _marks(
    axes: Axes, x: Sequence[float], y: Sequence[float], mark: str, size: float, ink: str, *, gid: str, zorder: float,
    label: str | None = None,
) -> None:  # fmt: skip
    """Marks without a line, one ``use`` each. A large square is a frame, so that marks inside it are seen."""
    framed = mark == "s" and size > 5
    axes.plot(
        x, y, linestyle="none", marker=mark, markersize=size, color=ink, markerfacecolor="none" if framed else ink,
        markeredgewidth=1.1 if framed or mark in "x+|" else 0, gid=gid, zorder=zorder, label=label, clip_on=False,
    )  # fmt: skip


def _places(entries: Sequence[Entry]) -> tuple[float, dict[str, float]]:
    """The height of all rows, and where in it each entry stands: those of an operator lie together."""
    places: dict[str, float] = {}
    at, before = 0.0, None
    for e in entries:
        at += 1 if before in (None, e.operator) else 2
        places[e.anchor], before = at, e.operator
    return at + 1, places


def _operators(axes: Axes, entries: Sequence[Entry], places: Mapping[str, float], height: float) -> None:
    """The names of operators, and a band behind every other one."""
    of: dict[str, list[float]] = {}
    for e in entries:
        of.setdefault(e.operator, []).append(places[e.anchor])
    for number, found in enumerate(of.values()):
        if number % 2:
            axes.axhspan(found[0] - 1, found[-1] + 1, color=BAND, linewidth=0, zorder=0)
    axes.set_yticks([(found[0] + found[-1]) / 2 for found in of.values()], list(of))
    axes.set_ylim(height, 0)


def _by_format(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for e in entries:
        found.setdefault(e.dtype, []).append(e)
    return dict(sorted(found.items()))


def _at(value: float, more: float) -> float:
    """The place of an error on its axis; `more` is that of values beyond it."""
    if value == 0:
        return LEAST - 0.5
    return more if value > 10**MOST else max(log10(value), LEAST)


def _error_at(e: Entry) -> float:
    # beyond the axis all bounds lie at one place, and errors on the right side of it
    assert e.error is not None
    return _at(e.error, MOST + (1.1 if e.beyond else 0.45))


def _bound_at(e: Entry) -> float:
    assert e.bound is not None
    return _at(e.bound, MOST + 0.8)


def _said(e: Entry) -> str:
    return f"{e.operator} {e.dtype} ({e.p['target']}): error {shown(e.error)}, bound {shown(e.bound)} units"


def _number(e: Entry, kind: str) -> int:
    """The equal cases of a kind; of DIFFERENT, all that are not."""
    if kind == DIFFERENT:
        return sum(k.differing for k in e.kinds)
    found = e.of_kind(kind)
    return 0 if found is None else found.cases - found.differing


def _side(size: int) -> float:
    """The place of a size on a logarithmic axis that has room for 0."""
    return -0.5 if size == 0 else log10(min(size, 10**18))


def _power(n: int) -> str:
    """Ten to the n: short as a number, long with raised digits."""
    if -3 <= n <= 3:
        return f"{10.0**n:,g}"
    return "10" + str(n).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


# ---------------------------------------------------------------------- text
def _written(figure: Figure) -> bytes:
    written = BytesIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return written.getvalue()


def _svg(
    drawn: bytes, inches: Iterable[float], name: str, title: str, titles: Mapping[str, Sequence[str]] | None = None
) -> str:
    """A figure as text for a page: ids that no other picture has, colours as variables, a title for those who do not
    see it, and titles of marks by the id of their group."""
    root = ElementTree.fromstring(drawn)
    for group, said_of in (titles or {}).items():
        marks = [use for g in root.iter(f"{SVG}g") if g.get("id") == group for use in g.iter(f"{SVG}use")]
        for mark, said in zip(marks, said_of, strict=True):
            ElementTree.SubElement(mark, f"{SVG}title").text = said
    _slim(root, name, {text[1:] for e in root.iter() if (text := e.get(LINK)) is not None})
    label = ElementTree.Element(f"{SVG}title")
    label.text = title
    root.insert(0, label)
    width, height = (INCH * float(size) for size in inches)
    root.attrib.clear()
    root.attrib |= {
        "viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": title, "class": "picture",
        "style": f"--width: {width * 96 / INCH:g}px",
    }  # fmt: skip
    ElementTree.register_namespace("", SVG[1:-1])
    ElementTree.register_namespace("xlink", LINK[1 : LINK.index("}")])
    return ElementTree.tostring(root, encoding="unicode")


def _slim(element: ElementTree.Element, name: str, used: set[str]) -> None:
    """Below an element: the picture's name in ids, variables for colours, and nothing that changes nothing."""
    children: list[ElementTree.Element] = []
    for child in element:
        if child.tag.endswith(("}metadata", "}style")):
            continue
        _slim(child, name, used)
        for key, value in list(child.attrib.items()):
            child.attrib[key] = _attribute(key, value, name)
            # ids that nothing leads to, but for those of our groups, which have a hyphen; turns by nothing
            if value not in used and "-" not in value if key == "id" else key == "transform" and "(-0 " in value:
                del child.attrib[key]
        child.text, child.tail = (text if text and text.strip() else None for text in (child.text, child.tail))
        if child.tag == f"{SVG}g" and not child.attrib:
            children += child
        elif child.tag not in (f"{SVG}g", f"{SVG}defs") or len(child):
            children.append(child)
    styles = {child.get("style") for child in children if child.tag == f"{SVG}use"}
    if len(children) > 1 and len(styles) == 1 and element.tag == f"{SVG}g":
        (shared,) = styles
        element.set("style", "; ".join(filter(None, (element.get("style"), shared))))
        for child in children:
            if child.tag == f"{SVG}use":
                child.attrib.pop("style", None)
    element[:] = children


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}.{value}"
    if key == LINK:
        return value.replace("#", f"#{name}.", 1)
    if key == "style":
        value = _STAND_INS.sub(lambda found: f"var(--{COLOURS[found.group()]})", value)
        return re.sub(r"font-family: [^;]*; |^font: [^;]*?(?=[0-9.]+px)", "", value)
    if key in ("d", "x", "y", "transform"):
        value = re.sub(r"\d+\.\d+", lambda found: f"{float(found.group()):.2f}".rstrip("0").rstrip("."), value)
    return " ".join(value.split())
