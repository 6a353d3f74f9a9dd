"""Run an operator on the caller's own arrays.

Tensors of rows x cols may have any number of leading dimensions, which flatten into rows. A view with a row stride is
read as it is; any other view is copied once, or refused with ``copy=False``. Results are new arrays, or ``out``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..arrays.dlpack import as_numpy, like, on_gpu
from ..arrays.libraries import written
from ..arrays.results import maker
from ..backends.cpu import device as cpu
from ..errors import ArgumentError
from ..families import AttentionPlan, ProductPlan
from ..formats import FORMATS, format_of
from ..lang import Operator, Output, TensorSpec
from .binding import bind, check_flag, check_params
from .checks import check_indices, check_slots, check_whole, table_entries
from .kernel import Kernel, compile
from .launch_cache import Seen, recipe_for, remember, seen_as
from .layout import flatten, place_results, readable
from .lists import Prepared, prepare

Array = np.ndarray[Any, Any]
WHOLE = {name: FORMATS[name].dtype for name in ("i32", "i64")}  # which a call takes for one another


@functools.cache
def _kernel(operator: Operator, dtype: str, present: frozenset[str], options: tuple[tuple[str, object], ...]) -> Kernel:
    return compile(operator, "cpu", dtype, present, dict(options))


def call(
    operator: Operator, *args: Any, out: Any = None, threads: int | None = None, copy: bool = True,
    cuda_stream: Any = None, check: bool = True, **kwargs: Any,
) -> Any:  # fmt: skip
    """Run `operator`. Positional arguments are its tensors in order; scalars and options go by name.

    Returns one array, or a tuple in the definition's order; results that replace inputs are written there and returned.
    ``out`` is an array (or a tuple, with None where a new one is wanted) for the results. ``threads`` is for arrays in
    host memory, ``cuda_stream`` and ``check`` for those of a GPU (`runtime.gpu_call.call_gpu`).
    Raises ArgumentError for a missing, superfluous or ill-formed argument.
    """
    first = args[0] if args else None
    if type(first) is not np.ndarray:
        there = getattr(first, "is_cuda", None)  # torch's, and spares a call
        if there is not True and there is not False:
            there = next((t for t in map(on_gpu, (*args, *kwargs.values())) if t is not None), False)
        if there:
            if threads is not None:
                raise ArgumentError(f"threads={threads!r} beside arrays of a GPU; accepted: leave it out")
            return _call_gpu()(operator, args, kwargs, out, copy, cuda_stream, check)
    seen = seen_as(operator, args, kwargs, out) if cuda_stream is None and check else None
    if seen is not None and (recipe := recipe_for(seen)) is not None:
        threads = cpu.check_threads(threads)
        known = recipe.prepared(seen, args, kwargs)
        if operator.contract.indices:
            named = {
                str(n): as_numpy(str(n), x)
                for n, x in zip(seen.form.named, seen.tensors, strict=True)
                if n in operator.contract.indices and x is not None
            }
            check_indices(operator, named, known.params, recipe.shape, recipe.entries)
        return recipe.run(seen, known, threads)
    if cuda_stream is not None or not check:
        found = f"cuda_stream={cuda_stream!r}" if cuda_stream is not None else f"check={check!r}"
        raise ArgumentError(f"{operator.name}: {found} beside arrays in host memory; accepted: leave it out")
    return call_with(_kernel, operator, args, kwargs, out, threads, copy, seen)


@functools.cache
def _call_gpu() -> Callable[..., Any]:
    from .gpu_call import call_gpu

    return call_gpu


KernelFor = Callable[[Operator, str, frozenset[str], tuple[tuple[str, object], ...]], Kernel]
"""The kernel for an operator, a storage format, the tensors that are given, and options."""


def call_with(
    kernel_for: KernelFor, operator: Operator, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any,
    threads: int | None, copy: bool, seen: Seen | None = None,
) -> Any:  # fmt: skip
    """`call` with kernels that run elsewhere; what it finds out is kept where the call was ``seen``."""
    given, params, options = bind(operator, args, kwargs)
    check_params(operator, params)
    check_flag(operator, "copy", copy)
    threads = cpu.check_threads(threads)
    if operator.contract.lists and not isinstance(next(iter(given.values())), (list, tuple)):
        if out is not None:
            raise ArgumentError(f"{operator.name}: out; accepted: results in place or new ones")
        single_lists = {n: [x] for n, x in given.items()}
        prepared = prepare_lists(operator, single_lists, options, copy, kernel_for)
        made = prepared(params, threads or cpu.default_threads())
        several = made if isinstance(made, tuple) else (made,)
        single = tuple(m[0] if isinstance(m, list) else m for m in several)
        return single if isinstance(made, tuple) else single[0]
    if given and isinstance(next(iter(given.values())), (list, tuple)):
        if out is not None:
            raise ArgumentError(f"{operator.name}: out beside lists; accepted: results in place or new ones")
        return prepare_lists(operator, given, options, copy, kernel_for)(params, threads or cpu.default_threads())
    arrays = {name: as_numpy(name, value) for name, value in given.items()}
    arrays = as_declared(operator, arrays, copy)
    dtype = storage_format(operator, arrays)
    kernel = kernel_for(operator, dtype, frozenset(arrays), tuple(sorted(options.items())))
    if isinstance(kernel.plan, ProductPlan):
        from .product_call import call_product

        return call_product(operator, kernel, given, arrays, params, out, threads, copy)
    if isinstance(kernel.plan, AttentionPlan):
        from .attention_call import call_attention

        return call_attention(operator, kernel, given, arrays, params, out, threads, copy)
    lead, shape = common_shape(operator, arrays, kernel.graph.options)
    check_slots(operator, kernel.graph, arrays, shape)
    entries = table_entries(operator, arrays, params)
    check_indices(operator, arrays, params, shape, entries)
    tensors = {t.name: flatten(t, arrays[t.name], shape, copy) for t in kernel.graph.inputs}
    tensors = readable(kernel.graph, tensors, shape[0], lambda t, size: np.zeros(size, tensors[t.name].dtype))
    full = {o.name: full_shape(o, lead, shape, entries) for o in kernel.graph.outputs}
    made, results, supplied = launch(kernel, given, arrays, tensors, shape, entries, full, params, out, threads)
    if seen is not None:
        remember(seen, kernel, shape, entries, tensors, results, full, supplied)
    return made


def launch(
    kernel: Kernel, given: Mapping[str, Any], arrays: Mapping[str, Array], tensors: Mapping[str, Array],
    shape: tuple[int, int], entries: int, full: Mapping[str, tuple[int, ...]], params: Mapping[str, float], out: Any,
    threads: int | None,
) -> tuple[Any, dict[str, Array], dict[str, Any]]:  # fmt: skip
    """Run a kernel on ``tensors``, as it reads them, whose results have the shapes ``full`` as the caller sees them.
    Returns what the caller gets; and for `remember` the results as the kernel has them, and those that the caller
    supplied."""
    operator, example = kernel.operator, next(iter(given.values()))
    made: dict[str, Any] = {}  # new results of the caller's library

    def make(o: Output, want: tuple[int, ...]) -> Array:
        new = None if o.name in operator.contract.places else maker(example, full[o.name], FORMATS[o.format].dtype)
        if new is None:
            return cpu.aligned_empty(want, FORMATS[o.format].dtype)
        made[o.name], _ = new()
        return as_numpy(o.name, made[o.name]).reshape(want)

    results, supplied = place_results(kernel, given, arrays, shape, entries, full, out, make=make)
    kernel.launch(tensors, results, shape, kernel.scalar_table(*shape, params), threads or cpu.default_threads())
    returned = []
    for o in kernel.graph.outputs:
        theirs = given[o.name] if o.inplace else supplied.get(o.name, made.get(o.name))
        if o.name in operator.contract.places:  # kernels give columns as f32 whole numbers
            theirs = _as_columns(results[o.name].reshape(full[o.name]), example, theirs)
        returned.append(like(results[o.name].reshape(full[o.name]), example) if theirs is None else theirs)
    written([*supplied.values(), *(given[o.name] for o in kernel.graph.outputs if o.inplace)])
    return returned[0] if len(returned) == 1 else tuple(returned), results, supplied


def _as_columns(values: Array, example: Any, into: Any) -> Any:
    """Columns as i32: new, or where the caller wants them."""
    columns = FORMATS["i32"].dtype
    new = maker(example, values.shape, columns) if into is None else None
    if new is not None:
        into, _ = new()
    if into is None:
        return like(values.astype(columns), example)
    as_numpy("out", into)[...] = values
    return into


def prepare_lists(
    operator: Operator, given: Mapping[str, Any], options: Mapping[str, object], copy: bool = True,
    kernel_for: KernelFor | None = None,
) -> Prepared:  # fmt: skip
    """Lists of tensors, checked and ready to be launched again and again. Raises ArgumentError."""

    def build(firsts: Mapping[str, Array]) -> Kernel:
        dtype = storage_format(operator, firsts)
        return (kernel_for or _kernel)(operator, dtype, frozenset(firsts), tuple(sorted(options.items())))

    return prepare(operator, given, build, copy)


def as_declared(operator: Operator, arrays: Mapping[str, Array], copy: bool) -> dict[str, Array]:
    """The arrays, with whole numbers of i32 and i64 in that of both which is declared: an exact copy. Raises
    ArgumentError for a number that is out of its range."""
    found = dict(arrays)
    for t in operator.tensors:
        if copy and t.name in arrays and is_other_whole(operator, t, arrays[t.name]):
            wanted = FORMATS[str(t.format)].dtype
            check_whole(t.name, arrays[t.name], wanted)
            found[t.name] = arrays[t.name].astype(wanted)
    return found


def is_other_whole(operator: Operator, t: TensorSpec, array: Array) -> bool:
    """Whether an array is of i32 where i64 is declared, or the other way round, and not also a result."""
    if t.format not in WHOLE or array.dtype not in WHOLE.values() or array.dtype == WHOLE[str(t.format)]:
        return False
    return not any(o.inplace and o.name == t.name for o in operator.trace(operator.contract.formats[0]).outputs)


def storage_format(operator: Operator, arrays: Mapping[str, Array]) -> str:
    """The format that the call's arrays select; every tensor must have the format that the operator declares."""
    chosen: str | None = None
    for t in operator.tensors:
        if t.name not in arrays:
            continue
        array = arrays[t.name]
        name = format_of(array.dtype).name if array.dtype in [f.dtype for f in FORMATS.values()] else str(array.dtype)
        if t.format != "storage":
            if name != t.format:
                raise ArgumentError(f"{t.name}: format {name}; accepted: {t.format}")
        elif name not in operator.contract.formats:
            raise ArgumentError(f"{t.name}: format {name}; accepted: {', '.join(operator.contract.formats)}")
        elif chosen not in (None, name):
            raise ArgumentError(f"{t.name}: format {name} beside {chosen}; accepted: one storage format for all")
        else:
            chosen = name
    return chosen or operator.contract.formats[0]


