"""Figures of fitted models, of models or plain arrays alike. Needs matplotlib (``pip install 'bigpca[plot]'``).

Every function draws into ``ax`` or makes a figure of its own, and returns the Axes.

- ``spectra``  Eigenvalues, their shares of the variance, their bounds, and how they vary between samples of rows.
- ``scatter``  Rows by their scores on two components, with classes or values as colours; and the features beside
  them.
- ``images``  Components as pictures or as weights of their features, scores of pixels as colours, and images as
  tiles.
- ``grids``  A number for each model of a grid of (r1, r2).
- ``collections``  Several panels in one figure: portraits of models, strips of images, components and shares, errors
  by size.
- ``data``  What figures and reports read: numbers of a fitted model, the rows that are drawn, and the kinds of their
  labels.
- ``style``  The one palette, and what all figures share: axes, titles, legends, numbers as text.

Below these: ``style`` (the one palette, titles, legends), ``numbers`` (what is read of a model, and the errors where
it has none), ``drawn`` (which rows are drawn, and their scores), ``kinds`` (classes or values of labels), ``tiles``
(images as one picture). Models are read by their fitted attributes alone, so that nothing here imports an estimator.
"""

from bigpca.plots.grids import roweis_map
from bigpca.plots.images import components, extremes, maps
from bigpca.plots.scatter import biplot, scores
from bigpca.plots.spectra import bounds, scree, spectrum, standard_errors

__all__ = [
    "biplot",
    "bounds",
    "components",
    "extremes",
    "maps",
    "roweis_map",
    "scores",
    "scree",
    "spectrum",
    "standard_errors",
]
