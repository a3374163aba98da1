"""Sketches: random (or averaging) matrices that shorten rows and nearly preserve their dot products.

- ``base``      the interface: a (d, q) matrix W, defined by a seed; and the cache of its parts
- ``matrices``  Gaussian, sparse signs, feature hashing, and the subsampled randomised Hadamard transform; and averages
  of neighbours, for images and feature maps
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigpca.records import described
from bigpca.sketches.base import Sketch
from bigpca.sketches.matrices import SRHT, Downsample, FeatureHash, Gaussian, SparseSign

__all__ = ["Downsample", "FeatureHash", "Gaussian", "SRHT", "Sketch", "SparseSign", "sketch_from"]

_KINDS: dict[str, type[Sketch]] = {
    kind.__name__: kind for kind in (Gaussian, SparseSign, FeatureHash, SRHT, Downsample)
}


def sketch_from(description: Mapping[str, Any]) -> Sketch:
    """Restore a sketch from :meth:`Sketch.describe`.

    Parameters
    ----------
    description : the JSON values stored with a model.

    Returns
    -------
    Sketch

    Raises
    ------
    ModelFormatError
        If the name is unknown, or the parameters do not belong to this sketch.

    Examples
    --------
    >>> sketch_from({"sketch": "SparseSign", "q": 100, "nnz": 4, "random_state": 7})
    SparseSign(random_state=7, q=100, nnz=4)
    """
    return described("sketch", _KINDS, description)
