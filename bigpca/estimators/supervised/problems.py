"""One point of the Roweis family as a problem in the statistics of labelled rows, linear or under a kernel.

Supervised PCA is the point (1, 0), and Fisher's discriminant (0, 1). The labels of a fit: checked, and in the form that
a pass reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from bigpca.arrays import Matrix, Vector
from bigpca.blas import blas_threads
from bigpca.data.batches import BatchLabels, LabelColumn
from bigpca.data.labels import ClassLabels, TargetLabels, check_missing, check_several, open_labels
from bigpca.data.weights import Codes
from bigpca.errors import listed, warn_approximation
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.supervised.label_features import (
    ColumnLabels,
    DeltaRows,
    FourierLabels,
    LabelFeatures,
    LandmarkLabels,
    LinearLabels,
    label_width,
)
from bigpca.estimators.supervised.statistics import LabelStatistics, Supervision
from bigpca.passes.accumulators.moments import ClassMoments
from bigpca.passes.accumulators.thin_products import LeftProduct
from bigpca.passes.reading.row_maps import Beside
from bigpca.passes.rows import Rows
from bigpca.solvers.components import (
    ComponentRule,
    NComponents,
    check_n_components,
    counted,
    degrees_of_freedom,
    resolve_components,
)
from bigpca.solvers.moments import Scatter, warn_dependent
from bigpca.solvers.roweis import PLAIN, Axes, Conditioning, FisherPencil, RoweisFamily, completed, supervised_axes

SHOWN = 5  # classes that a message names
MAX_MISSED = 1e-3  # share of the label kernel's trace above which a fit warns


def cut_axes(found: Axes, n_components: NComponents, what: str) -> Axes:
    """Return the requested axes: a number, or those that hold a share of the sum of all eigenvalues.

    Raises
    ------
    ValueError
        For no axis at all, and for more than the labels determine.
    """
    if not found.rank:
        raise ValueError(
            f"rows do not depend on their labels: {what} is 0, as with a single class, equal rows or equal "
            f"labels. Check that rows and labels are in the same order and are not constant."
        )
    k = asked_for(n_components, found)
    if k > found.rank:
        raise ValueError(
            f"n_components = {k}, but the labels determine {found.rank} axes, the rank of {what}: for classes, one "
            f"less than their number. Use {found.rank} or fewer, or Roweis discriminant analysis with r1 < 1."
        )
    return Axes(found.values[:k], found.components[:k], found.rank)


def asked_for(n_components: NComponents, found: Axes) -> int:
    """Return a number of components, where it is a share that of the eigenvalues that hold it; None asks for all."""
    if n_components is None or counted(n_components) is not None:
        return counted(n_components) or found.rank
    values = found.values
    return resolve_components(n_components, values, float(values.sum()), len(values), len(values))


def supervision_after(column: LabelColumn, added: bool, paired: bool, before: Supervision) -> Supervision:
    """Return what a model keeps of labels that came with the rows of batches, which are checked after the read.

    Parameters
    ----------
    added : bool
        Whether the rows are added to others; classes of a fit must be two at least.
    paired : bool
        Whether each class of a fit must have two rows.

    Raises
    ------
    ValueError
        If all labels are missing or of one class, and for a class of one row if the within-class scatter counts.
    """
    values, features = column.labels(), before.features
    gaps = values < 0 if before.classes is not None else np.any(np.isnan(values), axis=1)
    check_missing(gaps, column.missing)
    if before.classes is not None and not added:
        labels = ClassLabels(values, before.classes, 0)
        check_several(labels.classes[labels.counts > 0], int(labels.counts.sum()), 2)
        if paired:
            reject_singletons(labels)
    if isinstance(features, ColumnLabels):
        features = features.known
    return replace(before, features=features, unlabelled=int(gaps.sum()), after=None)


def one_hot(codes: NDArray[np.int32], n_classes: int) -> Matrix:
    """Return one-hot classes (n, c); zeros for rows of code -1."""
    hot: Matrix = (codes[:, None] == np.arange(n_classes)).astype(np.float64)
    return hot


@dataclass(frozen=True)
class Labelled:
    """Labels in the form that a pass reads.

    Attributes
    ----------
    codes : ndarray of shape (n,), int32, or ColumnRows
        Classes; 0 for rows that have numbers, -1 for rows without a label.
    n_classes : int
    features : DeltaRows or None
        Delta (n, m) of real labels; None for classes.
    supervision : Supervision
        Completed after the read, if labels come with the rows.
    """

    codes: Codes
    n_classes: int
    features: DeltaRows | None
    supervision: Supervision

    @property
    def known_codes(self) -> NDArray[np.int32]:
        """The codes of labels that do not come with the rows: they are known before the read."""
        return cast("NDArray[np.int32]", self.codes)

    def template(self, d: int, *, whole: bool) -> LabelStatistics:
        """Return the empty statistics of rows of d columns; ``whole`` keeps the (d, d) scatter."""
        cross = None if self.features is None else LeftProduct(d, self.features)
        return LabelStatistics(ClassMoments(d, self.n_classes, self.codes, whole), cross)

    def describe(self) -> dict[str, object]:
        """Fingerprint of the labels."""
        return self.template(1, whole=False).describe()

    @property
    def columns(self) -> int:
        """Columns m of Delta."""
        return self.n_classes if self.features is None else self.features.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the labels in memory."""
        return int(self.codes.nbytes) + (0 if self.features is None else self.features.nbytes)

    @property
    def beside(self) -> Beside:
        """The map that appends Delta (n, m) to rows; one-hot for classes, zeros for rows without a label."""
        if self.features is not None:
            return Beside(self.features.whole(), np.asarray)
        return Beside(self.known_codes, partial(one_hot, n_classes=self.n_classes))


