"""Kernel supervised PCA by its dual: one sweep over pairs of rows, exact for any number of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bigpca.costs import ONCE, PassCost, SolveCost
from bigpca.estimators.kernel.expansion import kernel_identity
from bigpca.estimators.kernel.files import expansion_bytes
from bigpca.estimators.kernel.spectrum import (
    KernelFit,
    KernelSpectrum,
    closing_passes,
    held_bytes,
    row_shift,
    row_shift_pass,
    training_expansion,
)
from bigpca.estimators.supervised.kernel_fit import classes_bytes
from bigpca.estimators.supervised.labels import Labelled
from bigpca.estimators.supervised.problems import cut_axes
from bigpca.operators.kernel import KernelOperator, product_pass
from bigpca.passes.engine.run import Run
from bigpca.passes.sweeps import SweepPlan
from bigpca.solvers.roweis import Axes

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class DualFit(KernelFit):
    """Kernel supervised PCA by its dual: one sweep over the kernel matrix with the label features.

    ``(Delta'H K H Delta) v = s^2 v``, scores ``s^-1 v'Delta'H k(X, x)`` (SPCA paper, section 6.2). NOTE: they are
    divided by s, not by s^2.

    Attributes
    ----------
    labelled : Labelled
    """

    solver: ClassVar[str] = "dual"

    labelled: Labelled

    @property
    def account(self) -> str:
        columns, note = self.labelled.columns, self.labelled.supervision.note
        return f"one sweep over pairs of rows with {columns} label features{note}"

    @cached_property
    def sweep(self) -> SweepPlan:
        """The sweep."""
        columns = self.labelled.columns
        held = 3 * 8 * self.rows.n_rows * columns
        return product_pass(self.rows, self.settings.kernel, columns, ONCE, driver_bytes=held)

    def passes(self) -> tuple[PassCost, ...]:
        rows = self.rows
        closing = closing_passes(rows, self.settings.kernel)
        return (row_shift_pass(rows), self.sweep, *closing)

    def solve_cost(self) -> SolveCost:
        held = held_bytes(self.rows, self.settings.kernel)
        given, rank = self.settings.n_components, self.labelled.rank
        k = rank if given is None else min(rank, int(given))  # type: ignore[arg-type]
        output = expansion_bytes(self.rows, self.settings.kernel, k) + classes_bytes(self.labelled)
        return SolveCost(held_bytes=held, output_bytes=output)

    def identity(self) -> dict[str, object]:
        return {
            "computes": "kernel label product", "input": self.rows.describe(),
            "kernel": kernel_identity(self.settings.kernel), "labels": self.labelled.describe(),
        }  # fmt: skip

    def multiply(self, run: Run) -> tuple[KernelOperator, Matrix, Matrix]:
        """Return the operator, the centred label features (n, m), and its product with them: one sweep."""
        rows, settings = self.rows, self.settings
        shift = row_shift(run, rows)
        operator = KernelOperator(rows, settings.kernel, run, self.sweep, shift=shift, seed=settings.seed)
        delta = self.labelled.delta()
        delta -= delta.mean(axis=0)
        return operator, delta, operator.begin(delta).AB

    def run(self, run: Run) -> KernelSpectrum:
        rows, settings = self.rows, self.settings
        operator, delta, Y = self.multiply(run)
        G = delta.T @ Y
        values, vectors = np.linalg.eigh((G + G.T) / 2)
        order = np.argsort(values)[::-1]
        values, vectors = values[order], vectors[:, order]
        eps = float(np.finfo(np.float64).eps)
        noise = eps * max(len(G) * values[0], float((delta**2).sum()) * operator.trace, 0.0)  # of sums of n products
        rank = int(np.count_nonzero(values > noise))
        axes = cut_axes(Axes(values[:rank], vectors[:, :rank].T, rank), settings.n_components, "Delta'H K H Delta")
        s = np.sqrt(axes.values)
        scores = Y @ axes.components.T / s  # of the training rows
        signs = np.sign(scores[np.argmax(np.abs(scores), axis=0), np.arange(len(s))])
        coefficients = delta @ (axes.components.T * signs) / s
        expansion = training_expansion(run, rows, settings, operator.shift, operator.row_means, coefficients)
        supervision = self.labelled.supervision
        return KernelSpectrum(
            rows.n_rows, 0, axes.values, operator.trace, expansion, run.evaluations, rank=rank,
            classes=supervision.classes, n_unlabelled=supervision.unlabelled,
            missed_label_trace=supervision.missed_label_trace,
        )  # fmt: skip
