"""Fitted kernel models on disk: expansions as arrays and JSON values, and back, validated."""

from __future__ import annotations

import os

import numpy as np

from bigpca.arrays import Array
from bigpca.data.sources import open as open_array
from bigpca.data.sources import source_of
from bigpca.errors import brief
from bigpca.estimators.kernel.expansion import Expansion, FeatureProjection
from bigpca.estimators.kernel.spectrum import HELD_BYTES, KernelSpectrum
from bigpca.estimators.linear.certified import pack_certificate, unpack_certificate
from bigpca.estimators.shared.files import StoredModel, StoredState, Values, pack_values, unpack_values
from bigpca.estimators.shared.references import References
from bigpca.kernels.base import Kernel
from bigpca.passes.accumulators.landmark_moments import LandmarkMoments
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.rows import RowInput
from bigpca.storage.stores import kind_of

LEARNED = (  # fields of a KernelSpectrum that only some fits have
    "negative_mass", "trace_error", "rank", "landmark_transform", "landmark_indices", "classes", "n_unlabelled",
    "missed_label_trace", "weight_sums",
)  # fmt: skip
EXPANSION = ("shift", "coefficients", "offsets", "mean_weights", "centre")
PRECISIONS = ("float32", "float64")


def expansion_bytes(rows: RowInput, kernel: Kernel, k: int, landmarks: int | None = None) -> int:
    """Return the bytes of a saved expansion of k axes over all rows, or over landmarks, with the eigenvalues."""
    p = rows.n_rows if landmarks is None else landmarks
    stored = rows.source is not None and landmarks is None
    size = p * rows.n_columns * (rows.dtype if stored else working_dtype(rows.dtype)).itemsize
    named = rows.source is not None and not rows.source.in_memory and size > HELD_BYTES and landmarks is None
    held = 0 if named or (landmarks is None and not kernel.needs_rows) else size
    return 8 * (2 * k + rows.n_columns + p * k + 2 * p) + held


def pack_kernel_spectrum(found: KernelSpectrum) -> tuple[dict[str, Array], Values]:
    """Return a solved problem as arrays and JSON values.

    Training rows of at most 256 MiB, and rows in memory, are copied into the model. A larger store is referenced, and
    must exist when the model is loaded.
    """
    arrays: dict[str, Array] = {"eigenvalues": found.eigenvalues}
    attributes: Values = {
        "n_samples": int(found.count), "n_omitted": int(found.omitted), "total": float(found.total),
        "evaluations": int(found.evaluations), "references": None,
    }  # fmt: skip
    learned = {name: getattr(found, name) for name in LEARNED if getattr(found, name) is not None}
    known = {name: value for name, value in learned.items() if isinstance(value, np.ndarray)}
    attributes["facts"] = {name: _plain(value) for name, value in learned.items() if name not in known}
    arrays |= {f"fact_{name}": value for name, value in known.items() if value.dtype.kind not in "US"}
    attributes["texts"] = {name: pack_values(value) for name, value in known.items() if value.dtype.kind in "US"}
    expansion = found.expansion
    attributes["transform_dtype"] = expansion.dtype.name
    if isinstance(expansion, FeatureProjection):
        arrays |= {"feature_mean": expansion.mean, "components": expansion.components}
    else:
        arrays |= {name: getattr(expansion, name) for name in EXPANSION}
        attributes["mean_square"] = float(expansion.mean_square)
        references = expansion.references
        if references.rows is None and references.source is not None and _bytes(references) > HELD_BYTES:
            source = references.source
            attributes["references"] = {"path": source.path, "member": source.member, "shape": list(source.shape)}
            attributes["references"]["fingerprint"] = references.fingerprint()
        else:
            arrays["references"] = np.concatenate([rows for _, rows in references.tiles()])
    certified, attributes["certificate"] = pack_certificate(found.certificate)
    arrays |= certified
    if found.state is not None:
        arrays |= {f"state_{name}": np.asarray(array) for name, array in found.state.to_arrays().items()}
    return arrays, attributes