def labels_of(rows: Rows) -> Labelled:
    """Return the labels that :func:`read_labels` attached to rows."""
    return cast("Labelled", rows.y)


def read_labels(
    model: BaseEstimator, rows: Rows, y: Unchecked, problem: Problem, *, like: Supervision | None = None
) -> Rows:
    """Return rows with their labels (:class:`Labelled`); those without one do not count. Rows of weight 0 have none.

    Labels of a batch are read ``like`` those of earlier rows.

    Parameters
    ----------
    model : estimator with ``missing_labels``
    problem : Problem

    Raises
    ------
    TypeError, ValueError
        As :func:`bigpca.data.labels.open_labels`; without labels, for a class of one row if the within-class scatter
        counts, and for a batch of labels of another width.
    """
    missing, counting = model.missing_labels, rows.counted
    if isinstance(y, BatchLabels):
        return labels_beside(y, rows, problem, missing, like)
    if y is None:
        raise ValueError(
            f"{type(model).__name__} requires y to be passed, but the target y is None. Give one label for each row."
        )
    opened = partial(open_labels, y, rows.n_rows, missing=missing, present=counting.present)
    if like is not None:
        labels = opened(kind="targets" if like.classes is None else "classes", min_classes=1)
    else:
        labels = opened()
        whole = isinstance(labels, TargetLabels) and not np.mod(labels.values[labels.used], 1.0).any()
        if whole and problem.needs_classes:
            labels = opened(kind="classes")
    own = None if counting.weights is None else counting.weights[labels.used]
    if isinstance(labels, ClassLabels):
        if like is None and problem.needs_classes:
            reject_singletons(labels)
            if own is not None:  # known before the read
                degrees_of_freedom(len(own), (float(own.sum()), float(own @ own)), labels.n_classes)
        found = Supervision(labels.classes, None, labels.missing)
        labelled = Labelled(labels.codes, labels.n_classes, None, found)
    else:
        known = labels.values[labels.used]
        if like is None and problem.spread and rows.nan_policy == "omit" and rows.dtype.kind == "f":
            raise ValueError(
                "label_gamma = None is 1 over the variance of the labels that are used, but which rows nan_policy="
                '"omit" leaves out is known only after the read. Give it: that of all labels is label_gamma='
                f"{label_width(known, None, own):.4g}."
            )
        maker = problem.features(known, own) if like is None or like.features is None else like.features
        if labels.values.shape[1] != maker.columns:
            raise ValueError(
                f"labels have {labels.values.shape[1]} columns, but {maker.columns} in the first fit; the same number "
                f"was expected. Give the same columns, or fit again."
            )
        codes = np.where(labels.used, 0, -1).astype(np.int32)
        found = Supervision(None, maker, labels.missing, missed_trace(maker, known, own))
        labelled = Labelled(codes, 1, DeltaRows(maker, labels.values), found)
    return replace(rows, counted=counting.among(labelled.known_codes) if labels.missing else counting, y=labelled)


