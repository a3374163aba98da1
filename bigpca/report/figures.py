"""Figures as SVG inside of a page: text stays text, colours follow the page, identifiers are their own."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

from bigpca.plots.style import ACCENT, GRID, INK, plain_figure
from bigpca.report.records import Figure

WIDTH, HEIGHT = 5.6, 3.9  # inches: text keeps its size on a telephone
DPI = 144  # of what is drawn as an image: many points, pictures
FOLLOWING = {INK: "currentColor", ACCENT: "var(--accent)", GRID: "var(--grid)", "#000000": "currentColor"}
_DROPPED = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_NAMED = re.compile(r'(\bid="|href="#|url\(#)')
_SIZE = re.compile(r'\s(?:width|height)="[\d.]+pt"')


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
