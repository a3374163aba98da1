"""Supervised PCA, and Roweis and Fisher discriminant analysis: one family of eigenproblems, each from one read.

Last the distance of a row to the nearest class, by the covariance within classes (Lee et al. 2018).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, Input, Matrix, Path, Vector
from bigpca.engine.driver import solving
from bigpca.errors import real_number, warn_approximation
from bigpca.estimators.shared.fit import RandomState
from bigpca.estimators.shared.inputs import BaseEstimator, ClassifierMixin, Lazy, settle_non_finite
from bigpca.estimators.shared.outputs import Destination, mapped_to_numbers, maps_rows
from bigpca.estimators.shared.results import Traits
from bigpca.estimators.shared.transformer import Estimator, of_all, with_parameters
from bigpca.estimators.supervised.model import LABELS, SupervisedModel, SupervisedResult
from bigpca.estimators.supervised.problems import Problem
from bigpca.estimators.supervised.statistics import LabelStatistics
from bigpca.passes.reading.row_maps import Float64Map
from bigpca.settings import setting
from bigpca.solvers.components import NComponents
from bigpca.solvers.eigh import ENOUGH
from bigpca.solvers.moments import Scatter
from bigpca.solvers.roweis import Conditioning

KEPT_SHARE = 0.98  # of the eigenvalues of R2 that robust=True leaves as they are


@of_all
class OfLabelKernel(BaseEstimator):
    """Supervised PCA, of rows or of their features: what it does with real labels."""

    label_kernel: str = "linear"
    label_gamma: float | None = None

    def _problem(self, seed: int = 0) -> Problem:
        threads, kernel, gamma = setting(self, "solve_threads"), self.label_kernel, self.label_gamma
        return Problem(self.n_components, threads, strict=True, label_kernel=kernel, label_gamma=gamma)


@with_parameters
class SupervisedPCA(OfLabelKernel, SupervisedModel):
    """Supervised PCA: the leading eigenvectors of ``X'H K_y H X = Psi Psi'`` with ``Psi = X'H Delta`` (SPCA paper,
    section 5).

    One read for any d and n: only Psi' (m, d) is kept. Classes have the delta kernel, with at most c - 1 axes; real
    labels a linear kernel (as many axes as label columns) or a Gaussian one.

    Parameters
    ----------
    n_components : int, float in (0, 1), or None, default None
        A float keeps that share of the sum of all eigenvalues; None uses the rank of Psi.
    label_kernel : {"linear", "rbf"}, default "linear"
        Of real labels. "rbf" is exact up to 256 distinct labels; for more, 256 landmarks are drawn by randomly pivoted
        Cholesky, and ``missed_label_trace_`` is the share of the label kernel's trace that they miss.
    label_gamma : float or None, default None
        None for 1 / (the sum of the variances of the label columns), by weight; it must be given with
        ``nan_policy="omit"``.
    missing_labels : {"raise", "drop"}, default "raise"
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    components_, eigenvalues_, mean_, classes_, ...
        See :class:`bigpca.estimators.supervised.model.SupervisedModel`; the components are orthonormal.

    Raises
    ------
    ValueError
        In ``fit``, if there are more components than the rank of Psi.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0, 0, 3], [0, 1, -3], [5, 0, 3], [5, 1, -3]])
    >>> SupervisedPCA().fit(X, ["a", "a", "b", "b"]).components_.round(9).tolist()
    [[1.0, 0.0, 0.0]]
    """

    _traits = Traits(SupervisedResult, "spca", LABELS)

    n_components: NComponents = None
    _: KW_ONLY


@with_parameters
class SupervisedRandomProjection(SupervisedModel):
    """Supervised PCA with random Fourier features in place of a Gaussian label kernel (SPCA paper, section 5.4).

    ``Psi = X'H Delta`` with m random features Delta of the labels spans the projection; its leading left singular
    vectors are the components. NOTE: classes use the delta kernel of :class:`SupervisedPCA`, without random features,
    because a centred Gaussian kernel of their one-hot vectors is a multiple of it.

    Parameters
    ----------
    n_components : int, float in (0, 1), or None, default None
        A float keeps that share of the sum of all eigenvalues; None for the rank of Psi, all that the features span.
    n_features : int, default 100
        m.
    label_gamma, missing_labels
        As in :class:`SupervisedPCA`; defaults None and "raise".
    random_state : int, RandomState, Generator or None, default 0
        Of the features; as in :class:`bigpca.PCA`.
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    See :class:`bigpca.estimators.supervised.model.SupervisedModel`.
    """

    _traits = Traits(SupervisedResult, "srp", LABELS)

    n_components: NComponents = None
    _: KW_ONLY
    n_features: int = 100
    label_gamma: float | None = None
    random_state: RandomState = 0

    def _problem(self, seed: int = 0) -> Problem:
        threads, m, gamma = setting(self, "solve_threads"), self.n_features, self.label_gamma
        return Problem(
            self.n_components, threads, strict=True, label_kernel="fourier", label_gamma=gamma, n_features=m, seed=seed
        )


@of_all
class RoweisPoint(BaseEstimator):
    """Models at a point (r1, r2) of the Roweis family, which Fisher's discriminant is without choice."""

    robust: bool | float = False
    regularization: float | str | None = None
    _featured: ClassVar[bool] = False  # whether rows are features of landmarks

    def _problem(self, seed: int = 0) -> Problem:
        robust, added = self.robust, self.regularization
        if added is not None and not (isinstance(added, str) and added == "pinv"):
            added = real_number("regularization", added, "(0, inf)", 'None, "pinv" or a positive number')
        # Of R2, the leading eigenvalues that hold this share of the sum are kept (RDA paper, section 5.2).
        share = (KEPT_SHARE if robust else None) if isinstance(robust, bool | np.bool_) else float(robust)
        return Problem(
            self.n_components,
            setting(self, "solve_threads"),
            float(getattr(self, "r1", 0.0)),
            float(getattr(self, "r2", 1.0)),
            Conditioning(share, added),
            bool(getattr(self, "normalize", False)),
            featured=self._featured,
        )

    @property
    def supervision_level_(self) -> float:
        """``(r1 + r2) / 2``: 0 for PCA, 1 for double supervised discriminant analysis."""
        return (float(getattr(self, "r1", 0.0)) + float(getattr(self, "r2", 1.0))) / 2

    @property
    def roweis_criterion_(self) -> float:
        """``tr(U'R1 U) / tr(U'R2 U)``, the mean of the eigenvalues."""
        return float(self.eigenvalues_.mean())


