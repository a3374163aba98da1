"""The centred kernel matrix as an operator: ``HKH`` (n, n), never formed, multiplied by a thin block in one sweep."""

from __future__ import annotations

import numpy as np

from bigpca.arrays import Matrix, Vector, norm_of, working_dtype
from bigpca.engine.run import Run
from bigpca.kernels.base import Kernel
from bigpca.operators import PROBES, Operator, Probes, Products
from bigpca.passes.accumulators.all_pairs import (
    KernelProduct,
    reject_contradicted,
    reject_overflow,
    reject_underflow,
)
from bigpca.passes.accumulators.thin_products import probe_vectors
from bigpca.passes.rows import Rows
from bigpca.passes.sweeps import Sweep
from bigpca.solvers.certificates import SLACK
from bigpca.solvers.nystrom import contradiction

ALIKE = 4.0  # rounding errors of rows that are alike do not cancel; see KernelOperator.magnification


def products(
    rows: Rows, kernel: Kernel, columns: int, *, most: int = 0, refinable: bool = False
) -> Sweep[KernelProduct]:
    """Declare products of the centred kernel matrix with ``columns`` columns (at most ``most``) and the probes."""
    width = max(columns, most) + PROBES + 1 + PROBES * refinable  # the probes are multiplied again after a refinement
    template = KernelProduct(
        rows.n_rows, width, np.broadcast_to(0.0, (rows.n_rows, width)), not kernel.positive_semidefinite
    )
    sweep = Sweep.of_pairs(rows, kernel, "kernel", template, refinable=refinable)
    spared = sweep.cost.evaluations * 4.0 * (width - columns - PROBES - 1)
    return sweep.costing(flops=sweep.cost.flops - spared)


