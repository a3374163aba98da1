"""``bigpca.load``: a saved model back to an estimator, through a static table; no class is imported by name."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bigpca.data.grids import grid_from_stored
from bigpca.data.provenance import provenance_of
from bigpca.data.views import View
from bigpca.errors import ModelFormatError, brief
from bigpca.estimators.kernel.approximate_kernel_pca import ApproximateKernelPCA
from bigpca.estimators.kernel.kernel_pca import KernelPCA
from bigpca.estimators.kernel.nystrom_kernel_pca import NystromKernelPCA
from bigpca.estimators.linear.approximate_pca import ApproximatePCA
from bigpca.estimators.linear.pca import PCA
from bigpca.estimators.linear.rotated_pca import RotatedPCA
from bigpca.estimators.linear.sketch_transformer import SketchTransformer
from bigpca.estimators.pairs.canonical import CCA, PLSSVD
from bigpca.estimators.pairs.ridge import Ridge
from bigpca.estimators.shared.files import StoredModel, TrustedRows, Values, decode_parameters
from bigpca.estimators.shared.inputs import Steps
from bigpca.estimators.shared.labelled import kept_view
from bigpca.estimators.shared.transformer import AnyEstimator
from bigpca.estimators.supervised.discriminants import FisherDiscriminantAnalysis, RoweisDiscriminantAnalysis
from bigpca.estimators.supervised.kernel_supervised import KernelRoweisDiscriminantAnalysis, KernelSupervisedPCA
from bigpca.estimators.supervised.scored_pca import ScoredPCA
from bigpca.estimators.supervised.supervised_pca import SupervisedPCA, SupervisedRandomProjection
from bigpca.seeds import check_seed
from bigpca.storage import MODEL_FORMAT, read_group

MAX_REASON = 1000  # characters
COUNTS = {
    "n_features", "n_targets", "n_samples", "n_omitted", "rank", "evaluations", "facts.rank",
    "facts.n_unlabelled", "covariate_rank",
}  # fmt: skip
REALS = {  # from, to
    "total_variance": (0, math.inf), "total": (-math.inf, math.inf),
    "mean_square": (-math.inf, math.inf), "facts.trace_error": (-math.inf, math.inf), "certificate.n_passes": (0, 1e9),
    "certificate.confidence": (0, 1), "weight_sums.0": (0, math.inf), "weight_sums.1": (0, math.inf),
}  # fmt: skip
OTHERS = {
    "solver": str, "facts": dict, "texts": dict, "parameters": dict, "certificate.converged": bool,
}  # fmt: skip
# Sizes of arrays by letters, each one number within a model: n rows, d columns, k components, p references, m features
# of these, c classes, q features of labels, s selected columns. "=n" is a value that is the number itself.
SIZES = {
    "components": "k d", "explained_variance": "k", "eigenvalues": "k", "mean": "d", "scale": "d", "residuals": "k",
    "eigenvalue_bounds": "k 2", "captured_variance_bounds": "2", "subspace_residuals": "b", "subspace_deficits": "b",
    "subspace_lowest": "b", "weight_sums": "2", "n_samples": "=n", "moments_count": "=n", "product_count": "=n",
    "moments_counts": "c", "moments_means": "c d", "cross_weight": "q", "cross_product": "q d", "cross_shift": "d",
    "labels_phases": "q", "coefficients": "p k", "offsets": "k", "mean_weights": "p", "centre": "p",
    "fact_landmark_transform": "p m", "fact_landmark_indices": "p", "fact_classes": "c", "state_moments_counts": "c",
    "state_moments_means": "c m", "state_moments_0_mean": "m", "state_moments_0_count": "=n",
    "rotation": "k k", "inner_components": "k s", "selected": "s", "scores": "d", "kept_moments_counts": "c",
    "kept_moments_means": "c d", "state_moments_count": "=n", "state_diagonals": "1", "state_residuals": "1",
}  # fmt: skip
Places = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

CLASSES: dict[str, type[AnyEstimator]] = {
    "ApproximateKernelPCA": ApproximateKernelPCA,
    "ApproximatePCA": ApproximatePCA,
    "KernelPCA": KernelPCA,
    "NystromKernelPCA": NystromKernelPCA,
    "PCA": PCA,
    "RotatedPCA": RotatedPCA,
    "CCA": CCA,
    "PLSSVD": PLSSVD,
    "Ridge": Ridge,
    "FisherDiscriminantAnalysis": FisherDiscriminantAnalysis,
    "KernelRoweisDiscriminantAnalysis": KernelRoweisDiscriminantAnalysis,
    "KernelSupervisedPCA": KernelSupervisedPCA,
    "RoweisDiscriminantAnalysis": RoweisDiscriminantAnalysis,
    "SupervisedPCA": SupervisedPCA,
    "SupervisedRandomProjection": SupervisedRandomProjection,
    "ScoredPCA": ScoredPCA,
    "SketchTransformer": SketchTransformer,
}


def load(path: str | os.PathLike[str], *, references: Places = ()) -> Any:
    """Read a model that ``save`` wrote: an estimator of the class that was saved.

    Parameters
    ----------
    path : path of the model's Zarr group
    references : path, URL, or sequence of those, default ()
        Where the training rows of a kernel model may be read if their store is neither next to the model nor inside its
        folder: the store, or a folder that contains it. (Rows of at most 256 MiB are part of the model.)

    Returns
    -------
    fitted estimator
        Of the class that was saved.

    Raises
    ------
    ModelFormatError
        If the file is truncated, altered, of a newer format, or not a bigpca model, or if its training rows are in a
        place that ``references`` does not allow.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.zarr"
    >>> pca = PCA(1).fit(np.array([[0.0, 1], [1, 3], [2, 4]]))
    >>> pca.save(path)
    >>> bool((load(path).components_ == pca.components_).all())
    True
    """
    group = read_group(path, kind=list(CLASSES), newest=MODEL_FORMAT)
    given = [references] if isinstance(references, str | os.PathLike) else references
    rows = TrustedRows(str(path), tuple(os.fspath(place) for place in given))
    try:
        stored = StoredModel(group.kind, group.arrays, group.attributes, rows, provenance=provenance_of(path))
        return restored(stored)
    except (MemoryError, ImportError, PermissionError):
        raise
    except Exception as error:  # a forged model may make its class raise anything
        if isinstance(error, ModelFormatError) and rows.model in str(error):
            raise
        raise ModelFormatError(
            f"{path} does not hold what a {group.kind} of format {group.format} has: {brief(error, MAX_REASON)}. It is "
            "damaged, or from a version under development: restore it from a copy, or fit again."
        ) from error


def restored(stored: StoredModel) -> AnyEstimator:
    """Return the estimator of a stored model.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a value is missing or invalid.
    """
    for name, array in stored.arrays.items():
        of_rows = "grid_" in name or name.endswith("references")
        if not of_rows and (array.dtype == np.float16 or array.dtype.kind not in "biuf"):
            raise ValueError(f"it has {name} with {array.dtype} values that are not finite numbers of float64")
    _check_values(stored.attributes)
    now, of_fit = stored.attributes["parameters"], stored.attributes.get("fitted_with", {})
    model = _of_parameters(stored.kind, now | of_fit)
    inner = stored.attributes.get("inner")
    if inner is not None:  # inside out, so that an estimator that holds another does not need this table
        held = StoredModel(inner["kind"], stored.named("inner_"), inner["attributes"], stored.rows)
        stored = replace(stored, inner=restored(held))
    grid = stored.attributes.get("grid")  # absent where X was no DataArray
    if grid is not None:
        grid = grid_from_stored(grid, stored.named("grid_"))
        model._steps = Steps(grid=grid)  # its scale may name coordinates
        own = {name: array for name, array in stored.arrays.items() if not name.startswith("grid_")}
        stored = replace(stored, arrays=own)
    _check_sizes(stored)
    model._restore(stored)
    d, view = model.n_features_in_, None
    if grid is not None:
        if grid.n_columns != d:
            raise ValueError(f"its grid has {grid.n_columns} columns, not {d}")
        view = kept_view(grid)
    rows = stored.attributes.get("rows")  # absent where samples were rows
    if rows is not None:
        view = View.from_json(rows, d)
    model._steps = model._steps_of(d, view, grid)
    if stored.provenance is not None:
        model._provenance = stored.provenance
    if stored.attributes.get("seed") is not None:
        model.seed_ = check_seed(stored.attributes["seed"])
    names = stored.attributes["feature_names"]
    if names is None and grid is not None:
        names = grid.column_names()
    if names is not None:
        if len(names) != model.n_features_in_ or not all(isinstance(name, str) for name in names):
            raise ValueError(f"it has {len(names)} feature_names; {model.n_features_in_} strings were expected")
        model.feature_names_in_ = np.array(names, dtype=object)
    if beside := stored.attributes.get("covariate_names"):
        if len(beside) != model._steps.covariates or not all(isinstance(name, str) for name in beside):
            raise ValueError(f"it has {len(beside)} names of covariates; {model._steps.covariates} were expected")
        model._set_known(covariate_names_in_=np.array(beside, dtype=object))
    # Those that were changed since the fit are what the model has, as the one that was saved.
    vars(model).update(_decoded({name: now[name] for name in of_fit}))
    return model


def _check_values(attributes: Values) -> None:
    """Check the kinds of the stored numbers, which classes convert: ``int`` would take 1.7, "12" and true."""
    for name in {"facts", "certificate", "weight_sums"} & attributes.keys():
        held = attributes[name]
        inside = held.items() if isinstance(held, dict) else enumerate(held or ())
        attributes = attributes | {f"{name}.{own}": one for own, one in inside if one is not None}
    for name in COUNTS & attributes.keys():
        least, value = int(name == "n_features"), attributes[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
            raise ValueError(f"it has {name} = {brief(repr(value))}; an integer of at least {least} was expected")
    for name in REALS.keys() & attributes.keys():
        value = attributes[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"it has {name} = {brief(repr(value))}; a finite number was expected")
        low, high = REALS[name]
        if not low <= value <= high:
            raise ValueError(f"it has {name} = {value:g}; a number from {low:g} to {high:g} was expected")
    for name, kind in OTHERS.items():
        if not isinstance(attributes.get(name, kind()), kind):
            raise ValueError(f"it has {name} = {brief(repr(attributes[name]))}; a {kind.__name__} was expected")


def _check_sizes(stored: StoredModel) -> None:
    """Compare the sizes of the arrays with each other and with the stored counts."""
    known: dict[str, tuple[int, str]] = {}
    for name, letters in SIZES.items():
        value = stored.arrays.get(name, stored.attributes.get(name))
        if value is None:
            continue
        count = letters[0] == "="
        shape, own = (np.asarray(value).item(),) if count else np.shape(value), letters.lstrip("=").split()
        if len(shape) != len(own):
            raise ValueError(f"it has {name} of shape {shape}; ({', '.join(own)}) was expected")
        for letter, size in zip(own, shape, strict=True):
            known.setdefault(letter, (int(letter), "") if letter.isdigit() else (size, name))
        expected = tuple(known[letter][0] for letter in own)
        if shape == expected:
            continue
        found, wanted = (f"= {shape[0]}", expected[0]) if count else (f"of shape {shape}", expected)
        by = [known[letter][1] for letter in own if known[letter][1] not in ("", name)]
        raise ValueError(f"it has {name} {found}; {wanted} was expected" + (f", as {by[0]} has it" if by else ""))


def _of_parameters(kind: str, parameters: Values) -> AnyEstimator:
    return CLASSES[kind](**_decoded(parameters))


def _decoded(parameters: Values) -> Values:
    decoded = decode_parameters(parameters)
    inner = decoded.get("estimator")
    if inner is not None:
        decoded["estimator"] = _of_parameters(inner["kind"], inner["parameters"])
    return decoded
