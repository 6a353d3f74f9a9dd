"""How long the sides of a call's tensors are: rows and columns, and of a product also its K dimension."""

from __future__ import annotations

from .graph import MATRICES, Space

Shape = tuple[int, int]

_SIDES: dict[Space, str] = {  # e: entries, s: slots, g: ends of groups
    "rc": "rc", "r": "rs", "c": "1c", "s": "11", "t": "ec", "rk": "rk", "kr": "kr", "kc": "kc", "ck": "ck",
    "gr": "g1", "gk": "g1",
}  # fmt: skip


class Sizes(tuple[int, int]):
    """Rows and columns of a product's result, the inner size over which it sums, and how many products are a batch.

    In a ``ragged`` batch each product is a group that has its share of one side, r or k, which is as long as all of
    them have together. It is a pair of rows and columns wherever the others do not matter.
    """

    inner: int
    batch: int
    ragged: str

    def __new__(cls, rows: int, cols: int, inner: int, batch: int = 1, ragged: str = "") -> Sizes:
        made = super().__new__(cls, (rows, cols))
        made.inner, made.batch, made.ragged = inner, batch, ragged
        return made

    @classmethod
    def of(cls, shape: Shape) -> Sizes:
        """The same; a plain pair has a K dimension as long as its rows, and is one product."""
        return shape if isinstance(shape, Sizes) else cls(*shape, shape[1])

    @property
    def one(self) -> Sizes:
        """One product of the batch."""
        return Sizes(*self, self.inner)

    @property
    def all(self) -> tuple[int, int, int, int, str]:
        """Every size."""
        return (*self, self.inner, self.batch, self.ragged)

    @property
    def several(self) -> bool:
        """Whether the tensors are to be taken apart into those of each product."""
        return self.batch != 1 or self.ragged != ""

    @property
    def steps(self) -> int:
        """Products of two elements, in all."""
        return self[0] * self[1] * self.inner * (1 if self.ragged else self.batch)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sizes) and self.all == other.all

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.all)

    def __getnewargs__(self) -> tuple[int, int, int, int, str]:
        return self.all

    def __repr__(self) -> str:
        return f"Sizes({shape_text(self)})"


def shape_text(shape: Shape) -> str:
    """``ROWSxCOLS``, of a product ``ROWSxCOLSxINNER``, of a batch ``ROWSxCOLSxINNERxBATCH``, with r or k behind it in
    groups that partition rows or the K dimension."""
    if not isinstance(shape, Sizes):
        return "x".join(map(str, shape))
    more = [shape.inner, *([shape.batch] if shape.several else [])]
    return "x".join(map(str, (*shape, *more))) + shape.ragged


def shape_from_text(text: str) -> Shape:
    """What `shape_text` wrote. Raises ValueError."""
    ragged = text[-1:] if text[-1:] in ("r", "k") else ""
    numbers = [int(word) for word in text.removesuffix(ragged).split("x")]
    if min(numbers) < 0:
        raise ValueError(text)
    if len(numbers) == 2 and not ragged:
        return numbers[0], numbers[1]
    if len(numbers) not in ((4,) if ragged else (3, 4)):
        raise ValueError(text)
    rows, cols, inner, *batch = numbers
    return Sizes(rows, cols, inner, batch[0] if batch else 1, ragged)


def extent(space: Space, shape: Shape, entries: int = 0, slots: int = 0, batched: bool = True) -> tuple[int, ...]:
    """The shape of a tensor as kernels take it. ``entries`` are those of a table, ``slots`` those of each row where
    there are any; ``batched`` is False for a matrix that all products of a batch share. Of a batch, values with one
    element a row are those of all its rows."""
    sides = extents(space, shape, entries, slots or 1)
    ahead = (shape.batch,) if batched and isinstance(shape, Sizes) and shape.batch != 1 and not shape.ragged else ()
    if space not in MATRICES:
        return sides if slots else (*(ahead if space == "r" else ()), sides[0] * sides[1])
    of_each = shape.ragged not in space if isinstance(shape, Sizes) and shape.ragged else bool(ahead)
    return (Sizes.of(shape).batch, *sides) if of_each else sides


def extents(space: Space, shape: Shape, entries: int = 0, slots: int = 1) -> tuple[int, int]:
    """The two sides of a tensor of this space as arrays that broadcast have them."""
    length = {"1": 1, "r": shape[0], "c": shape[1], "e": entries, "s": slots}
    if "k" in space or "g" in space:
        length["g"] = Sizes.of(shape).batch + 1
        length["k"] = Sizes.of(shape).inner
    sides = _SIDES[space]
    return length[sides[0]], length[sides[1]]
