"""The statistics of labelled rows that supervised fits use, as a state that adds up.

What a model keeps of its labelled rows, so that rows can be added to it, and models merged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self, cast

import numpy as np

from bigpca.arrays import Array, Integers, Matrix, Vector, packed_diagonal, unpack
from bigpca.costs import BlockForm, Work
from bigpca.data.labels import merge_classes
from bigpca.estimators.shared.files import OF_VALUES
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.results import KeptRows
from bigpca.estimators.supervised.label_features import STORED_FEATURES, LabelFeatures, LandmarkLabels, LinearLabels
from bigpca.passes.accumulators.base import KEPT, Accumulator, cost_of, kept, update_all
from bigpca.passes.accumulators.moments import ClassMoments
from bigpca.passes.accumulators.thin_products import LeftProduct
from bigpca.passes.reading.blocks import Block
from bigpca.records import Held, of_part, pack, stored
from bigpca.solvers.components import check_total, degrees_of_freedom
from bigpca.solvers.eigh import rounded_squares
from bigpca.solvers.moments import Scatter
from bigpca.solvers.roweis import CENTRED


@dataclass
class LabelStatistics(Accumulator):
    """Sufficient statistics of labelled rows: for supervised PCA, Fisher's and Roweis' discriminants, and PCA.

    Attributes
    ----------
    moments : ClassMoments
        Moments of the classes; of one class of all labelled rows if labels are numbers.
    cross : LeftProduct or None
        ``Delta' X`` of label features Delta (n, m); None for classes, whose one-hot features are in the moments.
    precision : float
        eps of the coarsest products that were summed.
    """

    tag: ClassVar[str] = "LabelStatistics"
    accepts: ClassVar[frozenset[str]] = frozenset({"dense", "csr", "factors", "weights"})
    lives_there: ClassVar[bool] = True

    moments: ClassMoments = field(metadata=KEPT)
    cross: LeftProduct | None = field(default=None, metadata=KEPT)
    precision: float = kept(default=0.0, merge=max)
    _shift: Vector | None = field(default=None, repr=False)  # of strips of sparse rows

    @property
    def _parts(self) -> list[Accumulator]:
        return [self.moments] if self.cross is None else [self.moments, self.cross]

    def update(self, block: Block) -> None:
        self.precision = max(self.precision, float(np.finfo(block.values.dtype).eps))
        self._shift = update_all(self._parts, block, self._shift)

    def finished(self) -> LabelStatistics:
        with np.errstate(over="ignore", invalid="ignore"):  # which is then named
            check_total(self.total_scatter, mean=np.append(self.mean, self.moments.means))
        return self

    def cost(self, rows: BlockForm) -> Work:
        return sum((cost_of(part, rows) for part in self._parts), Work())

    def device_bytes(self, rows: BlockForm) -> float:
        return sum(part.device_bytes(rows) for part in self._parts)

    count = of_part("moments", "count")  # rows used
    weight = of_part("moments", "weight")  # sum of their weights; their number without weights
    weight_sums = of_part("moments", "weight_sums")
    mean = of_part("moments", "mean")  # of the rows used (d,)

    @property
    def divisor(self) -> float:
        """``n - 1``, or the sum of the weights less 1; 1 for fewer than two rows.

        Raises
        ------
        ValueError
            For weights that add up to less than two; as :attr:`freedom` for less than ``c + 1``.
        """
        return degrees_of_freedom(self.count, self.moments.weight_sums)

    @property
    def freedom(self) -> float:
        """``n - c``, or the sum of the weights less c: the divisor of the covariance within classes; at least 1."""
        return degrees_of_freedom(self.count, self.moments.weight_sums, self.n_classes)

    @property
    def n_classes(self) -> int:
        """Classes that have rows."""
        return int(np.count_nonzero(self.moments.counts))

    @property
    def deviations(self) -> Matrix:
        """Rows ``(mean_c - mean)'`` (c, d); 0 for classes without rows."""
        return np.where(self.moments.counts[:, None] > 0, self.moments.means - self.mean, 0.0)

    @property
    def between(self) -> Matrix:
        """Rows ``sqrt(n_c) (mean_c - mean)'`` (c, d), whose product is S_B."""
        return np.sqrt(self.moments.counts[:, None]) * self.deviations

    @property
    def psi(self) -> Matrix:
        """``Psi' = Delta'H X`` (m, d); for classes, ``n_c (mean_c - mean)'``."""
        if self.cross is not None:
            return self.cross.about(self.mean)
        return self.between * np.sqrt(self.moments.counts[:, None])

    @property
    def within(self) -> Matrix:
        """S_W (d, d), symmetric; the total scatter if labels are numbers."""
        return unpack(self.moments.within, self.moments.n_features)

    @property
    def diagonal(self) -> Vector:
        """That of S_W (d,)."""
        moments = self.moments
        return packed_diagonal(moments.within, moments.n_features) if moments.whole else moments.within

    @property
    def scatter(self) -> Scatter:
        """S_W, to be solved."""
        # What rounding adds to the sums of squares of columns: of centred rows, and of the class means.
        squares = self.diagonal + (self.between**2).sum(axis=0)
        noise = CENTRED**2 * squares + rounded_squares(squares, self.mean, self.weight)
        # Rows differ from the means of their classes in at most n - c directions.
        return Scatter.of(self.within, noise, self.precision, max(0, int(self.count) - self.n_classes))

    @property
    def total_scatter(self) -> float:
        """Trace of S_T."""
        return float(self.diagonal.sum() + (self.between**2).sum())

    @property
    def independent(self) -> bool:
        """Whether the class means differ by rounding only: ``|Psi|^2 <= |Delta|^2 trace(S_T)``, |Delta|^2 = n."""
        return self.cross is None and float((self.psi**2).sum()) <= CENTRED**2 * self.weight * self.total_scatter

    def shares_between(self, components: Matrix, slopes: Matrix) -> Vector:
        """Return the share of ``tr(C^-1 S_B)`` that each component holds (k,).

        Parameters
        ----------
        components : ndarray of shape (k, d)
            Of length 1 by the C of divisor n - c.
        slopes : ndarray of shape (c, d)
            ``C^-1 (mean_c - mean)``, by the C of divisor n.
        """
        held: Vector = ((self.between @ components.T) ** 2).sum(axis=0)
        held *= self.weight / self.freedom
        whole = float(self.moments.counts @ np.einsum("ij,ij->i", self.deviations, slopes))
        return held / max(whole, float(np.finfo(np.float64).tiny))

    def check_whole(self) -> None:
        """Reject statistics that keep no (d, d) matrix.

        Raises
        ------
        ValueError
        """
        if not self.moments.whole:
            raise ValueError(
                "the model was fitted with r1 = 1 and r2 = 0. Such fits keep only the diagonal of the scatter, but the "
                "whole matrix is needed. Fit again with all rows."
            )

    def with_offset(self, more: Vector) -> LabelStatistics:
        """Return the statistics of the same rows with labels less ``more`` (m,), in addition to their offset."""
        cross = self.cross
        if cross is None or cross.shift is None:
            return self
        # sum_t w_t (v_t - u)(x_t - s)' = sum_t w_t v_t (x_t - s)' - u (W (mean - s))'
        product = cross.product - np.multiply.outer(more, self.weight * (self.mean - cross.shift))
        return replace(self, cross=replace(cross, product=product, weight=cross.weight - self.weight * more))

    def with_classes(self, positions: Integers, n_classes: int) -> LabelStatistics:
        """Return the statistics with the classes moved to ``positions`` of ``n_classes``."""
        return replace(self, moments=self.moments.with_classes(positions, n_classes))


