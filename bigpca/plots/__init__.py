"""Figures of fitted models, of models or plain arrays alike. Needs matplotlib (``pip install 'bigpca[plot]'``).

Every function draws into ``ax`` or makes a figure of its own, and returns the Axes; ``pairs`` returns a figure.

- ``spectra``  Eigenvalues, their shares of the variance, their bounds, and how they vary between samples of rows.
- ``scatter``  Rows by their scores on two components, with classes or values as colours; and the features beside
  them.
- ``images``  Matrices as pictures: components, weights of features, scores of pixels, tiles of images, grids of models.
- ``data``  What figures and reports read: numbers of a fitted model, the rows that are drawn, and the kinds of their
  labels.
- ``style``  The one palette, and what all figures share: axes, titles, legends, numbers as text.

Models are read by their fitted attributes alone, so that nothing here imports an estimator.
"""

from bigpca.plots.images import components, extremes, layers, maps, roweis_map, top_features
from bigpca.plots.scatter import biplot, correlation_circle, density, outliers, pairs, scores
from bigpca.plots.spectra import bounds, scree, spectrum, standard_errors

__all__ = [
    "biplot",
    "bounds",
    "components",
    "correlation_circle",
    "density",
    "extremes",
    "layers",
    "maps",
    "outliers",
    "pairs",
    "roweis_map",
    "scores",
    "scree",
    "spectrum",
    "standard_errors",
    "top_features",
]


def __dir__() -> list[str]:
    return __all__
