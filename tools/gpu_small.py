"""One small case of every kernel on a card, under compute-sanitizer: `compute-sanitizer --tool T python3` and this."""

import sys

from tokitai.gpu_kernel import GpuKernel
from tokitai.gpu_targets import CudaKernel, target_named
from tokitai.lower import make_plan
from tokitai.ops import registry
from tokitai.verification import cases, run
from tokitai.verification.suite import allowed

SHAPES = ((3, 9), (33, 264), (34, 1024))


def main() -> int:
    """The number of results that differ from the oracle."""
    target, wrong, tried = target_named("cuda"), 0, 0
    for name, op in registry().items():
        graph = op.trace("f16")
        kernel: GpuKernel = CudaKernel(op, graph, make_plan(graph), False, target)
        for rows, cols in SHAPES:
            shape = (min(rows, op.contract.max_rows), cols)
            if allowed(op, shape):
                tried += 1
                result = run.run_numbers(kernel, cases.seeded(op, graph, "normal", shape, 0), None, 1)
                if result.failure:
                    wrong += 1
                    print(f"{name}: {result.failure}")
    print(f"{tried} cases, {wrong} wrong")
    return wrong or not tried


if __name__ == "__main__":
    sys.exit(main())
