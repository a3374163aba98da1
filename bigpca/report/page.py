"""A report as one HTML page: no script, no network, all text escaped, figures as SVG inside of it."""

from __future__ import annotations

import base64
import csv
import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from bigpca.errors import printable
from bigpca.plots.style import ACCENT, GRID, INK, plain_figure
from bigpca.report.records import Extreme, Extremes, Figure, Light, Mark, Report, Table, Verdict

MAX_SHOWN = 60  # rows of a table on the page; its file has all
SYMBOLS = {Verdict.PASS: "✓", Verdict.WARNING: "!", Verdict.FAIL: "✗", Verdict.NONE: "?"}
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # nothing is loaded, and no script runs


def render(report: Report) -> str:
    """Return the report as HTML."""
    figures = "".join(
        f"<figure id='figure-{one.name}'>{one.svg}<figcaption>{text(one.caption)}</figcaption></figure>"
        for one in report.figures
    )
    cited = "".join(f"<li>{text(one)}</li>" for one in report.citations)
    methods = f"<blockquote>{text(report.methods)}</blockquote><ul class='citations'>{cited}</ul>"
    made = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in report.made)
    body = [
        f"<header><h1>{text(report.title)}</h1><p class='summary'>{text(report.summary)}</p></header>",
        _section("Checks", "checks", f"<ul class='lights'>{''.join(map(_light, report.lights))}</ul>"),
        "".join(f"<p class='note'>{text(note)}</p>" for note in report.notes),
        _section("Figures", "figures", f"<div class='grid'>{figures}</div>"),
        _section("Extremes", "extremes", _ends(report)) if report.extremes else "",
        _table(report.components),
        *(_table(one) for one in (report.features, report.classes) if one is not None),
        _table(report.plan) if report.plan.rows else "",
        _section("How it was made", "made", f"<dl>{made}</dl>") if report.made else "",
        _section("Methods, for a paper", "methods", methods),
        _section("Next steps", "next", _steps(report.next_steps)),
    ]
    style = files("bigpca.report").joinpath("page.css").read_text("utf-8")
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<meta name='color-scheme' content='light dark'><title>{text(report.title)}</title>"
        f"<style>{style}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def text(value: object) -> str:
    """Return untrusted text for HTML: escaped, without control characters and bidirectional marks."""
    return escape(printable(str(value)))


def number(value: object, name: str = "") -> str:
    """Return a cell of the column of a table with this name.

    >>> number(2.123456789), number(None), number("<b>"), number(1200), number(12.3456, "% so far")
    ('2.12346', '-', '&lt;b&gt;', '1,200', '12.35')
    """
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}" if name.startswith("%") else f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else text(value)


def _section(title: str, name: str, content: str) -> str:
    return f"<section id='{name}'><h2>{text(title)}</h2>{content}</section>"


def _light(light: Light) -> str:
    verdict = light.verdict
    symbol = f"<span class='symbol' aria-hidden='true'>{SYMBOLS[verdict]}</span>"
    head = f"<strong>{text(light.name)}</strong> <span class='verdict'>{text(verdict)}</span>"
    return f"<li class='light {verdict.name.lower()}'>{symbol}<div>{head}<br>{text(light.text)}</div></li>"


def _ends(report: Report) -> str:
    parts = "".join(
        f"<div class='component'><h3>{text(one.component)}</h3>{_row('lowest', one.lowest)}"
        f"{_row('highest', one.highest)}</div>"
        for one in report.extremes
    )
    return f"<div class='grid'>{parts}</div>{_download(extremes_table(report.extremes))}"


def extremes_table(extremes: Iterable[Extremes]) -> Table:
    """Return the rows at both ends of the components as a table."""
    rows = tuple(
        (one.component, side, row.row, row.name, row.label, row.score)
        for one in extremes
        for side, found in (("lowest", one.lowest), ("highest", one.highest))
        for row in found
    )
    return Table("Extremes", ("component", "end", "row", "name", "label", "score"), rows)