def labels_beside(y: BatchLabels, rows: Rows, problem: Problem, missing: str, like: Supervision | None) -> Rows:
    """Return rows with the labels of batches as they are known before the read; reject those that must be."""
    classes, features, width, added = y.stream.classes, None if like is None else like.features, 0, like is not None
    # Added rows have labels of the kind of the first fit: its classes, or as many columns.
    if like is not None and like.classes is None:
        classes, width = None, 0 if features is None else features.columns
    elif classes is None:
        width = 0 if added or problem.needs_classes else y.width
    if classes is None and not width:  # labels may be classes, and all classes must be known before the read
        y.reject()
    values = y.beside(rows.n_rows, classes, width, missing, rows.counted.weights)
    codes = values if classes is not None else replace(values, coded=True)
    if classes is None:
        features = features or problem.features_before(values.column, width)
        if features is None:
            y.reject()  # they depend on all labels, such as on the width of an RBF label kernel
    after = partial(supervision_after, values.column, added, problem.needs_classes)
    found = Supervision(classes, features, 0, after=after)
    delta = None if features is None else DeltaRows(features, values)
    labelled = Labelled(codes, 1 if classes is None else len(classes), delta, found)
    return replace(rows, counted=rows.counted.among(codes) if missing == "drop" else rows.counted, y=labelled)


def reject_singletons(labels: ClassLabels) -> None:
    """Reject classes with one row, which add nothing to the within-class scatter, but affect the means.

    Raises
    ------
    ValueError
    """
    alone = labels.classes[labels.counts == 1]
    if len(alone):
        omitted = 'leave these out (set their labels to missing, and use missing_labels="drop"), '
        raise ValueError(
            f"{len(alone)} of {labels.n_classes} classes have only one row ({listed(alone, SHOWN)}), and the "
            "within-class scatter needs at least 2 of every class. Give more rows, "
            f"{omitted if labels.n_classes > len(alone) + 1 else ''}or use SupervisedPCA (r2 = 0)."
        )


def missed_trace(features: LabelFeatures, values: Matrix, weights: Vector | None) -> float:
    """Return the share of an RBF label kernel's trace that its features miss; warn if it is large. 0 for others."""
    if not isinstance(features, LandmarkLabels):
        return 0.0
    missed = features.missed(values, weights)
    if missed > MAX_MISSED:
        warn_approximation(
            f"the features of the RBF label kernel miss {missed:.2g} of its trace over {len(values)} labels: its "
            f"{len(features.landmarks)} landmarks do not represent all of them. Use a smaller label_gamma, round the "
            f'labels, or use label_kernel="linear".'
        )
    return missed


