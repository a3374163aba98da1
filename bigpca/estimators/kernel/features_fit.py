"""Kernel PCA of a kernel with an exact finite feature map: PCA of the features, without a kernel matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bigpca.arrays import Array, DType
from bigpca.costs import PassCost, SolveCost
from bigpca.estimators.kernel.expansion import (
    SCORED_ROWS,
    FeatureProjection,
    kernel_identity,
    scored_in_float64,
    spread_rows,
)
from bigpca.estimators.kernel.spectrum import KernelFit, KernelSettings, KernelSpectrum, row_shift_pass, warn_alike
from bigpca.estimators.linear.choosing import plan_fit
from bigpca.estimators.linear.spectrum import Settings, Spectrum
from bigpca.estimators.shared.fit import Fit
from bigpca.kernels.base import Kernel
from bigpca.passes.engine.run import Run
from bigpca.passes.fold import first_rows
from bigpca.passes.project import project_lazily
from bigpca.passes.reading.blocks import product_dtype
from bigpca.passes.reading.layout import working_dtype
from bigpca.passes.reading.row_maps import RowMap, chained
from bigpca.passes.rows import RowInput
from bigpca.planning import Resources

CHUNK_BYTES = 32 << 20  # of features computed at a time


@dataclass(frozen=True)
class FeatureMap(RowMap):
    """The exact features of rows, in ``dtype`` or the working dtype, whichever is wider; a row map."""

    kernel: Kernel
    dtype: DType

    def output_dtype(self, dtype: DType) -> DType:
        """The wider of the working dtype and that of the map."""
        return np.result_type(working_dtype(dtype), self.dtype)

    def apply(self, rows: Array, where: str) -> Array:
        """Return ``phi(x)`` (b, D); rows that are not finite have NaN features, which the pass handles."""
        bad = ~np.isfinite(rows).all(axis=1)
        dtype = self.output_dtype(rows.dtype)
        values = rows.astype(dtype, copy=False)
        if not bad.any():
            return self.kernel.features(values)
        features = np.full((len(rows), self.kernel.feature_width(rows.shape[1]) or 0), np.nan, dtype)
        if not bad.all():
            features[~bad] = self.kernel.features(values[~bad])
        return features

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The features, and about as much while they are computed."""
        return 2 * rows * (self.kernel.feature_width(d) or 0) * itemsize, 0

    def describe(self) -> dict[str, object]:
        """What identifies the map."""
        return {"map": "features", "kernel": kernel_identity(self.kernel), "dtype": self.dtype.name}


