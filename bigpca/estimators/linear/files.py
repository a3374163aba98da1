"""Linear models on disk: a solved problem as arrays and JSON values, and back, validated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bigpca.arrays import Array
from bigpca.estimators.linear.axes import orthonormality_error
from bigpca.estimators.linear.certified import pack_certificate, unpack_certificate
from bigpca.estimators.linear.spectrum import Spectrum
from bigpca.estimators.shared.files import StoredModel, Values
from bigpca.passes.accumulators.base import Accumulator

REQUIRED = {"components", "explained_variance", "mean"}
BOUNDS = {"eigenvalue_bounds", "captured_variance_bounds"}


@dataclass(frozen=True)
class StateForm:
    """How the sufficient statistics of a model are stored among its arrays.

    Attributes
    ----------
    prefix : str
        Their arrays are ``<prefix>_<name>``.
    empty : Accumulator
        Restores the state from the arrays, by ``with_arrays``.
    shapes : dict of str to tuple of int
        The known shapes; ``with_arrays`` checks the others.
    gaps : tuple of str, default ()
        Arrays in which NaN stands for what there is not.
    """

    prefix: str
    empty: Accumulator
    shapes: dict[str, tuple[int, ...]]
    gaps: tuple[str, ...] = ()


def linear_bytes(k: int, d: int, *, scaled: bool = False, state: int = 0) -> int:
    """Return the bytes of a saved model: components, variances, mean, scale, and the kept state."""
    return 8 * (k * d + k + (2 if scaled else 1) * d) + state


def pack_spectrum(found: Spectrum, form: StateForm) -> tuple[dict[str, Array], Values]:
    """Return a solved problem as arrays and JSON values."""
    arrays = {"components": found.components, "explained_variance": found.variances, "mean": found.mean}
    if found.scale is not None:
        arrays["scale"] = found.scale
    if found.state is not None:
        arrays |= {f"{form.prefix}_{name}": np.asarray(array) for name, array in found.state.to_arrays().items()}
    attributes: Values = {
        "n_samples": int(found.count),
        "n_omitted": int(found.omitted),
        "total_variance": float(found.total),
    }
    if found.weight_sums is not None:
        attributes["weight_sums"] = list(found.weight_sums)
    if found.centring_error is not None:
        attributes["centring_error"] = float(found.centring_error)
    known, attributes["certificate"] = pack_certificate(found.certificate)
    return arrays | known, attributes


def unpack_spectrum(stored: StoredModel, form_of: Callable[[int], StateForm], *, orthonormal: bool = True) -> Spectrum:
    """Return the solved problem that :func:`pack_spectrum` packed.

    Parameters
    ----------
    stored : StoredModel
    form_of : callable
        Returns the form for a number of features.
    orthonormal : bool
        Whether the components must be orthonormal.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a value is missing or not finite, shapes disagree, or the components are not orthonormal.
    """
    arrays, attributes = stored.arrays, stored.attributes
    certified = attributes.get("certificate")
    sums, centred = attributes.get("weight_sums"), attributes.get("centring_error")
    k, d = _check_components(arrays, REQUIRED | (BOUNDS if certified is not None else set()))
    form = form_of(d)
    _check_shapes(arrays, k, d, form)
    _check_values(arrays, {f"{form.prefix}_{name}" for name in form.gaps}, orthonormal)
    return Spectrum(
        int(attributes["n_samples"]), int(attributes["n_omitted"]), arrays["mean"], arrays.get("scale"),
        arrays["explained_variance"], arrays["components"], float(attributes["total_variance"]),
        _read_state(arrays, form), unpack_certificate(arrays, certified),
        None if sums is None else (float(sums[0]), float(sums[1])), None if centred is None else float(centred),
    )  # fmt: skip


def _check_components(arrays: dict[str, Array], required: set[str]) -> tuple[int, int]:
    missing = required - arrays.keys()
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    shape = arrays["components"].shape
    if len(shape) != 2:
        raise ValueError(f"it has components of shape {shape}; (k, d) was expected")
    return shape[0], shape[1]


def _check_shapes(arrays: dict[str, Array], k: int, d: int, form: StateForm) -> None:
    shapes = {
        "explained_variance": (k,),
        "mean": (d,),
        "scale": (d,),
        "eigenvalue_bounds": (k, 2),
        "residuals": (k,),
        "captured_variance_bounds": (2,),
    } | {f"{form.prefix}_{name}": shape for name, shape in form.shapes.items()}
    for name, shape in shapes.items():
        if name in arrays and arrays[name].shape != shape:
            raise ValueError(
                f"it has {name} of shape {arrays[name].shape}; {shape} was expected beside components of shape {(k, d)}"
            )


def _check_values(arrays: dict[str, Array], gaps: set[str], orthonormal: bool) -> None:
    for name, array in arrays.items():
        known = array[~np.isnan(array)] if name in gaps and array.dtype.kind == "f" else array
        if array.dtype.kind not in "fiu" or not np.isfinite(known).all():
            raise ValueError(f"it has {name} with values that are not finite numbers")
    off = orthonormality_error(arrays["components"])
    if orthonormal and off > 1e-4:
        raise ValueError(f"it has components that are not orthonormal (off by {off:.1g})")


def _read_state(arrays: dict[str, Array], form: StateForm) -> Accumulator | None:
    """Return the stored sufficient statistics, if the model kept them."""
    start = f"{form.prefix}_"
    own = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
    return form.empty.with_arrays(own) if own else None
