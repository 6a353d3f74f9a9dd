"""`tokitai bench`: what is counted, whom it is compared with, what is kept and shown."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokitai.torch.peers
from bench import run as bench_run
from tokitai import ops
from tokitai.bench import measure, report, timing, workload
from tokitai.bench.count import bytes_of, operations_of
from tokitai.cli import run
from tokitai.errors import InputFileError
from tokitai.lang import Matrix, Outputs, function, operator, outputs, row_sum, storage

RECORD = {
    "date", "load", "operator", "dtype", "rows", "cols", "tensors", "bytes", "operations", "kernel", "build_seconds",
    "times", "share_of_bound", "not_held", "flags", "environment",
}  # fmt: skip
QUICK = ("layer_norm", "softmax_backward", "adamw")


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call a block: nobody looks at these times."""
    monkeypatch.setattr(timing, "BLOCK_SECONDS", 0.0)


def command(*words: str | Path) -> int:
    return run(["bench", *map(str, words)])


# ------------------------------------------------------------------ counts
@function
def thrice(x: Any) -> Any:
    return x * 3.0 + 1.0


@operator
def counted(x: Matrix[storage], *, by: float = 2.0) -> Outputs:
    """A product, a function of two operations, a sum along the row, a quotient of the row's."""
    return outputs(y=thrice(x * by), mean=row_sum(x) / 4.0)


def test_operations_are_those_of_the_definition() -> None:
    """(1 + 2 + 1) for each element and 1 for each row."""
    assert operations_of(counted.trace("f16"), [(3, 5)]) == 4 * 15 + 3
    assert operations_of(counted.trace("f32"), [(3, 5), (0, 5), (1, 2)]) == 4 * 17 + 4


def test_bytes_are_each_tensor_once() -> None:
    norm = ops.layer_norm.trace("f16")
    assert bytes_of(norm, [(64, 100)]) == 2 * (2 * 6400 + 200) + 4 * 2 * 64
    adamw = ops.adamw.trace("f16", ())
    assert bytes_of(adamw, [(1, 1000), (1, 24)]) == 22 * 1024, "what is replaced is read and written"
    assert bytes_of(ops.global_norm.trace("f16"), [(1, 10), (1, 20)]) == 2 * 30 + 4, "one norm for the list"


# ------------------------------------------------------------------ inputs
def few(names: Iterable[str]) -> list[Any]:
    """All of them, most as slow tests: each is a kernel to compile."""
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", few(o.name for o in workload.operators()))
def test_inputs_are_seeded_within_the_contract_and_timed(name: str) -> None:
    op = ops.get(name)
    shapes = ((1, 40), (1, 0), (1, 7)) if workload.takes_lists(op) else ((6, 40),)
    for dtype in op.contract.formats if name in QUICK else op.contract.formats[:1]:
        one, two = (workload.workload(op, dtype, shapes) for _ in range(2))
        for t in one.kernel.graph.inputs:
            assert [a.tobytes() for a in one.tensors[t.name]] == [a.tobytes() for a in two.tensors[t.name]]
            assert len(one.tensors[t.name]) == len(shapes)
            assert all(np.isfinite(a.astype(np.float64)).all() for a in one.tensors[t.name])
        assert one.kernel.graph.dtype == dtype
    record = measure.measure(op, op.contract.formats[0], shapes, 1, 1, None)
    assert set(record) == RECORD and record["not_held"] == {}


def test_a_backward_pass_gets_what_its_forward_pass_saved() -> None:
    work = workload.workload(ops.layer_norm_backward, "f32", ((6, 40),))
    x = work.tensors["x"][0].astype(np.float64)
    assert np.allclose(work.tensors["mean"][0], x.mean(1), atol=1e-6)
    assert np.allclose(work.tensors["rstd"][0], 1 / np.sqrt(x.var(1) + 1e-5), rtol=1e-5)
    assert not np.array_equal(work.tensors["dy"][0], work.tensors["x"][0])


