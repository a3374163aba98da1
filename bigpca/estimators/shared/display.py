"""What a notebook shows of a fitted estimator beside scikit-learn's diagram."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

import numpy as np


def captured(attributes: Mapping[str, object]) -> str:
    """Return a line of HTML: the number of components and their share of the variance, as far as they are solved."""
    k, ratio = attributes.get("n_components_"), attributes.get("explained_variance_ratio_")
    if not isinstance(k, Integral):
        return ""
    whole = "the variance between the classes" if "discriminants_" in attributes else "the variance"
    share = "" if not isinstance(ratio, np.ndarray) else f" with {100 * float(ratio.sum()):.3g} % of {whole}"
    return f"<p>{int(k):,} component{'' if k == 1 else 's'}{share}</p>"
