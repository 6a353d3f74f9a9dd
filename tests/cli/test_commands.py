"""`ops`, `show`, `doctor`, help, and how soon the command starts."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from command import Command

from tokitai import __version__
from tokitai.backends.hip.probe import amd_devices
from tokitai.families import emit_cpu
from tokitai.families.rowwise.plan import plan_rows
from tokitai.numerics import NUMERICS_VERSION
from tokitai.ops import get, registry


def test_ops_lists_every_operator(tokitai: Command) -> None:
    found = {o["operator"]: o for o in tokitai("ops", "--json").object["operators"]}
    assert list(found) == list(registry())
    norm = found["layer_norm"]
    assert norm["definition"].startswith("y = (x - mean) / sqrt(var + eps)")
    assert norm["inputs"][:2] == [
        {"name": "x", "shape": "rows x cols", "format": "storage", "optional": False},
        {"name": "gamma", "shape": "cols", "format": "storage", "optional": True},
    ]
    assert norm["scalars"] == [{"name": "eps", "default": 1e-5, "whole": False}]
    assert [(r["name"], r["shape"], r["format"]) for r in norm["results"]] == [
        ("y", "rows x cols", "f16"), ("mean", "rows", "f32"), ("rstd", "rows", "f32"),
    ]  # fmt: skip
    assert norm["contract"]["formats"] == ["f16", "bf16", "f32"]
    assert found["layer_norm_backward"]["backward_of"] == "layer_norm"
    every = ["cpu", "cuda", "hip", "sim"]
    assert all(o["devices"] in (every, ["cpu"]) for o in found.values())
    product = found["matmul"]
    assert [i["shape"] for i in product["inputs"]] == ["rows x inner", "inner x cols", "rows x cols"]
    groups = found["grouped_linear_backward_weight"]
    assert [i["shape"] for i in groups["inputs"]] == ["inner x rows", "inner x cols", "groups + 1"]
    assert [r["shape"] for r in groups["results"]] == ["groups x rows x cols"] and groups["devices"] == every


def test_ops_for_people(tokitai: Command) -> None:
    out = tokitai("ops").out
    names = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert names == list(registry())
    assert "inputs       x: rows x cols storage; gamma: cols storage (optional)" in out
    assert "gradient of  softmax" in out


@pytest.mark.parametrize("part", ["definition", "graph", "plan", "source"])
def test_show_gives_one_part_alone(tokitai: Command, part: str) -> None:
    graph = get("layer_norm").trace("f16", {"gamma"})
    wanted = {
        "graph": str(graph),
        "plan": f"passes           {len(plan_rows(graph).passes)}\n",
        "source": emit_cpu(plan_rows(graph)).text.rstrip(),
        "definition": '    rough = row_sum(x) / n\n',
    }  # fmt: skip
    done = tokitai("show", "layer_norm", "--what", part, "--dtype", "f16", "--without", "beta")
    assert done.code == 0
    assert wanted[part] in done.out
    assert "----" not in done.out


def test_show_gives_all_parts_with_headings(tokitai: Command, small: str) -> None:
    out = tokitai("show", small).out
    assert [line for line in out.splitlines() if line.startswith("----")] == [
        f"---- {part} ----" for part in ("definition", "graph", "plan", "source")
    ]
    assert "def small(x: Matrix[storage]" in out


@pytest.mark.slow
def test_doctor_says_what_works(tokitai: Command) -> None:
    done = tokitai("doctor", "--json")
    report = done.object
    assert done.code == 0, report
    keys = "numerics_version device compilers compiler cache devices claims missing"
    assert set(report) == set(keys.split())
    assert set(report["devices"]) == {"cpu", "sim", "cuda", "hip"} and report["devices"]["cpu"]["works"] is True
    simulated = report["devices"]["sim"]
    assert (simulated["works"], simulated["problem"]) == (True, None)
    assert report["claims"] == [f"{n}: {c}" for n, t in report["devices"].items() for c in t["claims"]]
    assert report["device"]["memory_bytes"] > 1 << 28
    assert all(re.fullmatch("[0-9a-f]{64}", c["digest"]) for c in report["compilers"])
    assert any(text.startswith("sim: ") for text in report["claims"])
    gpu = report["devices"]["cuda"]
    told = [text for text in report["missing"] if text.startswith("cuda: ")]
    assert gpu["works"] is (not told)
    assert any("can be run" in text for text in gpu["claims"]) is gpu["works"]
    assert (gpu["nvrtc_digest"] is None) is (gpu["build"] is not None)
    assert told == [f"cuda: {gpu[what]}" for what in ("build", "run") if gpu[what]]
    assert report["compiler"] in [c["path"] for c in report["compilers"] if c["works"]]
    assert report["cache"]["problem"] is None
    people = tokitai("doctor")
    assert people.code == 0
    assert "devices     cpu: works\n            cuda: " in people.out and "\n            sim: works\n" in people.out


def test_doctor_does_not_take_a_wrong_kernel_for_a_working_one(
    tokitai: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokitai.cli import doctor
    from tokitai.toolchain.compilers import find_compiler
    from tokitai.verification import verify

    def wrong(*args: object, **kwargs: object) -> object:
        return verify(*args, edit=lambda text: text.replace("= mul(", "= add("), **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(doctor, "verify", wrong)
    monkeypatch.setattr(doctor, "all_compilers", lambda: [find_compiler()])
    done = tokitai("doctor", "--json")
    assert done.code == 3
    assert [done.object["devices"][name]["claims"] for name in ("cpu", "sim")] == [[], []]
    assert any("seeded/normal@3x33#0" in text for text in done.object["missing"])


@pytest.mark.slow
def test_doctor_on_a_bare_machine(tokitai: Command) -> None:
    """No compiler at all: nothing is claimed that needs one, and what to install is said for each target."""
    done = tokitai.process("doctor", "--json", PATH="", TOKITAI_CXX="")
    report = done.object
    assert (done.code, report["compilers"], report["compiler"]) == (3, [], None)
    assert not any(report["devices"][name]["works"] for name in ("cpu", "sim", "hip"))
    assert [report["devices"][name]["claims"] for name in ("cpu", "sim", "hip")] == [[], [], []]
    assert any("apt install g++" in text for text in report["missing"])
    assert any(text.startswith("hip: ") for text in report["missing"])
    people = tokitai.process("doctor", PATH="", TOKITAI_CXX="")
    assert people.code == 3 and "no claim    cpu: nothing\n" in people.out


def test_amd_gpus_are_read_from_the_driver(tmp_path: Path) -> None:
    nodes, driver = tmp_path / "nodes", tmp_path / "version"
    for node, version, name in ((0, 0, ""), (1, 90010, "aldebaran"), (2, 110001, "navi32"), (10, 90402, "")):
        (nodes / str(node) / "mem_banks" / "0").mkdir(parents=True)
        (nodes / str(node) / "properties").write_text(f"simd_count 4\ngfx_target_version {version}\nvendor_id 4098\n")
        (nodes / str(node) / "name").write_text(f"{name}\n")
        (nodes / str(node) / "mem_banks" / "0" / "properties").write_text("heap_type 1\nsize_in_bytes 64\n")
    found = amd_devices(nodes, driver)
    assert [(d["name"], d["arch"]) for d in found] == [
        ("aldebaran", "gfx90a"), ("navi32", "gfx1101"), ("AMD GPU", "gfx942"),
    ]  # fmt: skip
    assert [(d["memory_bytes"], d["driver"]) for d in found] == [(64, None)] * 3
    driver.write_text("6.8.5\n")
    assert amd_devices(nodes, driver)[0]["driver"] == "6.8.5"
    assert amd_devices(tmp_path / "none") == []


def test_the_version(tokitai: Command) -> None:
    version = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["version"]
    done = tokitai("--version")
    assert (done.code, done.out, done.err) == (0, f"tokitai {version}, numerics {NUMERICS_VERSION}\n", "")
    assert __version__ == version


def test_the_bare_command_shows_its_help(tokitai: Command) -> None:
    done = tokitai()
    assert done.code == 2
    assert "verify" in done.out
    assert done.err == ""
    assert tokitai("--help").code == 0
    assert tokitai("verify", "--help").code == 0


def test_a_command_brings_only_what_it_needs() -> None:
    """Start-up is paid by every call: rich, SciPy and torch stay out until somebody needs them."""
    heavy = "[name for name in ('rich', 'scipy', 'torch') if name in sys.modules]"
    program = f"import sys; from tokitai.cli import app; print({heavy})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
