"""What an estimator shows of itself: beside scikit-learn's diagram in a notebook, and as a report."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path as FilePath

import numpy as np

from bigpca.estimators.shared.inputs import Input
from bigpca.estimators.shared.outputs import Path


def captured(attributes: Mapping[str, object]) -> str:
    """Return a line of HTML: the number of components and their share of the variance, as far as they are solved."""
    k, ratio = attributes.get("n_components_"), attributes.get("explained_variance_ratio_")
    if not isinstance(k, Integral):
        return ""
    whole = "the variance between the classes" if "discriminants_" in attributes else "the variance"
    share = "" if not isinstance(ratio, np.ndarray) else f" with {100 * float(ratio.sum()):.3g} % of {whole}"
    return f"<p>{int(k):,} component{'' if k == 1 else 's'}{share}</p>"


def report(self: object, out: Path = "report.html", **options: Input) -> FilePath:
    """Write a report on the model to an HTML file and return its path; see :func:`bigpca.report.write_report`.

    Parameters
    ----------
    out : path, default "report.html"
    **options
        ``scores``, ``labels``, ``keys``, ``pictures``, ``image_shape``, ``feature_names``, ``standard_errors``,
        ``provenance`` and ``overwrite``, as there.

    Returns
    -------
    Path
        ``out``.
    """
    from bigpca.report import write_report  # imports Matplotlib, which other methods do not need

    return write_report(self, out, **options)
