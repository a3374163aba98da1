"""Exact principal component analysis of data that does not fit in memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import KW_ONLY, replace
from itertools import islice
from typing import TYPE_CHECKING, cast

import numpy as np
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Vector
from bigpca.engine.driver import solving
from bigpca.errors import an, brief
from bigpca.estimators.linear.covariance_fit import CovarianceFit
from bigpca.estimators.linear.em_fit import without_moments
from bigpca.estimators.linear.maps import Standardization
from bigpca.estimators.linear.model import (
    LinearModel,
    in_units_of_rows,
    residual_state,
    rows_to_fit,
    standardization_of,
    whole_state,
    with_apart,
)
from bigpca.estimators.linear.shrinkage import factors_of, shrunk_map
from bigpca.estimators.linear.spectrum import (
    PCAResult,
    Settings,
    check_enough_rows,
    solve_moments,
)
from bigpca.estimators.shared.fit import Fit, RandomState
from bigpca.estimators.shared.growing import check_same_steps, kept_by, not_kept, solve_later, twin
from bigpca.estimators.shared.inputs import Unchecked
from bigpca.estimators.shared.opening import maps_of, placed_in_folds, preprocessors_of
from bigpca.estimators.shared.results import KeptRows, Traits
from bigpca.estimators.shared.transformer import with_parameters
from bigpca.parameters import Parameter
from bigpca.passes.accumulators.folds import FoldStates, check_folds, left_out
from bigpca.passes.accumulators.moments import Moments
from bigpca.passes.reading.blocks import INCOMPLETE
from bigpca.passes.reading.row_maps import RowMap, RowPreprocessor
from bigpca.passes.residuals import Residuals, rank_of
from bigpca.passes.rows import Rows
from bigpca.passes.side_by_side import beside_covariates
from bigpca.settings import setting
from bigpca.solvers.components import CrossValidated, NComponents, by_name, check_n_components
from bigpca.solvers.scaling import Blocks

if TYPE_CHECKING:
    pass
FOREIGN = {"full": "covariance", "covariance_eigh": "covariance", "randomized": "krylov", "arpack": "krylov"}  # solvers


def _solvers() -> tuple[str, ...]:
    from bigpca.estimators.linear.choosing import FITS  # all solvers: only a fit loads them

    return ("auto", *FITS)


@with_parameters
class PCA(LinearModel[Moments]):
    """Principal component analysis in bounded memory: exact to rounding, or to a tolerance in a few reads.

    ``X - mean = scores @ components_ + residual``, with orthonormal ``components_`` along which the variance is
    largest. The result is to a tolerance if ``solver_`` is "krylov", which "auto" chooses only if the exact solvers
    cost much more or do not fit.

    Parameters
    ----------
    n_components : int, float in (0, 1), "mle", RelativeThreshold or None, default None
        A number, a share of the variance, Minka's choice, all components with lambda_i >= eps lambda_1, or min(n, d)
        for None. Further rules: :class:`bigpca.rules.ParallelAnalysis`, MarchenkoPastur, GavishDonoho, Elbow, and
        CrossValidated, which leaves out folds, or groups, of the same read.
    solver : {"auto", "covariance", "dot", "krylov"}, default "auto"
        "covariance": one read, a d x d matrix (Marukatat 2022, algorithm 1). "dot": an n x n matrix, for wide data
        (algorithm 2, dual PCA). "krylov": neither matrix, but usually two to four reads for eigenvalues to ``tol``.
        "auto" chooses the cheapest solver that fits; ``plan(X)`` says which, and why.
    tol : float in (0, 1), default 0.001
        "krylov" stops when the relative error of every requested eigenvalue, estimated by probes, is at most this.
    max_passes : int or None, default 10
        Maximum number of reads by "krylov", at least 2; None for as many as ``tol`` requires, or until rounding hides
        further progress. If that is not enough, a warning reports the error reached, and ``converged_`` is False. Flat
        spectra need more than 10, and memory for a basis of their products.
    random_state : int, RandomState, Generator or None, default 0
        Seed of the sample, the random columns and the probes of "krylov". If it is not an integer, each fit draws a
        seed (for None, from NumPy's global generator) and keeps it as ``seed_`` and in the checkpoint, so a rerun can
        resume.
    center : bool or array-like of shape (d,), default True
        Subtract the mean, or a given centre; False decomposes moments about zero (latent semantic analysis), see
        ``explained_variance_``. A centre of zeros equals False, and ``center=mean_`` equals True, to rounding.
    scale : bool, array-like of shape (d,), or rule, default False
        Divide each feature by its standard deviation (about its mean with divisor n, as StandardScaler, whatever
        ``center`` is), in the same pass: correlation PCA; or by given positive numbers; or by a rule,
        :class:`bigpca.scales.Patterson`, :class:`bigpca.scales.CosLatitude`, or :class:`bigpca.scales.Blocks` of
        columns (multiple factor analysis). For rows of a DataArray, ``center`` and ``scale`` may be DataArrays along
        some dimensions of the columns: they are aligned by name.
    whiten : bool or :class:`bigpca.scales.Whitening`, default False
        Divide scores by their standard deviations, or by the rule's powers of the variances; along axes of variance 0
        they are 0.
    preprocess : a preprocessor such as :class:`bigpca.preprocessing.L2`, a list in order, or None, default None
        Applied to each row first, in ``fit`` and in all methods that take rows, in the same read. Attributes such as
        ``mean_``, and the result of ``inverse_transform``, describe the preprocessed rows. For counts:
        :class:`bigpca.preprocessing.NormalizeTotal`, ``Log1p``, ``Standardize`` and ``PearsonResiduals`` of the same
        module. What a step is not given, such as a target, takes one more read, and ``preprocess_`` has it.
    nan_policy : {"raise", "omit", "mean"}, default "raise"
        Rows with NaN or infinities raise an error, or are omitted from the fit (not by "dot") and have NaN scores.
        "mean": in the fit, the mean of a column replaces its NaN, and one more read finds the means; ``transform``
        projects the observed values of a row by least squares. "pairwise": the same, but each entry of the covariance
        is divided by the share of the rows that have both of its columns ("covariance" only; for gaps that do not
        depend on the values). "em": the probabilistic model that is likeliest for the values that are there, found by
        an iteration of one read a step, until plane and variances are known to ``tol``; ``n_components`` is a number,
        and the centre is estimated. It takes 3 to 20 reads, at most ``max_passes``. Infinities and columns that are
        entirely NaN raise an error.
    memory_limit : int, str or None, default None
        Per process, such as "2 GiB"; None for the limits of the live workers, or the free memory of the machine.

    Attributes
    ----------
    components_ : ndarray of shape (k, d); the entry of largest magnitude of each row is positive
    explained_variance_, explained_variance_ratio_, singular_values_ : ndarray of shape (k,)
        Eigenvalues of the covariance (divisor n - 1), their share of the TRUE total variance, and sqrt((n - 1)
        eigenvalue). With a given centre c they are those of ``(X - c)'(X - c) / (n - 1)``. With ``center=False`` they
        are second moments about zero, ``X'X / (n - 1)``, not variances: the singular values are those of X, as
        ``TruncatedSVD.singular_values_``. ``TruncatedSVD.explained_variance_`` is the variance of the scores about
        their mean (divisor n) instead: it is smaller, and not sorted. Its ratio refers to the centred total.
    mean_ : ndarray of shape (d,)
        The centre that is subtracted: the mean, the given one, or zeros.
    scale_ : ndarray of shape (d,) or None
    covariate_coef_ : ndarray of shape (d, q), covariate_mean_ : ndarray of shape (q,)
        Of ``fit(X, covariates=Z)``, where all attributes describe the residuals ``x - mean_ - covariate_coef_ (z -
        covariate_mean_)``; divisors remain n - 1.
    solve_error_ : float
        Of ``fit(X, covariates=Z)``: estimated relative error of the residuals' variance by rounding; above 1e-3 with a
        warning. Where it would be above 1e-6 after one read, the rows are read once more.
    covariate_names_in_ : ndarray of str, if Z had names
    noise_variance_ : float
        (total - kept) / (min(n, d) - k), with ``nan_policy="em"`` / (d - k); 0 where that is no more than the rounding
        of the values.
    total_variance_ : float
    n_components_, n_features_in_, n_samples_, n_omitted_ : int
    sum_weights_, n_effective_ : float
        Sum of the weights of the rows, which replaces n in all of the above, and Kish's effective number of
        rows, ``sum(w)^2 / sum(w^2)``; both are ``n_samples_``, the number of rows of positive weight, without weights.
    block_contributions_ : dict of str to ndarray of shape (k,)
        Of ``scale=bp.scales.Blocks(...)``.
    shrinkage_factors_ : ndarray of shape (k,)
        Scores of new rows over those of rows of the fit, along each component: 1 where rows are many beside columns.
        From all eigenvalues after "dot" (up to 1,024 rows, or 11 times as many columns), and where up to 1,024 columns
        are as many as rows; otherwise from those of the components and the mean of the others, which is too near 1:
        0.35 for 0.25, 0.62 for 0.61. See :meth:`transform`.
    solver_ : str
    seed_ : int
        Seed of the fit: ``random_state``, or a seed drawn from it.
    plan_ : Plan
    groups_ : ndarray of shape (g,)
        Of ``fit(X, groups=labels)``, where the moments of each group are kept, from the same read: see
        :meth:`of_group`, :meth:`without_group`, :func:`bigpca.quality.drift` and
        :func:`bigpca.quality.standard_errors`. Rows that ``partial_fit`` or a merge adds join the group of their label.
    cv_errors_ : ndarray of shape (f, m)
        Of :class:`bigpca.rules.CrossValidated`: errors per row of each fold with 0 to m - 1 components.
    negative_eigenvalue_ : float
        Of ``nan_policy="pairwise"``, whose covariance may have negative eigenvalues: the smallest of them, with a
        warning, where it is below -1e-5 of the covariance's norm; else 0. All count in ``total_variance_``.
    centring_error_ : float
        Of sparse rows, which are centred after their products are summed: bound of the relative error of the variance
        of any column, ``max_j c eps sum_t x_tj^2 / sum_t (x_tj - mean_j)^2`` with the number c of roundings: 4, and for
        "covariance" the rows of a group, but with x measured from a typical value in columns that nearly all rows
        store; for "dot" that of the total variance. At most 1e-6; a fit raises an error above that.
    eigenvalue_bounds_, captured_variance_bounds_, subspace_error_bounds_, bounds_confidence_, residuals_, n_passes_,
    converged_
        Set by "krylov" only, but ``converged_`` also with ``nan_policy="em"``; see
        :class:`bigpca.estimators.linear.model.LinearModel`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[-1.0, -1], [-2, -1], [-3, -2], [1, 1], [2, 1], [3, 2]])
    >>> pca = PCA(n_components=1).fit(X)
    >>> pca.explained_variance_ratio_.round(4).tolist()
    [0.9924]
    """

    _traits = Traits(
        PCAResult,
        "pca",
        frozenset({"groups", *INCOMPLETE}),
        alike=("preprocess", "center", "scale"),
        ranges={"solver": Parameter(words=_solvers, foreign=FOREIGN)},
    )

    n_components: NComponents = None
    _: KW_ONLY
    solver: str = "auto"
    tol: float = 1e-3
    max_passes: int | None = 10
    random_state: RandomState = 0

    def _settings(self, standardization: Standardization, seed: int = 0) -> Settings:
        keep = setting(self, "keep_state_bytes")
        return Settings.of(self, standardization=standardization, keep_state_bytes=keep, seed=seed)

    def _fit(self, rows: Rows, y: Unchecked, like: KeptRows | None = None) -> Fit[PCAResult]:
        from bigpca.estimators.linear.choosing import plan_fit  # all solvers: only a fit loads them

        n, d = rows.origin.shape
        check_n_components(self.n_components, None if np.isnan(n) or like is not None else n, d)
        if like is not None:
            return _moments_fit(self, rows, like)
        if summed_covariates(self, rows) or rows.groups is not None or _cross_validated(self) is not None:
            return _moments_fit(self, rows)
        rows, standardization = rows_to_fit(self, rows)
        fit = plan_fit(rows, self._settings(standardization, rows.seed), self.solver)
        check_n_components(self.n_components, fit.rows.n_present, d)  # again: rows are counted, or have weight 0
        return fit

    @property
    def block_contributions_(self) -> dict[str, Vector]:
        """Share of each block of columns in each component (k,), by name, with ``scale=bp.scales.Blocks(...)``.

        The sum of the squares of its entries in ``components_``: shares of all blocks add up to 1.
        """
        check_is_fitted(self)
        if not isinstance(self.scale, Blocks):
            raise AttributeError(f"scale = {self.scale!r} has no blocks. Fit with scale=bp.scales.Blocks(...).")
        blocks = self.scale.of(self.n_features_in_).columns
        return {name: (self.components_[:, own] ** 2).sum(axis=1) for name, own in blocks.items()}

    @property
    def shrinkage_factors_(self) -> Vector:
        """Scores of new rows over those of rows of the fit along each component (k,): see :meth:`transform`."""
        check_is_fitted(self)
        centred = isinstance(self.center, bool | np.bool_) and bool(self.center)
        return factors_of(self._result, centred, rank_of(maps_of(self)))

    def _shrunk_map(self, shrinkage: str) -> RowMap:
        return shrunk_map(self, shrinkage)

    def _learns(self, rows: Rows) -> tuple[RowPreprocessor, ...]:
        # Given numbers and rules would be applied to the columns before the covariates are taken out of their moments.
        plain = all(isinstance(one, bool | np.bool_) for one in (self.center, self.scale))
        return () if plain and self.solver in ("auto", "covariance") else super()._learns(rows)

    def _solve(self, kept: KeptRows) -> PCAResult:
        """Return the solution from the moments of all rows; of fewer than the components, as many as there are."""
        check_n_components(self.n_components, None, self.n_features_in_)
        settings = self._settings(standardization_of(self, self.n_features_in_))
        settings = replace(settings, covariates=self._steps.summed, roundings=kept.roundings)
        needed = self.n_features_in_ if self.n_components == "mle" else self.n_components
        if isinstance(needed, int | np.integer) and kept.n_samples_ < needed:
            settings = replace(settings, n_components=None)
        return solve_moments(with_apart(self, kept.state, kept.apart), settings, omitted=kept.n_omitted_)

    @solving
    def _whole_spectrum(self, what: str) -> Vector:
        roundings, left, q = self._result.roundings, self._result.left, self._steps.summed
        state, q = (whole_state(self, what), q) if left is None else (left, 0)
        settings = self._settings(standardization_of(self, self.n_features_in_))
        settings = replace(settings, n_components=None, covariates=q, roundings=roundings)
        return solve_moments(state, settings).explained_variance_

    def of_group(self, group: object) -> PCA:
        """Return the model of the rows of one group of ``fit(X, groups=labels)``, from the kept moments: no read.

        Parameters
        ----------
        group : str or int
            One of ``groups_``.

        Returns
        -------
        PCA
            As fitted to those rows alone, to rounding; of fewer rows than ``n_components`` one component per row, and
            with as many as this model where :class:`bigpca.rules.CrossValidated` chose them.
            ``n_omitted_`` is 0: rows that were left out are in no group.

        Raises
        ------
        ValueError
            For another group, one of fewer than two rows, and for models without groups.

        Examples
        --------
        >>> X = np.random.default_rng(0).standard_normal((60, 3))
        >>> pca = PCA(1).fit(X, groups=np.repeat(["a", "b", "c"], 20))
        >>> pca.groups_.tolist(), pca.of_group("b").n_samples_, pca.without_group("b").n_samples_
        (['a', 'b', 'c'], 20, 40)
        """
        labels, states = moments_of_groups(self)
        return model_of(self, states[place_of(group, labels)], what=f"the group {group!r}")

    def without_group(self, group: object) -> PCA:
        """Return the model of the rows of all groups but one, from the kept moments: no read, and no subtraction.

        Parameters
        ----------
        group : str or int
            One of ``groups_``.

        Returns
        -------
        PCA
            As fitted to the rows of the other groups, to rounding.

        Raises
        ------
        ValueError
            As :meth:`of_group`, and if there is no other group.
        """
        labels, states = moments_of_groups(self)
        i = place_of(group, labels)
        if len(states) < 2:
            raise ValueError(f"all rows are in the group {group!r}: without it, none are left. Fit more groups.")
        return model_of(self, next(islice(left_out(states), i, None)))

    _statistics = "moments of all rows"

    def _unsummed(self, what: str) -> str:
        if self.nan_policy == "em":
            return without_moments(what)
        if self.solver not in ("krylov", "dot"):  # a fit reports an unknown one
            return ""
        return (
            f'{what} needs the moments of all rows, which solver="{self.solver}" never computes. Use '
            'solver="covariance", or "auto" if d x d fits.'
        )

    def _missing_state(self, what: str) -> str:
        if self.solver_ == "covariance":
            return super()._missing_state(what)
        return (
            f'{what} needs the moments of all rows, but this model was fitted by solver="{self.solver_}", which '
            'keeps none. Fit with solver="covariance", or begin with partial_fit.'
        )

    def _empty(self, d: int) -> Moments:
        return Moments(d)


def _cross_validated(model: PCA) -> CrossValidated | None:
    """Return the rule for the number of components, if it needs folds."""
    rule = by_name(model.n_components)
    return rule if isinstance(rule, CrossValidated) else None


def _moments_fit(model: PCA, rows: Rows, like: KeptRows | None = None) -> CovarianceFit:
    """Plan the one read into moments: of added rows, of rows beside covariates, or of each group or fold of rows.

    Rows are added to those of ``like``, where its state is not None.

    Raises
    ------
    ValueError
        For parameters that need more than these moments.
    """
    from bigpca.estimators.linear.choosing import reject_undecided

    q, groups = summed_covariates(model, rows), rows.groups
    rule = _cross_validated(model)
    named = {"covariates": q, "groups": groups is not None, "CrossValidated": rule is not None}
    what = " and ".join(name for name, there in named.items() if there)
    for name, value, allowed, known in (
        ("solver", model.solver, '"covariance"', model.solver in ("auto", "covariance")),
        ("nan_policy", model.nan_policy, '"raise" or "omit"', model.nan_policy not in INCOMPLETE),
    ):
        if what and not known:
            raise ValueError(f"{name} = {value!r} cannot be used with {what}: use {allowed}.")
    reject_undecided(model.n_components, variances=True)
    old, before = None if like is None else like.state, None
    if like is not None:
        # Products have the precision of one read of all rows, with those before.
        before = 0 if old is None else old.count
        size, keep = Moments(rows.viewed_columns).state_bytes, setting(model, "keep_state_bytes")
        if size > keep:
            raise ValueError(not_kept("partial_fit", model._statistics, size, keep))
    joined, standardization = rows_to_fit(model, beside_covariates(rows) if q else rows, q)
    check_enough_rows(joined.n_present, minimum=1 if before is not None else 2, sums=joined.counted.sums)
    settings = replace(model._settings(standardization, rows.seed), covariates=q)
    fit = CovarianceFit(joined, settings, before)
    if groups is None and rule is None:
        check_folds(old, fit.template)
        return fit
    n_folds, offset = 1 if rule is None else rule.cv, getattr(old, "n_rows", 0)
    folds = FoldStates(Moments(joined.n_columns), n_folds, offset=offset)
    of_groups = placed_in_folds(folds, joined, groups, least=1 if rule is None or before is not None else 2)
    if groups is not None and of_groups.state_bytes > settings.keep_state_bytes:
        statistics = f"moments of {of_groups.n_folds} groups" if of_groups.n_folds > 1 else model._statistics
        kept = settings.keep_state_bytes
        raise ValueError(not_kept("fit(X, groups=labels)", statistics, of_groups.state_bytes, kept))
    check_folds(old, of_groups)
    return replace(fit, groups=of_groups)


def summed_covariates(model: PCA, rows: Rows) -> int:
    """Return how many covariates are summed beside the rows; 0 if a map of the rows takes their effect out."""
    maps = preprocessors_of(model) if rows.preprocessing is None else rows.preprocessing
    learned = any(isinstance(one.settled, Residuals) for one in maps)
    return 0 if learned or rows.covariates is None else rows.covariates.viewed_columns


def moments_of_groups(model: PCA) -> tuple[list[str | int], tuple[Moments, ...]]:
    """Return the labels of the groups of a fit that have rows, and the moments of each.

    Raises
    ------
    TypeError, ValueError
        For another model, and one without groups.
    """
    if not isinstance(model, PCA):
        raise TypeError(f"{an(type(model).__name__)} was given; a PCA was expected, fitted with fit(X, groups=labels).")
    check_is_fitted(model)
    check_same_steps(model)
    folds = kept_by(model).state
    if not isinstance(folds, FoldStates) or folds.labels is None:
        raise ValueError("the model has no groups. Fit with PCA.fit(X, groups=labels).")
    held = folds.present
    return np.asarray(held.labels).tolist(), cast("tuple[Moments, ...]", held.states)


def place_of(group: Unchecked, known: list[str | int]) -> int:
    """Return the place of a group among those of a fit; raises ValueError if it is none of them."""
    if not isinstance(group, Hashable) or group not in known:
        shown = brief(", ".join(map(repr, known)), 200)
        raise ValueError(f"group = {group!r} is none of the {len(known)} groups with rows: {shown}.")
    return known.index(group)


def moments_of_both(a: Unchecked, b: Unchecked, what: str) -> tuple[Moments, Moments]:
    """Return the moments of the rows of two PCAs in one unit, that of the rows; without the effect of covariates.

    Raises
    ------
    TypeError, ValueError
        For other models, of other features or preprocessing, and for those without moments.
    """
    for one in (a, b):
        if not isinstance(one, PCA):
            raise TypeError(f"{an(type(one).__name__)} was given; two fitted PCAs were expected.")
        check_is_fitted(one)
    names = [list(getattr(one, "feature_names_in_", range(one.n_features_in_))) for one in (a, b)]
    maps = [one._steps.preprocessing for one in (a, b)]
    if names[0] != names[1] or maps[0] != maps[1]:
        raise ValueError(
            f"models of {len(names[0])} and {len(names[1])} features, preprocessed by {maps[0]} and {maps[1]}, cannot "
            "be compared. Fit both on the same columns, with the same preprocess."
        )
    return in_units_of_rows(a, residual_state(a, what)), in_units_of_rows(b, residual_state(b, what))


def model_of(model: PCA, state: Moments, n_components: NComponents = None, what: str = "array") -> PCA:
    """Return the model of other rows of the same features, from their moments; None keeps the parameter."""
    check_enough_rows(state.count, sums=state.weight_sums, what=what)
    other = twin(model)
    if n_components is not None or _cross_validated(model) is not None:  # which has no folds here
        other.n_components = model.n_components_ if n_components is None else n_components
    solve_later(other, KeptRows(state, 0, kept_by(model).roundings))
    return other


def models_without_each(model: PCA) -> Iterator[PCA]:
    """Iterate over the models of all groups but one, with as many components as the model.

    Raises
    ------
    ValueError
        For fewer than two groups, and if the other groups have too few rows.
    """
    (labels, states), k = moments_of_groups(model), model.n_components_
    if len(states) < 2:
        raise ValueError(f"all rows are in the group {labels[0]!r}: without it, none are left. Fit more groups.")
    for label, others in zip(labels, left_out(states), strict=True):
        found = model_of(model, others, k)
        if found.n_components_ < k:
            raise ValueError(
                f"without the group {label!r}, {others.count} rows are left, with fewer than {k} components. Fit fewer."
            )
        yield found
