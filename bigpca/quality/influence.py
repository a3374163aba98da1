"""How much single rows, groups of rows and columns weigh in a fit.

First how much eigenvalues and axes would vary between samples of rows, or of groups: standard errors from influence
functions, or by the jackknife; and how much each group differs from the others. Then what components are made of:
rows at both ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import t as student_t
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, Input, Matrix, Vector, unpack
from bigpca.data.provenance import are_scores, given_array
from bigpca.data.sources import open as open_array
from bigpca.engine.events import ProgressArgument
from bigpca.errors import Shown, an, brief, check_choice, positive_integer, real_number, warn_approximation
from bigpca.estimators.linear.model import LinearModel, in_units_of_rows, whole_state
from bigpca.estimators.linear.monitoring import check_centred
from bigpca.estimators.linear.pca import models_without_each, moments_of_groups
from bigpca.estimators.linear.spectrum import check_enough_rows
from bigpca.estimators.shared.opening import read_once, rows_like
from bigpca.passes.accumulators.moments import ColumnMoments, Moments
from bigpca.passes.project import keys_of
from bigpca.passes.reading.row_maps import Float64Map, MapStep
from bigpca.passes.residuals import taken_out
from bigpca.passes.rows import Rows
from bigpca.passes.summaries import Ends, read_ends
from bigpca.quality.metrics import SquaredScores, axes_of, strip_rows
from bigpca.scales import Blocks, Patterson
from bigpca.settings import setting
from bigpca.solvers.components import degrees_of_freedom
from bigpca.solvers.eigh import EPS, top_eigenpairs

FEW_GROUPS = 10  # below which a jackknife is uncertain itself
MAD_TO_DEVIATION = 1.4826  # of Gaussian numbers
COMPARABLE = 0.1  # columns per row, from which eigenvalues of noise are biased by more than 1.7
SAME_TOTAL = 1e-3  # relative, far above rounding of float16 rows, for the rows of the fit
MAX_ANGLE = 0.5  # radians, beyond which the first order says nothing about an axis
# Radians between two axes. Two equal eigenvalues l of n Gaussian rows are a Rayleigh variable of scale 2 l / sqrt(n)
# apart, so that they seem so far apart in exp(-1 / (8 angle^2)) = 1 % of samples.
MAX_TURN = 1 / 6


@dataclass(frozen=True, repr=False)
class StandardErrors(Shown):
    """Standard errors of a fitted spectrum, over samples of as many independent rows from the same population.

    Attributes
    ----------
    explained_variance_ : ndarray of shape (k,)
        Of the eigenvalues; NaN where other axes may bias one by more than its standard error: close to another
        eigenvalue, or where the number of features is comparable to that of the rows.
    explained_variance_ratio_ : ndarray of shape (k,)
        Of their shares of the total variance; NaN for the same components.
    component_angle_ : ndarray of shape (k,)
        Root mean square of the angle between an axis and that of the population, in radians: an upper value if the
        model has fewer components than the rows have axes. NaN for an axis that the rows do not determine: more than
        0.5 in all, or more than 1/6 towards one other component, which 1 % of samples leave where two eigenvalues of
        the population are equal; or a close eigenvalue, of another component or possibly of the first axis that the
        model lacks, is no farther away than both may be biased.
    n_rows : float
        Number of rows; of weighted rows the sum of the weights.
    n_features : int
        Number of columns.
    names : tuple of str
        Of the components.
    variances : ndarray of shape (k,)
        The eigenvalues.
    degrees_of_freedom : float, default inf
        Of the errors: of a jackknife the number of groups less 1.
    """

    explained_variance_: Vector
    explained_variance_ratio_: Vector
    component_angle_: Vector
    n_rows: float
    n_features: int
    names: tuple[str, ...]
    variances: Vector
    degrees_of_freedom: float = np.inf

    def interval(self, level: float = 0.95) -> Matrix:
        """Return intervals that contain the eigenvalues of the population with that probability.

        About the logarithms of the eigenvalues, whose distribution is closer to Student's.

        Parameters
        ----------
        level : float in (0, 1), default 0.95

        Returns
        -------
        ndarray of shape (k, 2)

        Raises
        ------
        ValueError, TypeError
            For another level.
        """
        real_number("level", level, "(0, 1)", "a probability such as 0.95")
        with np.errstate(divide="ignore", invalid="ignore"):
            width = student_t.ppf((1 + level) / 2, self.degrees_of_freedom) * self.explained_variance_ / self.variances
        return np.asarray(self.variances[:, None] * np.exp(width[:, None] * np.array([-1.0, 1.0])))

    def cells(self) -> list[tuple[str, ...]]:
        """Return a line for each component; NaN where nothing is determined."""
        columns = (self.explained_variance_, self.explained_variance_ratio_, self.component_angle_)
        lines = [(name, *(f"{value:.4g}" for value in row)) for name, *row in zip(self.names, *columns, strict=True)]
        return [("component", "variance", "share", "angle"), *lines]

    @property
    def notes(self) -> tuple[str, ...]:
        """What standard errors do not cover here, in words: undetermined numbers, and bias by many columns."""
        notes, k = [], len(self.explained_variance_)
        values, axes = (int(np.isnan(one).sum()) for one in (self.explained_variance_, self.component_angle_))
        if values or axes:
            notes.append(
                f"{values} of {k} eigenvalues and {axes} of {k} axes are not determined by {self.n_rows:,.6g} rows: "
                "other eigenvalues are too close, or there are too few rows."
            )
        ratio = self.n_features / self.n_rows
        if ratio > COMPARABLE:
            notes.append(
                f"{self.n_features:,} columns and {self.n_rows:,.6g} rows: the leading eigenvalues of a sample are "
                "then biased upwards, those of noise alone by a factor of up to (1 + sqrt(d / n))^2 = "
                f"{(1 + np.sqrt(ratio)) ** 2:.2g} (Marchenko and Pastur), which standard errors do not show. Compare "
                "them with the edge of ParallelAnalysis, or take more rows."
            )
        return tuple(notes)


@dataclass(frozen=True)
class LearnedScaleProducts(Float64Map):
    """Row map to the squares of what a row changes in a correlation matrix R, along the components of R.

    With scores t of the standardized row z, and ``u_ij = sum_l v_il v_jl z_l^2`` from its part in the scale, the
    change is ``v_i' dR v_j = t_i t_j - (lambda_i + lambda_j) u_ij / 2``. Component i has k + 1 columns: the squares
    for all j, and an upper value of ``|P dR v_i|^2`` outside of the components, where ``|P R P| <= lambda_k``. The last
    column is ``|z|^2``.

    Attributes
    ----------
    mean, scale : ndarray of shape (d,)
    components : ndarray of shape (k, d)
    values : ndarray of shape (k,)
        Eigenvalues of R.
    """

    mean: Vector
    components: Matrix
    scale: Vector
    values: Vector

    @property
    def step(self) -> MapStep:
        """The map, in tiles."""
        k, d = self.components.shape
        return MapStep(self, k * (k + 1) + 1, 2 * k * d * (k + 4) + 4 * d, strip_rows(d))

    def apply(self, rows: Array, where: str) -> Array:
        """Return the squares (b, k (k + 1) + 1), in float64."""
        z = (rows - self.mean) / self.scale
        scores, squares, k = z @ self.components.T, z**2, len(self.components)
        found = np.empty((len(z), k * (k + 1) + 1))
        found[:, -1] = squares.sum(axis=1)
        for i, (axis, value) in enumerate(zip(self.components, self.values, strict=True)):
            scaling = squares * axis  # the row's part in the scale, of component i
            u = scaling @ self.components.T
            half = scores[:, i, None] * scores - value / 2 * u
            found[:, i * (k + 1) : i * (k + 1) + k] = (half - u * self.values / 2) ** 2
            outside = np.square(scores[:, i, None] * z - value / 2 * scaling).sum(axis=1) - np.square(half).sum(axis=1)
            scaled = np.square(scaling).sum(axis=1) - np.square(u).sum(axis=1)
            left = np.sqrt(np.maximum(outside, 0)) + self.values[-1] / 2 * np.sqrt(np.maximum(scaled, 0))
            found[:, i * (k + 1) + k] = left**2
        return found

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Rows, their squares and three products of these for one component; scores and squares, in float64."""
        k = len(self.components)
        return 8 * rows * (6 * d + k * (k + 1) + 6 * k + 1), 0


