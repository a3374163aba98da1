"""Methods of linear models that judge rows: statistics and their limits, contributions of features, outliers.

With ``x_s = (x - mean) / scale`` and ``t = V x_s``, a row is unusual within the subspace if its T2 is large, and
outside it if its SPE is. The statistics are computed in the precision of the rows (float32 rows in float32), from plain
scores even if ``whiten``, and from the residual itself, not from a difference of squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from bigpca.errors import counted
from bigpca.estimators.linear.judging import (
    Judging,
    check_centred,
    check_density,
    counted_variances,
    has_covariance,
    plain_projection,
)
from bigpca.estimators.linear.limits import (
    check_choice,
    check_confidence,
    chi_square_limit,
    gaussian_t2_limit,
    jackson_mudholkar_limit,
    power_sums,
    power_unit,
    quantile_limit,
)
from bigpca.estimators.linear.statistics import (
    CONTRIBUTIONS,
    STATISTICS,
    Contributions,
    RowStatistics,
    check_statistics,
)
from bigpca.estimators.shared.inputs import Input, Lazy
from bigpca.estimators.shared.outputs import Destination, Path
from bigpca.estimators.shared.transforming import mapped_to_numbers, mapped_to_rows
from bigpca.passes.ends import read_ends
from bigpca.passes.engine.progress import ProgressArgument
from bigpca.passes.reading.row_maps import MapStep
from bigpca.passes.writing import keys_of
from bigpca.settings import setting
from bigpca.sketches.base import positive_integer

Vector = NDArray[np.float64]


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
        Their keys; None if the source of the rows stores no keys.
    """

    rows: NDArray[np.int64]
    values: Vector
    keys: NDArray[np.str_] | None = None


