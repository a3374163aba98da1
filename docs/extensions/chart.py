"""The chart of the performance page, drawn from the page's first table whenever the site is built.

``python docs/extensions/chart.py OUT.svg`` draws it by hand.
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

from sphinx.application import Sphinx

PAGE = Path(__file__).resolve().parent.parent / "performance.md"
SECONDS = re.compile(r"([\d.]+) (?:processor seconds|s\b)")
MEBIBYTES = re.compile(r"([\d,]+) MiB")


class Ratio(NamedTuple):
    """How many times as long another library took, and how many times as much memory."""

    task: str
    other: str
    time: float
    memory: float


def ratios(page: str) -> list[Ratio]:
    """Return the rows of the first table that name another library.

    Raises
    ------
    ValueError
        If a row does not give both times and both memories.
    """
    found = []
    table = page.partition("## In short")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    for task, ours, compared in (line for line in lines[1:] if len(line) == 3):  # the others name no library
        other, _, theirs = compared.partition(": ")
        own, memory = SECONDS.search(ours), [MEBIBYTES.search(text) for text in (ours, theirs)]
        times, seconds = re.search(r"([\d.]+) times as long", theirs), SECONDS.search(theirs)
        if own is None or None in memory or (times is None and seconds is None):
            raise ValueError(f"the row '{task}' of {PAGE.name} needs the seconds and MiB of bigpca and of {other}")
        time = float(times[1]) if times else float(seconds[1]) / float(own[1])
        held = [float(one[1].replace(",", "")) for one in memory if one]
        found.append(Ratio(task, other, time, held[1] / held[0]))
    return found


def draw(rows: list[Ratio], path: Path) -> None:
    """Draw bars of both ratios on a logarithmic axis, with 1, bigpca itself, as a line."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from bigpca.plots.style import ACCENT, INK, QUIET

    figure = Figure(figsize=(8, 0.55 * len(rows) + 1), layout="constrained", facecolor="white")
    panels = figure.subplots(1, 2, sharey=True)
    for ax, name, values in zip(
        panels, ("time", "memory"), ([row.time for row in rows], [row.memory for row in rows]), strict=True
    ):
        bars = ax.barh(range(len(rows)), [value - 1 for value in values], left=1, color=ACCENT, height=0.6)
        for bar, value in zip(bars, values, strict=True):
            bar.set_color(ACCENT if value >= 1 else QUIET)
            ax.annotate(f" {value:.2g} x ", (max(value, 1), bar.get_y() + 0.3), va="center", fontsize=8, color=INK)
        ax.axvline(1, color=INK, linewidth=1)
        ax.set_title(f"{name}, relative to bigpca", fontsize=10)
        ax.set(xscale="log", xlim=(0.5, 40), xticks=(1, 2, 5, 10, 20))
        ax.set_xticks((), minor=True)
        ax.set_xticklabels(("1", "2", "5", "10", "20"))
        ax.tick_params(length=0, labelsize=8)
        ax.spines[["top", "right", "left"]].set_visible(False)
    panels[0].set_yticks(range(len(rows)), [f"{row.task}\n{row.other.replace('`', '')}" for row in rows])
    panels[0].invert_yaxis()
    path.parent.mkdir(exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "bigpca"}):
        figure.savefig(path, metadata={"Date": None})


def draw_chart(app: Sphinx) -> None:
    """Draw the chart where the page shows it."""
    draw(ratios(PAGE.read_text()), PAGE.parent / "generated" / "performance.svg")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", draw_chart)
    return {"parallel_read_safe": True}


if __name__ == "__main__":
    draw(ratios(PAGE.read_text()), Path(sys.argv[1]))
