"""In a browser a page is as wide as the window, on a telephone and on a desk."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from pages import REFUTED, UNDECIDED, files
from sample import SAMPLE

from tokitai.report import build, certificates, gather

BROWSER = shutil.which("chromium")
WIDTHS = (390, 1400)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')  # it keeps the script of the test out as well
TELL = "<script>onload = () => parent.postMessage([innerWidth, document.documentElement.scrollWidth], '*')</script>"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no browser: scripts/system-packages.sh installs chromium"),
]


def widths(folder: Path, text: str) -> list[list[int]]:
    """The width of the window and of the page in it, in windows of each of WIDTHS."""
    (folder / "page.html").write_text(POLICY.sub("", text).replace("</body>", f"{TELL}</body>"), encoding="utf-8")
    frames = "".join(f'<iframe src="page.html" style="width: {width}px; border: 0"></iframe>' for width in WIDTHS)
    collect = "<script>onmessage = (e) => document.body.append(`[${e.data}]`)</script>"
    (folder / "frames.html").write_text(f"<!DOCTYPE html><body style='width: 3000px'>{collect}{frames}</body>")
    flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=20000 --dump-dom"
    flags += f" --user-data-dir={folder / 'profile'} file://{folder / 'frames.html'}"
    command = [str(BROWSER), *flags.split()]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    return sorted([int(a), int(b)] for a, b in re.findall(r"\[(\d+),(\d+)\]", shown))


def test_a_page_is_as_wide_as_the_window(tmp_path: Path) -> None:
    long = "x" * 300
    awkward = replace(
        REFUTED, device={"name": long, long: long}, failure=long, claims=(long,), compiler=replace(
            SAMPLE.compiler, version=long), plan={long: long}, operator=replace(SAMPLE.operator, name=long),
    )  # fmt: skip
    files(tmp_path, a=SAMPLE, b=REFUTED, c=UNDECIDED, d=awkward, e="{")
    text = build(gather(certificates([tmp_path]))).replace("<details>", "<details open>")
    assert widths(tmp_path, text) == [[width, width] for width in WIDTHS]


def test_a_page_that_is_too_wide_is_found(tmp_path: Path) -> None:
    text = "<!DOCTYPE html><body style='margin: 0'><div style='width: 900px'>wide</div></body>"
    assert widths(tmp_path, text) == [[390, 900], [1400, 1400]]
