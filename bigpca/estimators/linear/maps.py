"""Row maps of fitted models: scores, sketches, reconstructions, log-likelihoods; each a picklable function.

Rows with missing values: their scores by least squares on the columns that are there, and what they rule out. How rows
are centred and scaled: what the caller gives, and what is learned in the read. The axes of a model as a matrix:
whether they are orthonormal, their duals, their numbers, a covariance of them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from bigpca.arrays import Array, DType, Integers, Matrix, Vector, unmasked, working_dtype
from bigpca.costs import BlockForm
from bigpca.csr import LINEAR, PRODUCT, Forms, form_of
from bigpca.data.containers import is_labelled
from bigpca.data.grids import Grid
from bigpca.devices import Namespace, namespace
from bigpca.errors import ApproximationWarning, MemoryBudgetError, an, format_bytes
from bigpca.estimators.shared.inputs import settle_non_finite
from bigpca.export.linear import LinearMap, LinearRowMap
from bigpca.forms import Values
from bigpca.host import HOST
from bigpca.passes.accumulators.base import Accumulator
from bigpca.passes.accumulators.observed_columns import LatentModel, expected_scores
from bigpca.passes.reading.blocks import INCOMPLETE
from bigpca.passes.reading.readers import Limits
from bigpca.passes.reading.row_maps import L2, Affine, Float64Map, MapStep, RowMap
from bigpca.passes.rows import Rows
from bigpca.settings import setting
from bigpca.sketches import Sketch
from bigpca.solvers.scaling import Blocks, CosLatitude, LearnedScale, Patterson

if TYPE_CHECKING:
    import xarray as xr

    from bigpca.solvers.moments import Frame

LEAST_SHORT = 1e-30  # of the largest entry of rows that float32 holds; 1 / this is the most
SOUND = 1e-6  # smallest eigenvalue of a normal matrix that is inverted
TILE_BYTES = 2**22  # of rows in float64 at a time


def incomplete_scores(rows: Array, mean: Vector, scale: Vector | None, axes: Matrix) -> tuple[Matrix, int]:
    """Return scores (b, k) of rows with NaN along axes (k, d), and for how many of them they are not determined.

    With an orthonormal basis Q (d, k) of the axes, ``axes' = Q R``, and the columns o of a row z that are there, the
    coordinates are ``c = argmin |z_o - Q_o c|``, of minimum norm where the columns do not determine them, and the
    scores those of the point ``Q c``, ``t = R' c``: of a complete row, ``axes z`` (Nelson, Taylor & MacGregor 1996,
    "Missing data methods in PCA and PLS: score calculations with incomplete observations", projection to the model
    plane). The normal matrix is ``Q_o' Q_o = I - Q_m' Q_m``, with the columns m that are missing; it is the same for
    all rows where the same are.
    """
    Q, R = (np.asarray(one, np.float64) for one in scipy.linalg.qr(axes.T, mode="economic"))
    scores, undetermined = np.empty((len(rows), len(axes))), 0
    step = max(1, TILE_BYTES // (8 * max(1, rows.shape[1])))
    for i in range(0, len(rows), step):
        z = rows[i : i + step] - mean
        if scale is not None:
            z /= scale
        missing = np.isnan(z)
        z[missing] = 0  # z_o'Q_o is then z'Q, without a copy of the columns that are there
        # Rows that miss the same columns share their normal matrix: patterns are compared as bits.
        _, first, members = np.unique(np.packbits(missing, axis=1), axis=0, return_index=True, return_inverse=True)
        for pattern, row in enumerate(first):
            own = np.flatnonzero(members.ravel() == pattern)
            coordinates, determined = _coordinates(Q, missing[row], z[own])
            scores[i + own] = coordinates @ R
            undetermined += 0 if determined else len(own)
    return scores, undetermined


def incomplete_bytes(rows: int, d: int, k: int, itemsize: int) -> int:
    """Return the bytes that :func:`incomplete_scores` takes: a copy of rows, tiles, two bases, and scores."""
    tile = min(rows, max(1, TILE_BYTES // (8 * max(1, d))))
    return rows * d * itemsize + tile * d * 20 + 24 * d * k + rows * (8 * k + d)


def _coordinates(Q: Matrix, missing: NDArray[np.bool_], z: Matrix) -> tuple[Matrix, bool]:
    """Return ``argmin |z_o - Q_o c|`` (b, k) of rows z (b, d), 0 where they are missing, and whether only one is it."""
    k, absent = Q.shape[1], Q[missing]
    if len(absent) <= len(missing) // 2:
        normal = np.eye(k) - absent.T @ absent
    else:
        normal = Q[~missing].T @ Q[~missing]
    values, vectors = np.linalg.eigh(normal)
    if k and values[0] > SOUND:
        return np.asarray(z @ Q @ (vectors / values) @ vectors.T), True
    # The normal matrix has lost half of the digits: the singular values of Q_o itself decide.
    found, _, rank, _ = scipy.linalg.lstsq(Q[~missing], z[:, ~missing].T)
    return np.asarray(found.T, np.float64), rank == k


def of_all_rows(what: str, policy: str) -> str:
    """Return the message that ``what`` is impossible where the means of all rows decide what is made of gaps."""
    return (
        f'{what} needs statistics to which rows can be added, but with nan_policy="{policy}" the means of all rows, '
        "which more rows change, decide what is made of missing values. Fit all rows at once."
    )


def device_of_setting() -> Namespace:
    """Return the device on which new maps multiply rows."""
    return namespace(setting(None, "arithmetic") or "")


@dataclass(frozen=True)
class Projection(LinearRowMap):
    """Scores ``(x - mean) / scale @ components'``, divided by the standard deviations if whitened.

    The mean is subtracted in the precision of the rows, and the correction for its rounding is added to the scores, so
    float32 rows of mean 1e4 keep their digits.

    Attributes
    ----------
    mean, scale : ndarray of shape (d,); scale may be None
    components : ndarray of shape (k, d)
    deviations : ndarray of shape (k,) or None
        Divides the scores (whitening); where it is 0 the scores are 0.
    nan_policy : {"raise", "omit", "mean", "pairwise", "em"}
        "omit" gives rows of NaN for rows that hold one; "mean" and the like least squares on the columns that are
        there.
    l2 : bool
        Divides the scores of each row by their norm.
    limits : Limits or None
        Of the values of rows.
    device : Host or Device
        Where dense rows are multiplied; by default that of the setting when the map is made.
    precise : bool
        Whether scores are float64, whatever the dtype of the rows is.
    latent : LatentModel or None
        Of which rows with NaN get the expected scores, instead of least squares.
    """

    mean: Vector
    scale: Vector | None
    components: NDArray[np.float64]
    deviations: Vector | None = None
    nan_policy: str = "raise"
    l2: bool = False
    limits: Limits | None = None
    device: Namespace = field(default_factory=device_of_setting)
    precise: bool = False
    latent: LatentModel | None = None

    def linear(self, d: int) -> LinearMap:
        """Return the same map as a matrix and a centre."""
        return LinearMap(self._axes(), self.mean, self.l2)

    def output_dtype(self, dtype: DType) -> DType:
        """Return the dtype of the scores."""
        return np.dtype(np.float64) if self.precise else working_dtype(dtype)

    def on(self, device: Namespace) -> tuple[RowMap, Namespace]:
        """There, unless values are examined one by one."""
        return (replace(self, device=device), device) if self.forms else (self, HOST)

    def sklearn_steps(self, d: int, facts: dict[str, object]) -> list[object]:
        """Return the same map as fitted transformers of scikit-learn."""
        from bigpca.export.sklearn import projection_steps  # only exports need scikit-learn's PCA

        return projection_steps(self.mean, self.scale, self.components, self.deviations, facts, l2=self.l2)

    def _axes(self) -> NDArray[np.float64]:
        axes = self.components if self.scale is None else self.components / self.scale
        if self.deviations is not None:
            axes = axes / np.where(self.deviations > 0, self.deviations, np.inf)[:, None]
        return axes

    def dtype_of(self, dtype: DType) -> DType:
        """Return the dtype in which rows are multiplied: float64 if inverse deviations of tiny columns leave theirs."""
        divisors = [one[one > 0] for one in (self.scale, self.deviations) if one is not None]
        least = float(np.prod([one.min(initial=1.0) for one in divisors]))
        dtype = self.output_dtype(dtype)
        return dtype if least * float(np.finfo(dtype).max) > 1 else np.dtype(np.float64)

    def check_limits(self, rows: Array, where: str) -> None:
        """Reject values outside the limits, which a model of counts of alleles has."""
        if self.limits is not None:
            self.limits.check(rows, where)

    def complete(self, rows: Array, scores: Array) -> Integers:
        """Write the scores of rows with NaN, by least squares on the columns that are there, and return rows of NaN.

        Whitening divides what least squares finds. Rows with infinities keep NaN.
        """
        lines = np.flatnonzero(np.isnan(scores).any(axis=1))
        lines = lines[~np.isinf(rows[lines]).any(axis=1)]
        lost = np.isnan(rows[lines]).all(axis=1)
        empty, lines = lines[lost], lines[~lost]
        scores[empty] = 0  # until it was looked for infinities
        if self.latent is not None:
            scores[lines] = expected_scores(rows[lines], self.latent)
        if not len(lines) or self.latent is not None:
            return empty
        found, undetermined = incomplete_scores(rows[lines], self.mean, self.scale, self.components)
        if self.deviations is not None:
            found /= np.where(self.deviations > 0, self.deviations, np.inf)
        scores[lines] = found
        if undetermined:
            warnings.warn(  # in words that Python shows once per process
                "the observed values do not determine the scores of some rows: these rows have fewer values than "
                "components, or values only in columns where components cannot be distinguished. They get the scores "
                "of minimum norm.",
                ApproximationWarning,
                stacklevel=1,
            )
        return empty

    def apply(self, rows: Values, where: str) -> Array:
        """Return the scores (b, k) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold infinities, or NaN and the policy is to raise.
        ValueError
            Where values are outside the limits.
        """
        self.check_limits(rows, where)
        dtype, axes = self.output_dtype(rows.dtype), self._axes()
        mean = self.mean.astype(form_of(rows).projected_dtype(self.dtype_of(rows.dtype)))
        with np.errstate(invalid="ignore", over="ignore"):
            scores = self.device.projected(rows, mean, axes.T.astype(mean.dtype)).astype(dtype, copy=False)
            # What rounding took from the mean, at the precision of the scores: it is the same for every row.
            scores += ((mean - self.mean) @ axes.T).astype(dtype)
        empty = self.complete(rows, scores) if self.nan_policy in INCOMPLETE else None
        settled = self._settled(rows, scores, where)
        if empty is not None:
            settled[empty] = np.nan
        return settled

    @property
    def forms(self) -> Forms:
        """Sparse rows, unless they may be incomplete, whose values are examined one by one."""
        examined = self.nan_policy in INCOMPLETE or self.limits is not None
        return {} if examined else LINEAR

    def _settled(self, rows: Values, scores: Array, where: str) -> Array:
        settle_non_finite(rows, scores, where, self.nan_policy, "scores")
        return L2(zero_rows="keep").apply(scores, where) if self.l2 else scores

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Centred rows, divided and rounded axes, scores, and the check that they are finite."""
        k, divided = len(self.components), (self.scale is not None) + (self.deviations is not None)
        itemsize = 8 if self.precise else itemsize
        strip = self.device.centred_rows(rows, d, itemsize)
        scores = rows * k * itemsize
        mapped = (strip + 2) * d * itemsize + k * d * (itemsize + 8 * divided) + scores + rows * k
        least_squares = incomplete_bytes(rows, d, k, itemsize) if self.nan_policy in INCOMPLETE else 0
        products = 0 if self.latent is None else 8 * d * k**2 + TILE_BYTES
        return mapped + self.l2 * scores + least_squares + products, 0