@dataclass(frozen=True)
class FeaturesFit(KernelFit):
    """PCA of the features of rows, which are mapped as they are read.

    Attributes
    ----------
    given : RowInput
        X; ``rows`` are its features.
    pca : Fit
        Of the features.
    """

    solver: ClassVar[str] = "features"
    compares_pairs: ClassVar[bool] = False

    given: RowInput
    pca: Fit[Spectrum]

    @classmethod
    def planned(cls, rows: RowInput, settings: KernelSettings, resources: Resources) -> KernelFit:
        """Return the fit, by the solver that suits the number of features.

        Raises
        ------
        ValueError
            For a kernel without an exact finite feature map.
        """
        d, width = rows.n_columns, settings.kernel.feature_width(rows.n_columns)
        if width is None:
            raise ValueError(
                f'{settings.kernel} has no exact finite feature map of {d} columns; solver="features" needs one. Use '
                f'solver="auto", or NystromKernelPCA.'
            )
        most = None if width <= 2 * d else max(1, CHUNK_BYTES // (8 * max(1, width)))
        features = FeatureMap(settings.kernel, product_dtype(rows.dtype, float(rows.n_rows) * width**2))
        mapped = project_lazily(
            rows.X, chained(rows.maps, features), width, missing_chunks=rows.missing_chunks, chunk_rows=most
        )
        pca = Settings(
            settings.n_components, solve_threads=settings.solve_threads, keep_state_bytes=0, tol=settings.tol,
            max_passes=settings.max_passes, seed=settings.seed,
        )  # fmt: skip
        made = RowInput(
            mapped, missing_chunks=rows.missing_chunks, nan_policy=rows.nan_policy,
            workers_timeout=rows.workers_timeout, in_process=rows.in_process,
        )  # fmt: skip
        return cls(made, resources, settings, rows, plan_fit(made, resources, pca, "auto"))

    @classmethod
    def offered(cls, rows: RowInput, settings: KernelSettings) -> bool:
        """Whether the kernel has features, at least as many as components; further eigenvalues are 0."""
        width, given = settings.kernel.feature_width(rows.n_columns), settings.n_components
        return width is not None and not (isinstance(given, int | np.integer) and given > width)

    @property
    def declared(self) -> tuple[PassCost, ...]:
        return (*self.given.counting, *self.passes())

    @property
    def account(self) -> str:
        return (
            f"{self.settings.kernel} has {self.rows.n_columns} exact features; {self.pca.solver} PCA of them: "
            f"{self.pca.reason}"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return self.pca.notes

    @property
    def sample(self) -> tuple[PassCost, ...]:
        """The read of the rows that determine the precision of scores."""
        if self.given.in_memory or scored_in_float64(self.settings.kernel, self.given.dtype):
            return ()
        return (replace(row_shift_pass(self.given), name="precision of scores"),)

    def passes(self) -> tuple[PassCost, ...]:
        return (*self.pca.passes(), *self.sample)

    def solve_cost(self) -> SolveCost:
        return self.pca.solve_cost()

    def identity(self) -> dict[str, object]:
        return self.pca.identity() | {"features of": kernel_identity(self.settings.kernel)}

    def _scored_rows(self, run: Run) -> Array:
        """Return the rows that are scored in both precisions: the first, or evenly spaced ones of X in memory."""
        given = self.given
        if scored_in_float64(self.settings.kernel, given.dtype):
            return np.zeros((0, 0))
        for cost in self.sample:
            run.read_beside(cost)
        if given.in_memory and given.source is not None:
            rows = given.source.read(0, given.n_rows)
        else:
            rows = first_rows(given, given.layout(0))
        rows = spread_rows(rows, SCORED_ROWS)
        finite: Array = rows[np.isfinite(rows).all(axis=1)]
        return finite

    def run(self, run: Run) -> KernelSpectrum:
        for counted in self.given.counting:
            run.read_beside(counted)
        found = self.pca.run(run)
        n = found.count
        projection = FeatureProjection(self.settings.kernel, found.mean, found.components)
        scored = self._scored_rows(run)
        certificate = found.certificate
        if certificate is not None:
            residuals = None if certificate.residuals is None else certificate.residuals * (n - 1)
            bounds = certificate.eigenvalue_bounds * (n - 1)
            certificate = replace(certificate, eigenvalue_bounds=bounds, residuals=residuals, n_passes=run.reads)
        eigenvalues = found.variances * (n - 1)
        spectrum = KernelSpectrum(n, found.omitted, eigenvalues, found.total * (n - 1), projection, 0, certificate)
        spectrum, kept = _without_null_axes(spectrum, projection, whole=self.settings.n_components is None)
        return replace(spectrum, expansion=kept.in_needed_precision(scored))


def _without_null_axes(
    spectrum: KernelSpectrum, projection: FeatureProjection, *, whole: bool
) -> tuple[KernelSpectrum, FeatureProjection]:
    """Return the spectrum and its projection with zeros for axes whose eigenvalue is 0 to rounding.

    The images of the rows have no part in such axes. If the ``whole`` spectrum was requested, all of them are removed,
    unless no other axis is left.
    """
    n, eps = spectrum.count, float(np.finfo(np.float64).eps)
    largest = float(spectrum.eigenvalues.max(initial=0.0))
    rounding = eps * (max(n, len(projection.mean)) * largest + 10 * n * float(projection.mean @ projection.mean))
    warn_alike(spectrum.eigenvalues, rounding)
    used = spectrum.eigenvalues > rounding
    k = max(1, int(np.count_nonzero(used))) if whole else len(used)
    components = np.where(used[:, None], projection.components, 0.0)[:k]
    eigenvalues = np.where(used, spectrum.eigenvalues, 0.0)[:k]
    kept = replace(projection, components=components)
    return replace(spectrum, eigenvalues=eigenvalues, expansion=kept), kept