def standard_errors(
    model: Any,
    X: Input | None = None,
    *,
    method: str = "influence",
    sample_weight: Input | None = None,
    memory_limit: int | str | None = None,
    progress: ProgressArgument = None,
) -> StandardErrors:
    """Estimate how much the eigenvalues and axes of a model would vary between samples of rows.  # one pass over X

    To first order, from the influence functions of eigenvalues and eigenvectors, with scores t about the mean:
    ``se^2(lambda_i) = (E t_i^4 - lambda_i^2) / n``, and the axis turns towards axis j by an angle whose mean square is
    ``E[t_i^2 t_j^2] / (lambda_i - lambda_j)^2 / n``. Nothing is resampled, and rows need not be Gaussian; they must be
    independent and have finite fourth moments. These are sampling errors; for errors of the computation, see
    ``eigenvalue_bounds_``. Costs 4 n d k flops.

    With ``scale=True`` the deviations that divide the columns vary too, which the influence functions of a correlation
    matrix include: ``t_i t_j - (lambda_i + lambda_j) / 2 sum_l v_il v_jl z_l^2`` replaces ``t_i t_j``, for standardized
    rows z. Costs 2 n d k^2 flops.

    ``method="jackknife"`` is for rows that belong together, for which the formulas above are too small, however many
    rows there are. Each group of ``fit(X, groups=labels)`` is left out in turn, from the kept moments, with any sizes
    of groups (delete-m jackknife, of logarithms of eigenvalues). Nothing is read.

    Parameters
    ----------
    model : fitted PCA or ApproximatePCA
        With orthonormal components. The scale may be learned (True), about the mean; :class:`bigpca.scales.Patterson`
        is rejected. The jackknife takes any PCA with groups.
    X : Dask array, path, Zarr array, xarray.DataArray, or anything array-like of shape (n, d), default None
        The rows of the fit; none for the jackknife.
    method : {"influence", "jackknife"}, default "influence"
    sample_weight : as for ``fit``, default None
        The weights of the fit. Frequencies are numbers of independent rows; those of :func:`bigpca.data.reliability`
        add up to the effective number.
    memory_limit : int, str or None, default None
        Per process; None for that of the model or of :class:`bigpca.config`, or else the limit of the live workers, or
        the machine's free memory.
    progress : True for a bar, or a callable that receives events, default None

    Returns
    -------
    StandardErrors
        If the model has fewer components than axes, angles are estimated from above, by the variance that is left out.
        An angle is undetermined (NaN) if one left-out axis could be as large as the component. Fit a few more
        components than needed. Its ``notes`` say what is not determined, and that eigenvalues are biased if there are
        about as many columns as rows (Marchenko and Pastur). ``interval()`` returns intervals of the eigenvalues. A
        jackknife warns below 10 groups.

    Raises
    ------
    NotFittedError
        If the model was not fitted.
    TypeError, ValueError
        For a model without orthonormal components, with the scale of Patterson, or with a learned scale and another
        centre than the mean; and for rows other than those of the fit.
    MemoryBudgetError
        Before any read, if the blocks do not fit.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read.

    Notes
    -----
    Busing, Meijer & van der Leeden 1999 (Delete-m jackknife for unequal m).
    Anderson 1963 (Asymptotic theory for principal component analysis) for Gaussian rows; Waternaux 1976 and Critchley
    1985 (Influence in principal components analysis) for others, also of correlation matrices.

    Examples
    --------
    >>> from bigpca import PCA
    >>> X = np.random.default_rng(0).standard_normal((10_000, 3)) * [3, 2, 1]
    >>> errors = standard_errors(PCA().fit(X), X)
    >>> (errors.explained_variance_ / (np.sqrt(2 / 10_000) * np.array([9, 4, 1]))).round(1).tolist()
    [1.0, 1.0, 1.0]
    """
    axes_of(model)
    check_choice("method", method, ("influence", "jackknife"))
    if (X is None) != (method == "jackknife"):
        raise TypeError(
            f"method = {method!r} was given {'no X' if X is None else 'X'}: the jackknife reads nothing, and influence "
            "functions read the rows of the fit."
        )
    if method == "jackknife":
        if sample_weight is not None:
            raise TypeError("sample_weight was given, but the jackknife has the weights of the fit. Leave it out.")
        return _jackknifed(model)
    if not (isinstance(model, LinearModel) and model._orthonormal):
        raise TypeError(
            f"{an(type(model).__name__)} without orthonormal components was given. Fit PCA or ApproximatePCA."
        )
    learned = isinstance(model.scale, bool | np.bool_) and model.scale_ is not None
    if model.scale_ is not None and (
        isinstance(model.scale, Patterson | Blocks) or (learned and model.center is not True)
    ):
        raise ValueError(
            f"scale = {model.scale!r} is learned from the rows, so it varies between samples too. This is covered only "
            "for scale=True with center=True. Fit with these, or with fixed divisors: scale=model.scale_."
        )
    rows = rows_like(model, X, sample_weight=sample_weight, memory_limit=memory_limit)
    unit = 2.0 ** np.floor(np.log2(model.total_variance_)) if model.total_variance_ > 0 and not learned else 1.0
    k, step = model.n_components_, SquaredScores(model.mean_, model.components_, model.scale_, float(unit)).step
    template: Moments | ColumnMoments = Moments(k + 1)
    if learned:
        values = model.explained_variance_ * (1 - 1 / model.sum_weights_)  # of the correlations, with divisor n
        step = LearnedScaleProducts(model.mean_, model.components_, model.scale_, values).step
        template = ColumnMoments(k * (k + 1) + 1)
    found = read_once(rows.mapped(step), template, "standard errors", progress=progress)
    if found.count != model.n_samples_ or not np.isclose(found.weight, model.sum_weights_):
        raise ValueError(
            f"X has {found.count} rows of weight {found.weight:g}, but the model was fitted to {model.n_samples_} of "
            f"weight {model.sum_weights_:g}. Pass the rows and weights of the fit."
        )
    total = float(found.mean[-1] if learned else found.mean.sum()) * unit
    total *= found.weight / degrees_of_freedom(found.count, found.weight_sums)
    if not np.isclose(total, model.total_variance_, rtol=SAME_TOTAL):
        raise ValueError(
            f"X has the total variance {total:.6g} about the model's mean_, but the rows of the fit have "
            f"{model.total_variance_:.6g}. Pass the rows and weights of the fit."
        )
    return _errors(found, model, unit)