def projected(rows: Rows, mean: Vector, M: Matrix) -> Rows:
    """Return rows ``M'(x - mean)`` (n, k) in float64, for a read of them."""
    d, k = M.shape
    return rows.mapped(MapStep(Projection(mean, None, M.T, precise=True), k, 2 * d * k))


@dataclass(frozen=True)
class SecondRead:
    """Rows as they are read again where one read leaves too few digits, and their sums.

    ``T'(x - mean_x)`` of some columns x, in which their scatter is near the identity. The others y are
    ``T_y'(y - mean_y)``, or what B leaves of them, ``y - mean_y - B'(x - mean_x)``.

    Attributes
    ----------
    mean : ndarray of shape (d,)
        Of all columns.
    own : slice
        The columns x.
    frame : Frame
        T.
    other : Frame or None
        T_y.
    B : ndarray of shape (columns of x, others), or None
    state : Accumulator or None
        Once it is read.
    """

    mean: Vector
    own: slice[int | None, int | None, None]
    frame: Frame
    other: Frame | None = None
    B: Matrix | None = None
    state: Accumulator | None = None

    def applied(self, rows: Rows) -> Rows:
        """Return the rows of the second read, from those of the first."""
        M, own = np.eye(len(self.mean)), np.arange(len(self.mean))[self.own]
        others = np.setdiff1d(np.arange(len(M)), own)
        M[np.ix_(own, own)] = self.frame.T
        if self.other is not None:
            M[np.ix_(others, others)] = self.other.T
        if self.B is not None:
            M[np.ix_(own, others)] = -self.B
        return projected(rows, self.mean, M)


