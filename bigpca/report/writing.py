"""A report as a file: complete or absent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bigpca.plots.style import require_matplotlib
from bigpca.report.describing import describe
from bigpca.report.page import render
from bigpca.storage.forms import reject_file, write_file

PAGES = (".html", ".htm")


def write_report(
    model: Any,
    out: str | os.PathLike[str] = "report.html",
    *,
    scores: Any = None,
    labels: Any = None,
    keys: Any = None,
    pictures: Any = None,
    image_shape: tuple[int, ...] | None = None,
    feature_names: Any = None,
    standard_errors: Any = None,
    provenance: bool = True,
    overwrite: bool = False,
) -> Path:
    """Write a report on a fitted model: one HTML file that needs no network, of at most 3 MB.

    It has checks with their numbers, the spectrum, the scores with their labels, components, the rows at both ends of
    each component, all certificates, what was planned and measured, and a paragraph for a paper.

    Parameters
    ----------
    model : fitted model with components
    out : path, default "report.html"
    scores : array, or path of a store, of shape (n, k), optional
        Read once, in blocks. Without it no rows are shown.
    labels : array-like of shape (n,), or path such as "labels.csv::class", optional
        A Series with an index of keys, and a file with a column of keys, are joined by key where the scores have keys,
        or ``keys`` are given; others are in the order of the rows, and the report says so. A column of image paths is
        shown as pictures.
    keys, pictures : array-like of shape (n,), optional
        Names of the rows, by default the keys of the scores, stored or lazy; False for labels in the order of the rows,
        whatever keys they have. And paths of their images beside or below the working directory.
    image_shape : (height, width) or (height, width, 3), optional
        Of one row: components are then shown as pictures.
    feature_names : array-like of shape (d,), optional
        By default those of the fit.
    standard_errors : StandardErrors, optional
        From :func:`bigpca.standard_errors`, of this model: the report then shows how much eigenvalues and axes would
        vary between samples of rows, beside the bounds of the computation.
    provenance : bool, default True
        False leaves out paths and commands.
    overwrite : bool, default False
        Replace an existing file.

    Returns
    -------
    Path
        ``out``.

    Raises
    ------
    OutputExistsError
        If ``out`` exists and ``overwrite`` is False.
    ValueError
        For the extension of another format than HTML, a model without components, and scores, labels or standard
        errors that do not fit.
    ImportError
        If matplotlib is not installed.
    """
    require_matplotlib()
    reject_file(out, overwrite, *PAGES)
    report = describe(
        model, scores=scores, labels=labels, keys=keys, pictures=pictures, image_shape=image_shape,
        feature_names=feature_names, standard_errors=standard_errors, provenance=provenance,
    )  # fmt: skip
    return write_file(out, render(report).encode(), overwrite=overwrite)
