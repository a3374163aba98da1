"""The distance to the nearest class is that by the covariance within classes, shrunk where that is singular."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from sklearn.covariance import ledoit_wolf

import bigpca as bp
from bigpca.errors import ApproximationWarning
from bigpca.estimators.supervised.linear_supervised import ClassDistance, ledoit_wolf_shrinkage
from tests.builders import power_law
from tests.estimators.labelled import labelled_rows, within_scatter

Array = NDArray[Any]
N, D, C = 333, 9, 5
X, Y = labelled_rows(N, D, C, apart=0.7, mean=2.0)
NEW = X[:40] * 1.3
MEANS = np.array([X[j == Y].mean(axis=0) for j in range(C)])


def nearest(rows: Array, covariance: Array, means: Array = MEANS) -> Array:
    return cdist(rows, means, "mahalanobis", VI=np.linalg.inv(covariance)).min(axis=1) ** 2


@pytest.mark.parametrize(
    "options",
    [{}, {"n_components": 1}, {"regularization": 0.5}, {"robust": True}],
    ids=["all", "one", "ridge", "robust"],
)
def test_it_is_the_smallest_over_classes_whatever_the_axes_are(options: dict[str, Any]) -> None:
    model = bp.FisherDiscriminantAnalysis(**options).fit(X, Y)
    np.testing.assert_allclose(model.mahalanobis(NEW), nearest(NEW, within_scatter(X, Y) / (N - C)), rtol=1e-10)


@pytest.mark.parametrize("apart", [1e-6, 3e-8])
def test_columns_that_are_read_twice_have_the_distance_of_what_tells_them_apart(apart: float, tmp_path: Path) -> None:
    def near(rows: Array) -> Array:
        return np.column_stack([rows[:, :-1], rows[:, 0] + apart * rows[:, -1]])

    model, plain = (bp.FisherDiscriminantAnalysis().fit(rows, Y) for rows in (near(X), X))
    assert model.provenance_.reads == 2
    model.save(tmp_path / "m")
    for found in (model, bp.load(tmp_path / "m")):
        np.testing.assert_allclose(found.mahalanobis(near(NEW)), plain.mahalanobis(NEW), rtol=1e-5)


@pytest.mark.parametrize("apart", [1e-2, 1e-6, 3e-8])
@pytest.mark.parametrize("regularization", [1e-3, 100.0])
def test_a_regularised_fit_tells_where_one_read_does_not_tell_features_apart(
    apart: float, regularization: float
) -> None:
    near = np.column_stack([X[:, :-1], X[:, 0] + apart * X[:, -1]])
    model = bp.FisherDiscriminantAnalysis(regularization=regularization).fit(near, Y)
    told = (
        nullcontext() if apart > 1e-4 else pytest.warns(ApproximationWarning, match="may change distances by .* size")
    )
    with told:
        found = model.mahalanobis(near)
    if apart > 1e-4:
        np.testing.assert_allclose(found, bp.FisherDiscriminantAnalysis().fit(X, Y).mahalanobis(X), rtol=1e-5)


def test_a_singular_covariance_is_shrunk_as_ledoit_and_wolf_do_on_average() -> None:
    rows, y = X[:12], np.repeat([0, 1, 2], 4)
    model = bp.FisherDiscriminantAnalysis(regularization="pinv").fit(np.hstack([rows, rows[:, :3]]), y)
    distance = ClassDistance.of(model._result.state, "raise")
    tied = within_scatter(np.hstack([rows, rows[:, :3]]), y) / 9
    assert 0 < distance.shrinkage < 1
    shrunk = (1 - distance.shrinkage) * tied + distance.shrinkage * np.trace(tied) / 12 * np.eye(12)
    means = np.array([np.hstack([rows, rows[:, :3]])[y == j].mean(axis=0) for j in range(3)])
    judged = np.hstack([NEW, NEW[:, 3:6]])
    np.testing.assert_allclose(model.mahalanobis(judged), nearest(judged, shrunk, means), rtol=1e-8)

    rng, own, theirs = np.random.default_rng(0), [], []
    for _ in range(100):
        drawn = rng.standard_normal((30, 50)) * np.sqrt(power_law(50))
        own.append(ledoit_wolf_shrinkage(np.linalg.eigvalsh(drawn.T @ drawn / 30), 30))
        theirs.append(ledoit_wolf(drawn, assume_centered=True)[1])
    assert np.mean(own) == pytest.approx(np.mean(theirs), abs=0.01)  # each varies by 0.06 between draws
    assert ledoit_wolf_shrinkage(np.ones(3), 10) == 1


def test_rows_with_missing_values_raise_or_have_no_distance() -> None:
    holed = NEW.copy()
    holed[4, 2] = np.nan
    with pytest.raises(bp.errors.NonFiniteError, match="gives such rows NaN distances"):
        bp.FisherDiscriminantAnalysis().fit(X, Y).mahalanobis(holed)
    found = bp.FisherDiscriminantAnalysis(nan_policy="omit").fit(X, Y).mahalanobis(holed)
    np.testing.assert_array_equal(np.flatnonzero(np.isnan(found)), [4])


def test_models_without_a_covariance_within_classes_are_rejected() -> None:
    same = bp.FisherDiscriminantAnalysis(regularization=1.0).fit(np.repeat(np.eye(2), 3, axis=0), np.repeat([0, 1], 3))
    with pytest.raises(ValueError, match="all 6 rows of 2 classes equal the mean of their class"):
        same.mahalanobis(np.eye(2))
