"""PCA by block Krylov iteration: a few reads of X, memory of a few (d, l) blocks, error bounds from the same reads.

Each multiplication is one read; the iteration starts from the PCA of a sample of the rows. For a store chunked in
columns it uses the dot matrix (n, n) instead, and one more read turns the eigenvectors into components.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.costs import PassCost, SolveCost, Times
from bigpca.estimators.linear.certified import certificate_bytes
from bigpca.estimators.linear.dot_fit import DotSpectrum, components_pass, dot_spectrum, reject_omission, unweighted
from bigpca.estimators.linear.files import linear_bytes
from bigpca.estimators.linear.iteration import (
    RULE_COLUMNS,
    TYPICAL_PASSES,
    Iteration,
    certify_iteration,
    iterate,
    kept_components,
    too_fine,
)
from bigpca.estimators.linear.spectrum import PCAFit, Settings, Spectrum, check_enough_rows
from bigpca.estimators.shared.fit import first_that_fits
from bigpca.operators.covariance import CovarianceOperator
from bigpca.operators.covariance_passes import CovariancePasses
from bigpca.operators.dot import DotOperator, dot_pass
from bigpca.operators.products import PROBES
from bigpca.passes.accumulators.column_products import ColumnProducts
from bigpca.passes.accumulators.column_statistics import column_scale
from bigpca.passes.columns import column_layout, fold_columns
from bigpca.passes.engine.jobs import PassPlan
from bigpca.passes.engine.run import Run
from bigpca.passes.rows import RowInput
from bigpca.planning import Resources
from bigpca.solvers.components import partial_will_do, starting_components
from bigpca.solvers.dual import axes_flops
from bigpca.solvers.eigh import fix_signs
from bigpca.solvers.scaling import scale_identity

Matrix = NDArray[np.float64]


def size_iteration(rows: RowInput, settings: Settings) -> Iterator[Iteration]:
    """Return the choices of block and basis, the largest first.

    Raises
    ------
    ValueError
        For an ``n_components`` that requires the whole spectrum, and for too few reads of a store chunked in columns.
    """
    n, d = rows.n_rows, rows.n_columns
    k = starting_components(settings.n_components, rows.n_present, d)
    by_columns = column_layout(rows) is not None
    if by_columns and settings.max_passes is not None and settings.max_passes < 3:
        raise ValueError(
            f"max_passes = {settings.max_passes}, but an iteration over a store chunked in columns reads it at least "
            f"three times: twice for the eigenvalues, once for the components. Use 3 or more, or store the input in "
            f"row chunks."
        )
    return Iteration.sizes(settings, k, n if by_columns else d)


@dataclass(frozen=True)
class KrylovFit(PCAFit):
    """An iteration of about three reads on the covariance; the plan reports the maximum.

    Attributes
    ----------
    iteration : Iteration
    """

    solver: ClassVar[str] = "krylov"
    exact: ClassVar[bool] = False

    iteration: Iteration

    @classmethod
    def planned(cls, rows: RowInput, settings: Settings, resources: Resources) -> PCAFit:
        """Return the fit with the largest basis that fits."""
        which = KrylovFit if column_layout(rows) is None else KrylovDotFit
        return first_that_fits(which(rows, resources, settings, sizes) for sizes in size_iteration(rows, settings))

    @classmethod
    def offered(cls, rows: RowInput, settings: Settings) -> bool:
        """For numbers of components that do not require the whole spectrum."""
        return partial_will_do(settings.n_components, rows.n_present, rows.n_columns)

    @classmethod
    def stands_back(cls, rows: RowInput, settings: Settings) -> bool:
        """For few rows or columns, whose basis would span the whole space: the exact fits are cheaper."""
        return not cls.offered(rows, settings) and min(rows.n_present, rows.n_columns) <= RULE_COLUMNS

    @property
    def account(self) -> str:
        return (
            f"block Krylov, {self.iteration.block} columns at a time, until the eigenvalues are known to "
            f"{self.settings.tol:g}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            f"reads: 2 where the spectrum falls fast, at most {self.iteration.max_passes} (max_passes); "
            f"{TYPICAL_PASSES} are typical",
            self.iteration.note,
        )

    @property
    def random(self) -> int:
        """Random columns of the first block, for directions that the sample misses entirely, such as a rare class."""
        return max(2, self.iteration.block // 20)

    @cached_property
    def operator_passes(self) -> CovariancePasses:
        """The passes of the operator."""
        iteration, most = self.iteration, self.iteration.max_passes
        return CovariancePasses.of(
            self.rows, iteration.block, Times(min(TYPICAL_PASSES, most), most), seed=self.settings.seed,
            sampled=max(0, iteration.block - self.random), driver_bytes=iteration.basis_bytes,
            most=iteration.most_block,
        )  # fmt: skip

    def passes(self) -> tuple[PassCost, ...]:
        return self.operator_passes.costs

    def solve_cost(self) -> SolveCost:
        k, d = self.iteration.components, self.rows.n_columns
        certificate = certificate_bytes(k, d)
        return SolveCost(
            between=self.between, output_bytes=linear_bytes(k, d, scaled=self.settings.scales) + certificate
        )

    @property
    def between(self) -> float:
        """Floating-point operations between the reads."""
        passes = self.operator_passes
        sample = 0 if passes.sample is None else passes.sample.layout.n_rows
        start = axes_flops(sample, self.rows.n_columns, self.iteration.block)
        return start + self.iteration.flops(passes.product.times.typical)

    def identity(self) -> dict[str, object]:
        """Return also everything that determines the blocks of later passes."""
        settings, iteration = self.settings, self.iteration
        return {
            "computes": "krylov", "input": self.rows.describe(), "center": settings.center,
            "scale": scale_identity(settings.scale),
            "n_components": repr(settings.n_components), "tol": settings.tol, "seed": settings.seed,
            "columns": [iteration.block, iteration.columns], "probes": PROBES,
        }  # fmt: skip

    def run(self, run: Run) -> Spectrum:
        """Iterate until the requested eigenvalues are known to ``tol``, or ``max_passes`` is reached."""
        settings, iteration = self.settings, self.iteration
        operator = CovarianceOperator(
            self.rows, run, self.operator_passes, center=settings.center, scale=settings.scale, seed=settings.seed,
            threads=settings.solve_threads,
        )  # fmt: skip
        result = iterate(operator, self._sampled_axes(operator), settings, iteration)
        k = kept_components(operator, result, settings)
        certificate = certify_iteration(operator, result, k, settings, run)
        components = fix_signs(np.ascontiguousarray(result.vectors[:k]))
        check_enough_rows(operator.count, operator.omitted, sums=operator.weight_sums)
        mean, scale = settings.standardization.in_units_of_rows(operator.mean, operator.scale)
        return Spectrum(
            operator.count, operator.omitted, mean, scale, result.values[:k], components,
            operator.trace, certificate=certificate, weight_sums=operator.weight_sums,
            centring_error=operator.centring_error,
        )  # fmt: skip

    def _sampled_axes(self, operator: CovarianceOperator) -> Matrix | None:
        """Return the axes of a sample (d, l), if there are enough rows; its variances determine the precision."""
        sample = operator.sample(self.iteration.block - self.random)
        if sample is None:
            return None
        if too_fine(sample.variances, self.iteration.components, self.settings.tol, operator.magnification):
            operator.refine()
        return sample.axes


@dataclass(frozen=True)
class KrylovDotFit(KrylovFit):
    """The iteration on the dot matrix of a column-chunked store, and one more read for the components."""

    @property
    def account(self) -> str:
        return (
            f"block Krylov on the dot matrix, {self.iteration.block} columns at a time, until the eigenvalues are "
            f"known to {self.settings.tol:g}"
        )

    @property
    def between(self) -> float:
        return self.iteration.flops(self.product.times.typical)

    @cached_property
    def product(self) -> PassPlan:
        """One multiplication."""
        iteration, most = self.iteration, self.iteration.max_passes - 1  # the components take one read
        times = Times(min(TYPICAL_PASSES, most), most)
        return dot_pass(
            self.rows, iteration.block, times, driver_bytes=iteration.basis_bytes, most=iteration.most_block
        )

    @cached_property
    def components(self) -> PassPlan:
        """The read for the components."""
        d = self.rows.n_columns
        k = min(self.iteration.columns, self.settings.wanted(self.rows.n_present, d))
        return components_pass(self.rows, k, self.product.layout)

    def passes(self) -> tuple[PassCost, ...]:
        return (self.product, self.components)

    def run(self, run: Run) -> Spectrum:
        """Iterate on the dot matrix, then compute the components."""
        rows, settings = self.rows, self.settings
        d = rows.n_columns
        check_enough_rows(rows.n_present, sums=rows.weight_sums)
        reject_omission(rows)
        operator = DotOperator(
            rows, run, self.product, center=settings.center, scale=settings.scale, seed=settings.seed
        )
        result = iterate(operator, None, settings, self.iteration)
        k = kept_components(operator, result, settings)
        certificate = certify_iteration(operator, result, k, settings, run)
        V = np.ascontiguousarray(result.vectors[:k].T)
        products = ColumnProducts(d, unweighted(V, rows.weights), settings.center, settings.scale)
        product = fold_columns(run, self.components, rows, products).product()  # last pass over X
        scale = None
        if settings.scale:
            scale = column_scale(operator.squares, operator.mean, rows.n_present, settings.scale, rows.weight)
        dot = DotSpectrum(result.values[:k], V, operator.trace, operator.mean, operator.squares)
        spectrum = dot_spectrum(rows, settings, dot, product, scale, corrected=False)
        return replace(spectrum, certificate=replace(certificate, n_passes=run.reads))
