"""A sketch as a scikit-learn transformer."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from bigpca.engine.planning import PassCost
from bigpca.engine.run import Run
from bigpca.estimators.linear.maps import Sketching, given_sketch
from bigpca.estimators.shared.exporting import LinearExports
from bigpca.estimators.shared.fit import Fit
from bigpca.estimators.shared.inputs import Unchecked, policies, reject_non_finite
from bigpca.estimators.shared.opening import rows_of_fit
from bigpca.estimators.shared.results import Result, Traits
from bigpca.estimators.shared.transformer import Estimator, with_parameters
from bigpca.passes.rows import Rows
from bigpca.records import Held
from bigpca.sketches import Gaussian, Sketch

DEFAULT_COLUMNS = 100
CHECKED_ROWS = 8192  # of X in memory at a time


@dataclass(frozen=True)
class SketchResult(Result):
    """The sketch, which parameters and the number of columns determine: a file has nothing of it.

    Attributes
    ----------
    sketch_ : Sketch
    """

    sketch_: Sketch
    n_features: int

    @property
    def width(self) -> int:
        """Columns of sketches."""
        return self.sketch_.width(self.n_features)


@dataclass(frozen=True)
class SketchingFit(Fit[SketchResult]):
    """No read of lazy X; X in memory is checked for NaN and infinities.

    Attributes
    ----------
    sketch : Sketch
    checked : bool
        Whether X is checked.
    """

    depends_on: ClassVar[tuple[str, ...]] = ("sketch",)
    solver: ClassVar[str] = "sketch"
    account: ClassVar[str] = "nothing is learned but the number of columns"

    sketch: Sketch
    checked: bool

    def passes(self) -> tuple[PassCost, ...]:
        size = int(self.rows.n_rows * self.rows.origin.row_bytes)
        return (PassCost(name="check", bytes_read=size),) if self.checked else ()

    def run(self, run: Run) -> SketchResult:
        rows = self.rows
        for cost in self.passes():
            run.read_beside(cost)
            for start in range(0, rows.n_rows, CHECKED_ROWS):
                stop = min(start + CHECKED_ROWS, rows.n_rows)
                reader, _ = rows.reader(start, stop)
                reject_non_finite(reader.read(start, stop), reader.where(start, stop), "sketches")
        return SketchResult(self.sketch, rows.n_columns)


@with_parameters
class SketchTransformer(Estimator[SketchResult], LinearExports):
    """Sketches ``X @ W`` of rows: fewer columns, with the same dot products on average.

    Parameters
    ----------
    sketch : Sketch or None, default None
        Such as ``bigpca.sketches.Gaussian(q)``; None for a Gaussian sketch of min(d, 100) columns, with errors of about
        10 % of |x| |y| in the dot product of rows x and y.
    preprocess : as in :class:`bigpca.PCA`, default None
    nan_policy : {"raise", "omit"}, default "raise"
        Rows with NaN or infinities raise an error, or have sketches of NaN.
    memory_limit : int, str or None, default None
        Per process, for ``transform(X, out=...)``; None for the limits of the live workers, or the free memory of the
        machine.

    Attributes
    ----------
    sketch_ : Sketch
        The given sketch, or the default.
    n_features_in_ : int
    feature_names_in_ : ndarray of str, if X had names

    Examples
    --------
    >>> import numpy as np
    >>> from bigpca.sketches import FeatureHash
    >>> SketchTransformer(FeatureHash(2)).fit_transform(np.ones((3, 5))).shape
    (3, 2)
    """

    _traits = Traits(
        SketchResult, "sketch", unweighted="a sketch depends on the columns alone", min_rows=1, output="sketches"
    )

    sketch: Sketch | None = None
    _: KW_ONLY

    def _fit(self, rows: Rows, y: Unchecked) -> SketchingFit:
        sketch = self._sketch_for(rows.viewed_columns)
        rows = rows_of_fit(self, rows, weighted=False)
        return SketchingFit(rows, sketch, checked=not rows.origin.lazy and rows.nan_policy == "raise")

    def _sketch_for(self, d: int) -> Sketch:
        """Return the given or default sketch, after checking that it applies to d features."""
        sketch = given_sketch(self.sketch, Gaussian(min(d, DEFAULT_COLUMNS)), d)
        sketch.width(d)
        return sketch

    def _row_map(self) -> Sketching:
        return Sketching(self._result.sketch_, policies(self)["nan_policy"])

    def _restored(self, held: Held) -> SketchResult:
        return SketchResult(self._sketch_for(held.size("d")), held.size("d"))
