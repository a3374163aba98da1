"""Block Krylov: the leading eigenpairs of a matrix seen only through products, each of which costs a read of all data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import blas_threads
from bigpca.solvers.krylov_basis import STRIP, KrylovBasis
from bigpca.solvers.krylov_pairs import RitzPairs, Wanted, check_room, ritz_pairs
from bigpca.solvers.nystrom import NystromApproximation, nystrom, nystrom_bytes

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Multiply = Callable[[Matrix], Matrix]

NOISE = 4.0  # of precision: parts of a residual below this share of theta_1 are rounding, and no direction to follow
FLOOR = 10.0  # of precision: a smaller tol cannot be met
FRESH = 8  # random columns beside any start
START_RANK = 1e-8  # directions of the start below this share of its longest column are dropped
SAFETY = 2.0  # of the extrapolated error
COLD_SAFETY = 4.0  # of the same from errors above COLD: cold starts fall faster at first than they go on to
COLD = 0.2
SLOWEST = 0.9  # rate at which gains are taken to fall on: beyond it they are the rounding's
MISSED = 10.0  # times the estimate: if the final values exceed the Ritz values by more, an eigenvector was missed
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
    largest_error: float  # estimate, as tol is compared with it
    basis: Matrix
    products: Matrix


@dataclass(frozen=True)
class KrylovResult:
    """The k leading eigenpairs, and how far they got.

    Attributes
    ----------
    approximation : NystromApproximation
        From all stored products: ``values`` and ``vectors``, its trace, and products with probes.
    basis : ndarray of shape (N, c)
        The orthonormal columns that were multiplied: the approximation is exact on them.
    ritz_values, residuals : ndarray of shape (k,); ``residuals[i] = |A u_i - ritz_values[i] u_i|`` of the Ritz vectors.
    converged : bool
    stopped : {"tol", "rounding", "multiplications", "stagnation", "missed"}
        Why it ended: tol is met; tol is below ten times the precision of the products, which is as far as it went; none was
        left; three in a row improved nothing; or given products hide a direction that the answer still lacks.
    largest_error : float; estimate of the largest relative error of a value: what tol is compared with.
    multiplications : int; the products computed here.
    columns_multiplied : int; in all of them.
    """

    approximation: NystromApproximation
    basis: Matrix
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
    """Peak bytes of :func:`block_krylov`, its result included: basis and products, one block, and its product or the finish.

    Parameters
    ----------
    N : size of the matrix.
    columns : most_columns.
    block : columns per multiplication, those of a start and the 8 random ones beside it included.
    k : eigenpairs wanted.

    Examples
    --------
    >>> f"{krylov_bytes(100_352, 300, 100, 50) / 2**20:.0f} MiB"
    '681 MiB'
    """
    columns, block = min(columns, N), max(block, k)
    product = 8 * N * block + 8 * STRIP * (columns + block)
    held = 16 * N * columns + 8 * N * block + 64 * columns**2
    return held + max(product, nystrom_bytes(N, columns, k, overwrite=True))


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

    It stops when the estimated errors of all wanted eigenvalues are at most ``tol max(lambda_i, tol lambda_1)``. With nu_i the
    Nyström values from the leading Ritz vectors and their residuals R, ``eig(Theta + Theta^-1/2 R R' Theta^-1/2)`` or about
    ``theta_i + |r_i|^2 / theta_i``, one has ``theta_i <= nu_i <= lambda_i``: ``e = max (nu_i - theta_i) / theta_i`` estimates
    the error of the Ritz values. Where the spectrum is flat it is a tenth of that, for what is missing has Rayleigh quotients
    near theta_i too; but then the Ritz values rise slowly. Where e falls to e' in a multiplication in which they gained g,
    ``g (e' / e) / (1 - e' / e)`` is still to come if gains fall on like that, and the larger of this and e' counts: E'. The
    answer is nu_i, half a multiplication ahead: its error is estimated as ``2 E' sqrt(e' / e)`` (4 for an e above 0.2, that of
    a cold start; at most E'), and as e' before there are two. Measured after three multiplications and more from a cold
    start, k = 5 and 50, blocks of 3 k and 2 k: white noise 0.7 to 2.3 times the true error, i^-0.1 to i^-1 0.4 to 2.6
    times. It is an estimate, not a bound, and a reason for blocks of 2 k.
    A start that misses leading eigenvectors shows as nu_i > theta_i, where residuals would vanish.

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
    stopped = ""
    while not stopped:
        pairs = run.measure(k)
        if observe is not None:
            observe(run.step(pairs))
        stopped = run.why_stop(pairs)
        if not stopped:
            run.extend(pairs)
    return run.finish(pairs, stopped)


@dataclass
class _Run:
    """One computation: the basis, and what it has cost."""

    multiply: Multiply
    basis: KrylovBasis
    options: KrylovOptions
    multiplications: int = 0
    columns_multiplied: int = 0
    error: float = np.inf  # estimate for the answer
    _excess: float = np.inf
    _ritz: Vector = field(default_factory=lambda: np.zeros(0))  # that _excess is about
    _best: float = np.inf
    _tries: int = 0

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

    def extend(self, pairs: RitzPairs) -> None:
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

    def measure(self, k: Wanted) -> RitzPairs:
        """Return the Ritz pairs of the present basis, and estimate from them and the last ones how far the answer is."""
        o = self.options
        pairs = ritz_pairs(self.basis, k, o.block, tol=o.tol, precision=o.precision, threads=o.threads)
        excess, before = max(pairs.excess, 0.0), min(1.0, self._excess)
        comparable = pairs.complete and pairs.k == len(self._ritz)
        self.error = excess
        if comparable and before > 0:
            rate, safety = excess / before, COLD_SAFETY if before > COLD else SAFETY
            gained = float(np.max((pairs.values[: pairs.k] - self._ritz) / pairs.scales))
            slowest = min(rate, SLOWEST)
            left = max(excess, gained * slowest / (1 - slowest))
            self.error = left * min(1.0, safety * float(np.sqrt(rate)))
        better = not comparable or excess < IMPROVED * self._best
        self._best, self._tries = (excess, 0) if better else (self._best, self._tries + 1)
        self._excess, self._ritz = excess, pairs.values[: pairs.k if pairs.complete else 0].copy()
        return pairs

    def why_stop(self, pairs: RitzPairs) -> str:
        """Return the reason to stop, or an empty string."""
        options = self.options
        if pairs.complete and (self.error <= options.tol or self.basis.count == self.basis.N):
            return "tol" if options.tol >= FLOOR * options.precision else "rounding"
        if self.multiplications >= options.most_multiplications:
            return "multiplications"
        return "stagnation" if self._tries == PATIENCE else ""

    def step(self, pairs: RitzPairs) -> KrylovStep:
        """Return what an observer sees."""
        c, ritz = self.basis.count, pairs.values[: pairs.k]
        views = self.basis.vectors[:c].T, self.basis.products[:c].T
        return KrylovStep(self.multiplications, ritz, pairs.residuals, self.error, *views)

    def finish(self, pairs: RitzPairs, stopped: str) -> KrylovResult:
        """Return the Nyström approximation of all stored products, which are its workspace."""
        c, options = self.basis.count, self.options
        B, AB = self.basis.vectors[:c].T, self.basis.products[:c].T
        found = nystrom(B, AB, pairs.k, precision=options.precision, threads=options.threads, overwrite=True)
        # All columns see a little more than the leading pairs: the answer's gain. Much more is an eigenvector missed so far.
        error, excess = self.error, pairs.excess_of(found.values[: pairs.k])
        if stopped == "tol" and excess > MISSED * max(pairs.excess, options.tol):
            stopped, error = "missed", excess
        counts = self.multiplications, self.columns_multiplied
        return KrylovResult(found, B, pairs.values[: pairs.k], pairs.residuals, stopped, error, *counts)


def _check(start: Matrix, k: Wanted, options: KrylovOptions) -> None:
    if not 0 < options.tol < 1:
        raise ValueError(f"tol = {options.tol}, but it is a relative error: give a number in (0, 1) such as 1e-3.")
    for name in ("most_multiplications", "most_columns", "block"):
        if getattr(options, name) < 1:
            raise ValueError(f"{name} = {getattr(options, name)}, but it must be at least 1.")
    if not callable(k):
        check_room(k, min(options.most_columns, len(start)), len(start))