def _row(side: str, rows: Iterable[Extreme]) -> str:
    items = []
    for one in rows:
        label = f"<em>{text(one.label)}</em>" if one.label else ""
        picture = f"<img src='{one.picture}' alt='{text(one.name)}' loading='eager'>" if one.picture else ""
        items.append(
            f"<li>{picture}<span class='name'>{text(one.name)}</span>{label}<small>{one.score:.4g}</small></li>"
        )
    return f"<div class='side'><h4>{side}</h4><ol>{''.join(items)}</ol></div>"


def _table(table: Table) -> str:
    shown = table.rows[:MAX_SHOWN]
    numeric = [any(isinstance(value, float | int) for value in column) for column in zip(*shown, strict=True)]
    classes = [" class='number'" if one else "" for one in numeric]
    head = "".join(f"<th{kind}>{text(name)}</th>" for name, kind in zip(table.header, classes, strict=True))
    lines = "".join(_line(row, table.header, classes) for row in shown)
    rest = f"The first {len(shown)} of {len(table.rows):,} rows are shown." if len(shown) < len(table.rows) else ""
    content = (
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
        f"{_download(table)}{f'<p>{rest}</p>' if rest else ''}"
    )
    return _section(table.name, table.name.lower().replace(" ", "-"), content)


def _line(row: Iterable[object], header: Iterable[str], classes: Iterable[str]) -> str:
    cells = zip(row, header, classes, strict=True)
    return f"<tr>{''.join(f'<td{kind}>{number(value, name)}</td>' for value, name, kind in cells)}</tr>"


def _download(table: Table) -> str:
    name = table.name.lower().replace(" ", "_") + ".csv"
    content = base64.b64encode(csv_of(table).encode()).decode()  # in the page: no network is needed
    return f"<p><a download='{name}' href='data:text/csv;charset=utf-8;base64,{content}'>Download {name}</a></p>"


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


def _steps(steps: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f"<h3>{text(what)}</h3><pre class='scroll'><code>{text(command)}</code></pre>" for what, command in steps
    )


WIDTH, HEIGHT = 5.6, 3.9  # inches: text keeps its size on a telephone
DPI = 144  # of what is drawn as an image: many points, pictures
FOLLOWING = {INK: "currentColor", ACCENT: "var(--accent)", GRID: "var(--grid)", "#000000": "currentColor"}
_DROPPED = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_NAMED = re.compile(r'(\bid="|href="#|url\(#)')
_SIZE = re.compile(r'\s(?:width|height)="[\d.]+pt"')


def drawn(
    name: str, caption: str, draw: Callable[[Any], Any], *, height: float = HEIGHT, marks: Sequence[Mark] = ()
) -> Figure:
    """Return the figure that ``draw`` makes in the axes that it is called with."""
    figure = plain_figure(WIDTH, height)
    ax = figure.subplots()
    draw(ax)
    svg = svg_of(figure, name)  # which also places the axes
    if not marks:
        return Figure(name, caption, svg)
    at = figure.transFigure.inverted().transform(ax.transData.transform([(mark.x, mark.y) for mark in marks]))
    shown = "".join(_mark(72 * WIDTH * x, 72 * height * (1 - y), mark) for (x, y), mark in zip(at, marks, strict=True))
    return Figure(name, caption, svg.removesuffix("</svg>") + shown + "</svg>")


def _mark(x: float, y: float, mark: Mark) -> str:
    """Return an invisible point with its text, which browsers show beside a pointer, and its picture for the style."""
    left, top = min(x + 6, 72 * WIDTH - 74), max(y - 78, 2)
    place = f"x='{left:.1f}' y='{top:.1f}' width='72' height='72'"
    picture = f"<image href='{mark.picture}' {place}/>" if mark.picture else ""
    return f"<g class='mark'><circle cx='{x:.1f}' cy='{y:.1f}' r='4'/>{picture}<title>{text(mark.words)}</title></g>"


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