def read_again(rows: Rows) -> Rows | None:
    """Return rows as a second read sums them, in d other coordinates, to plan it; None if they come only once."""
    d = rows.n_columns
    if rows.order.once or rows.order.open_ended:
        return None
    return projected(rows, np.zeros(d), np.broadcast_to(0.0, (d, d)))


@dataclass(frozen=True)
class Sketching(LinearRowMap):
    """Sketches of rows: ``rows @ W``.

    Attributes
    ----------
    sketch : Sketch
    nan_policy : {"raise", "omit"}
        "omit" gives rows of NaN for rows that hold one.
    """

    # Always: sketches are applied to CSR as it is.
    forms: ClassVar[Forms] = PRODUCT

    sketch: Sketch
    nan_policy: str = "raise"

    def linear(self, d: int) -> LinearMap:
        """Return the matrix W' (q, d), about the origin."""
        return LinearMap(np.ascontiguousarray(self.sketch.matrix(d).T), np.zeros(d))

    def sklearn_steps(self, d: int, facts: dict[str, object]) -> list[object]:
        """Return the same map as a transformer of scikit-learn."""
        from bigpca.export.sklearn import fitted_pca  # only exports need scikit-learn's PCA

        return [fitted_pca(self.linear(d), facts)]

    def apply(self, rows: Values, where: str) -> Array:
        """Return sketches (b, q) of rows (b, d).

        Raises
        ------
        NonFiniteError
            Where rows hold NaN or infinities and the policy is to raise.
        """
        with np.errstate(invalid="ignore", over="ignore"):
            sketches: Array = self.sketch.apply(rows.astype(working_dtype(rows.dtype), copy=False))
        settle_non_finite(rows, sketches, where, self.nan_policy, "sketches")
        return sketches

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """What the sketch needs beside its matrix, or the search for non-finite values; and the matrix, if kept."""
        kept, q = self.sketch.cached_bytes(d, itemsize), self.sketch.width(d)
        searching = rows * (q * itemsize + q + d)
        sketching = self.sketch.cost(BlockForm(d, rows, itemsize=itemsize)).bytes
        return max(sketching - kept, searching), kept