def _errors(found: Moments | ColumnMoments, model: Any, unit: float) -> StandardErrors:
    """Compute the standard errors of a model from the moments of the squares, which are in this unit."""
    values, n, d = model.explained_variance_ / unit, found.weight, model.n_features_in_
    k, axes = len(values), min(found.count, d)
    if isinstance(found, ColumnMoments):  # of a learned scale: the total is the number of columns
        products, total = found.mean[:-1].reshape(k, k + 1), float(found.mean[-1])
        spread = products.diagonal()
        ratios, left = spread / (total or 1.0) ** 2, total - float(values.sum())
    else:
        covariance = unpack(found.packed, k + 1) / n  # of the squares
        products = covariance + np.multiply.outer(found.mean, found.mean)  # E[t_i^2 t_j^2]
        total, left, spread = float(found.mean.sum()), float(found.mean[k]), np.diagonal(covariance)[:k]
        # lambda_i / total changes by (t_i^2 - (lambda_i / total) |x|^2) / total with each row
        change = (np.eye(k, k + 1) - np.divide(found.mean[:k], total or 1.0)[:, None]) / (total or 1.0)
        ratios = np.einsum("ij,jk,ik->i", change, covariance, change)
    gaps = values[:, None] - values
    np.fill_diagonal(gaps, np.inf)
    left = left if axes > k else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        pairs = products[:k, :k] / gaps**2
        turns = pairs.sum(axis=1)
        bias = np.abs(products[:k, :k] / gaps).sum(axis=1)
        if left > 0:  # no axis that the model lacks has more than the smallest eigenvalue, or than what is left
            turns += products[:k, k] / (values - min(float(values[-1]), left)) ** 2
            bias += np.abs(products[:k, k] / (values - left / (axes - k)))
    angles, bias = np.sqrt(turns / n), bias / n
    errors = np.sqrt(np.maximum(spread, 0) / n)
    several = found.count > 2  # rows: the squares of two are equal about their mean, whatever the population is
    sound = several & (bias <= errors)
    apart = several & (angles <= MAX_ANGLE) & (pairs <= n * MAX_TURN**2).all(axis=1)
    apart &= (np.abs(gaps) > bias[:, None] + bias).all(axis=1)
    return StandardErrors(
        np.where(sound, unit * errors, np.nan),
        np.where(sound, np.sqrt(np.maximum(ratios, 0) / n), np.nan),
        np.where(apart, angles, np.nan),
        n,
        d,
        tuple(model.get_feature_names_out()),
        np.asarray(model.explained_variance_),
    )


