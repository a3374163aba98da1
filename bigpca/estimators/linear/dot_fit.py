"""PCA by the dot matrix: an n x n eigenproblem for wide data (tutorial, algorithm 2; dual PCA).

The dot matrix is computed from column blocks if the store is chunked in columns (one read), otherwise from pairs of row
panels. Sparse rows are multiplied as they are, and centred afterwards: ``K - v 1' - 1 v' + |m|^2`` with ``v = X m`` for
their mean m is ``H K H``. The components require one more read: ``components = V' Xc / sqrt(lambda)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import scipy.linalg

from bigpca.arrays import DType, Matrix, Vector
from bigpca.engine.jobs import PassState
from bigpca.engine.planning import Layout, SolveCost
from bigpca.engine.run import Run
from bigpca.estimators.linear.spectrum import (
    WHOLE,
    PCAFit,
    PCAResult,
    Settings,
    check_enough_rows,
    shrinkage_of,
)
from bigpca.passes.accumulators.all_pairs import ColumnProducts, DotPanels, DotSum, double_centre
from bigpca.passes.accumulators.base import MAX_CENTRING_ERROR, Accumulator, column_scale, joined, lost_squares
from bigpca.passes.accumulators.moments import ColumnMoments
from bigpca.passes.accumulators.thin_products import LeftProduct
from bigpca.passes.fold import Declared, FirstRows, Folded, Read
from bigpca.passes.panels import (
    ColumnRead,
    PanelRead,
    column_layout,
    dot_dtype,
)
from bigpca.passes.reading.row_maps import Affine, MapStep
from bigpca.passes.rows import Rows
from bigpca.solvers.components import check_total, counted, resolve_components
from bigpca.solvers.eigh import (
    all_eigenvalues,
    complete_orthonormal,
    eigh_bytes,
    fix_signs,
    numerical_rank,
    rounded_squares,
    top_eigenpairs,
)
from bigpca.solvers.scaling import Blocks

FEW = 8  # times as many columns as sparse rows, from which on their dot matrix is offered
MUCH = 11  # times as many columns as rows, from which on all eigenvalues cost a tenth of the products at most


@dataclass(frozen=True)
class DotSpectrum:
    """Eigenpairs of the centred dot matrix, divided by n - 1, or by the sum of the weights less 1.

    Attributes
    ----------
    variances : ndarray of shape (k,)
    V : ndarray of shape (n, k), orthonormal columns
    total : float
    mean, squares : ndarray of shape (d,)
        Column means and sums of squared deviations; empty until a read has computed them.
    centring_error : float or None
        Bound of the relative error of the total by the centring of sparse rows.
    shrinkage : tuple of k floats, or None
        As of :class:`bigpca.estimators.linear.spectrum.PCAResult`.
    roots : ndarray of shape (d,), or None
        By which blocks of columns are divided.
    """

    variances: Vector
    V: Matrix
    total: float
    mean: Vector
    squares: Vector
    centring_error: float | None = None
    shrinkage: tuple[float, ...] | None = None
    roots: Vector | None = None


def solve_dot_state(
    state: PassState,
    *,
    settings: Settings,
    n_features: int,
    weights: Vector | None,
    precision: float,
    sparse: bool = False,
    about: Vector | None = None,
) -> DotSpectrum:
    """Double-centre and eigen-decompose the dot matrix; memory: three n x n matrices.

    ``about`` (d,) was subtracted from the rows, in units of what multiplied them.
    """
    part = state.parts["dot"]
    if not isinstance(part, DotSum | DotPanels):
        raise TypeError(f"the state holds {type(part).__name__}, a dot matrix was expected")
    n = part.n_samples if weights is None else int(np.count_nonzero(weights))
    weight = part.n_samples if weights is None else float(weights.sum())
    about = joined(part.means) if isinstance(part, DotSum) else about
    G, roots = (part.matrix(), None) if part.blocks is None else of_blocks(part, settings, weights, weight, about)
    # Of sparse rows, which nothing was subtracted from: what rounding of their products leaves of an eigenvalue.
    rounding = float(lost_squares(np.array([np.trace(G)]), n_features)[0]) if sparse else 0.0
    if settings.center:
        double_centre(G, weights)
    # trace(X X') = |X|_F^2: the total variance, which shares need, whatever part of the spectrum is computed.
    total, centred = float(np.trace(G)) / (weight - 1), None
    check_total(total)
    if sparse and settings.center:
        left = float(np.trace(G))
        centred = rounding / left if left > 0 else np.inf if rounding else 0.0
        if centred > MAX_CENTRING_ERROR:
            raise ValueError(
                "the sparse rows vary little compared with their mean. Because their zeros are not stored, their total "
                f"variance has a relative error of up to {centred:.1e}, over {MAX_CENTRING_ERROR:.0e}. Subtract a "
                "constant from columns that are far from 0, leave these out, or pass dense rows."
            )
    whole = all_eigenvalues(G, settings.threads) if n <= WHOLE or MUCH * n <= n_features else None
    values, vectors = top_eigenpairs(G, settings.wanted(n, n_features), threads=settings.threads)
    # Of zeros of sparse rows, which were not centred before their products were summed.
    values[values < rounding] = 0.0
    values /= weight - 1  # of Z Z' / (n - 1), whose non-zero ones are those of the covariance Z'Z / (n - 1)
    k = resolve_components(settings.n_components, values, total, n, n_features, weight, precision=precision)
    mean = squares = np.empty(0)
    if isinstance(part, DotSum):
        mean, squares = joined(part.means), joined(part.squares)
    shrinkage = shrinkage_of(whole, k, weight - settings.center)
    return DotSpectrum(values[:k], np.ascontiguousarray(vectors[:k].T), total, mean, squares, centred, shrinkage, roots)


def of_blocks(
    part: DotSum | DotPanels, settings: Settings, weights: Vector | None, weight: float, about: Vector | None
) -> tuple[Matrix, Vector]:
    """Return the dot matrix of columns whose blocks are divided, and the divisors (d,): roots of first eigenvalues.

    Blocks that are constant, to the rounding of what was subtracted from them, or of sparse products, have 1.
    """
    columns = list(part.blocks.columns.values()) if part.blocks is not None else []
    G, roots = np.zeros((part.n_samples, part.n_samples)), np.ones(sum(map(len, columns)))
    for block, own in enumerate(columns):
        one = part.matrix(block)
        rounding = lost_squares(np.array([np.trace(one)]), len(own))[0] if about is None else 0.0
        noise = rounding if about is None else float(rounded_squares(np.zeros(1), about[own], weight).sum())
        centred = one.copy()
        if settings.center:
            double_centre(centred, weights)
        # X_b X_b' has the first eigenvalue of the block's scatter X_b'X_b.
        largest = float(top_eigenpairs(centred, 1, threads=settings.threads)[0][0])
        if largest > noise:
            roots[own] = np.sqrt(largest / (weight - 1))
        G += one / roots[own[0]] ** 2  # X D^-2 X' = sum_b X_b X_b' / root_b^2: one matrix a block, and no second read
    return G, roots


def components_read(rows: Rows, k: int, layout: Layout, dtype: DType | None = None) -> ColumnRead[ColumnProducts]:
    """Declare the read of column blocks that turns k vectors of the dot matrix into components."""
    template = ColumnProducts(rows.n_columns, np.broadcast_to(0.0, (rows.n_rows, k)))
    return ColumnRead.of_columns(rows, "components", template, layout, collected=True, dtype=dtype)


def reject_omission(rows: Rows) -> None:
    """Reject the omission of rows from a dot matrix.

    Raises
    ------
    ValueError
    """
    if rows.nan_policy == "omit":
        raise ValueError(
            'nan_policy="omit" does not work with solver="dot", nor with solver="krylov" where chunks hold columns: '
            'the n x n matrix pairs every row with all others before bad rows are known. Use solver="covariance", or '
            "drop those rows from the input."
        )


@dataclass(frozen=True)
class DotFit(PCAFit):
    """n^2 d flops for the dot matrix from pairs of row panels, one more read for the components."""

    reads: ClassVar[tuple[str, ...]] = ("before", "panels", "components")
    depends_on: ClassVar[tuple[str, ...]] = ("settings.center", "settings.scale")
    solver: ClassVar[str] = "dot"

    @classmethod
    def choices(cls, rows: Rows, settings: Settings) -> Sequence[PCAFit]:
        """Return the fit, by columns if the store is chunked in columns."""
        layout = column_layout(rows)
        return [cls(rows, settings) if layout is None else DotColumnsFit(rows, settings, layout)]

    @classmethod
    def offered(cls, rows: Rows, settings: Settings) -> bool:
        """Unless rows are to be omitted, or come in one order only; for sparse rows that are few beside the columns."""
        few = not rows.sparse or FEW * rows.n_rows <= rows.n_columns
        return few and rows.nan_policy != "omit" and not rows.order.in_order

    @property
    def account(self) -> str:
        n, cost = self.rows.n_rows, self.panels.cost
        count, reads = len(cost.layout.groups), cost.reads
        cut = f"{reads:g} reads in {count} row panels" if count > 1 else "one read"
        return f"{cut}, a {n} x {n} matrix{self._each}, one read for the components"

    @property
    def _each(self) -> str:
        return "" if self.blocks is None else f" for each of {len(self.blocks.columns)} blocks"

    @property
    def blocks(self) -> Blocks | None:
        """Blocks of columns that are divided by what the read finds of them."""
        return self.settings.scale if isinstance(self.settings.scale, Blocks) else None

    @property
    def k(self) -> int:
        """Maximum number of components."""
        return self.settings.wanted(self.rows.n_present, self.rows.n_columns)

    @property
    def few(self) -> bool:
        """Whether so few components are wanted, whatever the spectrum, that their read costs little in float64."""
        return counted(self.settings.n_components) is not None and 4 * self.k <= self.rows.n_present

    @property
    def dtype(self) -> DType:
        """Dtype in which the rows are multiplied for the dot matrix."""
        return dot_dtype(self.rows, corrected=self.few and self.blocks is None)

    @property
    def components_dtype(self) -> DType | None:
        """float64 where it costs little, so that the components correct a dot matrix of float32, and for sparse rows;
        None by cost."""
        return np.dtype(np.float64) if self.few or self.rows.sparse else None

    @cached_property
    def panels(self) -> PanelRead[DotPanels]:
        """The fewest panels that fit and keep all threads busy (2 per thread), or as many as possible.

        One thread drives a device, of whose memory they take half.
        """
        rows, resources = self.rows, self.rows.order.resources
        most, solving = len(rows.layout(0).reads), eigh_bytes(rows.n_rows, self.k)
        solving += 0 if self.blocks is None else 16 * rows.n_rows**2  # that of a block, and another for its eigenvalue
        held = DotPanels(rows.n_rows, rows.n_columns, self.blocks).state_bytes
        room = (resources.room_bytes - held) / resources.threads
        busy = rows.device[0].ahead(2 * resources.threads)
        count = most if room <= 0 else min(most, max(1, busy))  # where none fits, none is tried
        # More panels are smaller ones, and more reads: each row is read (count + 1) / 2 times.
        while True:
            read = PanelRead.of_panels(rows, count, dtype=self.dtype, blocks=self.blocks)
            cost = read.cost
            lacking = max(cost.peak_bytes - room, cost.device_bytes - cost.device.share(2, 1 << 40))
            if lacking <= 0 or count >= most:
                return read.costing(finish_bytes=cost.finish_bytes + solving)
            count = min(most, count + max(1, count // 4))

    @cached_property
    def columns(self) -> Read[Folded[ColumnMoments]]:
        """The read for means and deviations, if columns are scaled."""
        return Read.into(self.rows, "columns", ColumnMoments(self.rows.n_columns))

    @cached_property
    def components(self) -> Read[object]:
        """The read for the components."""
        n, d, sparse = self.rows.n_rows, self.rows.n_columns, self.rows.sparse
        states: dict[str, Accumulator] = {"product": LeftProduct(d, np.broadcast_to(0.0, (n, self.k + sparse)))}
        states |= {} if sparse else {"columns": ColumnMoments(d)}
        return Read.into(self.rows, "components", states, dtype=self.components_dtype).to(_take_products)

    @property
    def before(self) -> Declared | None:
        """The read that finds the scales, or the first rows, which give the shift."""
        if self.settings.of_columns:
            return self.columns
        return self.first if self.settings.center and not self.rows.sparse else None

    @property
    def first(self) -> FirstRows:
        """The read of the first rows."""
        return FirstRows(self.rows, self.panels.cost.layout)

    def solve_cost(self) -> SolveCost:
        n, d = self.rows.n_rows, self.rows.n_columns
        return SolveCost(
            4 / 3 * n**3,
            bytes=8 * self.k * (4 * d + n),  # products, their QR, components and a copy; vectors
        )

    def run(self, run: Run) -> PCAResult:
        """Fit by the dot matrix.

        Raises
        ------
        ValueError
            With ``nan_policy="omit"``, because the dot matrix pairs every row with all others.
        """
        rows = self.rows
        check_enough_rows(rows.n_present, sums=rows.counted.sums)
        reject_omission(rows)
        # X X' has the eigenvalues of X'X: the solve is of n x n, and components are X'u / s by another read of X.
        finish = partial(
            solve_dot_state,
            settings=self.settings,
            n_features=rows.n_columns,
            weights=rows.counted.weights,
            precision=float(np.finfo(self.dtype).eps),
            sparse=rows.sparse,
        )
        return self._run(run, finish)

    def _run(self, run: Run, finish: partial[DotSpectrum]) -> PCAResult:
        rows, settings = self.rows, self.settings
        d = rows.n_columns
        scale, shift, deviations = None, np.zeros(d), rows
        if settings.of_columns:
            found = self.columns(run).state  # one pass over X
            scale = column_scale(found.squares, found.mean, found.count, settings.of_columns, found.weight)
            # Centred before they are multiplied, so that no digits go to the mean; zeros of sparse rows stay.
            about = found.mean if settings.center and not rows.sparse else shift
            deviations = rows.mapped(MapStep(Affine(about, 1 / scale), d, 2 * d))
        elif settings.center and not rows.sparse:
            shift = self.first(run)
        if self.blocks is not None and not rows.sparse:
            finish = partial(finish, about=shift if scale is None else about / scale)
        dot = replace(self.panels, rows=deviations).to(finish)(run, shift=shift)  # (panels + 1) / 2 reads
        V = rows.counted.unweighted(dot.V)
        if rows.sparse:  # a column of ones sums the rows, beside which their squares would be dense
            V = np.column_stack([V, np.ones(len(V))])
        read = self.components
        read = replace(read, states={**read.states, "product": LeftProduct(d, V)})
        product, mean, squares = read.to(_take_products)(run)  # one pass over X
        if not settings.center:
            # V'X = V'(X - 1 mean') + (V'1) mean': the product was made about the mean.
            sums = dot.V.sum(axis=0) if rows.counted.weights is None else rows.counted.weights @ V[:, : dot.V.shape[1]]
            product = product + np.multiply.outer(sums, mean)
        if dot.roots is not None:
            scale = dot.roots if scale is None else scale * dot.roots
        if scale is not None:
            product = product / scale
        dot = replace(dot, mean=mean, squares=squares)
        return dot_spectrum(rows, settings, dot, product, scale, corrected=self.panels.cost.single)


@dataclass(frozen=True)
class DotColumnsFit(DotFit):
    """n^2 d flops for the dot matrix from column blocks, one more read for the components.

    Attributes
    ----------
    layout : Layout
        Of the column blocks.
    """

    reads: ClassVar[tuple[str, ...]] = ("sums", "components")

    layout: Layout

    @property
    def account(self) -> str:
        n = self.rows.n_rows
        return f"one read over column blocks, a {n} x {n} matrix{self._each}, one read for the components"

    @cached_property
    def sums(self) -> ColumnRead[DotSum]:
        """The read for the dot matrix."""
        n, settings = self.rows.n_rows, self.settings
        template = DotSum(n, settings.center, settings.of_columns, self.blocks)
        read = ColumnRead.of_columns(self.rows, "dot", template, self.layout, dtype=self.dtype)
        return read.costing(finish_bytes=template.state_bytes + 8 * n**2 + eigh_bytes(n, self.k))

    @cached_property
    def components(self) -> ColumnRead[ColumnProducts]:
        """The read for the components."""
        return components_read(self.rows, self.k, self.layout, self.components_dtype)

    def _run(self, run: Run, finish: partial[DotSpectrum]) -> PCAResult:
        dot = self.sums.to(finish)(run)  # one pass over X
        return spectrum_by_columns(run, self.components, self.settings, dot, corrected=self.sums.cost.single)


def spectrum_by_columns(
    run: Run, read: ColumnRead[ColumnProducts], settings: Settings, dot: DotSpectrum, *, corrected: bool
) -> PCAResult:
    """Return the result of vectors of the dot matrix, in the last read of the blocks of columns."""
    # Eigenvectors V (n, k) of the dot matrix Z Z' become components by one more product, Z'V.
    rows, scale = read.rows, None
    learned = settings.of_columns
    products = ColumnProducts(rows.n_columns, rows.counted.unweighted(dot.V), settings.center, learned)
    product = read.holding(products)(run).product()  # one pass over X
    if learned:
        scale = column_scale(dot.squares, dot.mean, rows.n_present, learned, rows.weight)
    if dot.roots is not None:
        product, scale = product / dot.roots, dot.roots if scale is None else scale * dot.roots
    return dot_spectrum(rows, settings, dot, product, scale, corrected=corrected)


def _take_products(state: PassState) -> tuple[Matrix, Vector, Vector]:
    """Return ``V' X`` about the mean, the mean, and the sums of squares about it; of sparse rows, without these."""
    if "columns" not in state.parts:
        found = state.part("product", LeftProduct)
        mean = found.about(np.zeros(found.n_features))[-1] / found.weight[-1]
        return found.about(mean)[:-1], mean, np.empty(0)
    columns = state.part("columns", ColumnMoments)
    return state.part("product", LeftProduct).about(columns.mean), columns.mean, columns.squares