@available_if(has_covariance)  # type: ignore[untyped-decorator]
def hotelling_t2(self: Judging, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
    """Return Hotelling's T2 of each row: ``sum_a t_a^2 / lambda_a``, its squared distance within the subspace.

    Axes whose variance is rounding (below ``min(n, d)`` eps of the largest) do not count.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    out : path of a new Zarr array, or None, default None
        Write to this store in one read, as :meth:`transform` does.
    overwrite : bool, default False
        Replace an existing ``out``.

    Returns
    -------
    ndarray or dask.array.Array of shape (n,), or (n, 1) in ``out``, float64
        Lazy if X is lazy: one read of X when it is computed. For a DataArray, one with the coordinates of its samples.
    """
    return _one_statistic(self, X, "t2", out, overwrite)


@available_if(has_covariance)  # type: ignore[untyped-decorator]
def spe(self: Judging, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
    """Return the squared prediction error (Q) of each row: ``|x_s - V't|^2``, its squared distance to the subspace.

    In the units of the scaled features; 0 if k = d.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    out : path of a new Zarr array, or None, default None
        Write to this store in one read, as :meth:`transform` does.
    overwrite : bool, default False
        Replace an existing ``out``.

    Returns
    -------
    ndarray or dask.array.Array of shape (n,), or (n, 1) in ``out``, float64
        Lazy if X is lazy: one read of X when it is computed. For a DataArray, one with the coordinates of its samples.
    """
    return _one_statistic(self, X, "spe", out, overwrite)


@available_if(has_covariance)  # type: ignore[untyped-decorator]
def mahalanobis(self: Judging, X: Input, *, out: Path | None = None, overwrite: bool = False) -> Lazy:
    """Return the squared Mahalanobis distance of each row to the mean, under probabilistic PCA.

    ``sum_a t_a^2 / max(lambda_a, noise) + SPE / noise``, which is ``x_s' P x_s`` with P of :meth:`get_precision`
    and the noise variance ``noise_variance_``. It is squared, as that of scikit-learn's covariance estimators; with
    k = d it is theirs but for their divisor n, which makes it larger by n / (n - 1).

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    out : path of a new Zarr array, or None, default None
        Write to this store in one read, as :meth:`transform` does.
    overwrite : bool, default False
        Replace an existing ``out``.

    Returns
    -------
    ndarray or dask.array.Array of shape (n,), or (n, 1) in ``out``, float64
        Lazy if X is lazy: one read of X when it is computed. For a DataArray, one with the coordinates of its samples.

    Raises
    ------
    ValueError
        If the noise variance is 0 and k < d, or a variance is 0: the model has no density.
    """
    return _one_statistic(self, X, "mahalanobis", out, overwrite)


@available_if(has_covariance)  # type: ignore[untyped-decorator]
def statistics(
    self: Judging, X: Input, names: str | Sequence[str] = ("t2", "spe"), *, out: Path | None = None,
    overwrite: bool = False, progress: ProgressArgument = None, keys: Input = None,
) -> Lazy:  # fmt: skip
    """Return several statistics of each row in one read.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    names : str or sequence of {"t2", "spe", "mahalanobis"}, default ("t2", "spe")
        The columns: :meth:`hotelling_t2`, :meth:`spe` and :meth:`mahalanobis`.
    out : path of a new Zarr array or table, or None, default None
        As for :meth:`transform`; the columns of a table have these names.
    overwrite : bool, default False
        Replace an existing ``out``.
    progress : True, "auto", a callable that receives events, or None, default None
        True shows a bar, "auto" one after two seconds.
    keys : array-like of shape (n,), path, or None, default None
        As for :meth:`transform`.

    Returns
    -------
    ndarray or dask.array.Array of shape (n, m), float64
        Lazy if X is lazy. With ``nan_policy="omit"``, rows with NaN have NaN. For a DataArray, one with the coordinates
        of its samples and a dimension ``statistic``.

    Examples
    --------
    >>> from bigpca import PCA
    >>> pca = PCA(1).fit([[-1.0, 0.1], [1.0, -0.1], [-1.0, -0.1], [1.0, 0.1]])
    >>> pca.statistics([[2.0, 0.0], [0.0, 2.0]]).round(2).tolist()
    [[3.0, 0.0], [0.0, 4.0]]
    """
    check_is_fitted(self)
    to = Destination(out, overwrite, progress, keys, check_statistics(names), "statistics")
    f = _statistics_map(self, to.names)
    return mapped_to_numbers(self, X, f, "statistics", to, dim="statistic", values=to.names)


@available_if(has_covariance)  # type: ignore[untyped-decorator]
def contributions(
    self: Judging, X: Input, of: str = "spe", *, out: Path | None = None, overwrite: bool = False
) -> Lazy:
    """Return what each feature contributes to T2 or SPE of each row.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    of : {"t2", "spe"}, default "spe"
        "spe": the residual ``x_s - V't``, whose squares add up to SPE and whose signs show on which side a feature
        lies. "t2": ``x_sj sum_a v_aj t_a / lambda_a``, which add up to T2 and may be negative.
    out : path of a new Zarr array, or None, default None
        Write to this store in one read, as :meth:`transform` does.
    overwrite : bool, default False
        Replace an existing ``out``.

    Returns
    -------
    ndarray or dask.array.Array of shape (n, d)
        In units of the scaled features; lazy if X is lazy. float32 for float32 and narrower rows. For a DataArray, one
        on its grid.

    Notes
    -----
    Westerhuis, Gurden & Smilde (2000).
    """
    check_is_fitted(self)
    check_choice("of", of, CONTRIBUTIONS)
    f = Contributions(plain_projection(self), counted_variances(self), of)
    names = tuple(map(str, getattr(self, "feature_names_in_", ())))
    to = Destination(out, overwrite, names=names, what="contributions")
    return mapped_to_rows(self, X, f, to)


@available_if(has_covariance)  # type: ignore[untyped-decorator]
def rank_outliers(
    self: Judging, X: Input, top: int = 10, *, of: str = "mahalanobis", progress: ProgressArgument = None
) -> Outliers:
    """Return the rows with the largest statistic, in one read and bounded memory.

    Parameters
    ----------
    X : array-like, Dask array, path and so on, of shape (n, d)
        Rows, as for :meth:`fit`.
    top : int, default 10
        How many; at most all rows are returned. With ``nan_policy="omit"``, rows with NaN are not among them.
    of : {"mahalanobis", "t2", "spe"}, default "mahalanobis"
        The statistic.
    progress : True, "auto", a callable that receives events, or None, default None
        True shows a bar, "auto" one after two seconds.

    Returns
    -------
    Outliers
        Row numbers, values, and keys if the source stores keys.

    Examples
    --------
    >>> from bigpca import PCA
    >>> X = np.random.default_rng(0).standard_normal((500, 3)) * [5, 3, 1]
    >>> X[7] = [0, 0, 20]
    >>> PCA(2).fit(X).rank_outliers(X, top=1).rows.tolist()
    [7]
    """
    check_is_fitted(self)
    top = positive_integer("top", top)
    f = _statistics_map(self, check_statistics(check_choice("of", of, STATISTICS)))
    rows, _ = self._rows(self._open_like(X))
    step = MapStep(f, 1, 4 * self.n_features_in_ * self.n_components_)
    ends = read_ends(rows.mapped(step), top, memory_limit=setting(self, "memory_limit"), progress=progress).ends
    keys = keys_of(rows)
    return Outliers(ends.highest[0], ends.highest_scores[0], None if keys is None else keys[ends.highest[0]])


@available_if(has_covariance)  # type: ignore[untyped-decorator]
def t2_limit(
    self: Judging, confidence: float = 0.95, X: Input = None, *, rows: str = "new", limit: str = "empirical"
) -> float:
    """Return the T2 below which a share of the rows lies.

    Parameters
    ----------
    confidence : float in (0, 1), default 0.95
        The share.
    X : array-like, Dask array, path and so on, of shape (n, d), or None, default None
        Typical rows for ``limit="empirical"``, which are read once; best rows that were not fitted.
    rows : {"new", "training"}, default "new"
        For ``limit="theory"``: whether rows are new or those of the fit, whose T2 is smaller.
    limit : {"empirical", "theory"}, default "empirical"
        "empirical": the quantile of the T2 of X. "theory", for Gaussian rows: ``k (n^2 - 1) / (n (n - k)) F(k, n -
        k)`` for new rows, ``(n - 1)^2 / n Beta(k / 2, (n - k - 1) / 2)`` for those of the fit, k the axes that
        count and n the sum of the weights, if any; exact if k = d. On features after a ReLU, "95 %" of it may cover
        85 %.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If X is missing or has too few rows for the confidence, and for theory without centred rows, or of too few.

    Notes
    -----
    Tracy, Young & Mason (1992).
    """
    check_is_fitted(self)
    check_confidence(confidence)
    check_choice("rows", rows, ("new", "training"))
    if check_choice("limit", limit, ("empirical", "theory")) == "empirical":
        return quantile_limit(_values(self, X, "t2"), confidence)
    check_centred(self, "the distribution of T2")
    k = int(np.count_nonzero(counted_variances(self)))
    return gaussian_t2_limit(confidence, k, self.sum_weights_, rows)


@available_if(has_covariance)  # type: ignore[untyped-decorator]
def spe_limit(self: Judging, confidence: float = 0.95, X: Input = None, *, limit: str = "empirical") -> float:
    """Return the SPE below which a share of the rows lies.

    Parameters
    ----------
    confidence : float in (0, 1), default 0.95
        The share.
    X : array-like, Dask array, path and so on, of shape (n, d), or None, default None
        Typical rows for "empirical" and "moments", which are read once; best rows that were not fitted.
    limit : {"empirical", "moments", "jackson-mudholkar", "box"}, default "empirical"
        "empirical": the quantile of the SPE of X. "moments": that of ``g chi^2(h)`` with the mean and variance of
        the SPE of X. The others are for Gaussian rows, from all eigenvalues of the covariance, which require the
        kept state of a :class:`bigpca.PCA`: "box" is that of ``g chi^2(h)`` with the mean and variance of the
        theory, "jackson-mudholkar" that of a power of SPE which is nearly normal. They cost one eigenproblem, no
        read.

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
    Nomikos & MacGregor (1995); Jackson & Mudholkar (1979), whose normal quantile takes the sign of h0; Box (1954).
    """
    check_is_fitted(self)
    check_confidence(confidence)
    kinds = ("empirical", "moments", "jackson-mudholkar", "box")
    if check_choice("limit", limit, kinds) in ("empirical", "moments"):
        values = _values(self, X, "spe")
        if limit == "empirical":
            return quantile_limit(values, confidence)
        if len(values) < 2:
            raise ValueError(
                f"{counted(len(values), 'row')} of X with an SPE, but a variance needs two. Give more typical rows."
            )
        unit = power_unit(values)
        values /= unit
        return unit * chi_square_limit(confidence, float(values.mean()), float(values.var(ddof=1)))
    check_centred(self, "the distribution of SPE")
    left = self._whole_spectrum(f'spe_limit(limit="{limit}")')[self.n_components_ :]
    unit = power_unit(left)
    thetas = power_sums(left / unit)
    if limit == "box":
        return unit * chi_square_limit(confidence, float(thetas[0]), 2 * float(thetas[1]))
    return unit * jackson_mudholkar_limit(confidence, thetas)


def _one_statistic(self: Judging, X: Input, name: str, out: Path | None, overwrite: bool) -> Lazy:
    check_is_fitted(self)
    to = Destination(out, overwrite, names=(name,), what="statistics")
    return mapped_to_numbers(self, X, _statistics_map(self, to.names), name, to)


def _statistics_map(self: Judging, names: tuple[str, ...]) -> RowStatistics:
    if "mahalanobis" in names:
        check_density(self)
    return RowStatistics(plain_projection(self), counted_variances(self), self.noise_variance_, names)


def _values(self: Judging, X: Input, name: str) -> Vector:
    """Return a statistic of the rows that have one."""
    if X is None:
        raise ValueError(
            "X is missing: an empirical limit is a quantile of the statistics of typical rows. Give rows, or "
            "choose a limit from theory."
        )
    values = np.asarray(_one_statistic(self, X, name, None, False), np.float64).ravel()
    return values[~np.isnan(values)]