def _jackknifed(model: Any) -> StandardErrors:
    """Compute the standard errors of a model from those of all groups but one."""
    _, states = moments_of_groups(model)
    if len(states) < FEW_GROUPS:
        warn_approximation(
            f"a jackknife over {len(states)} groups: its errors are uncertain themselves. At least {FEW_GROUPS} groups "
            "were expected."
        )
    others, turns = list[Matrix](), list[Vector]()
    axes = axes_of(model)
    for other in models_without_each(model):
        others.append(np.stack([other.explained_variance_, other.explained_variance_ratio_]))
        cosines = np.einsum("ij,ij->i", axes, other.components_)
        sines = np.linalg.norm(other.components_ - cosines[:, None] * axes, axis=1)
        turns.append(np.arctan2(sines, np.abs(cosines)))
    values = np.stack([model.explained_variance_, model.explained_variance_ratio_])
    m = np.array([state.weight for state in states])[:, None, None]
    n, h = m.sum(), m.sum() / m
    # The delete-m_g jackknife (Busing, Meijer & van der Leeden 1999, eq. 8 to 11) of the logarithms.
    with np.errstate(divide="ignore", invalid="ignore"):
        theta, without = np.log(values), np.log(np.stack(others))
        mean = len(m) * theta - ((1 - m / n) * without).sum(axis=0)
        pseudo = h * theta - (h - 1) * without
        errors = values * np.sqrt(((pseudo - mean) ** 2 / (h - 1)).mean(axis=0))
    # The same of an angle, which is 0 for the model itself.
    angles = np.sqrt(((h[:, :, 0] - 1) * np.stack(turns) ** 2).mean(axis=0))
    angles = np.where(angles <= MAX_ANGLE, angles, np.nan)
    names = tuple(model.get_feature_names_out())
    d, degrees = model.n_features_in_, float(len(states) - 1)
    return StandardErrors(errors[0], errors[1], angles, float(n), d, names, values[0], degrees)