# ------------------------------------------------------------------ times
def test_calls_take_turns() -> None:
    order: list[str] = []
    times = timing.alternate({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert "".join(order) == "aabb" + "ab" * 3
    assert [len(t.blocks) for t in times.values()] == [3, 3] and times["a"].least <= times["a"].median


@pytest.mark.parametrize("size", [0, 2, 1001, 1 << 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_copy_moves_so_many_bytes(size: int, threads: int) -> None:
    copy = timing.Copy(size, threads)
    copy.target[:] = 0
    copy()
    assert copy.target.nbytes + copy.source.nbytes == size // 2 * 2 and copy.target.all()


# ------------------------------------------------------------------ counterparts
@pytest.mark.parametrize("name", few(tokitai.torch.peers.OPERATORS))
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_counterparts_compute_the_same_function(name: str, dtype: str) -> None:
    op = ops.get(name)
    shapes = ((1, 300), (1, 0), (1, 41)) if workload.takes_lists(op) else ((16, 96),)
    record = measure.measure(op, dtype, shapes, 2, 1, "torch")
    assert set(record) == RECORD and set(record["times"]) == {"kernel", "call", "copy", "torch"}
    assert record["environment"]["torch"] and record["bytes"] > 0 and record["operations"] > 0


# ------------------------------------------------------------------ the command
@pytest.mark.parametrize(("words", "names"), [
    ([], {o.name for o in workload.operators()}), (["--against", "torch"], set(tokitai.torch.peers.OPERATORS)),
])  # fmt: skip
def test_all_are_timed_where_none_are_named(
    words: list[str], names: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "measure", lambda operator, *_: {"operator": operator.name})
    monkeypatch.setattr(report, "table", lambda *_, **__: "")
    assert command("--dtype", "f32", *words, "--out", tmp_path / "kept.jsonl") == 0
    assert {json.loads(line)["operator"] for line in (tmp_path / "kept.jsonl").open()} == names


def test_json_is_one_object_and_records_are_added(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept, words = tmp_path / "deep" / "kept.jsonl", ("--dtype", "f16", "--shape", "8x64", "--blocks", "2", "--json")
    for times in (1, 2):
        assert command("softmax", "silu", *words, "--threads", "1", "--out", kept) == 0
        found = json.loads(capfd.readouterr().out)["results"]
        assert [(r["operator"], r["dtype"], r["rows"], r["cols"]) for r in found] == [
            ("softmax", "f16", 8, 64), ("silu", "f16", 8, 64),
        ]  # fmt: skip
        assert all(set(r) == RECORD and "torch" not in r["times"] for r in found)
        assert found[0]["environment"]["threads"] == 1 and found[0]["environment"]["torch"] is None
        assert len(report.read(kept)) == 2 * times and report.read(kept)[-2:] == found


OWN = """
from typing import Any
from tokitai.lang import Matrix, Outputs, operator, outputs, storage

@operator
def twice(x: Matrix[storage]) -> Outputs:
    return outputs(y=x + x)

@operator
def odd(x: Matrix[storage], *, by: float) -> Outputs:
    return outputs(y=x * by)
"""


def test_operators_of_the_readers_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    own, kept = tmp_path / "own.py", tmp_path / "kept.jsonl"
    own.write_text(OWN)
    words = ("--dtype", "f16", "--shape", "16x96", "--blocks", 1, "--out", kept)
    assert command(f"{own}:twice", "silu", *words) == 0
    assert [r["operator"] for r in report.read(kept)] == ["twice", "silu"]
    assert command(f"{own}:thrice", *words) == 2
    assert "named 'thrice'; did you mean twice? (accepted: odd, twice)" in capfd.readouterr().err
    assert command(f"{own}:twice", "--against", "torch", *words) == 2
    assert "'twice'" in capfd.readouterr().err and len(report.read(kept)) == 2


@pytest.mark.slow
def test_the_table_and_the_plot(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.svg"
    words = ("--shape", "8x64", "--shape", "3x5", "--blocks", "1", "--against", "torch", "--plot", plot)
    assert command("softmax", "adamw", *words, "--dtype", "f32", "--dtype", "bf16", "--out", tmp_path / "kept") == 0
    out = capfd.readouterr().out
    rows = [line.split(" | ") for line in out.splitlines() if line.startswith(("| softmax", "| adamw"))]
    assert [(r[0][2:], r[1], r[2]) for r in rows] == [
        ("softmax", "f32", "8x64"), ("softmax", "f32", "3x5"), ("softmax", "bf16", "8x64"), ("softmax", "bf16", "3x5"),
        ("adamw", "f32", "8 tensors, 512 elements"), ("adamw", "f32", "3 tensors, 15 elements"),
        ("adamw", "bf16", "8 tensors, 512 elements"), ("adamw", "bf16", "3 tensors, 15 elements"),
    ]  # fmt: skip
    heads = next(line for line in out.splitlines() if line.startswith("| operator")).split(" | ")
    assert {len(r) for r in rows} == {len(heads)}
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert plot.stat().st_size > 4000


def test_ratios_are_of_medians() -> None:
    def record(torch: float | None) -> dict[str, Any]:
        times = {"kernel": 2.0, "call": 4.0, "copy": 1.0, **({} if torch is None else {"torch": torch})}
        return {
            "date": "2026-01-01", "load": 0.0, "operator": "softmax", "dtype": "f16", "rows": 4, "cols": 8,
            "bytes": 2_000_000, "operations": 4_000_000,
            "times": {n: dict(median_ms=t, min_ms=t / 2, calls=1, blocks=[t]) for n, t in times.items()},
            "environment": dict(cpu="C", cores=1, threads=1, isa="avx2", compiler="g", torch="2", omp_wait_policy="p"),
        }  # fmt: skip

    text = report.table([record(9.0), record(6.0)], head="")
    assert "| f16 | 4x8 | 2.00 (1.00) | 4.00 (2.00) | 6.00 (3.00) | 3.00 | 1.50 | 1.0 | 0.50 | 2.0 | 1 |" in text
    assert text.count("softmax") == 1, "the latest"
    assert report.speed(record(6.0)) == 3.0 and report.speed(record(None)) == 0.5
    old = {k: v for k, v in record(6.0).items() if k != "operations"}
    assert "| 0.50 |  | 1 |" in report.table([old], head=""), "records of before operations were counted"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["sofmax"], 2, "no operator named 'sofmax'; did you mean"),
        (["softmax", "--against", "numpy"], 2, "no library to time against named 'numpy'"),
        (["dropout", "--against", "torch"], 2, "no operator with a counterpart in PyTorch named 'dropout'"),
        (["softmax", "--shape", "8"], 2, "--shape '8'; accepted: ROWSxCOLS, each at least 1"),
        (["softmax", "--shape", "0x8"], 2, "--shape '0x8'; accepted"),
        (["softmax", "--shape", "8x99999999"], 2, "softmax: shape 8x99999999; accepted: at most"),
        (["softmax", "--dtype", "f64"], 2, "no storage format of softmax named 'f64'"),
        (["softmax", "--plot", "x.gif"], 2, "--plot x.gif: suffix '.gif'; accepted: .png, .svg, .pdf"),
        (["softmax", "--plot", "none/x.svg"], 2, "no folder"),
        (["softmax", "--out", "/proc/none/x"], 2, "--out /proc/none/x: cannot be written"),
        (["softmax", "--threads", "0"], 2, "Invalid value for '--threads'"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_timed(
    words: list[str], code: int, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "measure", lambda *a: pytest.fail("something was timed"))
    assert command(*words, "--json") == code
    done = capfd.readouterr()
    assert said in done.err and said in json.loads(done.out)["error"]


@pytest.mark.parametrize(("missing", "words", "said"), [
    ("torch", ["--against", "torch"], "PyTorch is not installed; install it with `pip install torch`"),
    ("matplotlib", ["--plot", "x.svg"], "matplotlib is not installed; install it with `pip install 'tokitai[bench]'`"),
])  # fmt: skip
def test_what_is_missing_is_named(
    missing: str, words: list[str], said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (measure, report):
        monkeypatch.setattr(module, "find_spec", lambda name: None if name == missing else find_spec(name))
    assert command("softmax", *words) == 3
    assert said in capfd.readouterr().err


def test_a_file_of_records_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n{")
    for name in ("x.jsonl", "none.jsonl"):
        with pytest.raises(InputFileError, match=rf"{name}: .*accepted: a file with one JSON record a line"):
            report.read(tmp_path / name)


def test_the_repositorys_own_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m bench.run`` keeps its records, a table and a plot beside each other."""
    monkeypatch.setattr(bench_run, "RESULTS", tmp_path)
    words = ["softmax", "--dtype", "f16", "--shape", "4x4", "--blocks", "1", "--against", "torch"]
    assert bench_run.main(words) == 0
    assert {p.name for p in tmp_path.iterdir()} == {"cpu.jsonl", "cpu.md", "cpu.svg"}
    text = (tmp_path / "cpu.md").read_text()
    assert text.startswith("# Times on the CPU\n\nWritten by `python -m bench.run`")
    assert "| softmax | f16 | 4x4 |" in text
    assert bench_run.main([*words, "--out", str(tmp_path / "apart.jsonl")]) == 0
    assert len(report.read(tmp_path / "cpu.jsonl")) == 1, "with --out figures go there alone"
    assert bench_run.main(["sofmax"]) == 2
