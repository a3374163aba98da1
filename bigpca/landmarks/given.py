"""Landmarks that the caller chose: row numbers, or rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from bigpca.arrays import Array
from bigpca.data.checks import row_width
from bigpca.data.containers import reject_foreign, table_rows, unmasked
from bigpca.data.sparse import as_csr, is_sparse
from bigpca.landmarks.base import LandmarkRequest, Landmarks
from bigpca.passes.accumulators.kept_rows import RowsAt
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.fold import fold, row_pass
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.reading.row_maps import map_run


def landmark_values(landmarks: Any) -> Array:
    """Return the caller's landmarks as an array: row numbers (m,) or rows (m, d); masked entries become NaN.

    Dimensions after the first are flattened, like those of X; sparse rows are made dense, as landmarks are held.

    Raises
    ------
    TypeError
        For containers that cannot be read.
    """
    if is_sparse(landmarks):
        landmarks = as_csr(landmarks).toarray()
    reject_foreign(landmarks, "sampling", "Row numbers (m,) or rows (m, d)")
    landmarks = table_rows(landmarks, "sampling")
    values = unmasked(landmarks) if isinstance(landmarks, np.ma.MaskedArray) else np.asarray(landmarks)
    return values.reshape(len(values), row_width(values.shape)) if values.ndim > 2 else values


def given(landmarks: Array, request: LandmarkRequest) -> Landmarks:
    """Return the rows with given numbers (m,), read once and in the given order, or given rows (m, d), mapped as those
    of X are.

    Raises
    ------
    ValueError
        If there are not m of them; if a row number is out of range or repeated; if rows have another number of columns
        or are not finite.
    TypeError
        If they are not numbers, or row numbers are not integers.
    """
    if landmarks.dtype.kind not in "iuf" or (landmarks.ndim == 1 and landmarks.dtype.kind == "f"):
        raise TypeError(
            f"landmarks of dtype {landmarks.dtype} and shape {landmarks.shape} were given; row numbers, integers (m,), "
            "or rows, numbers (m, d), were expected. Convert them."
        )
    if landmarks.ndim not in (1, 2):
        raise ValueError(
            f"landmarks of shape {landmarks.shape} were given; (m,) for row numbers or (m, d) for rows was expected. "
            "Reshape them."
        )
    if len(landmarks) != request.count:
        raise ValueError(
            f"{len(landmarks)} landmarks were given, but n_landmarks = {request.count}. Give "
            f"n_landmarks={len(landmarks)}."
        )
    return _given_rows(landmarks, request) if landmarks.ndim == 2 else _given_numbers(landmarks, request)


def _given_rows(rows: Array, request: LandmarkRequest) -> Landmarks:
    d = request.rows.n_columns
    if rows.shape[1] != d:
        raise ValueError(
            f"the given landmarks have {rows.shape[1]} columns, but X has {d}. Give rows with the columns of X."
        )
    if not np.isfinite(rows).all():
        i, j = np.argwhere(~np.isfinite(rows))[0]
        raise ValueError(
            f"landmark {i} has {rows[i, j]} in column {j}, which is not finite. Repair it, or give another row."
        )
    converted = rows.astype(working_dtype(request.rows.dtype))
    return Landmarks(map_run(request.rows.steps, converted, 0, "the given landmarks"), None)


def _given_numbers(numbers: Array, request: LandmarkRequest) -> Landmarks:
    _check_numbers(numbers, request.rows.n_rows)
    wanted, d = numbers.astype(np.int64), request.rows.n_columns
    (cost,) = given_passes(numbers, request)
    template = RowsAt(d, np.sort(wanted), cost.dtype.itemsize)
    found = fold(request.run, cost, request.rows, template, shift=np.zeros(d)).state  # one pass over X
    missing = np.setdiff1d(wanted, found.indices)
    if len(missing) or found.rows is None:
        raise ValueError(
            f"row {missing[0]} was given as a landmark, but it is omitted because of missing values, or its weight is "
            "0. Choose another, or repair the data."
        )
    return Landmarks(found.rows[np.searchsorted(found.indices, wanted)], wanted)


def given_passes(landmarks: Array, request: LandmarkRequest) -> tuple[PassPlan, ...]:
    """Declare the pass of :func:`given`; none if rows were given."""
    if landmarks.ndim != 1:
        return ()
    rows, dtype = request.rows, working_dtype(request.rows.dtype)
    template = RowsAt(rows.n_columns, np.broadcast_to(np.int64(0), (len(landmarks),)), dtype.itemsize)
    return (row_pass(rows, "landmarks", [template], cut_bytes=template.state_bytes, work=0.0, dtype=dtype),)


def _check_numbers(numbers: Array, n: int) -> None:
    outside = np.flatnonzero((numbers < 0) | (numbers >= n))
    if len(outside):
        raise ValueError(
            f"landmark {outside[0]} is row {numbers[outside[0]]}, but X has rows 0 to {n - 1}. Correct it."
        )
    values, counts = np.unique(numbers, return_counts=True)
    if (counts > 1).any():
        twice = values[counts > 1][0]
        raise ValueError(f"row {twice} is given as a landmark more than once. Remove the duplicates.")
