"""The one palette, and what all figures share: axes, titles, legends, numbers as text."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

from bigpca.errors import brief
from bigpca.storage.files import local_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, ACCENT, QUIET, ABSENT, GRID = "#1f2430", "#0b6e99", "#8a8f98", "#b4b9c1", "#e6e8eb"
# Ten saturated colours, neither pale nor black, whose least distance (CIE 1976) under every common colour blindness is
# as large as an exchange of one at a time makes it: 32, where Petroff (2021), arXiv:2107.02270, has 17. Lighter colours
# reach 28, so three are dark; they come last, so that up to seven classes have none. Grey: rows without a label.
COLOURS = (
    "#5a87e1",
    "#e12d00",
    "#ffc31e",
    "#9600ff",
    "#0fe1ff",
    "#b4d278",
    "#f05a96",
    "#780f0f",
    "#3c1e96",
    "#5a1e4b",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
MAX_TEXT = 32  # characters of a name in a figure
CHARACTERS_PER_INCH = 12  # of a title


def axes_of(ax: Axes | None, width: float = 6.4, height: float = 4.2) -> Axes:
    """Return ``ax``, or the axes of a new figure of so many inches.

    Raises
    ------
    ImportError
        If matplotlib is not installed: with the command that installs it.
    """
    if ax is not None:
        return ax
    require_matplotlib()
    import matplotlib.pyplot as plt

    own: Axes = plt.subplots(figsize=(width, height), layout="constrained")[1]
    return own


def require_matplotlib() -> None:
    """Raise ImportError if matplotlib is not installed: with the command that installs it."""
    if find_spec("matplotlib") is None:
        raise ImportError("figures need matplotlib, which is not installed. Install it: pip install 'bigpca[plot]'.")


def plain_figure(width: float, height: float) -> Figure:
    """Return a figure without pyplot, which no window shows and nothing has to close, for files."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")


def tidy(ax: Axes, title: str = "", *, grid: Literal["x", "y", ""] = "y") -> Axes:
    """Set the title, the lines of the grid and the look of the axes, and return them."""
    ax.grid(visible=False)
    if grid:
        ax.grid(axis=grid, color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.tick_params(which="both", colors=INK, labelsize=9)
    if title:
        room = int(CHARACTERS_PER_INCH * 1.25 * ax.bbox.width / ax.figure.dpi)
        ax.set_title(fill(title, max(20, room)), loc="left", color=INK, fontsize=11, parse_math=False)
    return ax


def legend(ax: Axes, handles: Sequence[Any], names: Sequence[str], title: str = "") -> None:
    """Name handles in a legend right of the axes, where it covers nothing; names are taken literally.

    matplotlib leaves out names that begin with an underscore and reads others as formulas, so they are set as text.
    """
    drawn = ax.legend(
        handles,
        [str(number) for number in range(len(names))],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        fontsize=9,
        frameon=False,
        title=title or None,
        title_fontsize=9,
        alignment="left",
    )
    drawn.get_title().set_parse_math(False)
    for text, name in zip(drawn.get_texts(), short_names(names), strict=True):
        text.set_parse_math(False)
        text.set_text(name)
        text.set_color(INK)


def whole_numbers(ax: Axes, most: int = 9) -> None:
    """Put ticks of the abscissa at whole numbers only, with at most so many spaces between them."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(nbins=most, integer=True, min_n_ticks=1))


def log_ticks(ax: Axes) -> None:
    """Put numbers at the ticks of a logarithmic ordinate: at 1, 2 and 5 where it spans few decades."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_formatter(NullFormatter())


def short(name: object) -> str:
    """Return untrusted text as one short line, without control characters."""
    return brief(name, MAX_TEXT)


def short_names(names: Sequence[object]) -> list[str]:
    """Return names as short lines; longer ones where two would look the same.

    >>> short_names(["a", "b" * 40])[1], short_names(["x" * 19 + digit + "y" * 19 for digit in "12"])[0][19]
    ('bbbbbbbbbbbbb ... bbbbbbbbbbbbb', '1')
    """
    found = [short(name) for name in names]
    return [brief(name, 3 * MAX_TEXT // 2) for name in names] if len(set(found)) < len(set(map(str, names))) else found


def percents(shares: Sequence[float]) -> list[str]:
    """Return shares that are shown together as text with equal digits: one place, or two where one is below 1 %.

    >>> percents([0.7296, 0.2285]), percents([0.99, 0.00012])
    (['73.0 %', '22.9 %'], ['99.00 %', '0.01 %'])
    """
    places = 1 if min(shares, default=1.0) >= 0.01 else 2
    return [f"{100 * share:.{places}f} %" for share in shares]


def percent(share: float) -> str:
    """Return a share as text of three digits.

    >>> percent(0.18342), percent(1.0), percent(0.00012)
    ('18.3 %', '100 %', '0.012 %')
    """
    return f"{100 * share:.3g} %"


def save_picture(figure: Figure, path: str | Path) -> Path:
    """Write a figure in the format of the path's suffix and return the path."""
    path = Path(local_path(path))
    figure.savefig(path)
    return path