class KernelOperator(Operator):
    """``A = HKH`` (n, n), ``H = I - 11'/n``, accessed only by sweeps over pairs of rows (tutorial, algorithm 5).

    Centring is implicit: ``A V = H (K (H V))``. A constant column appended to the first block yields the row means of K
    in the same sweep, and with them the trace and the centring of new rows.

    Parameters
    ----------
    run : Run
    sweep : Sweep
        From :func:`products`.
    shift : ndarray of shape (d,)
        Near the mean of the rows; see :meth:`bigpca.kernels.base.Kernel.prepare`.
    seed : int
        Seed of the probes.
    shifted : bool
        Whether products are those of ``A + sigma I``, positive semi-definite, for an indefinite A. Krylov spaces do not
        change with the shift sigma, an upper bound of ``-lambda_min(A)`` that is known after the first product:
        ``|A|_F^2 = sum_i lambda_i^2`` and each of the leading eigenvalues is at least its Ritz value, so
        ``lambda_min^2 <= |A|_F^2 - sum theta_i^2`` over positive Ritz values theta. The norms are those of A.

    Attributes
    ----------
    own_trace : float
        Trace of A, without the shift.
    row_means : ndarray of shape (n,)
        ``K 1 / n``.
    norm : float
        ``|HKH|_F``: an upper bound for kernels that are not positive semi-definite, else an estimate from the probes.
    entry_rounding : float
        A bound of what the rounding of K's entries changes in HKH, in the norm.
    tile_rounding : float
        That of the tiles, and of a stored K: where entries that the caller's function computes count as exact.
    magnification : float
        Of the rounding of tiles, relative to ``|K|_F``, by centring, which may leave little of it (the entries of a
        wide Gaussian kernel are nearly 1): four times ``|K|_F / |HKH|_F``. The factor of four is for rows that are
        alike, as in clusters, whose rounding errors do not cancel.
    """

    other_reads = 1  # of begin

    def __init__(
        self,
        run: Run,
        sweep: Sweep[KernelProduct],
        *,
        shift: Vector,
        seed: int = 0,
        shifted: bool = False,
    ) -> None:
        self.run, self.sweep, self.shift, self.seed, self.shifted = run, sweep, shift, seed, shifted
        self.rows, self.kernel, self.own_trace = sweep.rows, sweep.kernel, 0.0
        self.dtype = sweep.cost.dtype
        self.norm = self.entry_rounding = self.tile_rounding = 0.0
        self.row_means: Vector = np.zeros(0)
        self.magnification = ALIKE
        self._rounding = float(np.finfo(np.float32).eps)  # of K's entries
        self._learned = False  # whether trace, means and norms are known, in the precision of the tiles

    @property
    def size(self) -> int:
        """n."""
        return self.rows.n_rows

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n), which limits the number of components."""
        return self.rows.n_rows, self.rows.n_rows

    @property
    def weight(self) -> float:
        """Number of rows, which have no weights."""
        return float(self.size)

    @property
    def mean(self) -> float:
        """Mean of all entries of K."""
        return float(self.row_means.mean())

    @property
    def precision(self) -> float:
        """Rounding error of a product relative to ``|HKH|_F``."""
        return self._rounding * self.magnification

    @property
    def rounding(self) -> float:
        """Rounding error that bounds allow for, relative to |A|_F; their slack already covers rows that are alike."""
        return self.precision / ALIKE

    @property
    def refinable(self) -> bool:
        """Whether tiles are computed from float32 rows, and memory is planned for float64."""
        return self.sweep.cost.refinable and super().refinable

    def refine(self) -> None:
        """Compute tiles in float64 from now on; the next sweep computes trace and means again."""
        super().refine()
        self.sweep = self.sweep.refined()
        self._rounding = float(np.finfo(self.dtype).eps)
        self._learned = False

    def begin(self, V: Matrix) -> Products:
        """Multiply a first block (n, l) and the probes, in one sweep, which also computes trace, means and norms."""
        AV = self._multiply_and_learn(V)
        if not self.shifted:
            return Products(V, AV)
        # lambda_min^2 <= |A|_F^2 - sum theta_i^2 over the positive Ritz values: A + sigma I >= 0 for this sigma.
        theta = np.linalg.eigvalsh(V.T @ AV)
        left = 1.0 - float(((theta[theta > 0] / (self.norm or 1.0)) ** 2).sum())  # of the squared norm
        self.sigma = self.norm * (float(np.sqrt(max(left, 0.0))) + 4 * self.precision)
        self.trace = self.own_trace + self.size * self.sigma
        probes = self.probes
        self.probes = Probes(probes.vectors, probes.products + self.sigma * probes.vectors)
        return Products(V, AV + self.sigma * V)

    def _multiply_and_learn(self, V: Matrix) -> Matrix:
        omega = probe_vectors(self.seed, self.size, PROBES).astype(np.float64)
        W = np.hstack([V, omega])
        # K [H V, H omega, 1 / n]: the last column is the row means of K.
        W = np.hstack([W - W.mean(axis=0), np.full((self.size, 1), 1.0 / self.size)])
        state = self._sweep(W, squared=not self.kernel.positive_semidefinite)
        product: Matrix = state.product
        self.row_means = product[:, -1].copy()
        reject_overflow(self.kernel, self.row_means)
        product = product[:, :-1]
        product -= product.mean(axis=0)
        self.probes = Probes(omega, product[:, -PROBES:].copy())
        self._learn(state, float(norm_of(self.probes.products)) / PROBES**0.5)
        if self.norm <= self.tile_rounding:  # values that are equal to rounding: a matrix of zeros
            product = np.zeros_like(product)
            self.probes = Probes(omega, product[:, -PROBES:].copy())
        product = np.ascontiguousarray(product[:, :-PROBES])
        self._look_for_evidence(V, product, state)
        return product

    def multiply(self, V: Matrix) -> Matrix:
        """Return ``A V`` (n, l), in one sweep: ``n^2 / 2`` kernel evaluations and ``2 n^2 l`` flops."""
        # A V = H K (H V): V is centred before the sweep, and its product after it.
        if self._learned:
            state = self._sweep(V - V.mean(axis=0), squared=False)
            product: Matrix = state.product
            product -= product.mean(axis=0)
            self._look_for_evidence(V, product, state)
        else:
            product = self._multiply_and_learn(V)
        return product + self.sigma * V if self.shifted else product

    def _look_for_evidence(self, V: Matrix, product: Matrix, state: KernelProduct) -> None:
        """Reject a kernel that was declared positive semi-definite if ``A V`` shows that HKH is not."""
        if self.kernel.taken_on_trust and V.size:
            trace = state.diagonal - self.size * self.mean
            reject_contradicted(self.kernel, contradiction(V, product, trace, self.norm, self.entry_rounding))

    def _sweep(self, V: Matrix, *, squared: bool) -> KernelProduct:
        template = KernelProduct(self.size, V.shape[1], np.ascontiguousarray(V), squared)
        state = self.sweep.holding(template)(self.run, shift=self.shift)  # one sweep over all pairs of rows
        # The rounding error of K's entries: of the tiles, and of the rows if K may be computed in float32.
        given = float(np.finfo(working_dtype(self.rows.dtype)).eps)
        self._rounding = max(state.precision, given) if self.kernel.taken_on_trust else state.precision
        return state

    def _learn(self, state: KernelProduct, norm: float) -> None:
        """Compute trace and norms from the first sweep; ``norm`` is an unbiased estimate of ``|HKH|_F`` from probes.

        ``|K|_F^2 = |HKH|_F^2 + 2 n |r|^2 - n^2 mean^2`` with the row means r. A trace or norm below its rounding error
        is set to that error, because HKH = 0 cannot be distinguished from it.
        """
        n, eps, self._learned = self.size, self._rounding, True
        reject_underflow(self.kernel, state.diagonal)
        self.trace, self.norm = state.diagonal - n * self.mean, norm
        # In units of |K|_F, a power of two near it: its square may leave the range of float64.
        exponent = int(np.frexp(max(n * float(np.abs(self.row_means).max()), norm))[1])
        means, norm = np.ldexp(self.row_means, -exponent), float(np.ldexp(norm, -exponent))
        # What centring takes from |K|_F^2.
        around = max(0.0, 2 * n * float(means @ means) - (n * float(means.mean())) ** 2)
        if state.squared:
            reject_overflow(self.kernel, state.squares)
            # Squares were summed: |HKH|_F is known to rounding, from which SLACK protects the bound.
            whole = float(np.ldexp(state.squares, -2 * exponent).sum())
            if whole < norm**2 / 10:
                raise ValueError(
                    f"the squares of the values of {self.kernel}, which bound its eigenvalues, are below the range of "
                    f"float64: the norm of the matrix is near {self.norm:.3g}. Multiply the data by a constant."
                )
            norm = (max(0.0, whole - around) + SLACK * eps * whole) ** 0.5
            self.norm = float(np.ldexp(norm, exponent))
        else:
            # Else from the probes' estimate, which must not fall below what rounding leaves of zero.
            whole = norm**2 + around
            least = eps * whole**0.5
            self.trace = max(self.trace, float(np.ldexp(least, exponent)))
            norm = max(min(norm, float(np.ldexp(self.trace, -exponent))), least)
        self.entry_rounding = float(np.ldexp(10 * eps * whole**0.5, exponent))
        self.tile_rounding = self.entry_rounding * max(state.precision, self.kernel.stored_eps(self.rows.dtype)) / eps
        self.resolution = self.tile_rounding / 10
        self.own_trace = self.trace
        self.trace += n * self.sigma
        # Centring magnifies the relative rounding of K by |K|_F / |HKH|_F: values that hardly differ lose digits.
        self.magnification = ALIKE * (max(1.0, whole**0.5 / norm) if norm > 0 else 1.0)


def squares(rows: Rows, kernel: Kernel) -> Sweep[KernelProduct]:
    """Declare a sweep whose state has ``sum_j K_ij^2`` (n,)."""
    return Sweep.of_pairs(
        rows, kernel, "row squares", KernelProduct(rows.n_rows, 0, np.zeros((rows.n_rows, 0)), squared=True)
    )