# SupervisedModel comes before ClassifierMixin, because its ``score`` accepts missing labels.
@with_parameters
class RoweisDiscriminantAnalysis(RoweisPoint, SupervisedModel, ClassifierMixin, Estimator[SupervisedResult]):
    """Maximise ``tr(U'R1 U)`` subject to ``U'R2 U = s I`` (RDA paper, eq. 35).

    ``R1 = r1 Psi Psi' + (1 - r1) S_T``, ``R2 = r2 S_W + (1 - r2) I``: (0, 0) is PCA, (1, 0) supervised PCA, (0, 1)
    Fisher's discriminant analysis, (1, 1) double supervised discriminant analysis. One read, and (d, d) matrices;
    of more columns, fit the scores of a PCA.

    NOTE: the paper has s = 1, and its scores shrink like n^-1/2 if r2 > 0. ``s = r2 (n - c) + 1 - r2`` makes ``R2 /
    s`` a weighted mean of the covariance within classes ``S_W / (n - c)`` and of I: scores have variance 1
    within classes for r2 = 1, and components have length 1 for r2 = 0. With ``normalize``, ``s = (a (n - c))^r2`` with
    the scale a of S_W, so units change components only by their power -r2. Directions and eigenvalues are those of the
    paper.

    If r2 = 1, it classifies, too: ``predict``, ``predict_proba``, ``predict_log_proba``, ``decision_function`` and
    ``score``, as in :class:`bigpca.estimators.supervised.model.SupervisedModel`.

    Parameters
    ----------
    n_components : int, float in (0, 1), or None, default None
        A float keeps that share of the sum of all generalised eigenvalues; None keeps all axes whose eigenvalues are
        not 0.
    r1, r2 : float in [0, 1], default 0.5
        Real labels require ``r2 = 0``; with r2 > 0, labels that are all whole numbers are treated as classes.
    robust : bool or float in (0, 1), default False
        For singular or ill-conditioned R2: its trailing eigenvalues are replaced by their mean (RDA paper, section
        5.2). The leading ones are kept, as many as hold this share of the total; True means 0.98.
    regularization : None, "pinv" or float > 0, default None
        For a singular R2: None raises an error, "pinv" omits its null space, and a number adds that multiple of I.
    normalize : bool
        Scale ``Psi Psi'``, ``S_T`` and ``S_W`` to the trace of I. NOTE: as printed they grow as n^2, n and n, so for
        large n all points (r1, r2) except the corners nearly coincide; the printed formula is the default.
    missing_labels : {"raise", "drop"}, default "raise"
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    supervision_level_, roweis_criterion_ : float
    components_, eigenvalues_, mean_, classes_, ...
        See :class:`bigpca.estimators.supervised.model.SupervisedModel`; ``components_ R2 components_' = s I``.
    coef_, intercept_, explained_variance_ratio_
        If r2 = 1, as in :class:`bigpca.estimators.supervised.model.SupervisedModel`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1], 50)
    >>> X = rng.standard_normal((100, 3)) * [9, 1, 1] + np.outer(y, [0, 5, 0])
    >>> RoweisDiscriminantAnalysis(1, r1=0.5, r2=0.5, normalize=True).fit(X, y).components_.round(1).argmax()
    np.int64(1)
    """

    _traits = Traits(SupervisedResult, "roweis", LABELS)

    n_components: NComponents = None
    _: KW_ONLY
    r1: float = 0.5
    r2: float = 0.5
    normalize: bool = False

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        if not hasattr(self, "predict"):
            tags.estimator_type = tags.classifier_tags = None
        return tags


