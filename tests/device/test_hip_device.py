"""What is said of AMD devices: no hip-python, no device, or that kernels do not run there yet."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tokitai.backends.hip.probe import probe


class Status(int):
    name = "hipSuccess"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((Status(0), 0), r"no AMD device here \(hipGetDeviceCount: hipSuccess, 0 devices\)"),
        ((Status(100), 0), "no AMD device here"),
        ((Status(0), 1), "1 AMD device here, but running kernels on one is not built yet"),
        ((Status(0), 2), "2 AMD devices here"),
        (OSError("no driver"), r"hipGetDeviceCount failed \(no driver\); install ROCm"),
    ],
)
def test_what_hip_python_finds(monkeypatch: pytest.MonkeyPatch, answer: Any, says: str) -> None:
    def count() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setitem(sys.modules, "hip", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "hip.hip", SimpleNamespace(hipGetDeviceCount=count))
    assert re.match(says, probe())


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hip", None)
    monkeypatch.setitem(sys.modules, "hip.hip", None)
    assert "pip install 'tokitai[hip]'" in probe()
