"""``tokitai prove``: what holds of kernels for all sizes?"""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from ..backends import DEFAULT
from ..errors import UnavailableError, UnknownNameError, UsageError
from ..ops import registry
from . import output, parse


def prove(
    operator: Annotated[str | None, typer.Argument(metavar="OP", help="An operator; all where none is named.")] = None,
    target: Annotated[
        str, typer.Option("--target", "--device", metavar="T", help="Whose kernels: cpu, cuda or hip.")
    ] = DEFAULT,
    dtype: Annotated[str | None, typer.Option(help="A storage format; the contract's first by default.")] = None,
    isa: Annotated[str | None, typer.Option(help="avx512 (the default), avx2 or neon: how long vectors are.")] = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", min=0.01, help="Seconds for one question to the solver.")
    ] = 20.0,
    sums: Annotated[bool, typer.Option("--sums", help="The order of sums for every count, alone.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else.")
    ] = False,
) -> int:
    """Prove of kernels, for all sizes of the contract: what they access, and that each element is written once.

    Exit code 0: all obligations are proved. 1: one is refuted. 3: one is undecided. 2: wrong usage.
    """
    if importlib.util.find_spec("z3") is None:
        raise UnavailableError('the solver Z3 is missing; install it: pip install "tokitai[proof]"')
    from ..proving.prove import CODES, DEFAULT_ISA, TARGETS, overall
    from ..proving.prove import isas as accepted
    from ..proving.prove import prove as run

    if target not in TARGETS:
        raise UnknownNameError("target of proofs", target, TARGETS)
    if isa is not None and isa not in accepted():
        raise UnknownNameError("instruction set of proofs", isa, accepted())
    if sums and (operator is not None or dtype is not None or isa is not None):
        raise UsageError("--sums is about headers that kernels share; accepted: prove --sums")
    if operator is None and dtype is not None:
        raise UsageError("--dtype goes with one operator; accepted: prove OP --dtype FORMAT")
    if sums:
        from ..proving.sums import obligations

        made = []
        for o in obligations(timeout):
            made.append(o)
            if not as_json:
                print(output.obligation_text(o))
        worst = overall(made)
        if as_json:
            output.print_json({"obligations": [o.as_json() for o in made], "status": worst})
        return CODES[worst]
    proofs = []
    for op in [parse.operator_named(operator)] if operator is not None else registry().values():
        fmt = op.contract.formats[0] if dtype is None else parse.format_named(op, dtype)
        with parse.blame_file_of(op):
            proofs.append(run(op, fmt, target, isa or DEFAULT_ISA, timeout))
        if not as_json:
            for o in proofs[-1].obligations:
                print(output.obligation_text(o))
    status = overall(o for p in proofs for o in p.obligations)
    if as_json:
        found = [{"operator": p.operator, "dtype": p.dtype, **o.as_json()} for p in proofs for o in p.obligations]
        output.print_json({"target": target, "obligations": found, "status": status})
    return CODES[status]