def unpack_kernel_spectrum(stored: StoredModel, kernel: Kernel, state: StoredState | None) -> KernelSpectrum:
    """Return the solved problem that :func:`pack_kernel_spectrum` packed.

    Raises
    ------
    KeyError, TypeError, ValueError
        If a value is missing or not finite, shapes disagree, or the training rows are no longer in their place.
    """
    arrays, attributes = stored.arrays, stored.attributes
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
            raise ValueError(f"it has {name} with values that are not finite numbers")
    expansion = _unpack_expansion(stored, kernel)
    certificate = unpack_certificate(arrays, attributes["certificate"])
    facts = dict(attributes["facts"])
    if "weight_sums" in facts:
        total, squares = facts["weight_sums"]
        facts["weight_sums"] = float(total), float(squares)
    facts |= {name: unpack_values(value) for name, value in attributes["texts"].items()}
    facts |= {name.removeprefix("fact_"): array for name, array in arrays.items() if name.startswith("fact_")}
    return KernelSpectrum(
        int(attributes["n_samples"]), int(attributes["n_omitted"]), arrays["eigenvalues"], float(attributes["total"]),
        expansion, int(attributes["evaluations"]), certificate, state=state, **facts,
    )  # fmt: skip


def _unpack_expansion(stored: StoredModel, kernel: Kernel) -> Expansion | FeatureProjection:
    """Return the map to scores; raises as :func:`unpack_kernel_spectrum`."""
    arrays, attributes = stored.arrays, stored.attributes
    k = len(arrays["eigenvalues"])
    expansion: Expansion | FeatureProjection
    if attributes["transform_dtype"] not in PRECISIONS:
        raise ValueError(f"it has scores in {attributes['transform_dtype']!r}, not in one of {', '.join(PRECISIONS)}")
    dtype = np.dtype(attributes["transform_dtype"])
    if "components" in arrays:
        expansion = FeatureProjection(kernel, arrays["feature_mean"], arrays["components"], dtype)
    else:
        references = _read_references(stored)
        expansion = Expansion(
            kernel, arrays["shift"], references, arrays["coefficients"], arrays["offsets"], arrays["mean_weights"],
            float(attributes["mean_square"]), arrays["centre"], dtype,
        )  # fmt: skip
        p = references.shape[0]
        if expansion.coefficients.shape[:1] != (p,):
            raise ValueError(f"it has {p} reference rows, but coefficients of shape {expansion.coefficients.shape}")
        if kernel.needs_rows and expansion.shift.shape != (references.shape[1],):
            raise ValueError(
                f"it has rows of {references.shape[1]} columns, but a shift of shape {expansion.shift.shape}"
            )
        transform = arrays.get("fact_landmark_transform")
        if transform is not None and (transform.ndim != 2 or len(transform) != p):
            raise ValueError(f"it has {p} landmarks, but a transform of shape {transform.shape}")
        if expansion.mean_weights.shape != (p,) or expansion.offsets.shape != (k,) or expansion.centre.shape != (p,):
            raise ValueError(f"it has {p} reference rows, but weights of shape {expansion.mean_weights.shape}")
    if expansion.coefficients.shape[1] != k:
        raise ValueError(f"it has {k} eigenvalues, but coefficients of shape {expansion.coefficients.shape}")
    return expansion


def stored_moments(stored: StoredModel) -> LandmarkMoments | None:
    """Return the stored moments of the features; None if the model kept none."""
    own = stored.named("state_")
    if not own:
        return None
    rank = stored.arrays["fact_landmark_transform"].shape[1]
    return LandmarkMoments(int(stored.attributes["n_features"]), None, (Moments(rank),)).with_arrays(own)


def _bytes(references: References) -> int:
    return references.shape[0] * references.shape[1] * references.dtype.itemsize


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _read_references(stored: StoredModel) -> References:
    """Return the training rows from the model, or from the store that it references.

    Raises
    ------
    ModelFormatError
        If that store is not in an allowed place.
    ValueError
        If the store does not exist, or holds an array of another shape or other rows.
    """
    place = stored.attributes["references"]
    if place is None:
        return References(stored.arrays["references"], None, stored.arrays.get("fact_landmark_indices"))
    path = stored.rows.resolve(str(place["path"]))
    if kind_of(path) == "disk" and not os.path.exists(path):
        raise ValueError(f"its training rows were in {path}, which is gone. Put them back there")
    source = source_of(open_array(path, member=place["member"] or None))
    if source is None or list(source.shape) != place["shape"]:
        found = None if source is None else source.shape
        raise ValueError(f"its training rows were of shape {brief(tuple(place['shape']))}, but {path} holds {found}")
    references = References.stored(source)
    if references.fingerprint() != place["fingerprint"]:
        raise ValueError(f"its training rows were in {path}, which holds other rows now. Put them back there")
    return references
