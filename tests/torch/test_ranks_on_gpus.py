"""Several GPUs of one host train over NCCL to the bits of one, and of the CPU; and each flipped bit is found there.

NVLink multicast is off (`NCCL_NVLS_ENABLE=0`): nothing is added on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.mixture.training import Report, Training, train
from tests.torch.faulty_runs import RUN, STEP, compared, found, recorded, text_in
from tests.torch.test_tensor_parallel import in_shards, whole
from tests.torch.test_tensor_parallel import trained as trained_in_shards
from tests.torch.world import World, world_of
from tokitai.torch import accumulate
from tokitai.torch.replay import replay

TEXT = (Path(__file__).resolve().parents[2] / "LICENSE").read_bytes()
EIGHT = Training(steps=20, batch=8, length=64, block=64)  # blocks: one for each of the most ranks
ON_GPUS = replace(RUN, device="cuda")
pytestmark = [pytest.mark.gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with world_of(torch.cuda.device_count(), "cuda") as made:
        yield made


@pytest.fixture
def several(world: World) -> World:
    if len(world.pipes) < 2:
        pytest.skip("needs two GPUs of one host")
    return world


def trained(group: Any, run: Training, parallel: str = "ddp", accumulator: str = "f32") -> Report:
    with accumulate(accumulator):
        return train(TEXT, run, parallel=parallel, group=group)


@pytest.mark.parametrize(
    ("dtype", "accumulator"), [("f32", "f32"), *(("bf16", a) for a in ("f32", "fused16", "fixed16"))]
)
def test_gpus_train_to_the_bits_of_the_cpu(world: World, dtype: str, accumulator: str) -> None:
    """With accumulation on fewer than eight GPUs, without on eight."""
    run = replace(EIGHT, dtype=dtype)
    want = trained(None, run, accumulator=accumulator)
    there, counts = replace(run, device="cuda"), [n for n in (1, 2, 4, 8) if n <= len(world.pipes)]
    made = {(n, way): world.same(n, trained, there, way, accumulator) for n in counts for way in ("ddp", "fsdp")}
    assert made == dict.fromkeys(made, want)


def test_without_accumulation(several: World) -> None:
    """As many blocks as there are GPUs, a larger block: another run, with bits of its own."""
    ranks = len(several.pipes)
    run = replace(EIGHT, batch=2 * ranks, block=128, steps=5)
    on_gpus = replace(run, device="cuda")
    found = [several.same(n, trained, on_gpus, way) for n, way in ((1, "ddp"), (ranks, "ddp"), (ranks, "fsdp"))]
    assert found == [train(TEXT, run)] * 3


@pytest.mark.parametrize(("way", "sizes"), [("columns", (12, 6144)), ("rows", (6144, 12))])
@pytest.mark.parametrize("accumulator", ["fixed8", "fixed16", "fixed24"])
def test_a_layer_in_shards_has_the_bits_of_one_rank(
    several: World, way: str, sizes: tuple[int, int], accumulator: str
) -> None:
    want = whole("bfloat16", accumulator, *sizes)
    assert several.same(2, in_shards, way, "bfloat16", accumulator, *sizes) == want


def test_layers_in_shards_train_to_the_bits_of_one_rank(several: World) -> None:
    assert several.same(2, trained_in_shards, "bfloat16") == trained_in_shards(None, "bfloat16")


@pytest.mark.parametrize(("before", "behind"), [(2, 1), (1, 2)])
def test_a_stopped_run_goes_on_with_another_number_of_gpus(
    several: World, tmp_path: Path, before: int, behind: int
) -> None:
    text, folder = text_in(tmp_path), tmp_path / "run"
    want = train(text.read_bytes(), RUN)
    several.same(before, recorded, folder, text, None, "fsdp", replace(ON_GPUS, steps=3))
    assert several.same(behind, recorded, folder, text, None, "fsdp", ON_GPUS) == want.digest
    outcome = replay(folder)
    assert outcome.difference is None and (outcome.first, outcome.last) == (1, RUN.steps)
    assert replay(folder, device="cuda").difference is None


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_flipped_bit_of_what_a_gpu_received_is_named(several: World, tmp_path: Path, parallel: str) -> None:
    """The second rank's: by a replay on the CPU, which names step, tensor and element."""
    several.same(2, recorded, tmp_path / "run", text_in(tmp_path), "buffer", parallel, ON_GPUS)
    made = found(tmp_path / "run")
    assert made.step == (STEP // 2 if parallel == "fsdp" else STEP)  # sharded modules exchange twice a step
    assert made.tensor.startswith("gradient of ") and made.block is None and made.element is not None
    assert made.recorded is not None and made.here is not None and made.recorded != made.here


def test_the_rank_of_an_unequal_replica_is_named(several: World) -> None:
    ranks = len(several.pipes)
    assert several.same(ranks, compared, (), "cuda") == []
    said = several.same(ranks, compared, (1,), "cuda")
    if ranks > 2:
        assert said == ["b: rank 1 has other bits at element [42, 4] than the other ranks"]
    else:
        assert said == ["b: no bits that most of the 2 ranks have"]
