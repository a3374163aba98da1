"""What a report says, as records, and the HTML page of them: no script, no network, all text escaped, figures as SVG.

``page.html`` is the page, ``page.css`` its style.
"""

from __future__ import annotations

import base64
import csv
import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bigpca.errors import printable
from bigpca.plots.style import ACCENT, GRID, INK, plain_figure

MAX_SHOWN = 60  # rows of a table on the page; its file has all
WIDTH, HEIGHT = 5.6, 3.9  # inches: text keeps its size on a telephone
DPI = 144  # of what is drawn as an image: many points, pictures
FOLLOWING = {INK: "currentColor", ACCENT: "var(--accent)", GRID: "var(--grid)", "#000000": "currentColor"}
_DROPPED = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_NAMED = re.compile(r'(\bid="|href="#|url\(#)')
_SIZE = re.compile(r'\s(?:width|height)="[\d.]+pt"')


class Verdict(StrEnum):
    """What a light shows."""

    PASS = "pass"
    WARNING = "warning"
    FAIL = "fail"
    NONE = "not applicable"


@dataclass(frozen=True)
class Light:
    """One check, with its number.

    Attributes
    ----------
    name : str
    verdict : Verdict
    text : str
        The number, and what to do where the verdict is not a pass.
    """

    name: str
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Figure:
    """A figure as SVG.

    Attributes
    ----------
    name : str
    caption : str
    svg : str
        An element without comments, with identifiers of its own, whose text is escaped.
    """

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Table:
    """A table, shown and downloadable.

    Attributes
    ----------
    name : str
        Of the heading, and of the file.
    header : tuple of str
    rows : tuple of tuples of str or float or int or None
    """

    name: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | float | int | None, ...], ...]


@dataclass(frozen=True)
class Extreme:
    """A row with one of the lowest or highest scores of a component.

    Attributes
    ----------
    row : int
    score : float
    name : str
        Its key, or "row 17".
    label : str
        "" without labels.
    picture : str
        A data URI, or "".
    """

    row: int
    score: float
    name: str
    label: str
    picture: str = ""


@dataclass(frozen=True)
class Extremes:
    """The rows at both ends of a component.

    Attributes
    ----------
    component : str
    lowest, highest : tuple of Extreme, the furthest first
    """

    component: str
    lowest: tuple[Extreme, ...]
    highest: tuple[Extreme, ...]


@dataclass(frozen=True)
class Report:
    """All that a report says.

    Attributes
    ----------
    title, summary : str
        The kind of the model, and what it is in a line.
    lights : tuple of Light
    figures : tuple of Figure
    components, features : Table or None
        Eigenvalues with their bounds; the features with the largest weights.
    extremes : tuple of Extremes
    done, made : tuples of (name, text)
        What the fit did to its rows, with its parameters; how the model was made, and what was planned for it.
    citations : tuple of str
    next_steps : tuple of (what, command)
    notes : tuple of str
        What is missing, and how to add it.
    """

    title: str
    summary: str
    lights: tuple[Light, ...]
    figures: tuple[Figure, ...]
    components: Table
    features: Table | None
    extremes: tuple[Extremes, ...]
    done: tuple[tuple[str, str], ...]
    made: tuple[tuple[str, str], ...]
    citations: tuple[str, ...]
    next_steps: tuple[tuple[str, str], ...]
    notes: Sequence[str]


SYMBOLS = {Verdict.PASS: "✓", Verdict.WARNING: "!", Verdict.FAIL: "✗", Verdict.NONE: "?"}


def render(report: Report) -> str:
    """Return the report as HTML."""
    import jinja2  # needed for reports alone

    pages = jinja2.Environment(
        loader=jinja2.PackageLoader("bigpca.report", ""),
        autoescape=True,
        finalize=lambda value: value if hasattr(value, "__html__") else printable(str(value)),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    pages.filters |= {"cell": cell, "base64": lambda table: base64.b64encode(csv_of(table).encode()).decode()}
    tables = (report.components, report.features)
    return pages.get_template("page.html").render(
        report=report,
        tables=[one for one in tables if one is not None],
        extremes=extremes_table(report.extremes),
        symbols=SYMBOLS,
        most=MAX_SHOWN,
        numeric=numeric_columns,
    )


def cell(value: object, name: str = "") -> str:
    """Return a cell of the column of a table with this name.

    >>> cell(2.123456789), cell(None), cell("<b>"), cell(1200), cell(12.3456, "% so far")
    ('2.12346', '-', '<b>', '1,200', '12.35')
    """
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}" if name.startswith("%") else f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def numeric_columns(rows: Sequence[Sequence[object]]) -> list[int]:
    """Return the places of the columns that have numbers."""
    columns = enumerate(zip(*rows, strict=True))
    return [place for place, column in columns if any(isinstance(value, float | int) for value in column)]


def extremes_table(extremes: Iterable[Extremes]) -> Table:
    """Return the rows at both ends of the components as a table."""
    rows = tuple(
        (one.component, side, row.row, row.name, row.label, row.score)
        for one in extremes
        for side, found in (("lowest", one.lowest), ("highest", one.highest))
        for row in found
    )
    return Table("Extremes", ("component", "end", "row", "name", "label", "score"), rows)


def csv_of(table: Table) -> str:
    """Return a table as CSV; text that a spreadsheet would run as a formula begins with an apostrophe."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer)
    for row in (table.header, *table.rows):
        writer.writerow([_inert(value) for value in row])
    return buffer.getvalue()


def _inert(value: object) -> object:
    if isinstance(value, str):
        shown = printable(value)
        begins = shown[:1] in ("\t", "\r", "\n") or shown.lstrip()[:1] in (*"=+-@＝＋－＠",)
        return f"'{shown}" if begins else shown
    return "" if value is None else repr(value) if isinstance(value, float) else value


def drawn(name: str, caption: str, draw: Callable[[Any], Any], *, height: float = HEIGHT) -> Figure:
    """Return the figure that ``draw`` makes in the axes that it is called with."""
    figure = plain_figure(WIDTH, height)
    draw(figure.subplots())
    return Figure(name, caption, svg_of(figure, name))


def svg_of(figure: Any, name: str) -> str:
    """Return a matplotlib figure as an SVG element: the same bytes for the same figure.

    matplotlib escapes all text; tags are changed here, text never is.
    """
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)  # the page's fonts have it
        figure.savefig(buffer, format="svg", transparent=True, dpi=DPI, metadata={"Date": None})
    return _TAG.sub(lambda found: _tag(found[0], name), _DROPPED.sub("", buffer.getvalue())).strip()


def _tag(tag: str, name: str) -> str:
    if "base64," in tag:
        return _NAMED.sub(lambda found: f"{found[1]}{name}-", tag[:200]) + tag[200:] if 'id="' in tag[:200] else tag
    for colour, following in FOLLOWING.items():
        tag = tag.replace(colour, following)
    if tag.startswith("<svg"):
        tag = _SIZE.sub("", tag)
    return _NAMED.sub(lambda found: f"{found[1]}{name}-", tag)
