"""The covariance matrix (d, d) and the dot matrix (n, n) as operators: never formed, multiplied in one read.

Both have the same nonzero eigenvalues. For each, first the reads that a fit declares for it, then the operator that
executes them; the dot matrix is multiplied in one read of a store chunked in columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bigpca import csr
from bigpca.arrays import Matrix, Vector
from bigpca.engine.jobs import PassState
from bigpca.engine.local import threads_here
from bigpca.engine.planning import Layout, PassCost
from bigpca.engine.run import Run
from bigpca.operators import PROBES, Operator, Probes, Products
from bigpca.passes.accumulators.all_pairs import DotProduct
from bigpca.passes.accumulators.base import Weighted, WeightSums, column_scale, joined
from bigpca.passes.accumulators.kept_rows import RowSample
from bigpca.passes.accumulators.thin_products import DenseFactor, FusedProduct, probe_vectors
from bigpca.passes.fold import FirstRows, Folded, Read, runs_layout, sample_runs, sample_size
from bigpca.passes.panels import ColumnRead, column_layout
from bigpca.passes.prices import priced
from bigpca.passes.reading.blocks import product_dtype
from bigpca.passes.rows import Rows
from bigpca.solvers.certificates import product_slack
from bigpca.solvers.components import check_total, degrees_of_freedom
from bigpca.solvers.dual import SampleAxes, axes_bytes, leading_axes
from bigpca.solvers.eigh import top_eigenpairs
from bigpca.solvers.krylov import orthonormal_columns
from bigpca.solvers.scaling import LearnedScale

SUMS_ROUNDING = 4.0  # eps of a difference of two compensated sums, and of the sums of groups
# Of the standard deviations of probes along two columns, above which the first read is repeated.
MAX_LENGTH_RATIO = 10.0


@dataclass(frozen=True)
class CovariancePasses:
    """The passes of a covariance operator, as a fit declares them.

    Attributes
    ----------
    product : Read
        One multiplication.
    sample : Read or None
        Reads the rows from which an iteration starts; None if there are too few rows, or no sample is used.
    first : FirstRows
        Reads the rows that define the shift if there is no sample.
    """

    product: Read[Folded[FusedProduct]]
    sample: Read[Folded[RowSample]] | None
    first: FirstRows

    @classmethod
    def of(
        cls,
        rows: Rows,
        columns: int,
        times: tuple[float, float] = (1, 1),
        *,
        most: int = 0,
        sampled: int = 0,
        seed: int = 0,
    ) -> CovariancePasses:
        """Declare products with ``columns`` columns, or at most ``most``, and the probes, so many times.

        ``times`` are typical and at most. They follow a sample for ``sampled`` columns, unless that is 0.
        """
        n, d = rows.n_rows, rows.n_columns
        # Rows are cut for the usual block; memory is planned for the largest one that a step may multiply.
        blocks = [np.broadcast_to(np.float32(0), (d, width + PROBES)) for width in (columns, max(columns, most))]
        typical, largest = (FusedProduct.of(d, DenseFactor(block), by_driver=True) for block in blocks)
        form = priced(rows).form
        # X'(X W): two products, whose number decides the precision.
        work, cut = 2 * n * csr.product_flops(form, columns) * times[0], typical.state_bytes
        product = Read.into(rows, "product", largest, cut_bytes=cut, work=work, refinable=True)
        cost = product.cost
        itemsize, row_bytes = cost.dtype.itemsize, priced(rows, 1, cost.dtype).held
        each = typical.cost(replace(form, itemsize=itemsize))
        product = product.repeated(*times).costing(flops=n * each.flops)
        # The iteration starts from the leading axes of a sample, read before the first product.
        wanted = sample_size(n, math.ceil(row_bytes), sampled) if sampled else 0
        sample = None
        if wanted:
            sample = Read.into(
                rows,
                "sample",
                RowSample(d, wanted, row_bytes),
                cut_bytes=0,
                dtype=cost.dtype,
                layout=runs_layout(rows, sample_runs(n, wanted, seed)),
                collected=True,
                finish_bytes=math.ceil(wanted * row_bytes) + axes_bytes(wanted, d, sampled, itemsize),
            )
        return cls(product, sample, FirstRows(rows, cls.first_layout(rows, cost)))

    @staticmethod
    def first_layout(rows: Rows, product: PassCost) -> Layout:
        """Return the layout of reads that begin with the first chunk's rows alone."""
        count = min(next((c for c in rows.origin.row_chunks if c), 0), product.layout.slab_rows)
        others = ((max(start, count), stop) for start, stop in product.layout.reads if stop > count)
        return replace(product.layout, reads=((0, count), *others))

    @property
    def costs(self) -> tuple[PassCost, ...]:
        """Those of all passes; the first rows are read without a sample, or if it has too few complete rows."""
        if self.sample is None:
            return (self.first.cost, self.product.cost)
        return (self.sample.cost, self.first.cost.repeated(0, self.first.cost.most_times), self.product.cost)


