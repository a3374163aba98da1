"""Rows that are judged by a fitted subspace: statistics and their limits, contributions of features, outliers.

The methods of :class:`RowStatistics`, which linear models have; then the row maps behind them, and the limits of T2 and
SPE for a share of the rows: quantiles of given values, and the theory of Gaussian rows.

With ``x_s = (x - mean) / scale`` and ``t = V x_s``, a row is unusual within the subspace if its T2 is large, and
outside it if its SPE is. The statistics are computed in the precision of the rows (float32 rows in float32), from plain
scores even if ``whiten``, and from the residual itself, not from a difference of squares.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, chi2, f
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.arrays import Array, DType, Input, Integers, Path, Vector, working_dtype
from bigpca.data.provenance import STATISTICS
from bigpca.devices import Namespace
from bigpca.engine.driver import solving
from bigpca.engine.events import ProgressArgument
from bigpca.errors import check_choice, closest, counted, positive_integer, real_number
from bigpca.estimators.linear.maps import LogLikelihood, Projection, limits_of, orthonormality_error
from bigpca.estimators.linear.spectrum import PCAResult
from bigpca.estimators.shared.fit import PLANNED_ROWS
from bigpca.estimators.shared.inputs import BaseEstimator, Lazy, Unchecked, settle_non_finite
from bigpca.estimators.shared.opening import maps_of, read_mapped, rows_like
from bigpca.estimators.shared.outputs import Destination, mapped_to_numbers, mapped_to_rows, maps_rows
from bigpca.estimators.shared.transformer import Estimator, Found
from bigpca.host import HOST
from bigpca.passes.accumulators.kept_rows import RowSample
from bigpca.passes.accumulators.moments import ColumnMoments
from bigpca.passes.project import keys_of
from bigpca.passes.reading.blocks import INCOMPLETE
from bigpca.passes.reading.row_maps import Float64Map, MapStep, RowMap
from bigpca.passes.residuals import rank_of
from bigpca.passes.summaries import read_ends

CONTRIBUTIONS = ("t2", "spe")
ROUNDING = 1e-9  # of n (1 - confidence): 10 * (1 - 0.9) is 0.9999999999999998


@dataclass(frozen=True)
class Outliers:
    """The most unusual rows, in decreasing order.

    Attributes
    ----------
    rows : ndarray of shape (m,), int64
        Row numbers; of equal rows the first.
    values : ndarray of shape (m,), float64
        Their statistic.
    keys : ndarray of shape (m,), str, or None, default None
        Their keys; None if the rows have none.
    """

    rows: Integers
    values: Vector
    keys: NDArray[np.str_] | None = None


def has_covariance(model: BaseEstimator) -> bool:
    """Whether components are orthonormal; otherwise raises AttributeError, as ``available_if`` requires."""
    if not model._orthonormal:
        off = f" (off by {orthonormality_error(model.components_):.2g})" if model.__sklearn_is_fitted__() else ""
        raise AttributeError(
            f"get_covariance and densities require orthonormal components, but the components are not orthonormal{off}"
            '. Fit a model with orthonormal components, such as approximation="nystrom".'
        )
    return True


class Density(Estimator[Found]):
    """A fitted model of the density of rows."""

    @property
    def _orthonormal(self) -> bool:
        """Whether the components are orthonormal; else they are unit vectors, and the model has no density."""
        return True

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    @solving
    @maps_rows
    def score_samples(self, X: Input) -> Lazy:
        """Return the log-likelihood of each row under the model: probabilistic PCA (of scaled features), or factors.

        Returns
        -------
        ndarray or dask.array.Array of shape (n,)
            In nats; NaN for rows omitted by ``nan_policy``. Lazy if X is lazy. For a DataArray, one with the
            coordinates of its samples.

        Raises
        ------
        ValueError
            If the model has no density: the noise variance is 0 and k < d, or that of a column is.
        """
        check_is_fitted(self)
        return mapped_to_numbers(self, X, likelihood_map(self), "log_likelihood")

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    @solving
    @maps_rows
    def score(self, X: Input, y: Input | None = None) -> float:
        """Return the mean log-likelihood of the rows, in one read; ``nan_policy="omit"`` leaves out rows with NaN.

        Rows bring their covariates, if the fit took some out: ``bigpca.open(X, covariates=Z)``.

        Parameters
        ----------
        y : ignored, default None

        Returns
        -------
        float
            In nats per row.

        Raises
        ------
        ValueError
            As :meth:`score_samples`, and if all rows are left out.
        MemoryBudgetError
            Before the read, if its blocks do not fit.
        """
        check_is_fitted(self)
        flops = 2 * self.n_features_in_ * (self.n_components_ + 2)
        found = read_mapped(rows_like(self, X), likelihood_map(self), ColumnMoments(1), "likelihood", flops=flops)
        return float(found.mean[0])


class RowStatistics(Density[PCAResult]):
    """A fitted model with orthonormal axes V (k, d) and a variance along each, under which rows are compared."""

    @abstractmethod
    def _whole_spectrum(self, what: str) -> Vector:
        """Return all eigenvalues of the covariance, descending, from the kept state.

        Raises
        ------
        ValueError
            If the state is not kept: ``what`` requires it.
        """

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    @maps_rows
    def hotelling_t2(self, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return Hotelling's T2 of each row: ``sum_a t_a^2 / lambda_a``, its squared distance within the subspace.

        Axes whose variance is only rounding (below ``min(n, d)`` eps of the largest) are not counted.

        Returns
        -------
        ndarray or dask.array.Array of shape (n,), or (n, 1) in ``out``, float64
            Lazy if X is lazy: one read of X when it is computed. For a DataArray, one with the coordinates of its
            samples.
        """
        return one_statistic(self, X, "t2", out, overwrite)

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    @maps_rows
    def spe(self, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return the squared prediction error (Q) of each row: ``|x_s - V't|^2``, its squared distance to the subspace.

        In the units of the scaled features; 0 if k = d.

        Returns
        -------
        ndarray or dask.array.Array of shape (n,), or (n, 1) in ``out``, float64
            Lazy if X is lazy: one read of X when it is computed. For a DataArray, one with the coordinates of its
            samples.
        """
        return one_statistic(self, X, "spe", out, overwrite)

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    @maps_rows
    def mahalanobis(self, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return the squared Mahalanobis distance of each row to the mean, under probabilistic PCA.

        ``sum_a t_a^2 / max(lambda_a, noise) + SPE / noise``, which is ``x_s' P x_s`` with P of :meth:`get_precision`
        and the noise variance ``noise_variance_``. It is squared, as in scikit-learn's covariance estimators. With k =
        d it equals theirs except for their divisor n, which makes theirs larger by n / (n - 1).

        Returns
        -------
        ndarray or dask.array.Array of shape (n,), or (n, 1) in ``out``, float64
            Lazy if X is lazy: one read of X when it is computed. For a DataArray, one with the coordinates of its
            samples.

        Raises
        ------
        ValueError
            If the noise variance is 0 and k < d, or a variance is 0: the model has no density.
        """
        return one_statistic(self, X, "mahalanobis", out, overwrite)

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    @maps_rows
    def statistics(
        self,
        X: Input,
        names: str | Sequence[str] = ("t2", "spe"),
        *,
        out: Path | None = None,
        overwrite: bool = False,
        progress: ProgressArgument = None,
        keys: Input | None = None,
    ) -> Lazy:
        """Return several statistics of each row in one read.

        Parameters
        ----------
        names : str or sequence of {"t2", "spe", "mahalanobis"}, default ("t2", "spe")
            The columns: :meth:`hotelling_t2`, :meth:`spe` and :meth:`mahalanobis`.
        out : path of a new Zarr array or table, or None, default None
            As for :meth:`transform`; the columns of a table have these names.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, m), float64
            Lazy if X is lazy. With ``nan_policy="omit"``, rows with NaN have NaN. For a DataArray, one with the
            coordinates of its samples and a dimension ``statistic``.

        Examples
        --------
        >>> from bigpca import PCA
        >>> pca = PCA(1).fit([[-1.0, 0.1], [1.0, -0.1], [-1.0, -0.1], [1.0, 0.1]])
        >>> pca.statistics([[2.0, 0.0], [0.0, 2.0]]).round(2).tolist()
        [[3.0, 0.0], [0.0, 4.0]]
        """
        check_is_fitted(self)
        to = Destination(out, overwrite, progress, keys, check_statistics(names), "statistics")
        f = statistics_map(self, to.names)
        return mapped_to_numbers(self, X, f, "statistics", to, dim="statistic", values=to.names)

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    @maps_rows
    def contributions(self, X: Input, of: str = "spe", *, out: Path | None = None, overwrite: bool = False) -> Lazy:
        """Return what each feature contributes to T2 or SPE of each row.

        Parameters
        ----------
        of : {"t2", "spe"}, default "spe"
            "spe": the residual ``x_s - V't``. Its squares add up to SPE, and its signs show on which side of the fit a
            feature is. "t2": ``x_sj sum_a v_aj t_a / lambda_a``, which add up to T2 and may be negative.

        Returns
        -------
        ndarray or dask.array.Array of shape (n, d)
            In units of the scaled features; lazy if X is lazy. float32 for float32 and narrower rows. For a DataArray,
            one on its grid.

        Notes
        -----
        Westerhuis, Gurden & Smilde (2000).
        """
        check_is_fitted(self)
        check_choice("of", of, CONTRIBUTIONS)
        f = Contributions(plain_projection(self), self._result.known_variances, of)
        names = tuple(map(str, getattr(self, "feature_names_in_", ())))
        to = Destination(out, overwrite, names=names, what="contributions")
        return mapped_to_rows(self, X, f, to)

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    @maps_rows
    def top_outliers(
        self, X: Input, n: int = 10, *, of: str = "mahalanobis", progress: ProgressArgument = None
    ) -> Outliers:
        """Return the rows with the largest statistic, in one read and bounded memory.

        Parameters
        ----------
        n : int, default 10
            How many to return, at most all rows. With ``nan_policy="omit"``, rows with NaN are left out.
        of : {"mahalanobis", "t2", "spe"}, default "mahalanobis"
            The statistic.

        Returns
        -------
        Outliers
            Row numbers, values, and keys if the source stores keys.

        Examples
        --------
        >>> from bigpca import PCA
        >>> X = np.random.default_rng(0).standard_normal((500, 3)) * [5, 3, 1]
        >>> X[7] = [0, 0, 20]
        >>> PCA(2).fit(X).top_outliers(X, n=1).rows.tolist()
        [7]
        """
        check_is_fitted(self)
        n = positive_integer("n", n)
        check_choice("of", of, STATISTICS)
        f = statistics_map(self, (of,))
        rows = rows_like(self, X, use="map")
        step = MapStep(f, 1, 4 * self.n_features_in_ * self.n_components_)
        ends = read_ends(rows.mapped(step), n, progress=progress).ends
        keys = keys_of(rows)
        return Outliers(ends.highest[0], ends.highest_scores[0], None if keys is None else keys[ends.highest[0]])

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    def t2_limit(
        self, confidence: float = 0.95, X: Input | None = None, *, samples: str = "new", limit: str = "empirical"
    ) -> float:
        """Return the T2 below which a given share of the rows falls.

        Parameters
        ----------
        confidence : float in (0, 1), default 0.95
            The share.
        X : array-like, Dask array, path and so on, of shape (n, d), or None, default None
            Typical rows for ``limit="empirical"``, which are read once; preferably rows that were not fitted.
        samples : {"new", "training"}, default "new"
            For ``limit="theory"``: whether rows are new or were fitted; fitted rows have a smaller T2.
        limit : {"empirical", "theory"}, default "empirical"
            "empirical": the quantile of the T2 of X. "theory", for Gaussian rows: ``k (n^2 - 1) / (n (n - k)) F(k, n -
            k)`` for new rows, ``(n - 1)^2 / n Beta(k / 2, (n - k - 1) / 2)`` for fitted rows, where k is the number of
            axes that count and n the number of rows or the sum of their weights; exact if k = d. On features after a
            ReLU, a limit of "95 %" may cover only 85 %.

        Returns
        -------
        float

        Raises
        ------
        ValueError
            If X is missing or has too few rows for the confidence; with "theory", if rows are not centred or too few.

        Notes
        -----
        Tracy, Young & Mason (1992).
        """
        check_is_fitted(self)
        real_number("confidence", confidence, "(0, 1)", "a share of the rows such as 0.95")
        check_choice("samples", samples, ("new", "training"))
        check_choice("limit", limit, ("empirical", "theory"))
        if limit == "empirical":
            return quantile_limit(typical_values(self, X, "t2"), confidence)
        check_centred(self, "the distribution of T2")
        k = int(np.count_nonzero(self._result.known_variances))
        n, beside = self.sum_weights_, rank_of(maps_of(self))
        # The variances have the divisor n - 1, whatever covariates took out.
        return gaussian_t2_limit(confidence, k, n - beside, samples) * float((n - 1) / (n - 1 - beside))

    @available_if(has_covariance)  # type: ignore[untyped-decorator]
    def spe_limit(self, confidence: float = 0.95, X: Input | None = None, *, limit: str = "empirical") -> float:
        """Return the SPE below which a given share of the rows falls.

        Parameters
        ----------
        confidence : float in (0, 1), default 0.95
            The share.
        X : array-like, Dask array, path and so on, of shape (n, d), or None, default None
            Typical rows for "empirical", which are read once; preferably rows that were not fitted.
        limit : {"empirical", "box"}, default "empirical"
            "empirical": the quantile of the SPE of X. "box", for Gaussian rows: the quantile of ``g chi^2(h)`` with the
            mean and variance that follow from all eigenvalues of the covariance. It requires the kept state of a
            :class:`bigpca.PCA`, and costs one eigenproblem and no read.

        Returns
        -------
        float
            In the units of :meth:`spe`.

        Raises
        ------
        ValueError
            If X is missing or has too few rows for the confidence, or the state was not kept.

        Notes
        -----
        Box (1954).
        """
        check_is_fitted(self)
        real_number("confidence", confidence, "(0, 1)", "a share of the rows such as 0.95")
        check_choice("limit", limit, ("empirical", "box"))
        if limit == "empirical":
            return quantile_limit(typical_values(self, X, "spe"), confidence)
        check_centred(self, "the distribution of SPE")
        # For Gaussian rows SPE is a sum of chi^2(1), weighted by the eigenvalues of the axes that were not kept.
        left = self._whole_spectrum(f'spe_limit(limit="{limit}")')[self.n_components_ :]
        unit = power_unit(left)  # the squares of very large or small values leave the range of float64
        left /= unit
        return unit * chi_square_limit(confidence, float(left.sum()), 2 * float((left**2).sum()))


def one_statistic(model: RowStatistics, X: Unchecked, name: str, out: Path | None, overwrite: bool) -> Lazy:
    """Return one statistic of each row, by name, in memory or at a path."""
    check_is_fitted(model)
    to = Destination(out, overwrite, names=(name,), what="statistics")
    return mapped_to_numbers(model, X, statistics_map(model, to.names), name, to)


def statistics_map(model: RowStatistics, names: tuple[str, ...]) -> StatisticsMap:
    """Return the map from rows to statistics; rejects models that have no density, if one of them needs it."""
    if "mahalanobis" in names:
        check_density(model)
    return StatisticsMap(plain_projection(model), model._result.known_variances, model.noise_variance_, names)


def typical_values(model: RowStatistics, X: Unchecked, name: str) -> Vector:
    """Return a statistic of the rows that have one."""
    if X is None:
        raise ValueError(
            "X is missing: an empirical limit is a quantile of the statistics of typical rows. Give rows, or "
            "choose a limit from theory."
        )
    rows, flops = rows_like(model, X), 4 * model.n_features_in_ * model.n_components_
    if rows.counted.weights is not None:
        raise TypeError("the rows have weights, but a limit from rows counts each once. Open them without: open(X).")
    kept = RowSample(1, PLANNED_ROWS if rows.order.open_ended else rows.n_rows, 8.0)
    return np.concatenate(read_mapped(rows, statistics_map(model, (name,)), kept, name, flops=flops).rows())[:, 0]


def likelihood_map(model: BaseEstimator) -> LogLikelihood:
    """Return the map of rows to their log-likelihoods, under noise of one variance, or of one in each column.

    Raises
    ------
    ValueError
        If the model has no density.
    """
    check_density(model)
    noise = model.noise_variance_
    if np.ndim(noise) == 0:
        return LogLikelihood(plain_projection(model), model.explained_variance_, noise)
    # Of columns divided by the deviations of their noise the model is a PCA with noise of one variance; the geometric
    # mean of these deviations is its unit, so that the determinant is that of the columns.
    unit = float(np.exp(np.log(noise).mean() / 2))
    scale = np.sqrt(noise) / unit
    _, s, axes = np.linalg.svd(model.components_ / scale, full_matrices=False)
    policy = "raise" if model.nan_policy in INCOMPLETE else model.nan_policy
    return LogLikelihood(Projection(model.mean_, scale, axes, None, policy), s**2 + unit**2, unit**2)


def plain_projection(model: BaseEstimator) -> Projection:
    """Return the map of complete rows to scores that are not whitened."""
    policy = "raise" if model.nan_policy in INCOMPLETE else model.nan_policy
    return Projection(model.mean_, model.scale_, model.components_, None, policy, limits=limits_of(model.scale))


def check_density(model: BaseEstimator) -> None:
    """Reject a model whose covariance is singular.

    Raises
    ------
    ValueError
    """
    noise = model.noise_variance_
    if np.ndim(noise):
        if not (noise > 0).all():
            raise ValueError(
                f"the model has no density: {np.count_nonzero(noise <= 0)} of {len(noise)} columns are constant. Leave "
                "them out."
            )
        return
    degenerate = noise <= 0 and model.n_components_ < model.n_features_in_
    if degenerate or (model.explained_variance_ <= 0).any():
        raise ValueError(
            f"the model has no density: {model.n_components_} components of {model.n_features_in_} features with "
            f"noise variance {noise:g} and least variance {model.explained_variance_.min():g}; "
            f"positive values were expected. Keep fewer components."
        )


def check_centred(model: RowStatistics, what: str) -> None:
    """Reject a model of rows that are not about their mean: ``what`` requires that.

    Raises
    ------
    ValueError
    """
    if not isinstance(model.center, bool | np.bool_) or not model.center:
        raise ValueError(
            f"{what} is known for rows about their mean, but the model has center={model.center!r}. Fit with "
            f"center=True."
        )


def check_statistics(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of statistics as a tuple, after checking them.

    Raises
    ------
    ValueError
        For unknown and doubled names, and for none.

    Examples
    --------
    >>> check_statistics("t2"), check_statistics(["spe", "t2"])
    (('t2',), ('spe', 't2'))
    """
    found = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (names,)
    for name in found:
        if name not in STATISTICS:
            raise ValueError(
                f"{name!r} is not a statistic; {', '.join(map(repr, STATISTICS))} were expected."
                f"{closest(str(name), STATISTICS)}"
            )
    if not found or len(set(found)) < len(found):
        raise ValueError(
            f"statistics = {list(found)!r}; one or more different names of {list(STATISTICS)} were expected."
        )
    return found


@dataclass(frozen=True)
class StatisticsMap(Float64Map):
    """Statistics of rows under a model with orthonormal axes V (k, d), one column each.

    With ``x_s = (x - mean) / scale`` and ``t = V x_s``: T2 is ``sum_a t_a^2 / lambda_a``; SPE is ``|x_s - V't|^2``, of
    the residual itself, because a difference of two large squares would cancel; and the squared Mahalanobis distance is
    ``sum_a t_a^2 / max(lambda_a, noise) + SPE / noise``, by the precision of probabilistic PCA.

    Attributes
    ----------
    projection : Projection
        Without whitening.
    variances : ndarray of shape (k,)
        lambda_a; 0 for axes that do not count.
    noise : float
        Variance along each axis that was not kept.
    names : tuple of {"t2", "spe", "mahalanobis"}
        The columns.
    """

    projection: Projection
    variances: Vector
    noise: float
    names: tuple[str, ...]

    def on(self, device: Namespace) -> tuple[RowMap, Namespace]:
        """As the projection."""
        moved, place = self.projection.on(device)
        return replace(self, projection=cast("Projection", moved)), place

    def apply(self, rows: Array, where: str) -> Array:
        """Return the statistics (b, m) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        found = np.empty((len(rows), len(self.names)))
        within, outside = self._weights()
        self.projection.check_limits(rows, where)
        with np.errstate(invalid="ignore", over="ignore"):
            for start, scores, squares in scored(self.projection, rows, residuals=bool(outside.any())):
                out = found[start : start + len(scores)]
                np.matmul(scores.astype(np.float64) ** 2, within, out=out)
                if squares is not None:
                    out += np.outer(squares, outside)
        settle_non_finite(rows, found, where, self.projection.nan_policy, "statistics")
        return found

    def _weights(self) -> tuple[NDArray[np.float64], Vector]:
        """Return the weights of squared scores (k, m), and of squared residuals (m,)."""
        both = {
            "t2": (_inverse(self.variances), 0.0),
            "spe": (np.zeros(len(self.variances)), 1.0),
            "mahalanobis": (_inverse(np.maximum(self.variances, self.noise)), 1 / self.noise if self.noise > 0 else 0),
        }
        chosen = [both[name] for name in self.names]
        return np.column_stack([squares for squares, _ in chosen]), np.array([rest for _, rest in chosen])

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows and their reconstruction by strip, two copies of the axes, and the statistics."""
        k = len(self.variances)
        strip = self.projection.device.centred_rows(rows, d, itemsize)
        held = (2 * strip + 4) * d * itemsize + 2 * k * d * itemsize
        return held + strip * k * (itemsize + 16) + 8 * (rows + 4 * strip) * len(self.names) + rows * len(self.names), 0


@dataclass(frozen=True)
class Contributions(RowMap):
    """What each feature contributes to a statistic of a row, in units of the scaled features.

    SPE: the residual ``x_s - V't`` itself, whose squares add up to the SPE and whose signs show on which side a feature
    lies. T2: ``x_sj sum_a v_aj t_a / lambda_a``, which add up to T2 and may be negative.

    Attributes
    ----------
    projection, variances
        As for :class:`StatisticsMap`.
    of : {"t2", "spe"}

    Notes
    -----
    Westerhuis, Gurden & Smilde (2000).
    """

    projection: Projection
    variances: Vector
    of: str

    def apply(self, rows: Array, where: str) -> Array:
        """Return the contributions (b, d) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        found = np.empty(rows.shape, working_dtype(rows.dtype))
        axes = self.projection.components
        # T2 in units of the largest deviation, a power of two: the inverse of a variance can leave the range of float32
        exponent = int(np.frexp(np.sqrt(self.variances.max(initial=0.0)))[1])
        weighted = axes if self.of == "spe" else axes * _inverse(np.ldexp(self.variances, -2 * exponent))[:, None]
        weighted = weighted.astype(found.dtype)
        self.projection.check_limits(rows, where)
        with np.errstate(invalid="ignore", over="ignore"):
            mean, rest, inverse, columns = _standardization(self.projection, self.projection.dtype_of(rows.dtype))
            for start, scores, shifted in HOST.centred(rows, mean, columns, rest, inverse):
                if self.of == "t2":
                    scores = np.ldexp(scores, -exponent)
                out = np.matmul(scores, weighted, out=found[start : start + len(scores)])
                if self.of == "spe":
                    np.subtract(shifted, out, out=out)
                else:
                    out *= np.ldexp(shifted, -exponent, out=shifted)
        settle_non_finite(rows, found, where, self.projection.nan_policy, "contributions")
        return found

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Contributions and the check that they are finite, centred rows by strip, and three copies of the axes."""
        k, strip = len(self.variances), HOST.centred_rows(rows, d, itemsize)
        copies = k * d * (2 * itemsize + 8)
        return rows * d * (itemsize + 1) + (strip + 4) * d * itemsize + copies + strip * k * itemsize, 0


def scored(projection: Projection, rows: Array, *, residuals: bool) -> Iterator[tuple[int, Array, Vector | None]]:
    """Yield (first row, scores (b, k), squared residuals (b,) if asked for) of parts of the rows."""
    k, d = projection.components.shape
    mean, rest, inverse, axes = _standardization(projection, projection.dtype_of(rows.dtype))
    parts = projection.device.scored(rows, mean, axes, rest, inverse, residuals=residuals and k < d)
    for start, scores, squares in parts:
        yield start, scores, _no_residuals(scores) if residuals and k == d else squares


def _standardization(projection: Projection, dtype: DType) -> tuple[Array, Array | None, Array | None, Array]:
    """Return mean, rest and inverse scale (d,), and axes (d, k), with ``x - mean = (x - mean in dtype) + rest``."""
    mean = projection.mean.astype(dtype)
    rest = (mean - projection.mean).astype(dtype) if dtype != np.float64 else None
    inverse = None if projection.scale is None else (1 / projection.scale).astype(dtype)
    return mean, rest, inverse, np.ascontiguousarray(projection.components.T, dtype)


def _no_residuals(scores: Array) -> Vector:
    """Return the squared residuals where no direction is left; rows that are not finite have no statistic either."""
    return np.where(np.isfinite(scores).all(axis=1), 0.0, np.nan)


def _inverse(variances: Vector) -> Vector:
    """Return ``1 / variances``; 0 for variances of 0, whose axes do not count."""
    return np.where(variances > 0, 1 / np.where(variances > 0, variances, 1.0), 0.0)


def quantile_limit(values: Vector, confidence: float) -> float:
    """Return the empirical quantile of the statistics of rows (n,), without NaN.

    Raises
    ------
    ValueError
        If there are too few rows for one to be expected above the limit.
    """
    n = len(values)
    if n * (1 - confidence) < 1 - ROUNDING:
        raise ValueError(
            f"{counted(n, 'row')} cannot determine the {confidence:g} quantile, which takes at least "
            f"{int(np.ceil(1 / (1 - confidence)))}. Give more rows, a smaller confidence, or a limit from theory."
        )
    return float(np.quantile(values, confidence))


def gaussian_t2_limit(confidence: float, k: int, n: float, rows: str) -> float:
    """Return the limit of T2 of Gaussian rows under k axes fitted to n rows.

    New rows: ``k (n^2 - 1) / (n (n - k)) F(k, n - k)``; rows of the fit itself, which the axes follow:
    ``(n - 1)^2 / n Beta(k / 2, (n - k - 1) / 2)``.

    Raises
    ------
    ValueError
        If n is at most k (new rows) or k + 1 (rows of the fit).

    Notes
    -----
    Tracy, Young & Mason (1992). Exact for k = d; with fewer axes, which are chosen for their
    variance, it holds for large n.

    Examples
    --------
    >>> round(gaussian_t2_limit(0.95, 2, 40, "new"), 4), round(gaussian_t2_limit(0.95, 2, 40, "training"), 4)
    (6.8269, 5.6848)
    """
    least = k + (2 if rows == "training" else 1)
    if n < least:
        raise ValueError(
            f"{n:g} rows were fitted, but the distribution of T2 of {k} axes requires at least {least}. Keep fewer "
            f"components, or use an empirical limit."
        )
    if rows == "new":
        return float(k * (n**2 - 1) / (n * (n - k)) * f.ppf(confidence, k, n - k))
    return float((n - 1) ** 2 / n * beta.ppf(confidence, k / 2, (n - k - 1) / 2))


def chi_square_limit(confidence: float, mean: float, variance: float) -> float:
    """Return the limit of ``g chi^2(h)`` with this mean and variance: ``g = variance / (2 mean)``, ``h = 2 mean^2 /
    variance``.

    With those of the SPE of Gaussian rows, the sum and twice the sum of squares of the residual eigenvalues, it is the
    limit of Box (1954).
    """
    if mean <= 0 or variance <= 0:
        return max(0.0, mean)
    return float(variance / (2 * mean) * chi2.ppf(confidence, 2 * mean**2 / variance))


def power_unit(values: Vector) -> float:
    """Return a power of two near the largest value: divided by it, values have powers in the range of float64."""
    return float(np.ldexp(1.0, int(np.frexp(np.max(values, initial=0.0))[1])))
