"""Operators in words, for ``tokitai ops`` and ``tokitai show``."""

from __future__ import annotations

import inspect
from typing import Any

from ..backends import backend_named, backends, places
from ..backends.backend import Language
from ..errors import UnknownNameError
from ..families import Plan, emit_cpu, make_plan
from ..families.gpu_family import GpuSource
from ..lang import MATRICES, Operator, Sizes, TensorSpec, shape_text
from ..lang.graph import Space
from ..runtime.gpu_kernel import gpu_plan
from ..runtime.kernel import is_product
from ..runtime.shapes import in_groups, usual_shape
from ..verification.verdict import Variant

SPACES = {
    "rc": "rows x cols", "r": "rows", "c": "cols", "s": "scalar", "t": "entries x cols", "rk": "rows x inner",
    "kr": "inner x rows", "kc": "inner x cols", "ck": "cols x inner", "gr": "groups + 1", "gk": "groups + 1",
}  # fmt: skip


def operator_json(o: Operator) -> dict[str, Any]:
    """An operator as plain JSON values."""
    c = o.contract
    return {
        "operator": o.name,
        "definition": _first_line(o),
        "inputs": [
            {"name": t.name, "shape": sides(o, t.space), "format": _format(o, t), "optional": t.optional}
            for t in placed(o)
        ],
        "scalars": [{"name": p.name, "default": p.default, "whole": p.whole} for p in o.params],
        "options": [{"name": p.name, "default": p.default, "accepted": list(p.accepted)} for p in o.options],
        "results": [
            {"name": r.name, "shape": sides(o, r.space), "format": r.format, "in_place": r.inplace}
            for r in o.trace(c.formats[0]).outputs
        ],
        "backward_of": o.backward_of.name if o.backward_of else None,
        "contract": {
            "formats": list(c.formats), "max_rows": c.max_rows, "min_cols": c.min_cols, "max_cols": c.max_cols,
            "domain": c.domain,
        },
        "devices": [b.name for b in backends()],
    }  # fmt: skip


def placed(o: Operator) -> tuple[TensorSpec, ...]:
    """The inputs; the operands of a product with the sides that they have where no option is chosen."""
    return o.trace(o.contract.formats[0]).inputs if is_product(o) else o.tensors


def sides(o: Operator, space: Space) -> str:
    """The shape of a tensor in words. In a grouped product each has its own, but for what has the shared side."""
    ragged = o.trace(o.contract.formats[0]).ragged
    of_each = ragged != "" and space in MATRICES and ragged not in space
    return "groups x " * of_each + SPACES[space]


def _format(o: Operator, t: TensorSpec) -> str:
    return str(next(x.format for x in o.tensors if x.name == t.name))


def operator_text(o: Operator) -> str:
    """An operator in a few lines."""
    c = o.contract
    inputs = [f"{t.name}: {sides(o, t.space)} {_format(o, t)}{' (optional)' if t.optional else ''}" for t in placed(o)]
    scalars = [p.name if p.default is None else f"{p.name}={p.default:g}" for p in o.params]
    scalars += [f"{p.name}: {' | '.join(map(str, p.accepted))}" for p in o.options]
    rows = [
        ("inputs", "; ".join(inputs)),
        ("scalars", "; ".join(scalars)),
        ("gradient of", o.backward_of.name if o.backward_of else ""),
        ("storage", f"{', '.join(c.formats)}; up to {c.max_rows:,} rows and {c.max_cols:,} columns"),
        ("domain", c.domain),
        ("devices", ", ".join(b.name for b in backends())),
    ]
    return f"{o.name}\n  {_first_line(o)}\n" + "\n".join(f"    {name:<12} {text}" for name, text in rows if text)


def part_text(
    o: Operator, part: str, device: str, dtype: str, variant: Variant | None, shape: tuple[int, int] | None = None,
    arch: str | None = None,
) -> str:  # fmt: skip
    """One part of ``tokitai show``: definition, graph, plan or source. ``shape`` decides on the schedule of a GPU's
    kernel at the first choice for it, of tensors that allow wide accesses (where that spills registers, calls take
    another); ``arch`` on the wavefronts of AMD's. Raises UnknownNameError,
    ArgumentError, DefinitionError."""
    if device not in places():
        raise UnknownNameError("device", device, places())
    backend = backend_named(device)
    place = backend.parts(device, arch)[0]
    if part == "definition":
        return inspect.getsource(o.definition).rstrip()
    graph = o.trace(dtype) if variant is None else o.trace(dtype, variant.present, dict(variant.options))
    if part == "graph":
        return str(graph)
    if backend.language is Language.GPU:
        warp, staged = backend.layout_of(place.partition(":")[2] or None)
        return _gpu_text(gpu_plan(graph, device), part, shape or usual_shape(o), warp, staged)
    plan = make_plan(graph)
    if part == "plan":
        return _aligned(plan.describe())
    return emit_cpu(plan).text.rstrip()


def _gpu_text(plan: Plan, part: str, shape: tuple[int, int], warp: int, staged: bool) -> str:
    """The plan with its schedule and launches, or the source, for one shape; of a grouped product for three."""
    made: GpuSource = plan.family.gpu.source(plan, in_groups(plan.graph, shape), warp, staged)
    if part == "source":
        return made.text.text.rstrip()
    rows, cols = made.shape
    sides = {"sizes": shape_text(Sizes.of(made.shape))} if plan.has_inner else {"rows x cols": f"{rows} x {cols}"}
    of_shape = {**sides, "schedule": made.schedule}
    every = plan.family.gpu.describe(plan)
    described = {k: v for k, v in every.items() if k != "elements in a tile"}  # the CPU's tile
    return _aligned({**described, **of_shape, "launches": "; ".join(made.launches) or "none"})


def _aligned(values: dict[str, Any]) -> str:
    return "\n".join(f"{name:<16} {value}" for name, value in values.items())


def _first_line(o: Operator) -> str:
    return inspect.cleandoc(o.__doc__ or "").partition("\n")[0]
