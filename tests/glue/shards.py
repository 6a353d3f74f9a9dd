"""Checkpoints for tests: covers of tensors, and files as torch and safetensors write them."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from safetensors.numpy import save_file

from tokitai.glue import Section

Array = np.ndarray[Any, Any]
BLOCK = 2**20
NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int64": "I64", "uint8": "U8", "float64": "F64"}


def model(seed: int = 0) -> dict[str, Array]:
    """Weights with a NaN that has a payload, zeros of both signs, a scalar, an empty tensor."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((19, 37)).astype(np.float32)
    weight[0, 0] = -0.0
    weight.view(np.uint32)[9, 3] = 0x7FA12345
    return {
        "weight": weight,
        "bias": rng.standard_normal(19).astype(np.float16),
        "step": np.array(7, np.int64),
        "empty": np.zeros((0, 5), np.float32),
    }


def cut(length: int, parts: int) -> list[tuple[int, int]]:
    """Ranges of rows, as FSDP cuts them: all of one size, but for the last ones."""
    size = -(-length // parts)
    return [(min(length, i * size), min(length, (i + 1) * size)) for i in range(parts)]


def rows(tensors: Mapping[str, Array], ranks: int) -> list[Section]:
    """Shards of FSDP; scalars are held by all."""
    found = []
    for rank in range(ranks):
        for name, array in tensors.items():
            if not array.ndim:
                found.append(Section(str(rank), name, array))
                continue
            low, high = cut(len(array), ranks)[rank]
            offset = (low, *(0,) * (array.ndim - 1))
            found.append(Section(str(rank), name, array[low:high], offset, array.shape))
    return found


def reference_digest(tensors: Mapping[str, Array]) -> str:
    """The digest by its definition, for tensors of which a row has at most one block."""
    lines = []
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        leaves = b""
        if array.size:
            row = array.nbytes // len(array) if tensors[name].ndim else array.nbytes
            assert row <= BLOCK
            data, step = array.tobytes(), BLOCK // row * row
            leaves = b"".join(blake3(data[i : i + step]).digest() for i in range(0, len(data), step))
        shape = list(tensors[name].shape)
        line = [name, NAMES[array.dtype.name], shape, blake3(leaves).hexdigest()]
        lines.append(json.dumps(line, separators=(",", ":")) + "\n")
    return str(blake3("".join(lines).encode()).hexdigest())


def write_safetensors(folder: Path, sections: Sequence[Section]) -> None:
    """A file for each rank, that says where its tensors lie."""
    folder.mkdir(exist_ok=True)
    for rank in dict.fromkeys(s.rank for s in sections):
        own = [s for s in sections if s.rank == rank]
        places = {
            s.tensor: {k: list(v) for k, v in (("offset", s.offset), ("shape", s.shape)) if v is not None} for s in own
        }
        said = {"tokitai.sections": json.dumps({"rank": rank, "sections": places})}
        save_file({s.tensor: np.array(s.values, order="C") for s in own}, folder / f"rank{rank}.safetensors", said)


def write_distributed(folder: Path, sections: Sequence[Section], replicas: bool = False) -> None:
    """A folder as `torch.distributed.checkpoint` writes it: archives of torch.save one after another in a file of each
    rank, and a pickle that says where. It drops replicas, unless they are wanted here."""
    import torch
    from torch.distributed.checkpoint import filesystem
    from torch.distributed.checkpoint import metadata as m

    folder.mkdir(exist_ok=True)
    files: dict[str, io.BytesIO] = {}
    tensors: dict[str, Any] = {}
    storage: dict[Any, Any] = {}
    for s in sections:
        tensor = s.values if isinstance(s.values, torch.Tensor) else torch.from_numpy(np.array(s.values))
        offset = torch.Size(s.offset or (0,) * tensor.ndim)
        shape = torch.Size(tensor.shape if s.shape is None else s.shape)
        entry = tensors.setdefault(s.tensor, m.TensorStorageMetadata(m.TensorProperties(tensor.dtype), shape, []))
        index = m.MetadataIndex(s.tensor, offset, len(entry.chunks))
        if index in storage and not replicas:
            continue
        entry.chunks.append(m.ChunkStorageMetadata(offset, tensor.size()))
        name = f"__{s.rank}_0.distcp"
        file = files.setdefault(name, io.BytesIO())
        start = file.tell()
        single = io.BytesIO()
        torch.save(tensor, single)
        file.write(single.getvalue())
        storage[index] = filesystem._StorageInfo(name, start, file.tell() - start)
    for name, file in files.items():
        (folder / name).write_bytes(file.getvalue())
    tensors["epoch"] = m.BytesStorageMetadata()
    with (folder / ".metadata").open("wb") as out:
        pickle.dump(m.Metadata(tensors, {"w": ("w",)}, storage, m.StorageMeta(folder), "1.0.0"), out)


def flip(file: Path, wanted: bytes, bit: int = 0) -> None:
    """Flip a bit of the only place in a file that holds these bytes."""
    data = bytearray(file.read_bytes())
    assert data.count(wanted) == 1
    data[data.index(wanted)] ^= 1 << bit
    file.write_bytes(data)