@dataclass(frozen=True)
class Problem:
    """The axes at one point (r1, r2) of the Roweis family, of labelled rows or of their features under a kernel.

    Attributes
    ----------
    n_components : int, float in (0, 1), or None
    threads : int or None
        BLAS threads of the solve.
    r1, r2 : float in [0, 1]
    conditioning : Conditioning
        The treatment of a singular R2.
    normalize : bool
        Whether the terms have equal traces.
    strict : bool
        Whether more axes than the labels determine are an error, as for supervised PCA; else they are arbitrary.
    featured : bool
        Whether the rows are features of landmarks, whose scatter is always kept whole.
    label_kernel : {"linear", "rbf", "fourier"}
        Of real labels; "fourier" has ``n_features`` random features in place of "rbf".
    label_gamma : float or None
    n_features, seed : int
        Of "fourier".
    """

    n_components: NComponents
    threads: int | None
    r1: float = 1.0
    r2: float = 0.0
    conditioning: Conditioning = PLAIN
    normalize: bool = False
    strict: bool = False
    featured: bool = False
    label_kernel: str = "linear"
    label_gamma: float | None = None
    n_features: int = 0
    seed: int = 0

    @property
    def needs_classes(self) -> bool:
        """Whether R2^-1 divides by the within-class scatter, so that whole numbers are classes whatever their dtype."""
        return self.r2 > 0

    @property
    def spread(self) -> bool:
        """Whether the features of real labels depend on the spread of all labels."""
        return self.label_kernel != "linear" and self.label_gamma is None

    @property
    def whole(self) -> bool:
        """Whether the solve requires the whole (d, d) within-class scatter."""
        return self.featured or (self.r1, self.r2) != (1.0, 0.0)

    @property
    def fisher(self) -> bool:
        """Whether it is Fisher's discriminant."""
        return (self.r1, self.r2) == (0.0, 1.0)

    def check(self, d: int) -> None:
        """Reject a number of components that is invalid for any labels of rows of d columns.

        Raises
        ------
        TypeError, ValueError
        """
        if isinstance(self.n_components, str | ComponentRule):
            raise TypeError(
                f"n_components = {self.n_components!r}; an int, a float in (0, 1) or None was expected here."
            )
        check_n_components(self.n_components, None, d)

    def check_labels(self, labelled: Labelled, d: int) -> None:
        """Reject an S_W of d features that is singular for any rows.

        Raises
        ------
        ValueError
            If there are fewer than ``d + c`` rows, without conditioning.
        """
        plain = not self.conditioning.robust and self.conditioning.regularization is None
        if self.r2 == 1.0 and plain:
            codes = labelled.codes
            known = int(np.count_nonzero(codes >= 0)) if isinstance(codes, np.ndarray) else len(codes)
            most = known - labelled.n_classes
            if most < d:
                raise ValueError(
                    f"R2 = S_W is singular: {known} rows of {labelled.n_classes} classes differ from their means in at "
                    f"most {max(0, most)} of {d} directions. Use a number as regularization, which is added to its "
                    'diagonal, r2 < 1, fewer features, robust=True or regularization="pinv".'
                )

    def at(self, r1: float, r2: float) -> Self:
        """Return the problem at another point of the family."""
        return replace(self, r1=float(r1), r2=float(r2))

    def features(self, known: Matrix, weights: Vector | None) -> LabelFeatures:
        """Return the features of real labels (n, t), of rows with these weights.

        Raises
        ------
        ValueError
            If all labels are equal, or classes are required.
        """
        if self.r2 > 0:
            raise ValueError(
                f"labels are continuous numbers, and r2 = {self.r2:g} > 0 needs the within-class scatter; classes "
                f"were expected. Give classes (strings or integers), or use r2 = 0."
            )
        gamma = label_width(known, self.label_gamma, weights)  # raises if all labels are equal
        if self.label_kernel == "rbf":
            return LandmarkLabels.of(known, gamma, weights)
        if self.label_kernel == "fourier":
            return FourierLabels.draw(known.shape[1], self.n_features, gamma, self.seed)
        return LinearLabels.of(known)

    def features_before(self, column: LabelColumn, columns: int) -> LabelFeatures | None:
        """Return features of real labels that come with the rows; None if they depend on all labels."""
        if self.label_kernel == "linear":
            return ColumnLabels(column, columns)
        if self.label_kernel == "rbf" or self.label_gamma is None:
            return None
        return FourierLabels.draw(columns, self.n_features, self.label_gamma, self.seed)

    def error(self, scatter: Scatter) -> float:
        """Return the estimated relative error of a solution from S_W."""
        given = self.conditioning.regularization
        added = 0.0 if isinstance(given, str) else float(given or 0.0)
        return scatter.solved((1 - self.r2 + added) / self.r2).error if self.needs_classes else 0.0

    def solve(self, statistics: LabelStatistics, scatter: Scatter | None = None) -> Axes:
        """Return the axes; ``scatter`` is S_W, if it was read again."""
        if not self.whole:
            return self._thin(statistics)
        check_classes(statistics, self.r1, self.r2)
        with blas_threads(self.threads, 20.0 * statistics.moments.n_features**3):
            # One rotation, in which R2 is diagonal at every point (RDA paper, eqs. 31-36).
            within, k = scatter or statistics.scatter, 0 if self.n_components is None else counted(self.n_components)
            few = k is not None and k < statistics.n_classes  # no share
            plain = self.fisher and few and not self.normalize and self.conditioning == PLAIN
            family: RoweisFamily | FisherPencil
            if plain and within.solved().triangular is not None:
                family = FisherPencil(within.solved(), statistics.between, statistics.freedom)
            else:
                family = self.family(statistics, within)
            found = replace(self.axes(family, statistics), error=self.error(within))
            # "pinv" asks for dependent directions to be dropped.
            if not self.conditioning.robust and self.conditioning.regularization != "pinv":
                remedy = "Use a number as regularization, or fewer features."
                warn_dependent(found.error, "differences of features within classes", remedy)
            return found

    def family(self, statistics: LabelStatistics, scatter: Scatter | None = None) -> RoweisFamily:
        """Return the family of the statistics, to be solved at ``r2`` at most: one (d, d) eigenproblem.

        Raises
        ------
        ValueError
            For statistics without the whole scatter.
        """
        statistics.check_whole()
        return RoweisFamily(
            scatter or statistics.scatter,
            statistics.between,
            statistics.psi,
            normalize=self.normalize,
            divisor=statistics.freedom if self.r2 > 0 else None,
            threads=self.threads,
        )

    def axes(self, family: RoweisFamily | FisherPencil, statistics: LabelStatistics) -> Axes:
        """Return the axes at this point of a family, and the classifier if r2 = 1.

        Raises
        ------
        TypeError, ValueError
            For invalid numbers of components; see also :meth:`bigpca.solvers.roweis.RoweisFamily.constraint`.
        """
        conditioning = self.conditioning
        _, added = family.constraint(self.r2, conditioning)
        if added:
            warn_approximation(
                "the leading eigenvalues of R2 account for the whole sum, so the mean of the others is 0: "
                f"{added:.3g} was added to it. Use a smaller share than robust = {conditioning.robust:g} to keep fewer."
            )
        solve = partial(family.solve, self.r1, self.r2, conditioning=conditioning)
        found = self._wanted(solve, family.size, statistics)
        if self.r2 < 1.0:
            return found
        # C^-1 (mean_c - mean) and C^-1 mean: all that the classifier needs, with C conditioned as R2 is.
        rows = np.vstack([statistics.deviations, statistics.mean])
        return replace(found, inverses=family.inverses(rows, statistics.weight, conditioning))

    def _thin(self, statistics: LabelStatistics) -> Axes:
        """Return the axes at (1, 0), which depend on Psi only; raises as :meth:`axes`."""
        found = supervised_axes(statistics.psi, None, precision=statistics.precision, threads=self.threads)
        d, trace = statistics.moments.n_features, float((statistics.psi**2).sum())
        found = replace(found, values=found.values * (d / trace if self.normalize and trace > 0 else 1.0))

        def solve(k: int | None) -> Axes:
            return completed(found, max(1, found.rank) if k is None else k)

        return self._wanted(solve, d, statistics)

    def _wanted(self, solve: Callable[[int | None], Axes], size: int, statistics: LabelStatistics) -> Axes:
        """Return the requested axes, and warn about arbitrary ones: one rule for all points of the family.

        ``solve`` returns the given number of leading axes, of ``size`` at most; all for None.
        """
        n_components, apart = self.n_components, statistics.n_classes - 1
        self.check(size)
        given = counted(n_components)
        # Without a number, Fisher has c - 1 axes: S_B has that rank, and the other eigenvalues of (S_T, S_W) are 1.
        found = solve(min(apart, size) if self.fisher and n_components is None else given)
        # Of c classes R1 = Psi Psi' has rank c - 1, or 0 where rows do not depend on them: the rest is rounding.
        if self.r1 == 1.0 and statistics.cross is None:
            found = replace(found, rank=0 if statistics.independent else min(found.rank, apart))
        if self.strict:
            return cut_axes(found, n_components, f"X'H Delta with {len(statistics.psi)} label features")
        k = min(len(found.values), max(1, asked_for(n_components, found)))
        if not found.rank or (self.fisher and statistics.independent):
            warn_approximation(
                f"all {k} axes are arbitrary: to rounding, rows are equal or do not depend on their labels. Rows that "
                f"depend on their labels were expected."
            )
        elif self.fisher and given is not None and k > apart:
            warn_approximation(
                f"n_components = {k}, but {apart + 1} classes are separated by at most {apart} axes: the other "
                f"eigenvalues are 1, and their axes are arbitrary. Use {apart} or fewer."
            )
        elif found.rank < k:
            warn_approximation(
                f"n_components = {k}, but R1 has {found.rank} eigenvalues that are not 0 to rounding: the axes of the "
                f"others are arbitrary. Use {found.rank} or fewer, or a smaller r1."
            )
        return Axes(found.values[:k], found.components[:k], found.rank)


def check_classes(statistics: LabelStatistics, r1: float, r2: float) -> None:
    """Reject fewer than two classes; warn about classes with one row, after omissions or in a batch.

    Raises
    ------
    ValueError
    """
    counts = statistics.moments.counts
    if statistics.cross is None and statistics.n_classes < 2 and (r1, r2) != (0.0, 0.0):
        raise ValueError(
            f"only one of {len(counts)} classes has rows left, out of {statistics.count} rows. Give rows of several "
            f"classes, or use PCA."
        )
    if statistics.count < 2:
        raise ValueError(
            f"Found array with {statistics.count} sample(s) that have labels and no missing values, while a minimum of "
            f"2 is required. Give more rows."
        )
    degrees_of_freedom(statistics.count, statistics.moments.weight_sums, statistics.n_classes if r2 > 0 else 1)
    alone = 0 if statistics.moments.weight_sums else int(np.count_nonzero(counts == 1))
    if statistics.cross is None and r2 > 0 and alone:
        warn_approximation(
            f"{alone} of {len(counts)} classes have only one row without missing values: they do not contribute to "
            "the within-class scatter, but affect the means. Give more rows, or leave these out."
        )
