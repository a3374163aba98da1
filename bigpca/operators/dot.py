"""The dot matrix (n, n) as an operator: never formed, multiplied in one read of a store chunked in columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bigpca.arrays import Matrix, Vector
from bigpca.data.weights import degrees_of_freedom
from bigpca.operators.base import PROBES, Operator, Probes, Products
from bigpca.passes.accumulators.dot_matrix import DotProduct
from bigpca.passes.accumulators.thin_products import probe_vectors
from bigpca.passes.engine.jobs import PassPlan, PassState
from bigpca.passes.engine.run import Run
from bigpca.passes.panels import column_layout, column_pass, fold_columns_to
from bigpca.passes.reading.blocks import product_dtype
from bigpca.passes.rows import Rows
from bigpca.planning import Times
from bigpca.solvers.scaling import LearnedScale


def dot_pass(rows: Rows, columns: int, times: Times, *, most: int = 0, driver_bytes: int = 0) -> PassPlan:
    """Declare products of the dot matrix with ``columns`` columns, or at most ``most``, and the probes.

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
    n, width = rows.n_rows, max(columns, most) + PROBES
    dtype = product_dtype(rows.dtype, 4.0 * n * rows.n_columns * columns * times.typical)
    template = DotProduct(n, width, np.broadcast_to(np.float32(0), (n, width)), dtype)
    cost = column_pass(rows, "product", template, layout, times=times, driver_bytes=driver_bytes, refinable=True)
    return replace(cost, flops=cost.flops * (columns + PROBES) / width)


class DotOperator(Operator):
    """``A = Xc Xc' / (n - 1)`` (n, n), accessed only by reads of column blocks, which hold all rows.

    Every block is centred and scaled exactly before it is multiplied, so one read is enough whether columns are scaled
    or not. A has the same non-zero eigenvalues as the covariance; its eigenvectors are the weights of the examples
    (tutorial, algorithm 2).

    Parameters
    ----------
    rows : Rows
        Rows of a store chunked in columns. A store chunked in rows would be read once per block; use
        :class:`~bigpca.operators.covariance.CovarianceOperator` for it.
    run : Run
    cost : PassPlan
        From :func:`dot_pass`.
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
        self,
        rows: Rows,
        run: Run,
        cost: PassPlan,
        *,
        center: bool = True,
        scale: LearnedScale = False,
        seed: int = 0,
    ) -> None:
        self.rows, self.run, self.cost = rows, run, cost
        self.center, self.scaled, self.seed = center, scale, seed
        self.dtype = cost.dtype
        self.mean = self.squares = np.zeros(rows.n_columns)

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

    @property
    def precision(self) -> float:
        """eps of the products' precision."""
        return float(np.finfo(self.dtype).eps)

    @property
    def rounding(self) -> float:
        """Rounding error that bounds allow for, relative to |A|_F."""
        return self.precision

    @property
    def refinable(self) -> bool:
        """Whether products are computed in float32."""
        return self.dtype != np.float64

    def refine(self) -> None:
        """Multiply in float64 from now on, in which float32 columns are exact."""
        self.dtype = np.dtype(np.float64)

    def begin(self, V: Matrix) -> Products:
        """Multiply a first block (n, l) and the probes, in one read."""
        omega = probe_vectors(self.seed, self.size, PROBES).astype(np.float64)
        product = self.multiply(np.hstack([V, omega]))
        self.probes = Probes(omega, product[:, -PROBES:].copy())
        return Products(V, product[:, :-PROBES])

    def multiply(self, V: Matrix) -> Matrix:
        """Return ``A V`` (n, l), in one read of X."""
        template = DotProduct(
            self.size, V.shape[1], np.ascontiguousarray(V, self.dtype), self.dtype, self.center, self.scaled
        )
        cost = replace(self.cost, dtype=self.dtype)
        product, total, self.mean, self.squares = fold_columns_to(  # one pass over X
            self.run, cost, self.rows, template, _product_of
        )
        divisor = degrees_of_freedom(self.rows.n_present, self.rows.weight_sums)
        product /= divisor
        self.trace = float(total) / divisor
        return product


def _product_of(state: PassState) -> tuple[Matrix, float, Vector, Vector]:
    part = state.part("dot", DotProduct)
    return part.product.copy(), part.total, part.columns("means"), part.columns("squares")