@dataclass(frozen=True, repr=False)
class Drift(Shown):
    """How much each group of rows differs from the others.

    Attributes
    ----------
    groups : tuple of str or int
    n_rows : ndarray of shape (g,)
        Rows of each group, or sums of their weights.
    t2 : ndarray of shape (g,)
        Hotelling's T2 of the difference of the means, in the k axes of the other groups, less what equal means would
        have.
    spe : ndarray of shape (g,)
        Squared difference of the means outside of those axes, less the same.
    lost : ndarray of shape (g,)
        Share of the variance that k axes of the group's own have, and these axes have not: 0 if they are the same.
    z : ndarray of shape (g, 3)
        Of the three: their distances from the median over groups, in robust standard deviations (1.4826 times the
        median absolute deviation).
    """

    groups: tuple[str | int, ...]
    n_rows: Vector
    t2: Vector
    spe: Vector
    lost: Vector
    z: Matrix

    def cells(self) -> list[tuple[str, ...]]:
        """Return a line for each group."""
        columns = (self.n_rows, self.t2, self.spe, self.lost, self.z.max(axis=1))
        lines = [(f"{group}", *(f"{x:.4g}" for x in row)) for group, *row in zip(self.groups, *columns, strict=True)]
        return [("group", "rows", "T2", "SPE", "lost", "largest z"), *lines]


