"""Figures of fitted models, of models or plain arrays alike. Needs matplotlib (``pip install 'bigpca[plot]'``).

Every function draws into ``ax`` or makes a figure of its own, and returns the Axes.

- ``spectra``  Eigenvalues, their shares of the variance, and their bounds; groups of rows over time.
- ``scatter``  Rows by their scores on two components, with classes or values as colours.
- ``images``  Matrices as pictures: components, weights of features, tiles of images.
- ``data``  What figures and reports read: numbers of a fitted model, the rows that are drawn, and the kinds of their
  labels.
- ``style``  The one palette, and what all figures share: axes, titles, legends, numbers as text.

Models are read by their fitted attributes alone, so that nothing here imports an estimator. Figures of one kind of
result take ten lines of matplotlib: ``docs/how-to/axes.md``.
"""

from bigpca.plots.images import components
from bigpca.plots.scatter import scores
from bigpca.plots.spectra import bounds, drift, scree

__all__ = [
    "bounds",
    "components",
    "drift",
    "scores",
    "scree",
]


def __dir__() -> list[str]:
    return __all__
