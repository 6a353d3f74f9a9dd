"""How long the sides of a call's tensors are: rows and columns, and of a product also its inner side."""

from __future__ import annotations

from .graph import MATRICES, Space

Shape = tuple[int, int]

_SIDES: dict[Space, str] = {  # e: entries, s: slots
    "rc": "rc", "r": "rs", "c": "1c", "s": "11", "t": "ec", "rk": "rk", "kr": "kr", "kc": "kc", "ck": "ck",
}  # fmt: skip


class Sizes(tuple[int, int]):
    """Rows and columns of a product's result, the inner size over which it sums, and how many products are a batch.

    It is a pair of rows and columns wherever the other two do not matter.
    """

    inner: int
    batch: int

    def __new__(cls, rows: int, cols: int, inner: int, batch: int = 1) -> Sizes:
        made = super().__new__(cls, (rows, cols))
        made.inner, made.batch = inner, batch
        return made

    @classmethod
    def of(cls, shape: Shape) -> Sizes:
        """The same; a plain pair has an inner side as long as its rows, and is one product."""
        return shape if isinstance(shape, Sizes) else cls(*shape, shape[1])

    @property
    def one(self) -> Sizes:
        """One product of the batch."""
        return Sizes(*self, self.inner)

    def __eq__(self, other: object) -> bool:
        mine = (*self, self.inner, self.batch)
        return isinstance(other, Sizes) and mine == (*other, other.inner, other.batch)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((*self, self.inner, self.batch))

    def __getnewargs__(self) -> tuple[int, int, int, int]:
        return (*self, self.inner, self.batch)

    def __repr__(self) -> str:
        return f"Sizes({shape_text(self)})"


def shape_text(shape: Shape) -> str:
    """``ROWSxCOLS``, of a product ``ROWSxCOLSxINNER``, of a batch ``ROWSxCOLSxINNERxBATCH``."""
    more = [shape.inner, *([shape.batch] if shape.batch != 1 else [])] if isinstance(shape, Sizes) else []
    return "x".join(map(str, (*shape, *more)))


def shape_from_text(text: str) -> Shape:
    """What `shape_text` wrote. Raises ValueError."""
    numbers = [int(word) for word in text.split("x")]
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    if len(numbers) not in (3, 4):
        raise ValueError(text)
    return Sizes(*numbers)


def extent(space: Space, shape: Shape, entries: int = 0, slots: int = 0, batched: bool = True) -> tuple[int, ...]:
    """The shape of a tensor as kernels take it. ``entries`` are those of a table, ``slots`` those of each row where
    there are any; ``batched`` is False for a matrix that all products of a batch share. Of a batch, values with one
    element a row are those of all its rows."""
    sides = extents(space, shape, entries, slots or 1)
    ahead = (shape.batch,) if batched and isinstance(shape, Sizes) and shape.batch != 1 else ()
    if space not in MATRICES:
        return sides if slots else (*(ahead if space == "r" else ()), sides[0] * sides[1])
    return (*ahead, *sides)


def extents(space: Space, shape: Shape, entries: int = 0, slots: int = 1) -> tuple[int, int]:
    """The two sides of a tensor of this space as arrays that broadcast have them."""
    length = {"1": 1, "r": shape[0], "c": shape[1], "e": entries, "s": slots}
    if "k" in space:
        length["k"] = Sizes.of(shape).inner
    sides = _SIDES[space]
    return length[sides[0]], length[sides[1]]