def held_statistics(held: Held, name: str) -> LabelStatistics:
    """Return the template of stored statistics.

    Labels of single rows are not stored: statistics are merged, and fold no further rows themselves.
    """
    columns = str(held.context.get("columns", "d"))  # of rows, unless the context says of what else
    (c, d), within = held.arrays[f"{name}__moments_means"].shape, held.arrays[f"{name}__moments_within"]
    held.check(f"{name}__moments_means", (c, d), ("c", columns))
    labels = held.arrays.get(f"{name}__cross_weight")
    cross = None if labels is None else LeftProduct(d, np.zeros((0, len(labels))))
    return LabelStatistics(ClassMoments(d, c, np.zeros(0, np.int32), within.shape != (d,) or d == 1), cross)


@dataclass(frozen=True)
class Supervision:
    """The labels that a model was fitted to.

    Attributes
    ----------
    classes : ndarray of shape (c,), sorted, or None if labels are numbers
    features : LabelFeatures or None
        Features of labels that are numbers.
    unlabelled : int
        Rows omitted because of missing labels.
    missed : float
        Share of the RBF label kernel's trace that its features miss; 0 for other features.
    after : callable or None
        Completes what is known before the read of labels that come with the rows.
    """

    classes: Array | None = stored(coding=OF_VALUES, optional=True)
    features: LabelFeatures | None = stored(of=STORED_FEATURES, optional=True)
    unlabelled: int = stored(of=int, least=0)
    missed: float = stored(of=float, least=0, default=0.0)
    after: Callable[[Supervision], Supervision] | None = None

    def read(self) -> Supervision:
        """Return what is known after the read."""
        return self if self.after is None else self.after(self)

    @property
    def missed_label_trace(self) -> float | None:
        """The missed share under an RBF label kernel, which a fit reports; else None."""
        return self.missed if isinstance(self.features, LandmarkLabels) else None


