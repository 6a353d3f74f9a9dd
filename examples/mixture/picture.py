"""Loss curves as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def curves(path: Path, losses: Mapping[str, Sequence[Sequence[float]]], title: str) -> None:
    """Losses of steps, in nats a token: for each name one run, or several, which are drawn in one colour. The same
    losses give the same file. Needs matplotlib."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "tokitai"}):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.2), layout="constrained")
        axes = figure.add_subplot()
        for i, (name, runs) in enumerate(losses.items()):
            for j, run in enumerate(runs):
                axes.plot(
                    range(1, len(run) + 1), run, color=f"C{i}", linewidth=1, alpha=1 / len(runs) ** 0.5,
                    label=name if j == 0 else None,
                )  # fmt: skip
        axes.set_xlabel("step")
        axes.set_ylabel("loss, nats a token")
        axes.set_title(title, fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})