@with_parameters
class FisherDiscriminantAnalysis(RoweisPoint, SupervisedModel, ClassifierMixin, Estimator[SupervisedResult]):
    """Fisher's discriminant analysis: ``S_T u = lambda S_W u``, the point (0, 1) of the Roweis family.

    The c - 1 axes that separate classes have ``lambda > 1``; all other eigenvalues are 1, and their axes are arbitrary.
    They do not depend on the units of features. Where these are so nearly dependent within classes that one read leaves
    too few digits, the rows are read once more.
    Scores have mean 0, and variance 1 within classes (divisor n - c). It is also a classifier, like
    ``sklearn.discriminant_analysis.LinearDiscriminantAnalysis(solver="eigen")``: ``predict``, ``predict_proba``,
    ``predict_log_proba``, ``decision_function`` and ``score`` use all c - 1 axes, whatever ``n_components`` is.

    Parameters
    ----------
    n_components : int or None, default None
        None for c - 1.
    robust, regularization, missing_labels
        As in :class:`RoweisDiscriminantAnalysis`; defaults False, None and "raise".
    preprocess, nan_policy, memory_limit
        As in :class:`bigpca.PCA`; defaults None, "raise" and None.

    Attributes
    ----------
    coef_, intercept_, explained_variance_ratio_, components_, eigenvalues_, mean_, classes_, ...
        See :class:`bigpca.estimators.supervised.model.SupervisedModel`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0, 0], [0, 2], [1, 1], [4, 0], [4, 2], [5, 1]])
    >>> fisher = FisherDiscriminantAnalysis().fit(X, ["a", "a", "a", "b", "b", "b"])
    >>> fisher.predict([[1.0, 0], [3, 1]]).tolist(), fisher.predict_proba([[2.4, 1]]).round(3).tolist()
    (['a', 'b'], [[0.231, 0.769]])
    """

    _traits = Traits(SupervisedResult, "fisher", LABELS)

    n_components: NComponents = None

    @solving
    @maps_rows
    def mahalanobis(self, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return the squared Mahalanobis distance of each row to the nearest class: large for rows that fit no class.

        ``min_c (x - mean_c)' C^-1 (x - mean_c)`` with the within-class covariance of all d features, ``C = S_W / (n -
        c)``, whatever ``n_components`` and ``regularization`` are. If C is singular, as with fewer rows than features,
        its eigenvalues are shrunk towards their mean with the Ledoit-Wolf weight for Gaussian rows.

        Returns
        -------
        ndarray or dask.array.Array of shape (n,), or (n, 1) in ``out``, float64
            Lazy if X is lazy. With ``nan_policy="omit"``, rows with NaN have NaN. For a DataArray, one with the
            coordinates of its samples.

        Raises
        ------
        ValueError
            If all rows equal their class means.

        Notes
        -----
        Lee, Lee, Lee & Shin (2018), equations 1 and 2, with the divisor n - c instead of n; Chen, Wiesel, Eldar & Hero
        (2010), equation 17.

        Examples
        --------
        >>> import numpy as np
        >>> X = np.array([[0.0, 0], [0, 2], [1, 1], [4, 0], [4, 2], [5, 1]])
        >>> fisher = FisherDiscriminantAnalysis().fit(X, ["a", "a", "a", "b", "b", "b"])
        >>> fisher.mahalanobis([[4.0, 1], [2.4, 1], [4, 20]]).round(1).tolist()
        [0.3, 11.2, 361.3]
        """
        check_is_fitted(self)
        found = self._result
        distance = ClassDistance.of(found.state, self.nan_policy, found.refined)
        to = Destination(out, overwrite, names=("mahalanobis",), what="distances")
        return mapped_to_numbers(self, X, distance, "mahalanobis", to)


def ledoit_wolf_shrinkage(values: Vector, freedom: float) -> float:
    """Return the weight of the mean eigenvalue in the shrunk covariance, from the eigenvalues (d,) of a covariance.

    Ledoit's and Wolf's weight, averaged over all Gaussian rows that have this covariance: it needs no fourth moments,
    which one read of the rows about means that are not yet known does not give.

    Parameters
    ----------
    freedom : float
        Degrees of freedom of the covariance.

    Notes
    -----
    Chen, Wiesel, Eldar & Hero (2010), equation 17 (Rao-Blackwellised Ledoit-Wolf).
    """
    squares, trace = float((values**2).sum()), float(values.sum())
    spread = squares - trace**2 / len(values)
    if spread <= 0:
        return 1.0
    return min(1.0, ((freedom - 2) / freedom * squares + trace**2) / ((freedom + 2) * spread))


@dataclass(frozen=True)
class ClassDistance(Float64Map):
    """``min_c (x - mean_c)' C^-1 (x - mean_c)``, with one covariance C for all classes.

    Attributes
    ----------
    mean : ndarray of shape (d,)
        Of all rows, about which rows are whitened.
    whitening : ndarray of shape (d, d)
        W with ``W C W' = I``.
    centres : ndarray of shape (c, d)
        ``W (mean_c - mean)`` of the classes that have rows.
    shrinkage : float
        Weight of the mean eigenvalue in C; 0 for the covariance within classes itself.
    nan_policy : {"raise", "omit"}
    """

    mean: Vector
    whitening: Matrix
    centres: Matrix
    shrinkage: float
    nan_policy: str = "raise"

    @classmethod
    def of(cls, statistics: LabelStatistics, nan_policy: str, refined: Scatter | None = None) -> ClassDistance:
        """Return the distance by ``C = S_W / (n - c)``, n the sum of the weights if any, shrunk where it is singular.

        ``refined`` is S_W of a second read.

        Raises
        ------
        ValueError
            If the rows, or their weights, add up to no more than the classes, or rows do not differ from the means of
            their classes.
        """
        moments, freedom = statistics.moments, statistics.freedom
        # Eigenvalues of C, 0 where they are rounding in whatever units columns are.
        within = refined or statistics.scatter
        found = within.spectral
        values, vectors = np.zeros(moments.n_features), found.axes.T
        values[: len(found.s)] = found.s**2 / freedom
        if not values[0] > 0:
            raise ValueError(
                f"all {statistics.count} rows of {statistics.n_classes} classes equal the mean of their class, so "
                "distances cannot be scaled. Give at least one class with different rows."
            )
        singular = not values[-1] > 0
        # The axes of a regularised fit need fewer digits of S_W than its inverse does.
        if (error := within.solved().error) > ENOUGH:
            warn_approximation(
                "differences of features within classes are so nearly dependent that rounding may change distances by "
                f"{error:.1g} of their size. Leave out such features, or fit with regularization=None or 'pinv', which "
                "reads the rows once more."
            )
        shrinkage = ledoit_wolf_shrinkage(values, freedom) if singular else 0.0
        shrunk = (1 - shrinkage) * values + shrinkage * values.mean()
        whitening = vectors / np.sqrt(shrunk)[:, None]
        deviations = statistics.deviations[moments.counts > 0]
        return cls(statistics.mean, whitening, deviations @ whitening.T, shrinkage, nan_policy)

    def apply(self, rows: Array, where: str) -> Array:
        """Return the squared distances (b, 1).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            z = np.subtract(rows, self.mean, dtype=np.float64, casting="unsafe") @ self.whitening.T
            # |z - z_c|^2 up to |z|^2 finds the class; the distance itself is that of the difference, without cancelling
            nearest = (z @ self.centres.T - 0.5 * np.einsum("ij,ij->i", self.centres, self.centres)).argmax(axis=1)
            z -= self.centres[nearest]
            found: Array = np.vecdot(z, z)[:, None]
        settle_non_finite(rows, found, where, self.nan_policy, "distances")
        return found

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred, whitened and nearest rows in float64, and the products with the classes."""
        return 8 * rows * (3 * d + 2 * len(self.centres) + 4), 0
