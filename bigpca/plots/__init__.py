"""Figures of fitted models, of models or plain arrays alike. Needs matplotlib (``pip install 'bigpca[plot]'``).

Every function draws into ``ax`` or makes a figure of its own, and returns the Axes.

- ``spectra``     ``scree``, ``spectrum`` and ``bounds``: eigenvalues, their shares of the variance, their certificates
- ``errors``      ``standard_errors``: how much eigenvalues would vary between samples of rows
- ``scatter``     ``scores`` and ``biplot``: rows by their scores, with classes or values as colours
- ``images``      ``components``: as pictures, or as their features of the largest weights; ``maps`` of scores, and
                  ``extremes``, the images at both ends of a component
- ``grids``       ``roweis_map``: a number for each model of a grid of (r1, r2)
- ``collections`` several panels in one figure: portraits of models, strips of images, errors against sizes

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