def given_sketch(sketch: Sketch | None, default: Sketch, columns: int, k: int = 0) -> Sketch:
    """Return the given sketch, or the default one, after checking that it applies to rows of so many columns.

    Raises
    ------
    TypeError
        If it is not a sketch.
    ValueError
        For a sketch of other columns, or narrower than k components.
    """
    found = default if sketch is None else sketch
    if not isinstance(found, Sketch):
        raise TypeError(
            f"sketch = {sketch!r} is not a sketch. Use one of bigpca.sketches, such as bigpca.sketches.Gaussian(64) "
            "for sketches of 64 columns, or None."
        )
    if k > found.width(columns):
        raise ValueError(
            f"n_components = {k} exceeds the {found.width(columns)} columns of the sketch, which is the most "
            "components it can give. Use a wider sketch (twice the components, better ten times), or fewer components."
        )
    return found


@dataclass(frozen=True)
class Reconstruction(RowMap):
    """Rows back from scores: ``scores @ components * scale + mean``, un-whitened first."""

    mean: Vector
    scale: Vector | None
    components: NDArray[np.float64]
    deviations: Vector | None = None

    def apply(self, rows: Array, where: str) -> Array:
        """Return rows (b, d) from scores (b, k)."""
        dtype = self.output_dtype(rows.dtype)
        back: Array = rows.astype(dtype, copy=False) @ self._axes.astype(dtype) + self.mean.astype(dtype)
        return back

    @property
    def _axes(self) -> Matrix:
        axes = self.components if self.deviations is None else self.components * self.deviations[:, None]
        return axes if self.scale is None else axes * self.scale

    def output_dtype(self, dtype: DType) -> DType:
        """As of the scores, but float64 where rows leave the range of float32, in which whitened scores may be."""
        largest = max(float(np.abs(one).max(initial=0.0)) for one in (self._axes, self.mean))
        return working_dtype(dtype) if not largest or LEAST_SHORT < largest < 1 / LEAST_SHORT else np.dtype(np.float64)

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """Scaled axes (k, p), and rows (b, p) before and after the mean is added; here d is k."""
        itemsize = self.output_dtype(np.dtype(f"f{itemsize}")).itemsize
        scaled = (self.scale is not None) + (self.deviations is not None)
        return self.components.size * (itemsize + 8 * scaled) + 2 * rows * self.components.shape[1] * itemsize, 0


