"""Block Krylov: the leading eigenpairs of a matrix seen only through products, each of which costs a read of all data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import blas_threads
from bigpca.solvers.eigh import top_eigenpairs
from bigpca.solvers.krylov_basis import STRIP, KrylovBasis
from bigpca.solvers.nystrom import NystromApproximation, nystrom, nystrom_bytes

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Multiply = Callable[[Matrix], Matrix]
Wanted = int | Callable[[Vector], int]

NOISE = 4.0  # of precision: parts of a residual below this share of theta_1 are rounding, and no direction to follow
FLOOR = 10.0  # of precision: a smaller tol cannot be met
EPS = float(np.finfo(np.float64).eps)
FRESH = 8  # random columns beside any start
START_RANK = 1e-8  # directions of the start below this share of its longest column are dropped
MISSED = 10.0  # times tol: a larger excess of the final values over the Ritz values is an eigenvector that was missed
PATIENCE = 3  # multiplications without a better residual before giving up
IMPROVED = 0.9


@dataclass(frozen=True)
class KrylovOptions:
    """What :func:`block_krylov` may spend, and when it stops.

    Attributes
    ----------
    tol : float in (0, 1); relative error of the wanted eigenvalues.
    most_multiplications : int >= 1; each reads all data once.
    most_columns : int; the basis is restarted rather than exceed it. At least twice the wanted eigenpairs.
    block : int; columns per multiplication.
    precision : relative rounding of the products: 1.2e-7 for float32, 2.2e-16 for float64.
    seed : of the random columns.
    threads : BLAS threads between multiplications; None leaves the process's setting.
    """

    tol: float
    most_multiplications: int
    most_columns: int
    block: int
    precision: float
    seed: int = 0
    threads: int | None = None


@dataclass(frozen=True)
class KrylovStep:
    """The state after one multiplication, for progress and checkpoints.

    ``basis`` and ``products`` are views of shape (N, columns) that the next step overwrites: copy what is to be kept.
    Given back as ``products=(basis, products)`` they resume the computation.
    """

    multiplications: int
    ritz_values: Vector  # (k,)
    residuals: Vector  # (k,)
    largest_error: float  # estimate of the largest relative error of a wanted Ritz value
    basis: Matrix
    products: Matrix


@dataclass(frozen=True)
class KrylovResult:
    """The k leading eigenpairs, and how far they got.

    Attributes
    ----------
    approximation : NystromApproximation
        From all stored products: ``values`` and ``vectors``, its trace, and products with probes.
    ritz_values, residuals : ndarray of shape (k,); ``residuals[i] = |A u_i - ritz_values[i] u_i|`` of the Ritz vectors.
    converged : bool
    stopped : {"tol", "rounding", "multiplications", "stagnation", "missed"}
        Why it ended: tol is met; tol is below ten times the precision of the products, which is as far as it went; none was
        left; three in a row improved nothing; or given products hide a direction that the answer still lacks.
    largest_error : float; the estimate that tol is compared with: the largest relative error of a Ritz value.
    multiplications : int; the products computed here.
    columns_multiplied : int; in all of them.
    """

    approximation: NystromApproximation
    ritz_values: Vector
    residuals: Vector
    stopped: str
    largest_error: float
    multiplications: int
    columns_multiplied: int

    @property
    def converged(self) -> bool:
        return self.stopped == "tol"

    @property
    def values(self) -> Vector:
        """The k eigenvalues (k,): by Nyström, between the Ritz values and the true ones."""
        return self.approximation.values[: len(self.ritz_values)]

    @property
    def vectors(self) -> Matrix:
        """Orthonormal rows (k, N)."""
        return self.approximation.vectors


def krylov_bytes(N: int, columns: int, block: int, k: int) -> int:
    """Peak bytes of :func:`block_krylov`, its result included: basis and products, and one block with its product.

    Parameters
    ----------
    N : size of the matrix.
    columns : most_columns.
    block, k : int

    Examples
    --------
    >>> f"{krylov_bytes(100_352, 300, 100, 50) / 2**20:.0f} MiB"
    '630 MiB'
    """
    columns = min(columns, N)
    iterating = 16 * N * block + 8 * STRIP * (columns + block)
    return 16 * N * columns + max(iterating, nystrom_bytes(N, columns, k, overwrite=True)) + 64 * columns**2


def block_krylov(
    multiply: Multiply,
    start: Matrix,
    k: Wanted,
    options: KrylovOptions,
    *,
    products: tuple[Matrix, Matrix] | None = None,
    observe: Callable[[KrylovStep], None] | None = None,
) -> KrylovResult:
    """Compute the k leading eigenpairs of a symmetric positive semi-definite A of size N in few multiplications.

    The basis B grows by one block per multiplication: the residuals ``A u - theta u`` of the leading Ritz pairs, made
    orthonormal to B (twice). Ritz pairs and residuals come from the stored products A B, without a multiplication. A full
    basis is restarted from its best Ritz vectors. The answer is the Nyström approximation of all stored products.

    It stops when ``nu_i - theta_i <= tol max(theta_i, tol theta_1)`` for every wanted pair, where nu_i are the values of the
    Nyström approximation from the leading Ritz vectors, ``eig(Theta + Theta^-1/2 R R' Theta^-1/2)`` with their residuals R,
    or about ``theta_i + |r_i|^2 / theta_i``. As ``theta_i <= nu_i <= lambda_i``, the difference estimates the error of the
    Ritz value from below; the answer is nu_i, whose own error is smaller: 0.02 to 0.9 of the estimate on power laws with
    blocks of 2 k columns, but up to 5 times the estimate where the spectrum falls slowly and blocks have hardly more than
    k columns. A start that misses leading eigenvectors shows as nu_i > theta_i, where residuals alone would vanish.

    Per multiplication, 4 N c l flops each for products, projection and residuals (c columns in the basis, l per block);
    memory is :func:`krylov_bytes`.

    Parameters
    ----------
    multiply : function of Q (N, l), orthonormal float64 columns in Fortran order, to A Q (N, l).
    start : ndarray of shape (N, p), p >= 0; any columns to begin with. Random ones fill the first block, at least 8 beside
        a start: what comes from a part of the data may miss what that part lacks.
    k : int, or a function of the Ritz values so far (c,) that returns how many eigenpairs are wanted, c + 1 for more than
        there are. Blocks grow to k columns.
    options : KrylovOptions
    products : pair of ndarray of shape (N, c); any B with A B, as computed before: taken into the basis.
    observe : called after every multiplication.

    Returns
    -------
    KrylovResult
        With ``converged`` False when most_multiplications, the rounding of the products, or three multiplications
        without progress came first.

    Raises
    ------
    ValueError
        When k is out of range, the basis cannot hold twice the wanted pairs, or a product is not finite or not (N, l).

    Notes
    -----
    Musco & Musco (2015), algorithm 2; Tropp & Webber (2023). NOTE: a stop at ``|r_i| <= tol theta_1`` leaves errors of 14
    tol in small wanted eigenvalues (i^-2, k = 50), and spends a multiplication too many where they fall slowly. NOTE: blocks
    of the residuals of the wanted pairs alone need half the columns, but a multiplication more.

    Examples
    --------
    >>> spectrum = np.arange(1, 401.0) ** -2
    >>> options = KrylovOptions(tol=1e-3, most_multiplications=9, most_columns=60, block=20, precision=2.2e-16)
    >>> result = block_krylov(lambda Q: spectrum[:, None] * Q, np.empty((400, 0)), 10, options)
    >>> result.multiplications, bool((1 - result.values / spectrum[:10]).max() < 1e-3)
    (3, True)
    """
    _check(start, k, options)
    run = _Run(multiply, KrylovBasis(options.most_columns, len(start), options.seed), options)
    run.begin(start, 0 if callable(k) else k, products)
    best, tries, previous = np.inf, 0, 0
    while True:
        pairs = run.pairs(k)
        if observe is not None:
            observe(run.step(pairs))
        better = not pairs.complete or pairs.k != previous or pairs.largest_error < IMPROVED * best
        best, tries, previous = (pairs.largest_error, 0, pairs.k) if better else (best, tries + 1, previous)
        stopped = "stagnation" if tries == PATIENCE else run.why_stop(pairs)
        if stopped:
            return run.finish(pairs, stopped)
        run.extend(pairs)


@dataclass(frozen=True)
class _Pairs:
    """Ritz pairs of the present basis, and the residuals of the leading ones."""

    values: Vector  # (c,)
    coefficients: Matrix  # (c, c), rows
    residual_rows: Matrix  # (r, N), divided by theta_1; the next block's directions
    residuals: Vector  # (k,), norms
    nystrom_values: Vector  # (k,), of the approximation from the leading Ritz vectors
    scales: Vector  # (k,), what their errors are compared with
    complete: bool  # whether the basis has as many columns as pairs are wanted
    block: int  # columns of the next block

    @property
    def k(self) -> int:
        return len(self.residuals)

    @property
    def largest_error(self) -> float:
        return self.error_of(self.nystrom_values)

    def error_of(self, values: Vector) -> float:
        """Return the largest excess of these values over the Ritz values, relative to the scales."""
        return float(np.max((values - self.values[: self.k]) / self.scales))


@dataclass
class _Run:
    """One computation: the basis, and what it has cost."""

    multiply: Multiply
    basis: KrylovBasis
    options: KrylovOptions
    multiplications: int = 0
    columns_multiplied: int = 0

    def begin(self, start: Matrix, k: int, products: tuple[Matrix, Matrix] | None) -> None:
        """Take the given products, and multiply the first block where there is one."""
        with blas_threads(self.options.threads):
            if products is not None:
                self.basis.adopt(*products)
            norms = np.linalg.norm(start, axis=0)
            rows = np.array(start.T / np.where(norms > 0, norms, 1.0)[:, None], dtype=np.float64, order="C")
        held, p = self.basis.count, start.shape[1]
        if held + p > self.basis.size:
            raise ValueError(
                f"the start has {p} columns and the given products {held}, but the basis can hold {self.basis.size}. "
                "Give fewer."
            )
        if p or not held:
            self._multiply_block(rows, max(self.options.block, p + FRESH if p else 0, k), START_RANK)

    def extend(self, pairs: _Pairs) -> None:
        """Multiply the next block; where it would not fit, keep the best Ritz vectors only."""
        keep = self.basis.size - pairs.block
        if self.basis.count > keep and self.basis.size < self.basis.N:
            with blas_threads(self.options.threads):
                self.basis.restart(pairs.values[:keep], pairs.coefficients[:keep])
        self._multiply_block(pairs.residual_rows, pairs.block, NOISE * self.options.precision)

    def _multiply_block(self, rows: Matrix, block: int, smallest: float) -> None:
        with blas_threads(self.options.threads):
            Q = self.basis.fill(rows, block, smallest)
        product = self.multiply(Q)  # one read of all data
        self.multiplications += 1
        self.columns_multiplied += Q.shape[1]
        if product.shape != Q.shape:
            raise ValueError(
                f"multiply returned shape {product.shape} for columns of shape {Q.shape}, but must keep it."
            )
        if not np.isfinite(np.sum(product)):
            raise ValueError(f"multiplication {self.multiplications} gave numbers that are not finite. Check the data.")
        with blas_threads(self.options.threads):
            self.basis.close(product)

    def pairs(self, k: Wanted) -> _Pairs:
        """Return the Ritz pairs, and the residuals of the leading ones."""
        basis = self.basis
        with blas_threads(self.options.threads):
            values, coefficients = basis.ritz()
        wanted = min(int(k(values)) if callable(k) else k, basis.N)
        _check_room(wanted, basis.size, basis.N)
        block = min(max(self.options.block, wanted), max(basis.size - wanted, 1))
        used = max(block, wanted)
        with blas_threads(self.options.threads):
            rows = basis.residual_rows(values[:used], coefficients[:used])
            gram = rows @ rows.T
            better = top_eigenpairs(
                _nystrom_of_ritz(values[:used], gram, self.options.precision), min(wanted, len(gram))
            )[0]
        norms = np.sqrt(gram.diagonal()[:wanted]) * values[0]
        rounding = max(self.options.precision, FLOOR * EPS) * values[0]
        scales = np.maximum(values[: len(norms)], max(self.options.tol * values[0], rounding / self.options.tol))
        scales = np.where(scales > 0, scales, 1.0)
        complete = wanted <= basis.count
        return _Pairs(values, coefficients, rows[:block], norms, better, scales, complete, block)

    def why_stop(self, pairs: _Pairs) -> str:
        """Return the reason to stop, or an empty string."""
        options = self.options
        if pairs.complete and (pairs.largest_error <= options.tol or self.basis.count == self.basis.N):
            return "tol" if options.tol >= FLOOR * options.precision else "rounding"
        return "multiplications" if self.multiplications >= options.most_multiplications else ""

    def step(self, pairs: _Pairs) -> KrylovStep:
        """Return what an observer sees."""
        c, ritz = self.basis.count, pairs.values[: pairs.k]
        views = self.basis.vectors[:c].T, self.basis.products[:c].T
        return KrylovStep(self.multiplications, ritz, pairs.residuals, pairs.largest_error, *views)

    def finish(self, pairs: _Pairs, stopped: str) -> KrylovResult:
        """Return the Nyström approximation of all stored products, which are its workspace."""
        c, options = self.basis.count, self.options
        B, AB = self.basis.vectors[:c].T, self.basis.products[:c].T
        found = nystrom(B, AB, pairs.k, precision=options.precision, threads=options.threads, overwrite=True)
        # All columns see a little more than the leading pairs: the answer's gain. Much more is an eigenvector missed so far.
        error, excess = pairs.largest_error, pairs.error_of(found.values[: pairs.k])
        if stopped == "tol" and excess > MISSED * options.tol:
            stopped, error = "missed", excess
        counts = self.multiplications, self.columns_multiplied
        return KrylovResult(found, pairs.values[: pairs.k], pairs.residuals, stopped, error, *counts)


def _nystrom_of_ritz(values: Vector, gram: Matrix, precision: float) -> Matrix:
    """Return ``Theta + Theta^-1/2 R R' Theta^-1/2`` for the Gram matrix of residuals divided by theta_1.

    Theta is shifted under the root, so that rounding in R is not magnified where theta_i vanishes.
    """
    roots = values[0] / np.sqrt(values + max(FLOOR * precision * values[0], np.finfo(np.float64).tiny))
    M: Matrix = np.diag(values) + roots[:, None] * gram * roots
    return M


def _check(start: Matrix, k: Wanted, options: KrylovOptions) -> None:
    if not 0 < options.tol < 1:
        raise ValueError(f"tol = {options.tol}, but it is a relative error: give a number in (0, 1) such as 1e-3.")
    for name in ("most_multiplications", "most_columns", "block"):
        if getattr(options, name) < 1:
            raise ValueError(f"{name} = {getattr(options, name)}, but it must be at least 1.")
    if not callable(k):
        _check_room(k, min(options.most_columns, len(start)), len(start))


def _check_room(k: int, columns: int, N: int) -> None:
    if not 1 <= k <= N:
        raise ValueError(f"{k} eigenpairs were asked for, but a matrix of size {N} has 1 to {N}.")
    if columns < min(2 * k, N):
        raise ValueError(
            f"{k} eigenpairs need a basis of {min(2 * k, N)} columns, but only {columns} fit the memory limit. "
            "Ask for fewer components, or raise memory_limit."
        )
