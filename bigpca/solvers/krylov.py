"""Block Krylov iteration: leading eigenpairs of a matrix available only as products, each a read of all data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bigpca.blas import solving_alone
from bigpca.solvers.basis_approximation import approximate
from bigpca.solvers.certificates import FAILURE
from bigpca.solvers.krylov_basis import KrylovBasis
from bigpca.solvers.krylov_pairs import FLOOR, RitzPairs, Wanted, check_room, ritz_pairs
from bigpca.solvers.krylov_problem import Known, KrylovOptions, KrylovResult, Multiplied
from bigpca.solvers.probe_chain import ProbeChain

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

NOISE = 4.0  # times precision: parts of a residual below this share of theta_1 are rounding, not directions
SAFETY = 1.5  # times the error at rho, because rho <= |E|_2
SPREAD = 0.5  # times the error at rho + sigma, which is rarely below that at |E|_2
MIN_STEPS = 2  # products with the probes before rho is used: a first product shows an average of E
PATIENCE = 3  # multiplications without progress before giving up, beside those that make up for a restart


def block_krylov(A: Multiplied, known: Known, k: Wanted, options: KrylovOptions) -> KrylovResult:
    """Compute the k leading eigenpairs of a symmetric positive semi-definite A of size N in few multiplications.

    The basis B grows by one block per multiplication: the residuals ``A u - theta u`` of the leading Ritz pairs,
    made orthonormal to B (twice). Ritz pairs and residuals come from the stored products A B, without a
    multiplication. A full basis is restarted from its best Ritz vectors, half of it or three blocks if these are
    more. The answer is the Nyström approximation of all stored products, ``A_hat = AB (B'AB)^-1 (AB)'``, with
    eigenvalues nu_i <= lambda_i.

    The stopping rule bounds ``E = A - A_hat``, which is positive semi-definite and zero on B. Ten Gaussian probes are
    multiplied together with every block and never enter the basis. After m multiplications :class:`ProbeChain` gives

    - c with ``P(|E|_2 > c) <= 1e-3`` over the seed,
    - a Rayleigh quotient ``rho <= |E|_2``, and sigma: some eigenvalue of E lies in ``[rho - sigma, rho + sigma]``.

    If ``|E|_2 <= mu``, then ``lambda_i <= upper_i(mu) = eig_i(A_hat + mu (I - BB'))``, so the largest
    relative error is at most::

        E(mu) = max_i (upper_i(mu) - nu_i) / max(nu_i, F / tol)         F = 10 precision lambda_1
        error = min(E(min(c, trace(A) - trace(A_hat))),   for m >= 2:  max(1.5 E(rho), E(rho + sigma) / 2))

    and the iteration stops when ``error <= tol`` or B spans the whole space. The first term is certified, but
    pessimistic for small m: on a flat tail ``c ~ (N / r)^(1 / 2m) |E|_2``. The second is an estimate: it is too small
    only if the probes are nearly orthogonal to the leading eigenvector of E. Its safety factors were chosen on 3,375
    runs over 13 kinds of spectra (examples/benchmarks/honesty.py counts the failures). It needs m >= 2, because one
    product with random columns shows only an average of E.

    An eigenvalue below ``F / tol`` is *unresolved*: rounding of the products may be more than tol of it. If A can be
    refined, the iteration restarts from its Ritz vectors; otherwise the result is not converged, unless A_hat already
    holds the whole trace (:meth:`RitzPairs.unresolved`).

    Per multiplication, 4 N c l flops to make a block of l columns orthogonal to the c of the basis, 4 N (c + l) l to
    split its product, N (c + l)^2 + 2 N (c + l) l for residuals; memory is :func:`krylov_bytes`.

    Parameters
    ----------
    A : Multiplied
        By float64 columns (N, l + r) of length 1, in Fortran order.
    known : Known
        The first product. Some of its columns should be random: those computed from part of the data may miss
        directions.
    k : int, or a function of the Ritz values so far (c,) that returns how many eigenpairs are wanted, c + 1 for more
        than there are. Blocks grow to k columns.
    options : KrylovOptions

    Returns
    -------
    KrylovResult
        ``converged`` is False if max_multiplications, the rounding of the products, or multiplications without
        progress stopped it first.

    Raises
    ------
    ValueError
        If k is out of range, the basis cannot hold twice the wanted pairs, or a product has the
        wrong shape or is not finite.

    Notes
    -----
    Musco & Musco (2015), algorithm 2; Tropp & Webber (2023). NOTE: a stop at ``|r_i| <= tol theta_1`` leaves errors of
    14 tol in small wanted eigenvalues (i^-2, k = 50), and spends one multiplication too many where they fall slowly; a
    stop by the change between multiplications accepts clusters wider than a block too early. NOTE: blocks of the
    residuals of the wanted pairs alone need half the columns, but a multiplication more.

    Examples
    --------
    >>> class Diagonal:
    ...     spectrum, trace, precision, refinable = np.arange(1, 401.0) ** -2, 1.64, 2.2e-16, False
    ...     def multiply(self, V):
    ...         return self.spectrum[:, None] * V
    >>> A, rng = Diagonal(), np.random.default_rng(0)
    >>> B, probes = rng.standard_normal((400, 20)), rng.standard_normal((400, 10))
    >>> known = Known(B, A.multiply(B), probes, A.multiply(probes))
    >>> options = KrylovOptions(tol=1e-3, max_multiplications=9, max_columns=80, block=20)
    >>> result = block_krylov(A, known, 10, options)
    >>> result.multiplications, bool((1 - result.values / A.spectrum[:10]).max() < 1e-3)
    (2, True)
    """
    _check(known, k, options)
    run = _Run(A, options)
    run.begin(known)
    del known  # frees its arrays, unless the caller holds them
    stopped = ""
    while not stopped:
        pairs = run.measure(k)
        stopped = run.why_stop(pairs)
        if not stopped:
            run.extend(pairs)
    return run.finish(pairs, stopped)


@dataclass
class _Run:
    """State of one computation: the basis, the probes, the multiplications and the estimated error."""

    A: Multiplied
    options: KrylovOptions
    multiplications: int = 0
    error: float = np.inf
    _best: float = np.inf
    _tries: int = 0
    _highest: Vector = field(default_factory=lambda: np.zeros(0))
    _product: Matrix | None = None  # of the probes; evaluated with the next Ritz pairs

    def begin(self, known: Known) -> None:
        """Copy the first block and its product into the basis."""
        o = self.options
        self.rank = o.rank or len(known.B)
        self.basis = KrylovBasis(o.max_columns, len(known.B), o.seed, beside=known.probes.shape[1])
        looks = o.max_multiplications + 1
        with solving_alone(o.threads):
            self.basis.adopt(known.B, known.AB, self.A.precision)
            self.probes = ProbeChain(known.probes, known.probe_products, FAILURE / looks)

    def measure(self, k: Wanted) -> RitzPairs:
        """Return the Ritz pairs of the present basis, and update the estimated error."""
        o, basis = self.options, self.basis
        with solving_alone(o.threads):
            pairs = ritz_pairs(
                basis, k, o.block, tol=o.tol, shift=o.shift, precision=self.A.precision, rank=self.rank
            )  # fmt: skip
            self._follow_probes(pairs)
            self.error = self._estimate(pairs) if pairs.complete else np.inf
        # On a flat spectrum the values grow while the estimate stays the same, and it falls long after they are known.
        # Both are compared with the best so far, of which rounding and probes that turn make records ever more rarely.
        moved = self.error < (1 - FLOOR * self.A.precision) * self._best or self._gained(pairs)
        self._best, self._tries = min(self._best, self.error), 0 if moved or not pairs.complete else self._tries + 1
        return pairs

    def _gained(self, pairs: RitzPairs) -> bool:
        """Whether a value exceeds the largest so far by more than rounding, or none is comparable."""
        if not pairs.complete:
            return True
        last, now = self._highest, pairs.nystrom_values[: pairs.k]
        if len(last) != len(now):
            self._highest = now.copy()
            return True
        self._highest = np.maximum(last, now)
        return bool(np.max(self._highest - last) > pairs.floor)

    def _follow_probes(self, pairs: RitzPairs) -> None:
        def remainder(Q: Matrix, product: Matrix) -> tuple[Matrix, Matrix]:
            return self.basis.remainder(pairs.weights, pairs.coefficients, Q, product)

        self.probes.advance(self._product, remainder)
        self._product = None

    def _estimate(self, pairs: RitzPairs) -> float:
        chain, trace = self.probes, self.A.trace
        left = max(0.0, trace - float(pairs.nystrom_values.sum())) + self.A.precision * trace
        certified = pairs.error_for(min(chain.norm_bound, left))
        if chain.steps < MIN_STEPS or certified <= self.options.tol:
            return certified
        likely = SAFETY * pairs.error_for(chain.likely)
        return min(certified, max(likely, SPREAD * pairs.error_for(chain.likely + chain.spread)))

    def why_stop(self, pairs: RitzPairs) -> str:
        """Return the reason to stop, or an empty string."""
        whole = self.basis.count == self.basis.N
        if pairs.complete and (self.error <= self.options.tol or whole) and not self._coarse(pairs):
            return "unresolved" if self._unresolved(pairs) else "tol"
        if self.multiplications >= self.options.max_multiplications:
            return "multiplications"
        cycle = self.basis.size - self._kept(pairs) if self.basis.size < self.basis.N else 0
        return "stagnation" if self._tries >= PATIENCE + cycle // pairs.block else ""

    def _kept(self, pairs: RitzPairs) -> int:
        """Return how many Ritz vectors a restart keeps: three blocks of four, and half of a larger basis."""
        return min(self.basis.size - pairs.block, max(self.basis.size // 2, 3 * pairs.block))

    def _unresolved(self, pairs: RitzPairs) -> int:
        return pairs.unresolved(self.A.trace)

    def _coarse(self, pairs: RitzPairs) -> bool:
        """Whether values lie below the rounding of these products, and the next products can be more precise.

        The trace has the same rounding, so the remaining trace is unknown too.
        """
        hidden = pairs.unresolved(np.inf) > 0 or not pairs.values[0] > 0  # if the first is 0, all are
        return pairs.complete and self.A.refinable and hidden

    def extend(self, pairs: RitzPairs) -> None:
        """Multiply the next block; if it would not fit, first restart from the best Ritz vectors."""
        o = self.options
        if self._coarse(pairs):
            with solving_alone(o.threads):
                self.basis.begin_again(pairs.coefficients[: pairs.block] / pairs.unit)
            self.A.refine()
            self.probes.begin()
            self._multiply_block(pairs.block, NOISE * self.A.precision)
            return
        if self.basis.count > self.basis.size - pairs.block and self.basis.size < self.basis.N:
            keep = self._kept(pairs)
            with solving_alone(o.threads):
                self.probes.shrink(float(pairs.values[keep]), pairs.upper_values(self.probes.norm_bound, keep)[0])
                self.basis.restart(pairs.values[:keep], pairs.coefficients[:keep])
        self._multiply_block(pairs.block, NOISE * self.A.precision)

    def _multiply_block(self, block: int, smallest: float) -> None:
        with solving_alone(self.options.threads):
            together = self.basis.fill(block, smallest, self.probes.columns)
        product = self.A.multiply(together)  # one read of all data
        self.multiplications += 1
        if product.shape != together.shape:
            raise ValueError(
                f"multiply returned shape {product.shape} for columns of shape {together.shape}, but must keep it."
            )
        if not np.isfinite(np.sum(product)):
            raise ValueError(
                f"multiplication {self.multiplications} returned values that are not finite. "
                "Check the data for NaN and infinity."
            )
        with solving_alone(self.options.threads):
            own = together.shape[1] - self.probes.columns.shape[1]
            self._product = product[:, own:].copy()
            self.basis.close(product[:, :own], self.A.precision)

    def finish(self, pairs: RitzPairs, stopped: str) -> KrylovResult:
        """Return the Nyström approximation of all stored products."""
        with solving_alone(self.options.threads):
            found = approximate(self.basis, pairs, precision=self.A.precision)
        return KrylovResult(
            found, pairs.values[: pairs.k], pairs.residuals, stopped, self.error, self._unresolved(pairs),
            self.probes.norm_bound, self.multiplications,
        )  # fmt: skip


def _check(known: Known, k: Wanted, options: KrylovOptions) -> None:
    if not 0 < options.tol < 1:
        raise ValueError(f"tol = {options.tol}, but it is a relative error: give a number in (0, 1) such as 1e-3.")
    for name, least in (("max_multiplications", 0), ("max_columns", 1), ("block", 1)):
        if getattr(options, name) < least:
            raise ValueError(f"{name} = {getattr(options, name)}, but it must be at least {least}.")
    N = len(known.B)
    if not callable(k):
        check_room(k, min(options.max_columns, N), N, options.rank or N)