@dataclass(frozen=True)
class Removal(RowMap):
    """Rows without their part along some axes: ``x - scale * sum_i t_i v_i``, t the least-squares scores of x.

    Attributes
    ----------
    scores : Projection
        To t (b, m): its components are the axes, or their duals where they are not orthonormal.
    axes : ndarray of shape (m, d)
    """

    scores: Projection
    axes: NDArray[np.float64]

    def apply(self, rows: Array, where: str) -> Array:
        """Return rows (b, d) from rows (b, d); raises as :meth:`Projection.apply`."""
        dtype = working_dtype(rows.dtype)
        axes = self.axes if self.scores.scale is None else self.axes * self.scores.scale
        part = self.scores.apply(rows, where) @ axes.astype(dtype)
        with np.errstate(invalid="ignore"):  # rows that hold NaN are NaN
            left: Array = np.subtract(rows, part, out=part, dtype=dtype, casting="unsafe")
        return left

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The scores, scaled axes, and the rows."""
        projecting, kept = self.scores.bytes_for(d, rows, itemsize)
        return projecting + self.axes.size * (8 + itemsize) + rows * d * itemsize, kept


@dataclass(frozen=True)
class LogLikelihood(Float64Map):
    """Log-likelihood of rows under probabilistic PCA (Bishop 2006, eq. 12.43, as scikit-learn), one column.

    With noise s the quadratic form is ``(|x|^2 - sum_i z_i^2 (1 - s / lambda_i)) / s``: no d x d matrix.
    """

    projection: Projection
    variances: Vector
    noise: float

    def apply(self, rows: Array, where: str) -> Array:
        """Return log-likelihoods (b, 1)."""
        scores = self.projection.apply(rows.astype(np.float64), where)
        k, d = self.projection.components.shape
        log_determinant = float(np.log(self.variances).sum())
        if k < d:
            centred = np.subtract(rows, self.projection.mean, dtype=np.float64, casting="unsafe")
            if self.projection.scale is not None:
                centred /= self.projection.scale
            # The inverse covariance is that of the noise but along the axes, so only lengths of rows are needed.
            squares = np.einsum("ij,ij->i", centred, centred)
            quadratic = (squares - (scores**2) @ (1 - self.noise / self.variances)) / self.noise
            log_determinant += (d - k) * float(np.log(self.noise))
        else:
            quadratic = (scores**2) @ (1 / self.variances)
        likelihoods: NDArray[np.float64] = -0.5 * (quadratic + d * np.log(2 * np.pi) + log_determinant)
        return likelihoods[:, None]

    def bytes_for(self, d: int, rows: int, itemsize: int) -> tuple[int, int]:
        """The rows in float64, what their projection takes, and squared scores."""
        projecting, kept = self.projection.bytes_for(d, rows, 8)
        return 8 * rows * (d + 2 * len(self.variances)) + projecting, kept


Center: TypeAlias = bool | ArrayLike  # a vector (d,)
Scale: TypeAlias = bool | Patterson | Blocks | CosLatitude | ArrayLike


@dataclass(frozen=True)
class Standardization:
    """The parameters ``center`` and ``scale``, as a map of the rows that are read and what their statistics add.

    Attributes
    ----------
    center : bool
        Whether the mean is learned.
    scale : bool, Patterson or Blocks
        What is learned; False for nothing.
    given : Affine or None
        A given centre and scale.
    """

    center: bool = True
    scale: LearnedScale = False
    given: Affine | None = None

    @classmethod
    def of(cls, center: Center, scale: Scale, d: int, grid: Grid | None = None) -> Standardization:
        """Return the parameters, checked for rows of d columns, on a grid if they are of a DataArray.

        Raises
        ------
        TypeError, ValueError
            For anything but booleans, rules, and finite vectors of d numbers, positive ones as a scale.
        """
        shift = None if isinstance(center, bool | np.bool_) else _vector("center", center, d, grid)
        learned = isinstance(scale, bool | np.bool_ | Patterson | Blocks)
        divisors = None if learned else scale_vector(scale, d, grid)
        if shift is not None and isinstance(scale, Patterson):
            raise ValueError(
                f"scale = {scale!r} is learned from the mean, but center is a given vector. Use center=True, or give "
                "the scale as a vector."
            )
        if isinstance(scale, Blocks):
            scale = scale.of(d)
        given = None
        if divisors is not None or (shift is not None and shift.any()):
            given = Affine(np.zeros(d) if shift is None else shift, None if divisors is None else 1 / divisors)
        kept: LearnedScale = scale if isinstance(scale, Patterson | Blocks) else learned and bool(scale)
        return cls(shift is None and bool(center), kept, given)

    @property
    def of_columns(self) -> LearnedScale:
        """What is learned of single columns, before their blocks are divided by anything."""
        return self.scale.standardize if isinstance(self.scale, Blocks) else self.scale

    @property
    def scales(self) -> bool:
        """Whether columns are divided by anything."""
        return bool(self.scale) or (self.given is not None and self.given.inverse_scale is not None)

    @property
    def shift(self) -> Vector:
        """The given centre (d,), or zero (1,): kept statistics are of ``(x - shift) / divisors``."""
        return np.zeros(1) if self.given is None else self.given.shift

    @property
    def divisors(self) -> Vector:
        """The given scale (d,), or one (1,)."""
        inverse = None if self.given is None else self.given.inverse_scale
        return np.ones(1) if inverse is None else 1 / inverse

    def applied(self, rows: Rows) -> Rows:
        """Return the rows about the given centre, divided by the given scale; counts of alleles within their limits."""
        limits = limits_of(self.scale)
        if limits is not None and all(step.f.of_stored for step in rows.steps):
            rows = replace(rows, steps=(MapStep(limits, rows.n_columns), *rows.steps))
        return rows if self.given is None else rows.mapped(MapStep(self.given, rows.n_columns, 2 * rows.n_columns))

    def in_units_of_rows(self, mean: Vector, scale: Vector | None) -> tuple[Vector, Vector | None]:
        """Return centre and scale of the rows before :meth:`applied` from those of the rows after it."""
        if self.given is None:
            return mean, scale
        if self.given.inverse_scale is None:
            return self.shift + mean, scale
        return self.shift + self.divisors * mean, self.divisors if scale is None else self.divisors * scale


def limits_of(scale: Scale) -> Limits | None:
    """Return the limits of the values that a rule for the scale expects."""
    if not isinstance(scale, Patterson):
        return None
    return Limits(0, scale.ploidy, f"counts of alleles for scale={scale!r}")


def _vector(name: str, given: Center | Scale, d: int, grid: Grid | None) -> Vector:
    """Return a finite vector of d numbers; raises as :meth:`Standardization.of`."""
    from bigpca.data.label_files import whole  # all formats of labels, of no use to other fits

    held = whole(given, name, "number", f"A vector of {d} numbers")
    labelled = grid is not None and is_labelled(given)
    try:
        values = unmasked(held)  # below: neither a mask, nor complex, nor dates
        vector = values.astype(np.float64) if values.dtype.kind in "iufO" else np.zeros(())
    except (TypeError, ValueError):
        vector = np.zeros(())
    if grid is not None:
        array: xr.DataArray = given
        vector = grid.aligned(array.copy(data=vector), name) if labelled else grid.columns(vector)
    if vector.ndim > 1:
        raise TypeError(
            f"{name} is {an(type(given).__name__)} of shape {vector.shape}; a vector of {d} numbers, one for each "
            f"column, was expected. Pass np.asarray({name}).ravel(), in the order of the columns."
        )
    if vector.ndim != 1:
        rules = "" if name == "center" else " a rule such as bp.scales.CosLatitude(latitude), or"
        raise TypeError(
            f"{name} = {given!r} is {an(type(given).__name__)}; True, False,{rules} a vector of {d} numbers was "
            "expected."
        )
    if len(vector) != d:
        remedy = "Give one number for each column."
        if grid is not None and len(vector) in grid.sizes:
            dim = grid.dims[grid.sizes.index(len(vector))]
            rule = f"name the coordinate, bp.scales.CosLatitude({dim!r}), or " if name == "scale" else ""
            remedy = f"{dim!r} has {len(vector)}: {rule}give a DataArray along {dim!r}."
        raise ValueError(f"{name} has {len(vector)} numbers, but X has {d} columns. {remedy}")
    if not np.isfinite(vector).all():
        raise ValueError(
            f"{name} is {vector[~np.isfinite(vector)][0]} in column {np.argmin(np.isfinite(vector))}, "
            "which is not finite. Give a number for every column."
        )
    return vector


def scale_vector(scale: Scale, d: int, grid: Grid | None) -> Vector:
    """Return the divisors of d columns, on a grid if they are of a DataArray; raises as :meth:`Standardization.of`."""
    if isinstance(scale, CosLatitude):
        scale = _of_latitudes(scale, grid)
    vector = _vector("scale", scale, d, grid)
    if not (vector > 0).all():
        column = int(np.argmin(vector > 0))
        raise ValueError(
            f"scale is {vector[column]} in column {column}, and columns cannot be divided by that. Give positive "
            f"numbers: 1 for columns that are constant."
        )
    return vector


def _of_latitudes(scale: CosLatitude, grid: Grid | None) -> Vector:
    """Return the scale of the columns, whose latitudes may be a coordinate.

    Raises
    ------
    ValueError
        If the rows have no such coordinate.
    """
    if not isinstance(scale.latitude, str):
        return scale.scale
    if grid is None:
        raise ValueError(
            f"scale = {scale!r} names a coordinate, but X is not a DataArray, or has a pattern. Give the latitude of "
            f"each column."
        )
    return scale.of(grid.column_values(scale.latitude, f"scale = {scale!r}"))


def orthonormality_error(components: Matrix) -> float:
    """Return the largest entry of ``|components components' - I|``."""
    k = len(components)
    return float(np.abs(components @ components.T - np.eye(k)).max()) if k else 0.0


def dual_axes(axes: Matrix) -> Matrix:
    """Return ``(C C')^+ C`` for axes C (k, d): it turns the scores ``X C'`` into least-squares coefficients."""
    return np.asarray(np.linalg.pinv(axes @ axes.T, hermitian=True) @ axes)


def low_rank_plus_diagonal(components: Matrix, weights: Vector, diagonal: Vector | float) -> Matrix:
    """Return ``components' diag(weights) components + diag(diagonal)`` (d, d): a model's covariance or its inverse.

    Raises
    ------
    MemoryBudgetError
        If a dense d x d matrix would exceed 16 GiB.
    """
    d = components.shape[1]
    if 8 * d * d > 16 << 30:
        raise MemoryBudgetError(
            f"a dense {d} x {d} matrix takes {format_bytes(8 * d * d)}, more than 16 GiB. Use components_, "
            f"explained_variance_ and noise_variance_, which contain the same information."
        )
    dense: Matrix = (components.T * weights) @ components
    dense.flat[:: d + 1] += diagonal
    return dense
