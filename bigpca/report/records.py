"""What a report says, as records; ``page`` turns them to HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


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
