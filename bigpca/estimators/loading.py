"""``bigpca.load``: a saved model back to an estimator, through a static table; no class is imported by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from bigpca.errors import ModelFormatError
from bigpca.estimators.model_io import FORMAT, check_model, decode_components, read_moments
from bigpca.estimators.pca import PCA
from bigpca.estimators.spectrum import Spectrum
from bigpca.storage import Group, read_group


def load(path: str | os.PathLike[str]) -> PCA:
    """Read a model that ``save`` wrote.

    Parameters
    ----------
    path : path of the model's Zarr group

    Raises
    ------
    ModelFormatError
        Where it is truncated, altered, of a newer format, or no bigpca model at all.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.zarr"
    >>> pca = PCA(1).fit(np.array([[0.0, 1], [1, 3], [2, 4]]))
    >>> pca.save(path)
    >>> bool((load(path).components_ == pca.components_).all())
    True
    """
    group = read_group(path, kind=list(LOADERS), newest=FORMAT)
    return LOADERS[group.kind](group, path)


def _load_pca(group: Group, path: object) -> PCA:
    check_model(group, path)
    arrays, attributes = group.arrays, group.attributes
    try:
        parameters: dict[str, Any] = dict(attributes["parameters"])
        parameters["n_components"] = decode_components(parameters["n_components"])
        model = PCA(**parameters)
        spectrum = Spectrum(
            int(attributes["n_samples"]), int(attributes["n_omitted"]), arrays["mean"], arrays.get("scale"),
            arrays["explained_variance"], arrays["components"], float(attributes["total_variance"]), read_moments(arrays),
        )  # fmt: skip
        solver, names = attributes["solver"], attributes["feature_names"]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(
            f"{path} does not hold what a PCA of format {group.format} has: {error}. Save it again."
        ) from error
    model._take(spectrum, solver)
    if names is not None:
        model.feature_names_in_ = np.array(names, dtype=object)
    return model


LOADERS: dict[str, Callable[[Group, object], PCA]] = {"PCA": _load_pca}