@dataclass(frozen=True, kw_only=True)
class KeptLabels(KeptRows):
    """The statistics that a labelled fit keeps, of its rows or of their features, so that rows can be added."""

    state: LabelStatistics = stored(of=held_statistics)
    n_omitted_: int = stored(of=int, least=0)
    roundings: tuple[float, ...] = stored(of=tuple, least=0)
    supervision: Supervision = stored(of=Supervision)

    @cached_property
    def scatter(self) -> Scatter:
        """S_W, to be solved."""
        return self.state.scatter

    def of(self, state: Unchecked, omitted: int) -> Self:
        return replace(super().of(state, omitted), supervision=self.supervision.read())

    def like(self, first: KeptLabels) -> KeptLabels:
        """Return the same statistics, by the label features of others.

        Raises
        ------
        ValueError
            For classes beside numbers, and for features of labels that differ by more than an offset.
        """
        one, other = first.supervision.features, self.supervision.features
        if (one is None) != (other is None):
            raise ValueError(
                "the labels of one model are classes, those of the other are numbers. Fit both to labels of one kind."
            )
        statistics, moments = self.state, first.state.moments
        if moments.whole != statistics.moments.whole and moments.n_features > 1:
            statistics.check_whole()
            first.state.check_whole()
        # Delta = y - offset: y less another offset has the same Psi = X'H Delta, whose sums are moved.
        if isinstance(one, LinearLabels) and isinstance(other, LinearLabels) and one.columns == other.columns:
            statistics = statistics.with_offset(one.offset - other.offset)
        elif one is not None and other is not None and not _same_features(one, other):
            raise ValueError(
                "the two models use different label features. Those of an RBF label kernel are chosen from the labels "
                "of each fit, and other features depend on the number of columns. Add the rows of one to the other by "
                "partial_fit."
            )
        return replace(self, state=statistics, supervision=replace(self.supervision, features=one))

    def merge(self, other: KeptRows) -> Self:
        """Return those of both sets of rows; new classes are inserted in sorted order."""
        added = cast("KeptLabels", other).like(self)
        own, more, old, new = self.supervision, added.supervision, self.state, added.state
        classes = own.classes
        if classes is not None and more.classes is not None:
            classes, before, now = merge_classes(classes, more.classes)
            old, new = old.with_classes(before, len(classes)), new.with_classes(now, len(classes))
        both = KeptRows.merge(replace(self, state=old), replace(added, state=new))
        unlabelled = own.unlabelled + more.unlabelled
        missed = (own.missed * old.count + more.missed * new.count) / max(1, both.state.count)
        return replace(both, supervision=replace(more, classes=classes, unlabelled=unlabelled, missed=missed))

    def checked(self) -> Self:
        """Return itself; raises ValueError if the statistics and the labels differ in classes or label features."""
        features, classes = self.supervision.features, self.supervision.classes
        c, m = 1 if classes is None else len(classes), 0 if features is None else features.count
        if features is not None and not features.columns:
            raise ValueError("it has features of labels without columns")
        moments, cross = self.state.moments, self.state.cross
        if moments.weight_sums is None and moments.count != moments.counts.sum():
            raise ValueError(
                f"it has {moments.counts.sum():g} rows of classes, but n_samples = {moments.count} in its moments"
            )
        found = 0 if cross is None else len(cross.weight)
        if (len(moments.counts), found) != (c, m):
            raise ValueError(
                f"it has statistics of {len(moments.counts)} classes and {found} label features, where {c} and {m} "
                f"were expected"
            )
        return self


def _same_features(one: LabelFeatures, other: LabelFeatures) -> bool:
    first, second = pack(one)[0], pack(other)[0]
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
