"""The labels of a fit: checked, and in the form that a pass reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bigpca.data.batch_labels import BatchLabels, LabelColumn
from bigpca.data.label_checks import check_missing
from bigpca.data.labels import ClassLabels, Labels, TargetLabels, check_several, merge_classes, open_labels
from bigpca.data.weights import degrees_of_freedom
from bigpca.errors import warn_approximation
from bigpca.estimators.shared.inputs import Input
from bigpca.estimators.supervised.kept import KeptStatistics, Supervision
from bigpca.estimators.supervised.label_features import (
    ColumnLabels,
    DeltaRows,
    LabelFeatures,
    LandmarkLabels,
)
from bigpca.estimators.supervised.problems import LabelUse
from bigpca.estimators.supervised.statistics import LabelStatistics, label_templates
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.codes import Codes
from bigpca.triangles import packed_size

SHOWN = 5  # classes that a message names
MAX_MISSED = 1e-3  # share of the label kernel's trace above which a fit warns


@dataclass(frozen=True)
class LabelsBeside:
    """Labels that come with the rows of batches, which are checked after the read.

    Attributes
    ----------
    column : LabelColumn
    added : bool
        Whether the rows are added to others; classes of a fit must be two at least.
    paired : bool
        Whether each class of a fit must have two rows.
    """

    column: LabelColumn
    added: bool
    paired: bool

    def read(self, before: Supervision) -> Supervision:
        """Return what the model keeps of the labels.

        Raises
        ------
        ValueError
            If all labels are missing or of one class, and for a class of one row if the scatter within classes counts.
        """
        values, features = self.column.labels(), before.features
        gaps = values < 0 if before.classes is not None else np.isnan(values).any(axis=1)
        check_missing(gaps, self.column.missing)
        if before.classes is not None and not self.added:
            labels = ClassLabels(values, before.classes, 0)
            check_several(labels.classes[labels.counts > 0], len(gaps), 2)
            if self.paired:
                reject_singletons(labels)
        if features is not None and isinstance(features, ColumnLabels):
            features = features.known
        return replace(before, features=features, unlabelled=int(gaps.sum()))


@dataclass(frozen=True)
class Labelled:
    """Labels in the form that a pass reads.

    Attributes
    ----------
    codes : ndarray of shape (n,), int32, or CodeRows
        Classes; 0 for rows that have numbers, -1 for rows without a label.
    n_classes : int
    features : DeltaRows or None
        Delta (n, m) of real labels; None for classes.
    supervision : Supervision
    beside : LabelsBeside or None
        Of labels that come with the rows: ``supervision`` is then completed after the read.
    """

    codes: Codes
    n_classes: int
    features: DeltaRows | None
    supervision: Supervision
    beside: LabelsBeside | None = None

    def kept(self, statistics: LabelStatistics) -> KeptStatistics:
        """Return what a model keeps after the read.

        Raises
        ------
        ValueError
            For labels that came with the rows, as :func:`read_labels` for others.
        """
        before = self.supervision
        return KeptStatistics(statistics, before if self.beside is None else self.beside.read(before))

    @property
    def known_codes(self) -> NDArray[np.int32]:
        """The codes, which are known before the read.

        Raises
        ------
        TypeError
            If they come with the rows.
        """
        if not isinstance(self.codes, np.ndarray):
            raise TypeError("the labels come with the rows, but they are required before these are read")
        return self.codes

    def templates(self, d: int, *, whole: bool) -> dict[str, Accumulator]:
        """Accumulators of one labelled pass over rows of d columns; ``whole`` keeps the (d, d) scatter."""
        return label_templates(d, self.codes, self.n_classes, self.features, whole=whole)

    def describe(self) -> dict[str, object]:
        """Fingerprint of the labels."""
        return {name: part.describe() for name, part in self.templates(1, whole=False).items()}

    @property
    def columns(self) -> int:
        """Columns m of Delta."""
        return self.n_classes if self.features is None else self.features.shape[1]

    @property
    def rank(self) -> int:
        """Axes that the labels can determine: one fewer than there are classes."""
        return self.columns - (self.features is None)

    @property
    def nbytes(self) -> int:
        """Bytes of the labels in memory."""
        return int(self.codes.nbytes) + (0 if self.features is None else self.features.nbytes)

    def kept_bytes(self, d: int, *, whole: bool) -> int:
        """Return the bytes of the stored statistics of rows of d columns, and of the maker of label features."""
        numbers = self.n_classes * (d + 1) + (packed_size(d) if whole else d)
        maker = self.supervision.features
        if self.features is None or maker is None:
            return 8 * numbers
        m = self.features.shape[1]
        return 8 * (numbers + m * d + m + d) + sum(array.nbytes for array in maker.to_arrays().values())

    def delta(self) -> NDArray[np.float64]:
        """Return Delta (n, m); one-hot for classes, zeros for rows without a label."""
        if self.features is not None:
            return self.features.whole()
        delta = np.zeros((len(self.codes), self.n_classes))
        used = np.flatnonzero(self.known_codes >= 0)
        delta[used, self.known_codes[used]] = 1.0
        return delta


def read_labels(
    y: Input, n: int, use: LabelUse, *, missing: str, owner: str, like: Supervision | None = None,
    weights: NDArray[np.float64] | None = None,
) -> Labelled:  # fmt: skip
    """Read the labels of n rows; of a batch, ``like`` those of the rows before. Rows of weight 0 have none.

    Parameters
    ----------
    use : LabelUse
    missing : {"raise", "drop"}
    owner : str
        Name of the estimator, for messages.

    Raises
    ------
    TypeError, ValueError
        As :func:`bigpca.data.labels.open_labels`; without labels, for a class of one row if the scatter within classes
        counts, and for a batch of labels of another width.
    """
    if isinstance(y, BatchLabels):
        beside = labels_beside(y, n, use, missing, like, weights)
        if beside is not None:
            return beside
        y = y.in_advance()
    if y is None:
        raise ValueError(
            f"{owner} requires y to be passed, but the target y is None. Give one label for each of {n} rows."
        )
    labels = _opened(y, n, use, missing if weights is None else "drop", like)
    if weights is not None:
        check_missing(~labels.used & (weights > 0), missing)
        labels = labels.among(weights > 0)
    if isinstance(labels, ClassLabels):
        if like is None and use.needs_classes:
            reject_singletons(labels)
            if weights is not None:  # known before the read
                own = weights[labels.used]
                degrees_of_freedom(len(own), (float(own.sum()), float(own @ own)), labels.n_classes)
        return Labelled(labels.codes, labels.n_classes, None, Supervision(labels.classes, None, labels.missing))
    maker = use.features(labels) if like is None or like.features is None else like.features
    if labels.values.shape[1] != maker.columns:
        raise ValueError(
            f"labels have {labels.values.shape[1]} columns, but {maker.columns} in the first fit; the same number was "
            f"expected. Give the same columns, or fit again."
        )
    codes = np.where(labels.used, 0, -1).astype(np.int32)
    missed = missed_trace(maker, labels.values[labels.used])
    return Labelled(codes, 1, DeltaRows(maker, labels.values), Supervision(None, maker, labels.missing, missed))


def labels_beside(
    y: BatchLabels, n: int, use: LabelUse, missing: str, like: Supervision | None, weights: NDArray[np.float64] | None
) -> Labelled | None:
    """Return the labels of batches as they are known before the read; None if they must be read in advance."""
    classes, features, width, added = y.classes, None if like is None else like.features, 0, like is not None
    if like is not None and like.classes is None:
        classes, width = None, 0 if features is None else features.columns
    elif classes is None:
        width = 0 if added or use.needs_classes or y.at_hand else y.width
    if classes is None and not width:
        return None
    rows = y.beside(n, classes, width, missing, weights)
    if classes is not None:
        beside = LabelsBeside(rows.column, added, use.needs_classes)
        return Labelled(rows, len(classes), None, Supervision(classes, None, 0), beside)
    features = features or use.features_before(rows.column, width)
    if features is None:
        return None
    beside = LabelsBeside(rows.column, added, False)
    return Labelled(replace(rows, coded=True), 1, DeltaRows(features, rows), Supervision(None, features, 0), beside)


def _opened(y: Input, n: int, use: LabelUse, missing: str, like: Supervision | None) -> Labels:
    if like is not None:
        kind = "targets" if like.classes is None else "classes"
        return open_labels(y, n, kind=kind, missing=missing, min_classes=1)
    labels = open_labels(y, n, missing=missing)
    if use.needs_classes and isinstance(labels, TargetLabels):
        known = labels.values[labels.used]
        if np.array_equal(known, np.round(known)):
            return open_labels(y, n, kind="classes", missing=missing)
    return labels


def reject_singletons(labels: ClassLabels) -> None:
    """Reject classes with one row, which add nothing to the scatter within classes, but affect the means.

    Raises
    ------
    ValueError
    """
    alone = labels.singletons
    if len(alone):
        named = ", ".join(map(str, alone[:SHOWN].tolist())) + (", ..." if len(alone) > SHOWN else "")
        raise ValueError(
            f"{len(alone)} of {labels.n_classes} classes have one row each ({named}): they add nothing to the scatter "
            f"within classes, which needs at least 2 rows of every class. Give more rows of them, set their labels "
            f'to missing and use missing_labels="drop", or use SupervisedPCA (r2 = 0).'
        )


def missed_trace(features: LabelFeatures, values: NDArray[np.float64]) -> float:
    """Return the share of an RBF label kernel's trace that its features miss; warn if it is large. 0 for others."""
    if not isinstance(features, LandmarkLabels):
        return 0.0
    missed = features.missed(values)
    if missed > MAX_MISSED:
        warn_approximation(
            f"the features of the RBF label kernel miss {missed:.2g} of its trace over {len(values)} labels: its "
            f"{len(features.landmarks)} landmarks do not represent all of them. Use a smaller label_gamma, round the "
            f'labels, or use label_kernel="linear".'
        )
    return missed


def open_classes(y: Input, n: int, *, missing: str) -> ClassLabels:
    """Read the classes of n rows that a model is to be compared with: one class is enough.

    Raises
    ------
    TypeError, ValueError
        As :func:`bigpca.data.labels.open_labels`.
    """
    labels = open_labels(y, n, kind="classes", missing=missing, min_classes=1)
    if not isinstance(labels, ClassLabels):
        raise TypeError(f"labels were read as {type(labels).__name__}, where classes were expected")
    return labels


def check_among(y: Input, classes: Input, missing: str) -> None:
    """Reject labels that are not among the classes.

    Raises
    ------
    TypeError, ValueError
    """
    known = merge_classes(classes, classes)[0]
    ClassLabels(np.zeros(0, np.int32), known, 0).encode(y, missing=missing)