class CovarianceOperator(Weighted, Operator):
    """``A = Xc'Xc / (n - 1)`` (d, d), or the correlation matrix, accessed only by reads of X.

    Every read centres the product; the first also computes the number of rows, their mean, total variance and scale.
    Standard deviations D are known only after the first read, so :meth:`begin` multiplies by a block that is scaled by
    those of the sample, G, and returns the block for which the product is exact: for any guess G of D,
    ``D^-1 A (G^-1 Q) = (D^-1 A D^-1) (D G^-1 Q)``.

    Parameters
    ----------
    rows : Rows
    run : Run
    passes : CovariancePasses
    center : bool
        Subtract the mean; False for moments about zero.
    scale : bool
        Divide each column by its standard deviation (divisor n).
    seed : int
        Seed of the sample and of the probes.
    threads : int or None
        BLAS threads of the sample's solve; None for as many as there are cores where it is solved.

    Attributes
    ----------
    count : int
    mean : ndarray of shape (d,)
    scale : ndarray of shape (d,) or None
        All known after :meth:`begin`.
    centring_error : float or None
        Bound of the relative error of any variance by the centring of sparse rows.
    magnification : float
        Of the rounding of products: 1, or more for sparse rows whose mean is not small; a first estimate after
        :meth:`sample`.
    """

    of_rows = False

    def __init__(
        self,
        rows: Rows,
        run: Run,
        passes: CovariancePasses,
        *,
        center: bool = True,
        scale: LearnedScale = False,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self.rows, self.run, self.passes = rows, run, passes
        self.center, self.scaled, self.seed, self.threads = center, scale, seed, threads
        self.dtype = passes.product.cost.dtype
        self.count = 0
        self.weight_sums: WeightSums = None
        self.mean: Vector = np.zeros(rows.n_columns)
        self.scale: Vector | None = None
        self._shift: Vector | None = None
        self._guess: Vector | None = None
        self.magnification = 1.0
        self._leading = 0.0  # lower bound of the largest eigenvalue
        self.centring_error: float | None = None
        self._summed = False  # whether count, trace and scale are known, in the precision of the products

    @property
    def size(self) -> int:
        """d."""
        return self.rows.n_columns

    @property
    def shape(self) -> tuple[int, int]:
        """Rows counted so far, and columns, of X."""
        return self.count, self.rows.n_columns

    @property
    def _divisor(self) -> float:
        """``n - 1``, or the sum of the weights less 1; 1 before an error reports too few rows."""
        return degrees_of_freedom(self.count, self.weight_sums) if self.count > 1 else 1.0

    @property
    def precision(self) -> float:
        """Rounding error of products, relative to the largest eigenvalue: eps of their precision for dense rows."""
        return float(np.finfo(self.dtype).eps) * self.magnification

    @property
    def rounding(self) -> float:
        """Rounding error that bounds allow for, relative to |A|_F: of sparse rows also that of the scale."""
        return self.precision + self._scale_error

    @property
    def _scale_error(self) -> float:
        """Bound of the relative error of any entry of A by the scale, whose squares are centred afterwards."""
        return self.centring_error or 0.0 if self.scaled else 0.0

    def refine(self) -> None:
        super().refine()
        self._summed = False

    def sample(self, columns: int) -> SampleAxes | None:
        """Return up to ``columns`` principal axes of a sample of the rows, and their variances; None for too few rows.

        Reads only the rows of the sample.
        """
        read = self.passes.sample
        if read is None:
            return None
        finish = partial(
            _solve_sample, columns=columns, center=self.center, scale=bool(self.scaled), threads=self.threads
        )
        found = read.to(finish)(self.run, shift=np.zeros(self.size))  # part of a pass over X
        if found is None:
            return None
        self._shift = found.mean
        mean = found.mean
        if self.scaled:
            self._guess = column_scale(found.squares, mean, found.count, self.scaled)
            mean = mean / self._guess
        if self.rows.sparse and self.center and len(found.variances):
            self.magnification = magnification(mean, float(found.variances[0]))
        return found

    def begin(self, Q: Matrix) -> Products:
        """Multiply a first block (d, l) and the probes, in one read.

        Returns the block for which the product is exact, and the product. With a guess G of the deviations D, the
        probes g become ``D G^-1 g``: Gaussian, and with a covariance of at least I after division by the smallest entry
        of ``D G^-1``. If its entries differ by more than a factor of ten, the block that is returned would be nearly
        along a few columns, and its product would lose digits where it is split: one more read multiplies a basis of
        that product, with the scale that is known by then.
        """
        # The probes accompany every product, so that bounds cost no read of their own.
        omega = probe_vectors(self.seed, self.size, PROBES).astype(np.float64)
        guess = self._guess if self.scaled and self.scale is None else self.scale
        B = np.hstack([Q, omega])
        # D^-1 C D^-1 B needs X'(X D^-1 B); D is known after this very read, so a guess G takes its place.
        W = B if guess is None else B / guess[:, None]
        AB = self._multiply(W)
        self.other_reads += 1
        least = 1.0
        if self.scale is not None:
            ratio = self.scale if guess is None else self.scale / guess
            # What was multiplied exactly is D W: that is the block, and its last columns are the probes.
            B, least = W * self.scale[:, None], float(ratio.min())
            # The guess was off by more than a factor of ten between columns: multiply again, with the scale now known.
            if ratio.max() > MAX_LENGTH_RATIO * least:
                block = orthonormal_columns([AB[:, :-PROBES]], self.seed)
                del B, W, AB
                return self.begin(block)
        self.probes = Probes(B[:, -PROBES:] / least, AB[:, -PROBES:] / least)
        return Products(B[:, :-PROBES], AB[:, :-PROBES])

    def multiply(self, Q: Matrix) -> Matrix:
        """Return ``A Q`` (d, l), in one read of X.

        Raises
        ------
        RuntimeError
            If columns are scaled and :meth:`begin` was not called, so that their deviations are not known.
        """
        if not self.scaled:
            return self._multiply(Q)
        if self.scale is None:
            raise RuntimeError("the columns' deviations are known only after the first read: call begin first.")
        return self._multiply(Q / self.scale[:, None])

    def _multiply(self, W: Matrix) -> Matrix:
        """Return ``D^-1 Xc'Xc W / (n - 1)`` with the scale known after the read; store count, mean, scale and trace."""
        factor = DenseFactor(np.ascontiguousarray(W, self.dtype))
        found = self._fold(factor)
        self._learn(found)
        Y = found.product
        if self.trace <= self.trace_error:  # rows that are equal to rounding: a matrix of zeros
            Y = np.zeros_like(Y)
        elif not self.center:  # X'X = Xc'Xc + n m m': an addition, so nothing cancels
            Y += np.multiply.outer(factor.multiply(found.mean[None, :])[0], self.weight * found.mean).T
        Y /= self._divisor
        if self.scale is not None:
            Y /= self.scale[:, None]
        if found.sparse and self.center:
            B = W if self.scale is None else W * self.scale[:, None]
            self._leading = max(self._leading, leading_value(B, Y))
            self.magnification = magnification(
                self.mean if self.scale is None else self.mean / self.scale, self._leading
            )
        return Y

    def _fold(self, factor: DenseFactor) -> CentredProduct:
        template = FusedProduct.of(self.size, factor, squared=not self._summed, by_driver=True)
        read = self.passes.product.holding(template).costing(dtype=self.dtype)
        finish = partial(centred_product, centred=self.center or bool(self.scaled))
        if self._shift is None:  # no sample and no earlier read has set it: the mean of the rows of the first chunk
            self._shift = self.passes.first(self.run)
        return read.to(finish)(self.run, shift=self._shift)  # one pass over X

    def set_statistics(
        self, count: int, omitted: int, mean: Vector, scale: Vector | None, trace: float, weight_sums: WeightSums
    ) -> None:
        """Set the statistics that an earlier read of the same rows computed, so that the next read need not."""
        self.count, self.omitted, self.scale, self.trace, self.weight_sums = count, omitted, scale, trace, weight_sums
        self.mean = self._shift = mean
        self._summed = True

    def _learn(self, found: CentredProduct) -> None:
        if self._summed:
            return
        self._summed = True
        self.count, self.omitted, self._shift = found.count, found.omitted, found.mean
        self.weight_sums, self.centring_error = found.weight_sums, found.centring_error
        # sum w x^2 = sum w (x - m)^2 + (sum w) m^2, without cancellation.
        about = found.squares if self.center else found.squares + self.weight * found.mean**2
        if self.scaled:
            if self.scale is None:  # kept by refine: with another scale, earlier products would be of another matrix
                self.scale = column_scale(found.squares, found.mean, self.count, self.scaled, self.weight)
            about = about / self.scale**2
        self.mean = found.mean if self.center else np.zeros(self.size)
        # The trace is known from the columns, whichever eigenvalues are computed: it bounds what they miss.
        self.trace = float(about.sum()) / self._divisor
        rounding = 0.0
        if not found.sparse:
            offset = found.offset if self.scale is None else found.offset / self.scale
            rounding = centring_rounding(offset, self.weight, self.trace, self.precision)
        elif self.center:  # summed about zero, in float64; the magnified precision counts the rounding of products
            mean = found.mean if self.scale is None else found.mean / self.scale
            rounding = lost_variance(mean, self.weight) / self._divisor
        self.trace_error = self._scale_error * self.trace + rounding
        check_total(self.trace, mean=found.mean)


def leading_value(W: Matrix, AW: Matrix) -> float:
    """Return a lower bound of the largest eigenvalue of A >= 0: ``w'A^2 w / w'A w``, the best of some w = W v."""
    squares, forms = AW.T @ AW, W.T @ AW
    # w'A^2 w / w'A w for the direction that A stretches most, and for each column of W.
    _, vectors = top_eigenpairs(squares.copy(), 1)
    V = np.column_stack([vectors.T, np.eye(len(squares))])
    above, below = np.einsum("ij,ij->j", V, squares @ V), np.einsum("ij,ij->j", V, forms @ V)
    return float(np.max(above / np.where(below > 0, below, np.inf), initial=0.0))


def magnification(mean: Vector, leading: float) -> float:
    """Return ``(1 + |m|^2 / lambda_1)^(1/2)``, by which the mean m of sparse rows magnifies the rounding of products.

    In ``X'(X W - 1 c'W)`` one of the two factors is not centred. ``leading`` is lambda_1 or less.
    """
    return float(np.sqrt(1 + float(mean @ mean) / leading)) if leading > 0 else 1.0


def lost_variance(mean: Vector, weight: float) -> float:
    """Return the error of sums of squares about zero once they are centred: a few ``eps n m_j^2`` of each column."""
    return SUMS_ROUNDING * float(np.finfo(np.float64).eps) * weight * float(mean @ mean)


def centring_rounding(offset: Vector, weight: float, trace: float, precision: float) -> float:
    """Bound the rounding that centring leaves in A and its trace, where the rows differ by less than their offset.

    The sums are about a shift, and ``n m m'`` is subtracted, with m the offset of the mean from the shift. Elsewhere
    the slack of the products counts it: ``|n m m' / (n - 1)|_2`` is no larger than what is left.
    """
    subtracted = float(offset @ offset) * weight / (weight - 1) if weight > 1 else 0.0
    return product_slack(subtracted, len(offset), precision=precision) if subtracted > trace else 0.0


@dataclass(frozen=True)
class CentredProduct:
    """The statistics and the product of one read.

    Attributes
    ----------
    count, omitted : int
    mean : ndarray of shape (d,)
    squares : ndarray of shape (d,) or (0,), about the mean
    product : ndarray of shape (d, l), about the mean
    offset : ndarray of shape (d,), of the mean from the shift of the sums
    weight_sums : (float, float) or None
    sparse : bool
        Whether there were sparse rows, which are multiplied about zero and centred afterwards.
    centring_error : float or None
        As of :class:`FusedProduct`.
    """

    count: int
    omitted: int
    mean: Vector
    squares: Vector
    product: Matrix
    offset: Vector
    weight_sums: WeightSums = None
    sparse: bool = False
    centring_error: float | None = None


def centred_product(state: PassState, *, centred: bool) -> CentredProduct:
    """Return the statistics and the centred product, computed where the merged state is."""
    part = state.part("state", FusedProduct)
    # (X - 1 m')'(X - 1 m') V from X'X V and the sums of X and of X V: centring costs no second read.
    squares = part.centred_squares() if part.squared else np.zeros(0)
    return CentredProduct(
        part.count,
        state.omitted,
        part.mean,
        squares,
        part.centred(),
        part.offset,
        part.weight_sums,
        part.constants is not None,
        part.centring_error if centred else None,
    )


def _solve_sample(
    state: PassState, *, columns: int, center: bool, scale: bool, threads: int | None
) -> SampleAxes | None:
    rows = state.part("state", RowSample).rows()
    if sum(r.shape[0] for r in rows) < 2:
        return None
    return leading_axes(rows, columns, center=center, scale=scale, threads=threads_here(threads))


def dot_products(rows: Rows, columns: int, times: tuple[float, float], *, most: int = 0) -> ColumnRead[DotProduct]:
    """Declare products of the dot matrix with ``columns`` columns, or at most ``most``, and the probes.

    ``times`` are how often, typically and at most.

    Raises
    ------
    ValueError
        If the store is not chunked in columns.
    """
    layout = column_layout(rows)
    if layout is None:
        raise ValueError(
            "the dot operator folds column blocks, but the store is not chunked in columns. Use the covariance "
            "operator."
        )
    # X (X'V): two products, of 2 n d l flops each, decide the precision.
    n, width = rows.n_rows, max(columns, most) + PROBES
    dtype = product_dtype(rows.dtype, 4.0 * n * rows.n_columns * columns * times[0])
    template = DotProduct(n, width, np.broadcast_to(np.float32(0), (n, width)), dtype)
    read = ColumnRead.of_columns(rows, "product", template, layout, refinable=True)
    return read.repeated(*times).costing(flops=read.cost.flops * (columns + PROBES) / width)


class DotOperator(Operator):
    """``A = Xc Xc' / (n - 1)`` (n, n), accessed only by reads of column blocks, which hold all rows.

    Every block is centred and scaled exactly before it is multiplied, so one read is enough whether columns are scaled
    or not. A has the same non-zero eigenvalues as the covariance; its eigenvectors are the weights of the examples
    (tutorial, algorithm 2).

    Parameters
    ----------
    run : Run
    read : ColumnRead
        From :func:`dot_products`, of rows of a store chunked in columns. A store chunked in rows would be read once per
        block; use :class:`~bigpca.operators.covariance.CovarianceOperator` for it.
    center, scale : bool
    seed : int
        Seed of the probes.

    Attributes
    ----------
    mean, squares : ndarray of shape (d,)
        Column means, and sums of squared deviations.
    """

    other_reads = 2  # of begin, and for the components

    def __init__(
        self, run: Run, read: ColumnRead[DotProduct], *, center: bool = True, scale: LearnedScale = False, seed: int = 0
    ) -> None:
        self.rows, self.run, self.read = read.rows, run, read
        self.center, self.scaled, self.seed = center, scale, seed
        self.dtype = read.cost.dtype
        self.mean = self.squares = np.zeros(self.rows.n_columns)

    @property
    def size(self) -> int:
        """n."""
        return self.rows.n_rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of X."""
        return self.rows.n_present, self.rows.n_columns

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows, or their number."""
        return self.rows.weight

    def begin(self, V: Matrix) -> Products:
        """Multiply a first block (n, l) and the probes, in one read, which is like all others."""
        omega = probe_vectors(self.seed, self.size, PROBES).astype(np.float64)
        product = self.multiply(np.hstack([V, omega]))
        self.probes = Probes(omega, product[:, -PROBES:].copy())
        return Products(V, product[:, :-PROBES])

    def multiply(self, V: Matrix) -> Matrix:
        """Return ``A V`` (n, l), in one read of X."""
        template = DotProduct(
            self.size, V.shape[1], np.ascontiguousarray(V, self.dtype), self.dtype, self.center, self.scaled
        )
        read = self.read.holding(template).costing(dtype=self.dtype)
        product, total, self.mean, self.squares = read.to(_product_of)(self.run)  # one pass over X
        divisor = degrees_of_freedom(self.rows.n_present, self.rows.counted.sums)
        product /= divisor
        self.trace = float(total) / divisor
        check_total(self.trace, mean=self.mean)  # before a solve meets products that are not finite
        return product


def _product_of(state: PassState) -> tuple[Matrix, float, Vector, Vector]:
    part = state.part("dot", DotProduct)
    return part.product.copy(), part.total, joined(part.means), joined(part.squares)
