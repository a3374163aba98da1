"""The covariance of the windows of a series as an operator: block Toeplitz but for the ends of the series.

It is multiplied from sums of one read, which are L times smaller than the matrix; nothing is read again.
"""

from __future__ import annotations

from math import log2
from typing import cast

import numpy as np
from numpy.fft import irfft, rfft

from bigpca.arrays import Array, Integers, Matrix, Vector
from bigpca.blas import solving_alone
from bigpca.operators.base import Operator, Products
from bigpca.operators.covariance import centring_rounding, with_probes
from bigpca.passes.accumulators.base import Weighted, column_scale
from bigpca.passes.accumulators.lagged_products import LaggedProducts
from bigpca.passes.engine.local import threads_here
from bigpca.solvers.components import check_total, degrees_of_freedom
from bigpca.solvers.scaling import LearnedScale

COLUMNS = 32  # that are transformed at a time
MOST_CANCELLED = 0.01  # relative rounding of products, beyond which bounds would say nothing of most eigenvalues


def window_bytes(N: int, d: int, ends: int) -> int:
    """Return the peak bytes of a :class:`WindowOperator` of N = L d columns, with ``ends`` windows, beside its sums."""
    transformed = 16 * (N + d) * (d + ends)
    # Of each column of V: itself, its transform, the product with the kernel, and that in the other domain; of each
    # window at an end: its product in both domains, and transformed again. Then three copies of these windows.
    return transformed + COLUMNS * (56 * N + 48 * N // d * ends) + 3 * 8 * ends * N


def window_flops(N: int, d: int, ends: int, columns: int) -> float:
    """Return the floating-point operations of one product with so many columns."""
    return 8.0 * (N + d) * (d + 2 * ends) * columns + 40 * N * log2(2 * N / d) * columns


class WindowOperator(Weighted, Operator):
    """``A = Wc'Wc / (n - 1)`` (L d, L d) of n windows, or their correlation matrix, from the sums of one read.

    With rows u about the mean of the series and ``Q_k = sum_t u_t u_{t+k}'`` over the first rows t of all windows,
    block (i, j) of the sums of ``(u_t, u_{t+1}, ...)``, for ``i <= j``, is ::

        Q_{j-i} - sum_{s < i} h_s h_{s+j-i}' + sum_{s < i} f_s f_{s+j-i}'

    with the first L - 1 rows h, and the last ones f, of each run: ``T - H'H + F'F``, where T is block Toeplitz, and H
    and F have a row for each shift of h and f by 1 to L - 1 places. Q_k is the product at lag k, less that of rows f.
    All are convolutions, by FFTs of length 2 L (Golub & Van Loan, Matrix Computations, section 4.8.2). The means of
    windows, about that of the series, are subtracted by a product of rank one.

    Parameters
    ----------
    state : LaggedProducts
    heads, tails : ndarray of int
        Numbers of the first and the last rows of the runs, as many of each as the largest lag. Of lags that are s rows
        apart, the rows that are s rows after each other are those of one series.
    lags : tuple of int
        Of the windows: all lags of the state, or some. Only the blocks of these lags are multiplied.
    center, scale, seed, threads
        As of :class:`bigpca.operators.covariance.CovarianceOperator`.

    Attributes
    ----------
    count, mean, scale, centring_error
        As of that.
    """

    of_rows = False
    dtype = np.dtype(np.float64)
    centring_error: float | None = None

    def __init__(
        self,
        state: LaggedProducts,
        heads: Integers,
        tails: Integers,
        lags: tuple[int, ...],
        *,
        center: bool = True,
        scale: LearnedScale = False,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        self._lags = L = state.n_lags
        d, step = state.n_features, state.lags[1]
        self._positions = positions = np.array(lags) // step
        self.count, self.weight_sums, self.seed, self.threads = int(state.pairs[-1]), None, seed, threads
        # The rows at both ends of each run, as the ends of s series where lags are s rows apart.
        places = np.searchsorted(state.margins.indices, [heads, tails])
        ends = (cast("Matrix", state.margins.rows) - state.mean)[places]
        ends = ends.reshape(2, -1, L - 1, step, d).swapaxes(2, 3).reshape(2, -1, L - 1, d)
        # Sums of windows, and the diagonal of their scatter: of the first rows, and what changes from row to row.
        whole = np.stack([state.earlier[0], np.diagonal(state.cross[0])])
        with np.errstate(over="ignore", invalid="ignore"):
            most = 4 * float(whole[1].sum())  # at least ``added`` below, where rows at an end count twice
        if not np.isfinite(most):  # named here: the deviations overflow before the trace is known
            check_total(most)
        h, f = np.stack([ends.sum(axis=1), (ends**2).sum(axis=1)], axis=1)
        first = (whole - f.sum(axis=1))[:, None]
        sums, squares = np.concatenate([first, first + np.cumsum(f - h, axis=1)], axis=1)[:, positions]
        offset = (sums / self.count).ravel()
        mean = np.tile(state.mean, len(positions)) + offset
        # The sums before the subtraction. Large rows at an end are in few positions, but their rounding is in all.
        added = np.tile(whole[1] + (h + f)[1].sum(axis=0), len(positions))
        squares = np.maximum(squares.ravel() - self.weight * offset**2, 0.0)
        self.scale: Vector | None = None
        if scale:
            self.scale = column_scale(squares, mean, self.count, scale, self.weight)
        self._about = np.stack([offset] if center else [offset, mean])
        self.mean = mean if center else np.zeros(len(mean))
        about = squares if center else squares + self.weight * mean**2
        deviations = 1.0 if self.scale is None else self.scale
        self._divisor = degrees_of_freedom(self.count, None)
        largest = float((about / deviations**2).max())
        self._cancelled = max(1.0, float((added / deviations**2).max()) / largest) if largest > 0 else 1.0
        if self.precision > MOST_CANCELLED:
            raise ValueError(
                "rows at an end of the series are so much larger than the others that windows without them vary by no "
                "more than the rounding of the sums. Repair or leave out these rows, or use scale=False, or "
                'solver="covariance" or "dot", which read whole windows.'
            )
        self.trace = float((about / deviations**2).sum()) / self._divisor
        check_total(self.trace, mean=mean)
        self.trace_error = centring_rounding(offset / deviations, self.weight, self.trace, self.precision)
        self.trace_error += float(np.finfo(np.float64).eps) * float((added / deviations**2).sum()) / self._divisor
        self._heads = ends.shape[1]
        self._ends: Array = rfft(np.concatenate(ends).swapaxes(0, 1), 2 * L, axis=0)  # (L + 1, ends, d)
        # The transform of the kernel of T: Q_k' after the diagonal, Q_k before it.
        of_tails = self._ends[:, self._heads :]
        self._kernel: Array = -(of_tails.swapaxes(1, 2) @ of_tails.conj())
        for i in range(d):
            row = rfft(state.cross[:, i], 2 * L, axis=0)
            self._kernel[:, :, i] += row
            self._kernel[:, i] += row.conj() - state.cross[0, i]

    @property
    def size(self) -> int:
        """Rows of a window, times d."""
        return len(self.mean)

    @property
    def shape(self) -> tuple[int, int]:
        """Windows, and their columns."""
        return self.count, self.size

    @property
    def precision(self) -> float:
        """The rounding of float64, over the additions of a transform, of terms that cancel."""
        return float(np.finfo(np.float64).eps) * (1 + log2(2 * self._lags)) * self._cancelled

    def begin(self, V: Matrix) -> Products:
        """Multiply a first block (N, l) and the probes."""
        return with_probes(self, V, self.seed)

    def multiply(self, V: Matrix) -> Matrix:
        """Return ``A V`` (N, l), from memory."""
        product = np.empty(V.shape)
        with solving_alone(threads_here(self.threads)):
            for start in range(0, V.shape[1], COLUMNS):
                strip = slice(start, start + COLUMNS)
                product[:, strip] = self._multiplied(V[:, strip])
        return product

    def _multiplied(self, V: Matrix) -> Matrix:
        L = self._lags
        v = V if self.scale is None else V / self.scale[:, None]
        blocks = np.zeros((L, self._kernel.shape[1], V.shape[1]))
        blocks[self._positions] = v.reshape(len(self._positions), -1, V.shape[1])
        series = rfft(blocks, 2 * L, axis=0)
        # H v and F v: the shifts by 1 to L - 1 places.
        shifted = irfft(self._ends.conj() @ series, 2 * L, axis=0)
        shifted[0] = shifted[L:] = 0.0
        shifted[:, : self._heads] *= -1
        series = self._kernel @ series
        series += self._ends.swapaxes(1, 2) @ rfft(shifted, axis=0)
        product: Matrix = irfft(series, 2 * L, axis=0)[self._positions].reshape(V.shape)
        for mean, sign in zip(self._about, (-1, 1), strict=False):
            product += np.outer(sign * self.weight * mean, mean @ v)
        product /= self._divisor
        return product if self.scale is None else product / self.scale[:, None]