def common_shape(
    operator: Operator, arrays: Mapping[str, Array], options: Mapping[str, object]
) -> tuple[tuple[int, ...], tuple[int, int]]:
    """The leading dimensions, and (rows, cols). Raises ArgumentError where shapes do not agree."""
    given = [t for t in operator.tensors if t.name in arrays]
    for t in given:
        if t.space == "t" and arrays[t.name].ndim != 2:
            raise ArgumentError(f"{t.name}: shape {arrays[t.name].shape}; accepted: (entries, columns)")
    matrices = [t for t in given if t.space == "rc"]
    tables = [t for t in given if t.space == "t"]
    if not matrices and not tables:
        raise ArgumentError(f"{operator.name}: no tensor of rows x cols is given; accepted: one at least")
    named = (matrices or tables)[0].name
    first = arrays[named]
    if first.ndim == 0:
        raise ArgumentError(f"{named}: a scalar; accepted: at least one dimension")
    of_rows = ((arrays[t.name].shape, t.slots) for t in given if t.space == "r")
    lead = first.shape[:-1] if matrices else next((s[:-1] if slots else s for s, slots in of_rows), ())
    cols = first.shape[-1]
    rows = int(np.prod(lead, dtype=np.int64))
    for t in given:
        shape = arrays[t.name].shape
        accepted = {"rc": (*lead, cols), "r": lead, "c": (cols,), "s": (), "t": (*shape[:1], cols)}[t.space]
        if t.slots:
            accepted = (*lead, int(str(options["k"])))
        if shape != accepted:
            raise ArgumentError(f"{t.name}: shape {shape}; accepted beside {named}: {accepted}")
    limits = operator.contract
    if rows > limits.max_rows or not limits.min_cols <= cols <= limits.max_cols:
        raise ArgumentError(
            f"{operator.name}: rows={rows}, cols={cols}; accepted: at most {limits.max_rows} rows, "
            f"{limits.min_cols} to {limits.max_cols} columns"
        )
    return lead, (rows, cols)


def full_shape(o: Output, lead: tuple[int, ...], shape: tuple[int, int], entries: int = 0) -> tuple[int, ...]:
    """The shape of a result as the caller sees it."""
    if o.slots:
        return (*lead, o.slots)
    return {"rc": (*lead, shape[1]), "r": lead, "c": shape[1:], "s": (), "t": (entries, shape[1])}[o.space]