def dot_spectrum(
    rows: Rows, settings: Settings, dot: DotSpectrum, product: Matrix, scale: Vector | None, *, corrected: bool
) -> PCAResult:
    """Normalise ``V' Xc`` to orthonormal rows; other orthonormal rows replace those without variance.

    With ``corrected``, the dot matrix had the rounding error of float32: eigenvalues and axes are then those of
    Rayleigh-Ritz on ``V' Xc``, in which the first order of that error vanishes, and the total is that of the columns.
    """
    n, d, center = rows.n_present, rows.n_columns, settings.center
    k, total, variances = len(dot.variances), dot.total, dot.variances
    check_total(total, mean=dot.mean)
    rank = k if corrected else min(numerical_rank(variances, n), k)
    components = np.empty((0, d))
    if rank:
        # QR restores the orthogonality that float32 products lost; R is diagonal to rounding, so axes keep their order.
        # In place: NumPy's qr holds four copies of a (d, k) array.
        Q, R = scipy.linalg.qr(product[:rank].T, mode="economic", overwrite_a=True, check_finite=False)
        if corrected:  # Xc' V = Q R = (Q U) S W': the singular values S are those of Xc' on the span of V
            U, singular, _ = scipy.linalg.svd(R, check_finite=False)
            variances = singular**2 / (rows.weight - 1)
            rank = numerical_rank(variances, n)
            components = U[:, :rank].T @ Q.T
            squares = dot.squares if center else dot.squares + rows.weight * dot.mean**2
            total = float((squares if scale is None else squares / scale**2).sum()) / (rows.weight - 1)
        else:
            Q *= np.where(np.diagonal(R) < 0, -1.0, 1.0)
            components = np.ascontiguousarray(Q.T)
    components = fix_signs(complete_orthonormal(components, k) if rank < k else components)
    variances = np.where(np.arange(k) < rank, variances, 0.0)
    centre, scale = settings.standardization.in_units_of_rows(dot.mean if center else np.zeros(d), scale)
    return PCAResult(
        n,
        0,
        centre,
        scale,
        variances,
        components,
        total,
        weight_sums=rows.counted.sums,
        centring_error_=dot.centring_error,
        shrinkage=dot.shrinkage,
        column_variances=np.maximum(dot.squares, 0.0) / (rows.weight - 1) if len(dot.squares) else None,
        roundings=rows.roundings,
    )