def drift(model: Any) -> Drift:
    """Compare each group of a fit with all others: their means, and the axes of their variance. Nothing is read.

    In the k axes V of the other groups, with eigenvalues l, for the means m and the covariance S of the group:

    - ``T2 = sum_a (v_a'(m - m_rest))^2 / l_a - k (1 / n + 1 / n_rest)``
    - ``SPE = |(I - V V')(m - m_rest)|^2``, less the variance outside of the axes times ``1 / n + 1 / n_rest``
    - ``lost = 1 - tr(V'S V) / (sum of the k largest eigenvalues of S)``

    The groups are what varies, so there are no p-values: ``z`` shows which groups are unusual among them.

    Parameters
    ----------
    model : fitted PCA
        With ``fit(X, groups=labels)``: days, sites, plates, batches. About the mean; scaled columns are compared in
        units of the scale of the other groups.

    Returns
    -------
    Drift
        A table: ``print`` shows it. A warning names groups with fewer than 10 k rows, whose own axes are uncertain.

    Raises
    ------
    ValueError
        For fewer than three groups, one of fewer than two rows, another centre than the mean, and as
        :meth:`bigpca.PCA.without_group`.
    TypeError
        For other models.

    Notes
    -----
    Costs two eigen-decompositions for each group.

    Examples
    --------
    >>> from bigpca import PCA
    >>> rng = np.random.default_rng(0)
    >>> days = np.repeat(np.arange(8), 100)
    >>> X = rng.standard_normal((800, 5)) * [5, 4, 1, 1, 1] + 3.0 * (days == 6)[:, None]
    >>> int(drift(PCA(2).fit(X, groups=days)).z[:, 1].argmax())
    6
    """
    labels, states = moments_of_groups(model)
    check_centred(model, "a drift")
    if len(states) < 3:
        raise ValueError(f"the model has {len(states)} groups; at least 3 were expected. Fit more groups.")
    for label, state in zip(labels, states, strict=True):
        check_enough_rows(state.count, sums=state.weight_sums, what=f"the group {label!r}")
    few = [f"{label!r}" for label, state in zip(labels, states, strict=True) if state.weight < 10 * model.n_components_]
    if few:
        warn_approximation(
            f"{len(few)} of {len(states)} groups have fewer than 10 rows for each of {model.n_components_} components, "
            f"so that their own axes are uncertain: {brief(', '.join(few), 200)}. Fit fewer components."
        )
    found = np.array([_apart(state, rest) for state, rest in zip(states, models_without_each(model), strict=True)])
    centre = np.median(found, axis=0)
    deviation = MAD_TO_DEVIATION * np.median(np.abs(found - centre), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(found == centre, 0.0, (found - centre) / deviation)
    n_rows = np.array([state.weight for state in states])
    return Drift(tuple(labels), n_rows, found[:, 0], found[:, 1], found[:, 2], z)


def _apart(state: Moments, rest: Any) -> tuple[float, float, float]:
    """Return T2, SPE and lost of a group, against the model of the others."""
    both = (in_units_of_rows(rest, one) for one in (state, whole_state(rest, "drift")))
    # The residuals, by the covariates' effect on the other groups.
    state, others = (taken_out(one, rest._result.regression) for one in both)
    V, values = rest.components_, rest._result.known_variances
    e, S = state.mean - others.mean, unpack(state.packed, state.n_features) / (state.weight - 1)
    if rest.scale_ is not None:
        e, S = e / rest.scale_, S / rest.scale_ / rest.scale_[:, None]
    t, share = V @ e, 1 / state.weight + 1 / others.weight
    known = values > 0
    t2 = float((t[known] ** 2 / values[known]).sum()) - np.count_nonzero(known) * share
    left = max(0.0, rest.total_variance_ - float(rest.explained_variance_.sum()))
    spe = float(((e - V.T @ t) ** 2).sum()) - left * share
    captured = float(np.einsum("ij,jk,ik->", V, S, V))
    most = float(top_eigenpairs(S, len(V))[0].sum())
    lost, rounding = 1 - captured / most if most > 0 else 0.0, 8 * len(e) * EPS
    # Axes that span the rows leave nothing, and what rounding makes of that is no difference between groups.
    spe = spe if abs(spe) > rounding * (float(e @ e) + rest.total_variance_ * share) else 0.0
    return t2, spe, lost if abs(lost) > rounding else 0.0


def extremes(
    model: Any,
    X: Input | None = None,
    n: int = 10,
    *,
    rows: Input | None = None,
    scores: Input | None = None,
    progress: ProgressArgument = None,
) -> Ends:
    """Return the rows with the lowest and highest scores of each component, in one read and bounded memory.

    They show what a component means. Among equal scores, the first rows are returned.

    Parameters
    ----------
    model : fitted model, or None for scores of any model
    X : array-like, Dask array, path and so on, default None
        Rows (n, d), which are transformed as they are read, or scores (n, k), as :func:`bigpca.plots.scores` tells them
        apart.
    n : int, default 10
        How many to return at each end, at most all rows.
    rows, scores : as X, default None
        Say which it is, where nothing else does.
    progress : True, "auto", a callable that receives events, or None, default None
        True shows a bar; "auto" shows one after two seconds.

    Returns
    -------
    Ends
        Row numbers and scores, the furthest first, and keys if the source stores keys. Rows without scores (NaN) and,
        with ``nan_policy="omit"``, rows with NaN are left out.

    Raises
    ------
    TypeError, ValueError
        If ``n`` is not a positive integer, if it is not clear whether X holds rows or scores, for scores of another
        model, and for a table of statistics instead of scores.
    NonFiniteError, MissingChunksError, CorruptedChunkError
        From the read; names rows and block.

    Examples
    --------
    >>> import numpy as np
    >>> from bigpca import PCA
    >>> X = np.array([[0.0, 0], [5, 1], [-7, 0], [2, -1]])
    >>> ends = extremes(PCA(1).fit(X), X, n=1)
    >>> ends.lowest.tolist(), ends.highest.tolist()
    ([[2]], [[1]])
    """
    n = positive_integer("n", n)
    if model is not None:
        if not isinstance(model, BaseEstimator):
            raise TypeError(
                f"model is {an(type(model).__name__)}; a fitted model or None was expected: extremes(model, X)."
            )
        check_is_fitted(model)
    X, said = given_array(X, rows, scores)
    if X is None:
        raise TypeError("no rows were given; rows or scores were expected: extremes(model, X).")
    opened = open_array(X)
    if are_scores(model, X, opened, said):
        limit = None if model is None else setting(model, "memory_limit")
        read = mapped = Rows.of(opened, nan_policy="omit", memory_limit=limit)
    else:
        read = rows_like(model, X, use="map")
        k = model._result.width
        mapped = read.mapped(MapStep(model._row_map(), k, 2 * read.n_columns * k))
    ends = read_ends(mapped, n, progress=progress).ends
    names, keys = None if model is None else tuple(model.get_feature_names_out()), keys_of(read)
    if keys is None:
        return replace(ends, names=names)
    return replace(ends, names=names, lowest_keys=keys[ends.lowest], highest_keys=keys[ends.highest])
