"""The quality of an answer, measured against data or against another answer, in planned reads.

- ``metrics``  How well two answers agree: axes, reconstructions, and the rows of two fitted models.
- ``influence``  How much single rows, groups and columns weigh: standard errors from influence functions or groups;
  groups that differ from the others; rows at both ends.
- ``memory``  Measured memory: the peak of a run above the memory of its processes at the start.
- ``pairs``  How similar two sets of features of the same rows are: aligned kernels and shapes, with errors.
- ``windows``  PCA in windows along the columns, and distances between windows.

A measurement opens X, and by ``read_once`` of the estimators' ``opening`` plans a read and folds an accumulator of
rows, or of what a map makes of them; its numbers are returned as a frozen record. Nothing below imports this package.

Add a measurement: a row map, if its numbers are sums over rows of something else than their columns, and a function
that calls ``read_once``.
"""

from typing import TYPE_CHECKING

from bigpca.names import lazily

if TYPE_CHECKING:
    from bigpca.quality.influence import drift as drift
    from bigpca.quality.influence import extremes as extremes
    from bigpca.quality.influence import standard_errors as standard_errors
    from bigpca.quality.metrics import frechet_distance as frechet_distance
    from bigpca.quality.metrics import principal_angles as principal_angles
    from bigpca.quality.metrics import reconstruction_error as reconstruction_error
    from bigpca.quality.metrics import similarity as similarity
    from bigpca.quality.pairs import cka as cka
    from bigpca.quality.pairs import procrustes as procrustes
    from bigpca.quality.windows import local_pca as local_pca
    from bigpca.quality.windows import plan_local_pca as plan_local_pca

HOMES = {
    "bigpca.quality.influence": "drift extremes standard_errors",
    "bigpca.quality.metrics": "frechet_distance principal_angles reconstruction_error similarity",
    "bigpca.quality.pairs": "cka procrustes",
    "bigpca.quality.windows": "local_pca plan_local_pca",
}

__getattr__, __dir__, __all__ = lazily(__name__, HOMES)
