"""Whatever a user gets wrong, or a machine lacks: a clear message, the right exit code, never a traceback."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import KEYS, SMALL, Command
from safetensors.numpy import save

from tokitai import cli

CASE = ("--dtype", "f32", "--case", "seeded/normal@3x17#0")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["verify", "sofmax"], "no operator named 'sofmax'; did you mean softmax"),
        (["verify"], "verify takes one of"),
        (["verify", "softmax", "--all"], "verify takes one of"),
        (["verify", "--all", "--case", "x", "--dtype", "f16"], "go with one operator, not with --all"),
        (["verify", "softmax", "--case", "seeded/normal@1x1#0"], "add --dtype"),
        (["verify", "softmax", "--dtype", "f32", "--case", "nope"], "no case 'nope'; accepted: an id"),
        (["verify", "softmax", *CASE[:3], "seeded/normal@3x3#-1"], "no case 'seeded/normal@3x3#-1'; accepted: an id"),
        (["verify", "softmax", *CASE[:3], "seeded/normal@-3x3#0"], "no case 'seeded/normal@-3x3#0'; accepted: an id"),
        (["verify", "softmax", "--dtype", "f8"], "format of softmax named 'f8' (accepted: all, bf16, f16, f32)"),
        (["verify", "softmax", "--dtype", "f64"], "no storage format of softmax named 'f64'"),
        (["verify", "softmax", "--dtype", "i32"], "no storage format of softmax named 'i32'"),
        (["verify", "softmax", "--device", "tpu"], "no device named 'tpu'; did you mean cpu?"),
        (["verify", "softmax", "--isa", "sse"], "no instruction set named 'sse'"),
        (["verify", "softmax", "--seed", "x"], "--seed"),
        (["verify", "softmax", "--seed", "-1"], "--seed"),
        (["verify", "softmax", "--without", "x"], "no optional input of softmax named 'x' (accepted: there is none)"),
        (["verify", "layer_norm", "--without", "x"], "input of layer_norm named 'x' (accepted: beta, gamma)"),
        (["verify", "softmax", "--option", "a=b"], "softmax has no options"),
        (["verify", "softmax", "--nope"], "No such option: --nope"),
        (["verify", "softmax", "more"], "unexpected extra argument"),
        (["nope"], "No such command 'nope'"),
        (["show", "softmax", "--what", "nope"], "'nope' is not one of"),
        (["show", "softmax", "--device", "tpu"], "no device named 'tpu'; did you mean cpu?"),
        (["show", "softmax", "--dtype", "f8"], "(accepted: bf16, f16, f32)"),
        (["show", "softmax", "--dtype", "all"], "no storage format of softmax named 'all' (accepted: bf16, f16, f32)"),
        (["show", "nope"], "no operator named 'nope'"),
        (["ops", "nope"], "unexpected extra argument"),
    ],
)
def test_wrong_words(tokitai: Command, words: list[str], says: str) -> None:
    done = tokitai(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert says in done.err


@pytest.mark.parametrize(
    "shape",
    ["rows=-1,cols=4", "rows=x,cols=4", "rows=4", "cols=4", "rows=1,cols=2,x=3", "rows=1,rows=2",
     "rows=1,cols=2,cols=2", "", "4x4", "rows=,cols=1", "rows=1.5,cols=1", "rows=1_0,cols=1", "rows=\u0663,cols=1",
     "rows=1,cols=1048577",
     "rows=2147483649,cols=1", "rows=99999999999999999999,cols=1"],
)  # fmt: skip
def test_wrong_shapes(tokitai: Command, shape: str) -> None:
    done = tokitai("verify", "softmax", "--dtype", "f16", "--shape", shape)
    assert (done.code, done.out) == (2, "")
    assert "accepted: " in done.err
    assert shape in done.err or "rows=" in done.err


def tensor_files(folder: Path) -> None:
    """A right one, and the ways in which one can be wrong."""
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)
    whole = save({"x": x})
    files = {
        "right.safetensors": whole,
        "truncated.safetensors": whole[:-5],
        "header.safetensors": whole[:20],
        "empty.safetensors": b"",
        "names.safetensors": save({"z": x}),
        "more.safetensors": save({"x": x, "z": x}),
        "scalar.safetensors": save({"x": np.array(1, np.float32)}),
        "whole.safetensors": save({"x": x.astype(np.int32)}),
        "weights.safetensors": save({"x": x, "w": np.ones(7, np.float32)}),
        "tensors.bin": whole,
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    np.savez(folder / "right.npz", x=x)
    (folder / "truncated.npz").write_bytes((folder / "right.npz").read_bytes()[:-30])
    (folder / "folder.npz").mkdir()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.safetensors", "no such file"),
        ("folder.npz", "a folder"),
        ("truncated.safetensors", "not a whole safetensors file"),
        ("header.safetensors", "not a whole safetensors file"),
        ("empty.safetensors", "not a whole safetensors file"),
        ("truncated.npz", "cannot be read, perhaps truncated"),
        ("names.safetensors", "holds z; accepted for small: x, w"),
        ("more.safetensors", "holds x, z; accepted for small: x, w"),
        ("scalar.safetensors", "x is a scalar; accepted: rows x cols"),
        ("whole.safetensors", "x has format int32"),
        ("weights.safetensors", "w has shape (7,)"),
        ("tensors.bin", "suffix '.bin'; accepted: .npz, .safetensors"),
    ],
)
def test_wrong_tensor_files(tokitai: Command, small: str, name: str, says: str) -> None:
    tensor_files(tokitai.folder)
    done = tokitai("verify", small, "--dtype", "f32", "--without", "w", "--inputs", name)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {name}: ")
    assert says in done.err


USER_FILES = {
    "syntax.py": ("def f(:\n", "syntax.py:1: "),
    "raises.py": ("import math\n1 / 0\n", "raises.py:2: ZeroDivisionError: division by zero"),
    "imports.py": ("import not_there_at_all\n", "imports.py:1: ModuleNotFoundError: No module named"),
    "exits.py": ("import sys\nsys.exit(7)\n", "exits.py:2: SystemExit: 7"),
    "empty.py": ("", "no operator in empty.py named 'small'"),
    "function.py": ("def small(x): return x\n", "small is of type function; accepted: an operator (there is none"),
    "other.py": (SMALL.replace("def small", "def large"), "no operator in other.py named 'small' (accepted: large)"),
    "signature.py": (SMALL.replace("x: Matrix[storage]", "x"), "signature.py:5: the parameter x"),
    "branch.py": (SMALL.replace("y = x * by if", "y = x * by if x > 0 and"), "branch.py:8: "),
    "name.py": (SMALL.replace("-x * by", "-x * bye").replace('"plus" else', '"minus" else'), "name.py:8: NameError"),
    "returns.py": (SMALL.replace("return outputs", "return 3 #"), "returns.py:5: small returns 3; accepted: outputs("),
}


@pytest.mark.parametrize("name", USER_FILES)
def test_wrong_operator_files(tokitai: Command, name: str) -> None:
    text, says = USER_FILES[name]
    (tokitai.folder / name).write_text(text)
    done = tokitai("verify", f"{name}:small", *CASE)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert says in done.err


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("missing.py:small", "missing.py: no such file; accepted: the name of an operator, or FILE.py:NAME"),
        ("small.py", "no operator in small.py named '' (accepted: small)"),
        ("small.py:", "no operator in small.py named '' (accepted: small)"),
        ("small.py:smal", "no operator in small.py named 'smal'; did you mean small? (accepted: small)"),
        ("small.txt:small", "small.txt: suffix '.txt'; accepted: .py"),
        ("folder.py:small", "folder.py: no such file"),
    ],
)
def test_wrong_places_of_operators(tokitai: Command, small: str, word: str, says: str) -> None:
    (tokitai.folder / "small.txt").write_text(SMALL)
    (tokitai.folder / "folder.py").mkdir()
    done = tokitai("verify", word, *CASE)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_a_textbook_that_raises_is_told_by_its_line(tokitai: Command) -> None:
    text = SMALL + "\n@small.set_textbook\ndef textbook(x, w=1.0, *, by, sign):\n    return x.nope\n"
    (tokitai.folder / "t.py").write_text(text)
    done = tokitai("verify", "t.py:small", *CASE, "--without", "w")
    assert (done.code, done.out) == (2, "")
    assert "t.py:13: AttributeError: 'numpy.ndarray' object has no attribute 'nope'" in done.err


@pytest.mark.parametrize(
    "words",
    [["verify", "nope"], ["verify", "softmax", "--nope"], ["verify"], ["verify", "softmax", "--shape", "x"]],
)
def test_with_json_an_error_is_one_object(tokitai: Command, words: list[str]) -> None:
    done = tokitai.process(*words, "--json")
    assert done.code == 2
    assert set(done.object) == {"error", "kind"}
    assert done.err == f"error: {done.object['error']}\n"


def test_what_a_users_file_prints_is_no_result(tokitai: Command) -> None:
    text = "print('loaded')\n" + SMALL.replace("    y =", "    print('traced')\n    y =")
    (tokitai.folder / "loud.py").write_text(text)
    done = tokitai.process("verify", "loud.py:small", *CASE, "--without", "w", "--json")
    assert (done.code, set(done.object)) == (0, KEYS)
    assert "loaded" in done.err and "traced" in done.err


def test_a_folder_that_cannot_be_written(tokitai: Command) -> None:
    (tokitai.folder / "file").write_text("")
    done = tokitai("verify", "softmax", *CASE, "--out", "file")
    assert (done.code, done.out) == (2, "")
    assert "--out file: cannot be written" in done.err


# ------------------------------------------------------------------ what the machine lacks
def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def undecided(done: Any) -> str:
    """The failure of an undecided verdict. Standard output holds it in one object."""
    assert done.code == 3, done
    assert set(done.object) == KEYS
    assert (done.object["verdict"], done.object["cases"], done.object["certificate"]) == ("undecided", 0, None)
    return str(done.object["failure"])


def test_no_compiler_on_the_path(tokitai: Command) -> None:
    failure = undecided(tokitai.process("verify", "softmax", "--dtype", "f16", "--json", PATH="", TOKITAI_CXX=""))
    assert failure.startswith("no C++ compiler on PATH")
    assert "apt install g++" in failure


def test_a_compiler_that_does_not_exist(tokitai: Command) -> None:
    words = ("verify", "softmax", "--dtype", "f16", "--json")
    failure = undecided(tokitai.process(*words, TOKITAI_CXX=str(tokitai.folder / "no-such-compiler")))
    assert "no-such-compiler': no such program" in failure
    assert "'no-such-compiler': no such program" in undecided(tokitai(*words, "--compiler", "no-such-compiler"))


def test_a_compiler_that_does_not_run(tokitai: Command) -> None:
    path = script(tokitai.folder / "broken++", "echo out of order >&2; exit 1")
    failure = undecided(tokitai("verify", "softmax", "--dtype", "f16", "--json", "--compiler", path))
    assert "exit status 1: out of order" in failure


def test_a_compiler_that_fails(tokitai: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKITAI_CACHE_DIR", str(tokitai.folder / "cache"))
    text = 'case "$*" in *-shared*) echo full disk >&2; exit 1;; *) exec g++ "$@";; esac'
    path = script(tokitai.folder / "failing++", text)
    failure = undecided(tokitai("verify", "softmax", "--dtype", "f16", "--json", "--compiler", path))
    assert "failed with exit status 1" in failure
    assert failure.endswith("full disk")


def test_doctor_without_a_compiler(tokitai: Command) -> None:
    done = tokitai.process("doctor", "--json", PATH="", TOKITAI_CXX="")
    assert (done.code, done.object["devices"]["cpu"]["works"]) == (3, False)
    assert all(c.startswith("cuda: ") and c.endswith("inspected here, not run") for c in done.object["claims"])
    assert any("apt install g++" in text for text in done.object["missing"])


def test_more_memory_than_there_is(tokitai: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: Any, **__: Any) -> None:
        np.empty((1 << 60,), np.uint8)

    monkeypatch.setattr("tokitai.cli.app.verify_many", greedy)
    done = tokitai("verify", "softmax", "--json")
    assert (done.code, done.object["kind"]) == (3, "MemoryError")
    assert "not enough memory" in done.err


def test_a_fault_of_our_own_is_no_verdict(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def faulty(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of thin air")

    monkeypatch.setattr("tokitai.cli.app.verify_many", faulty)
    assert cli.run(["verify", "softmax", "--json"]) == 70
    said = capsys.readouterr()
    assert json.loads(said.out)["kind"] == "InternalError"
    assert "Traceback" in said.err, "whoever mends it needs the place"


def test_a_pipe_that_is_closed_early_is_no_error(tokitai: Command) -> None:
    command = f"set -o pipefail; {Path(sys.executable).with_name('tokitai')} show layer_norm | head -n 1"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert ran.stdout == "---- definition ----\n"
    assert ran.stderr == ""


def test_an_interruption_is_told(tokitai: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tokitai.cli.app.verify_many", interrupted)
    done = tokitai("verify", "softmax", "--json")
    assert (done.code, done.object["kind"], done.err) == (130, "KeyboardInterrupt", "error: interrupted\n")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
def test_streams_that_cannot_be_written_make_no_verdict() -> None:
    """A disk that is full must not be taken for a refuted kernel, and notes that nobody reads change nothing."""
    tokitai = Path(sys.executable).with_name("tokitai")
    command = f"""
        {tokitai} ops --json > /dev/full; echo $?
        {tokitai} verify nope 2> /dev/full; echo $?
        {tokitai} verify scale --dtype f16 --case nope 2>&-; echo $?
    """
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120)
    assert ran.stdout.split() == ["3", "2", "2"]
    assert ran.stderr == "error: what was found cannot be written: [Errno 28] No space left on device\n"


@pytest.mark.parametrize(
    "words",
    ["ops", "ops --json", "show softmax", "doctor --json", "verify softmax --dtype f32 --case seeded/normal@3x17#0"],
)
def test_a_reply_that_cannot_be_given_is_an_error(words: str, tmp_path: Path) -> None:
    """Standard output is closed: exit code 0 would say that somebody has the reply."""
    tokitai = Path(sys.executable).with_name("tokitai")
    command = f"cd {tmp_path}; {tokitai} {words} >&-"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 3, ran.stderr
    assert "cannot be written: [Errno 9] Bad file descriptor" in ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["0<&-", "2>&-", "0<&- 2>&-"])
def test_other_streams_may_be_closed(closed: str) -> None:
    tokitai = Path(sys.executable).with_name("tokitai")
    command = f"{tokitai} verify softmax --dtype f32 --isolate --case seeded/normal@3x17#0 --json {closed}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0 and json.loads(ran.stdout)["verdict"] == "verified", ran.stderr


NO_HOME = """
import pwd, sys
def unknown(uid): raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = unknown
from tokitai.cli import main
sys.argv[0] = "tokitai"
main()
"""


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param("doctor", 0, "cache folder is not known", marks=pytest.mark.slow),
        pytest.param(
            "verify softmax --dtype f32 --case seeded/normal@3x17#0",
            0,
            "cache folder is not known",
            marks=pytest.mark.slow,
        ),
        ("verify softmax --dtype f32", 2, "state folder is not known"),
        ("bench softmax", 2, "state folder is not known"),
    ],
)
def test_a_user_without_a_home(words: str, code: int, says: str, tmp_path: Path) -> None:
    """No HOME, and a number that the password database does not know, as containers have it."""
    environment = {"PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", NO_HOME, *words.split()]
    ran = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path
    )
    assert ran.returncode == code, ran.stderr
    assert says in ran.stdout + ran.stderr and not list(tmp_path.iterdir())
