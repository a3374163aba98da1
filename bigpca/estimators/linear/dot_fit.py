"""PCA by the dot matrix: an n x n eigenproblem for wide data (tutorial, algorithm 2; dual PCA).

The dot matrix comes from column blocks where the store is chunked in columns (one read), else from pairs of row panels;
the components from one more read: ``components = V' Xc / sqrt(lambda)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from bigpca.estimators.linear.covariance_fit import fold_memory, model_bytes
from bigpca.estimators.linear.spectrum import Settings, Spectrum, check_enough_rows
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.dot_matrix import ColumnProducts, DotSum, column_scale, double_centre
from bigpca.passes.accumulators.left_product import LeftProduct
from bigpca.passes.accumulators.moments import ColumnMoments
from bigpca.passes.columns import column_layout, fold_columns
from bigpca.passes.engine.jobs import RunOptions
from bigpca.passes.engine.states import PassState
from bigpca.passes.fold import first_shift, fold
from bigpca.passes.panels import dot_dtype, fold_panels, panel_layout
from bigpca.passes.reading.layout import Layout
from bigpca.passes.rows import RowInput
from bigpca.planning import Plan, Resources, peak_bytes
from bigpca.solvers.components import resolve_components
from bigpca.solvers.eigh import complete_orthonormal, fix_signs, numerical_rank, top_eigenpairs

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class DotSpectrum:
    """Eigenpairs of the centred dot matrix, divided by n - 1.

    Attributes
    ----------
    variances : ndarray of shape (k,)
    V : ndarray of shape (n, k), orthonormal columns
    total : float
    mean, squares : ndarray of shape (d,) or None
        Column statistics, where the pass gives them.
    """

    variances: Vector
    V: Matrix
    total: float
    mean: Vector | None
    squares: Vector | None


def solve_dot_state(state: PassState, *, settings: Settings, n_features: int) -> DotSpectrum:
    """Double-centre and eigen-decompose the dot matrix; memory: three n x n matrices."""
    part: Any = state.parts["dot"]
    G = part.matrix()
    n = len(G)
    if settings.center:
        double_centre(G)
    G /= n - 1
    total = float(np.trace(G))
    values, vectors = top_eigenpairs(G, settings.wanted(n, n_features), threads=settings.threads)
    k = resolve_components(settings.n_components, values, total, n, n_features)
    columns = isinstance(part, DotSum)
    mean, squares = (part.columns("means"), part.columns("squares")) if columns else (None, None)
    return DotSpectrum(values[:k], np.ascontiguousarray(vectors[:k].T), total, mean, squares)


def take_products(state: PassState) -> tuple[Matrix, Vector | None, Vector | None]:
    """Return ``V' X``, and the columns' means and sums of squares where the pass gives them."""
    part: Any = state.parts.get("dot")
    if part is not None:
        return part.product(), None, None
    product: Any = state.parts["product"]
    columns: Any = state.parts["columns"]
    return product.about(columns.mean), columns.mean, columns.squares


def _take_columns(state: PassState) -> tuple[Vector, Vector]:
    columns: Any = state.parts["columns"]
    return columns.mean, columns.squares


@dataclass(frozen=True)
class Panels:
    """How the pairs of row panels are cut for a memory limit; the cut changes no bit of the result."""

    layout: Layout
    peak_bytes: int

    @property
    def reads(self) -> float:
        """Reads of X: panel I streams the rows from its own start to the end."""
        rows = [self.layout.n_rows - self.layout.rows_of(i)[0] for i in range(len(self.layout.groups))]
        return sum(rows) / max(1, self.layout.n_rows)


def choose_panels(rows: RowInput, resources: Resources) -> Panels:
    """Return the fewest panels that fit and give every thread work (2 per thread), or the most possible."""
    state = 8 * rows.n_rows**2
    base = rows.layout(0)
    dtype = dot_dtype(rows)
    read = base.read_rows * rows.n_columns * rows.dtype.itemsize
    copied = rows.copied_row_bytes(dtype) * min(base.slab_rows, base.read_rows)
    room = (resources.room_bytes - 3 * state) / resources.threads
    count = min(len(base.reads), max(1, 2 * resources.threads))
    while True:
        layout = panel_layout(base, count)
        panel_rows = max(b - a for a, b in map(layout.rows_of, range(len(layout.groups))))
        panel = panel_rows * (rows.n_columns * dtype.itemsize + 8 * rows.n_rows)
        peak = peak_bytes(read, copied, 0, 0) + panel
        if peak <= room or count >= len(base.reads):
            return Panels(layout, peak)
        count = min(len(base.reads), count + max(1, count // 4))


def plan_dot(rows: RowInput, settings: Settings, resources: Resources) -> Plan:
    """Cost of the dot route: n^2 d flops for the dot matrix, one more read for the components."""
    n, d = rows.n_rows, rows.n_columns
    k, state = settings.wanted(n, d), 8 * n * n
    columns = column_layout(rows)
    if columns is not None:
        read = columns.read_rows * n * rows.dtype.itemsize
        slab = min(columns.slab_rows, columns.read_rows) * n * dot_dtype(rows).itemsize
        sums = DotSum(n, settings.center, settings.scale)
        state = sums.state_bytes
        peak = peak_bytes(read, slab, sums.product_bytes, state) + slab
        reads, groups, block_rows = 2.0, len(columns.groups), n
        reason = f"one read over column blocks, a {n} x {n} matrix, one read for the components"
    else:
        panels = choose_panels(rows, resources)
        product = k * d * 8
        left, block_rows, left_groups = fold_memory(rows, product, product, 2.0 * n * d * k)
        peak, groups = max(panels.peak_bytes, left), len(panels.layout.groups) + left_groups
        reads = panels.reads + 1 + int(settings.scale)
        if settings.center and not settings.scale:  # the first rows give the shift
            start, stop = panels.layout.reads[0]
            reads += (stop - start) / max(1, n)
        count = len(panels.layout.groups)
        cut = f"{panels.reads:g} reads in {count} row panels" if count > 1 else "one read"
        reason = f"{cut}, a {n} x {n} matrix, one read for the components"
    reads = round(reads + int(rows.counted), 2)
    return Plan(
        solver="dot",
        reason=reason,
        passes=reads,
        bytes_read=int(reads * n * d * rows.dtype.itemsize),
        flops=float(n) * n * d + 2.0 * n * d * k + 4 / 3 * n**3,
        tasks=2 * groups + 2,
        state_bytes=max(state, 8 * k * d),
        block_rows=block_rows,
        peak_bytes=peak,
        output_bytes=model_bytes(k, d, 1, 0),
        resources=resources,
    )


def describe_dot(rows: RowInput, settings: Settings) -> dict[str, Any]:
    """Fingerprint of the passes."""
    return {"computes": "dot", "input": rows.describe(), "center": settings.center, "scale": settings.scale}


def run_dot(rows: RowInput, settings: Settings, options: RunOptions, resources: Resources) -> Spectrum:
    """Fit by the dot matrix.

    Raises
    ------
    ValueError
        With ``nan_policy="omit"``: rows cannot leave a dot matrix that pairs them with all others.
    """
    check_enough_rows(rows.n_rows)
    reject_omission(rows)
    columns = column_layout(rows)
    if columns is not None:
        return _run_columns(rows, settings, options, columns)
    return _run_panels(rows, settings, options, resources)


def reject_omission(rows: RowInput) -> None:
    """Refuse to leave rows out of a dot matrix.

    Raises
    ------
    ValueError
    """
    if rows.nan_policy == "omit":
        raise ValueError(
            'nan_policy="omit" was asked of solver="dot", whose n x n matrix pairs every row with all others before the bad ones '
            'are known. Use solver="covariance", or drop those rows from the input.'
        )


def _run_columns(rows: RowInput, settings: Settings, options: RunOptions, layout: Layout) -> Spectrum:
    n, d = rows.n_rows, rows.n_columns
    finish = partial(solve_dot_state, settings=settings, n_features=d)
    sums = DotSum(n, settings.center, settings.scale)
    dot: DotSpectrum = fold_columns(rows, sums, finish, layout=layout, number=1, options=options)  # pass 1 over X
    products = ColumnProducts(d, dot.V, settings.center, settings.scale)
    product, _, _ = fold_columns(rows, products, take_products, layout=layout, number=2, options=options)  # pass 2
    mean = np.asarray(dot.mean)
    scale = column_scale(np.asarray(dot.squares), mean, n) if settings.scale else None
    return dot_spectrum(rows, settings, dot, product, mean, scale)


def _run_panels(rows: RowInput, settings: Settings, options: RunOptions, resources: Resources) -> Spectrum:
    n, d = rows.n_rows, rows.n_columns
    layout = choose_panels(rows, resources).layout
    number, scale, shift = 1, None, np.zeros(d)
    if settings.scale:
        columns: dict[str, Accumulator] = {"columns": ColumnMoments(d)}
        mean, squares = fold(
            rows, columns, _take_columns, name="columns", number=number, options=options
        )  # pass over X
        scale, shift, number = column_scale(squares, mean, n), mean, number + 1
    elif settings.center:
        shift = first_shift(rows, layout)
    if not settings.center:
        shift = np.zeros(d)
    finish = partial(solve_dot_state, settings=settings, n_features=d)
    dot: DotSpectrum = fold_panels(
        rows, finish, layout=layout, shift=shift, inverse_scale=None if scale is None else 1 / scale,
        number=number, options=options,
    )  # (panels + 1) / 2 reads of X  # fmt: skip
    parts = {"product": LeftProduct(d, dot.V), "columns": ColumnMoments(d)}
    product, mean, _ = fold(
        rows, parts, take_products, name="components", number=number + 1, options=options
    )  # pass over X
    if not settings.center:
        product = product + np.multiply.outer(dot.V.sum(axis=0), mean)
    if scale is not None:
        product = product / scale
    return dot_spectrum(rows, settings, dot, product, mean, scale)


def dot_spectrum(
    rows: RowInput, settings: Settings, dot: DotSpectrum, product: Matrix, mean: Vector, scale: Vector | None
) -> Spectrum:
    """Normalise ``V' Xc`` to orthonormal rows; rows without variance are completed by orthonormal ones."""
    n, d = rows.n_rows, rows.n_columns
    k = len(dot.variances)
    rank = min(numerical_rank(dot.variances, n), k)
    components = np.empty((0, d))
    if rank:
        # QR re-orthogonalises what float32 products left askew; R is diagonal to rounding, so axes keep their order.
        # In place: NumPy's qr holds four copies of a (d, k) array.
        Q, R = scipy.linalg.qr(product[:rank].T, mode="economic", overwrite_a=True, check_finite=False)
        Q *= np.where(np.diagonal(R) < 0, -1.0, 1.0)
        components = np.ascontiguousarray(Q.T)
    components = fix_signs(complete_orthonormal(components, k) if rank < k else components)
    variances = np.where(np.arange(k) < rank, dot.variances, 0.0)
    centre = mean if settings.center else np.zeros(d)
    return Spectrum(n, 0, centre, scale, variances, components, dot.total)
