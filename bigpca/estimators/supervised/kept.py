"""What a model keeps of its labelled rows, so that rows can be added to it, and models merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from bigpca.arrays import Array
from bigpca.data.labels import merge_classes
from bigpca.estimators.supervised.label_features import (
    LabelFeatures,
    LandmarkLabels,
    LinearLabels,
    label_features_from,
)
from bigpca.estimators.supervised.statistics import LabelStatistics


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
    """

    classes: Array | None
    features: LabelFeatures | None
    unlabelled: int
    missed: float = 0.0

    @property
    def missed_label_trace(self) -> float | None:
        """The missed share under an RBF label kernel, which a fit reports; else None."""
        return self.missed if isinstance(self.features, LandmarkLabels) else None

    @property
    def note(self) -> str:
        """The note about it in the reason of a plan."""
        if not isinstance(self.features, LandmarkLabels) or not self.missed:
            return ""
        return (
            f"; the label kernel by {len(self.features.landmarks)} landmarks, which miss {self.missed:.2g} of its trace"
        )


@dataclass(frozen=True)
class KeptStatistics:
    """The statistics that a labelled fit keeps, so that rows can be added.

    Attributes
    ----------
    statistics : LabelStatistics
        Of the rows, or of their features.
    supervision : Supervision
    """

    statistics: LabelStatistics
    supervision: Supervision

    def to_arrays(self) -> dict[str, Array]:
        """Return named arrays, for a model file that stores the classes separately."""
        arrays = self.statistics.to_arrays()
        features = self.supervision.features
        if features is not None:
            arrays |= {f"labels_{name}": array for name, array in features.to_arrays().items()}
        whole = self.statistics.moments.whole
        counted = np.array([self.statistics.omitted, self.supervision.unlabelled, int(whole)])
        return arrays | {"counted": counted, "missed": np.array(self.supervision.missed)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array], columns: int, classes: Array | None) -> KeptStatistics:
        """Return the statistics that :meth:`to_arrays` packed.

        Raises
        ------
        KeyError, ValueError
            For arrays that are missing or of other shapes.
        """
        own = {n: a for n, a in arrays.items() if n.startswith(("moments_", "cross_"))}
        omitted, unlabelled, whole = (int(value) for value in arrays["counted"])
        statistics = LabelStatistics.of_arrays(own, columns, whole=bool(whole), omitted=omitted)
        labels = {n.removeprefix("labels_"): a for n, a in arrays.items() if n.startswith("labels_")}
        features = label_features_from(labels) if classes is None else None
        return cls(statistics, Supervision(classes, features, unlabelled, float(arrays["missed"]))).checked()

    def checked(self) -> Self:
        """Return itself; raises ValueError if the statistics and the labels differ in classes or label features."""
        features, classes = self.supervision.features, self.supervision.classes
        c, m = 1 if classes is None else len(classes), 0
        if features is not None:
            m = features.features(np.zeros((1, features.columns))).shape[1]  # its arrays fit each other
        moments, cross = self.statistics.moments, self.statistics.cross
        found = 0 if cross is None else len(cross.weight)
        if (len(moments.counts), found) != (c, m):
            raise ValueError(
                f"it has statistics of {len(moments.counts)} classes and {found} label features, where {c} and {m} "
                f"were expected"
            )
        return self


def merge_models(a: KeptStatistics, b: KeptStatistics) -> KeptStatistics:
    """Return what a model of the rows of both models keeps.

    Raises
    ------
    ValueError
        For classes beside numbers, and for features of labels that differ by more than an offset.
    """
    one, other = a.supervision.features, b.supervision.features
    if (one is None) != (other is None):
        raise ValueError(
            "the labels of one model are classes and those of the other numbers. Fit both to labels of one kind."
        )
    statistics = b.statistics
    if a.statistics.moments.whole != statistics.moments.whole:
        raise ValueError(
            "one of the models was fitted with r1 = 1 and r2 = 0, or by the krylov solver, and keeps the diagonal of "
            "the scatter only. Fit both with the same parameters."
        )
    if isinstance(one, LinearLabels) and isinstance(other, LinearLabels) and one.columns == other.columns:
        statistics = statistics.with_offset(one.offset - other.offset)
    elif one is not None and other is not None and not _same_features(one, other):
        raise ValueError(
            "the features of the labels of the two models differ, as those of an RBF label kernel, which are chosen "
            "among the labels of each fit, and those of other numbers of columns. Add the rows of one to the other by "
            "partial_fit."
        )
    return KeptStatistics(
        *merge_labelled(a.statistics, a.supervision, statistics, replace(b.supervision, features=one))
    )


def _same_features(one: LabelFeatures, other: LabelFeatures) -> bool:
    first, second = one.to_arrays(), other.to_arrays()
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


def merge_labelled(
    old: LabelStatistics, old_supervision: Supervision, new: LabelStatistics, own: Supervision
) -> tuple[LabelStatistics, Supervision]:
    """Return the statistics of both sets of rows; new classes are inserted in sorted order."""
    classes = old_supervision.classes
    if classes is not None and own.classes is not None:
        classes, before, now = merge_classes(classes, own.classes)
        old, new = old.with_classes(before, len(classes)), new.with_classes(now, len(classes))
    merged = old.merge(new)
    missed = (old_supervision.missed * old.count + own.missed * new.count) / max(1, merged.count)
    unlabelled = old_supervision.unlabelled + own.unlabelled
    return merged, replace(own, classes=classes, unlabelled=unlabelled, missed=missed)
