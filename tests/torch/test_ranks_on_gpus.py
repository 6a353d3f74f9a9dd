"""Several GPUs of one host train over NCCL to the bits of one, and of the CPU.

NVLink multicast is off (`NCCL_NVLS_ENABLE=0`): nothing is added on the way.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

GIVEN = ["--batch", "8", "--length", "64", "--block", "64", "--steps", "20"]


def digest(ranks: int, *more: str) -> str:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    ran = subprocess.run(
        [*torchrun, "-m", "examples.mixture", *GIVEN, *more],
        capture_output=True, text=True, check=True, env=os.environ | {"NCCL_NVLS_ENABLE": "0"},
    )  # fmt: skip
    return ran.stdout.split()[-1]


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gpus_train_to_the_bits_of_the_cpu(dtype: str) -> None:
    """Eight blocks a step: with accumulation on fewer than eight GPUs, without on eight."""
    want = digest(1, "--dtype", dtype, "--device", "cpu")
    counts = [n for n in (1, 2, 4, 8) if n <= torch.cuda.device_count()]
    found = {
        (n, way): digest(n, "--dtype", dtype, "--device", "cuda", "--parallel", way)
        for n in counts
        for way in ("ddp", "fsdp")
    }
    assert found == dict.fromkeys(found, want)
