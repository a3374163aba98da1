"""A map of the Roweis family: one read for the models of a whole grid, one more for their errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

import bigpca as bp
from bigpca import (
    FisherDiscriminantAnalysis,
    RoweisDiscriminantAnalysis,
    roweis_map,
)
from bigpca.errors import MemoryBudgetError
from bigpca.estimators.supervised.roweis_map import RoweisMap, grid_values
from tests.estimators.labelled import labelled_rows
from tests.estimators.stores import stored, unreadable
from tests.operators.counting import Reads

Array = NDArray[Any]
N, D, C = 300, 7, 4
X, Y = labelled_rows(N + 90, D, C, apart=1.0)
(X, NEW), (Y, NEW_Y) = np.split(X, [N]), np.split(Y, [N])


@pytest.fixture(scope="module")
def found() -> RoweisMap:
    return roweis_map(X, Y, 3)


def test_a_whole_map_takes_one_read_and_its_errors_one_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given, held = stored(tmp_path, X, (25, D)), stored(tmp_path, NEW, (10, D))
    reads = Reads().watch(monkeypatch)
    whole = roweis_map(given, Y, 11)
    assert (reads.per_chunk((N, D), (25, D)) == 1).all()
    assert [len(line) for line in whole.models] == [11] * 11
    errors = whole.errors(held, NEW_Y)
    assert (reads.per_chunk((90, D), (10, D)) == 1).all()
    np.testing.assert_array_equal(errors, whole.errors(NEW, NEW_Y))


@pytest.mark.parametrize("options", [{}, {"normalize": True}, {"regularization": 0.1}, {"robust": 0.5}], ids=str)
def test_every_model_of_a_map_is_the_one_fitted_alone(options: dict[str, Any]) -> None:
    template = RoweisDiscriminantAnalysis(2, **options)
    whole = roweis_map(X, Y, [0, 0.35, 1], model=template)
    for i, r1 in enumerate(whole.r1):
        for j, r2 in enumerate(whole.r2):
            alone, one = RoweisDiscriminantAnalysis(2, r1=r1, r2=r2, **options), whole.models[i][j]
            if options and (r1, r2) == (1, 0) and "normalize" not in options:
                continue  # supervised PCA alone has no R2 to condition
            alone.fit(X, Y)
            assert one.get_params() == alone.get_params()
            np.testing.assert_allclose(one.eigenvalues_, alone.eigenvalues_, rtol=1e-10)
            np.testing.assert_allclose(one.components_, alone.components_, atol=1e-9)
            np.testing.assert_allclose(one.transform(NEW), alone.transform(NEW), atol=1e-8)
            assert one.total_variance_ == pytest.approx(alone.total_variance_, rel=1e-12)
            if (r1, r2) == (0, 1):  # Fisher's, which is a classifier
                np.testing.assert_allclose(one.predict_proba(NEW), alone.predict_proba(NEW), atol=1e-9)
    assert template.get_params() == RoweisDiscriminantAnalysis(2, **options).get_params()
    assert not hasattr(template, "components_")


def by_hand(found: RoweisMap, criterion: str) -> Array:
    """Errors by the distances between all scores."""
    errors = np.zeros((len(found.r1), len(found.r2)))
    for i, line in enumerate(found.models):
        for j, model in enumerate(line):
            scores = model.transform(NEW)
            if criterion == "nearest-mean":
                means = [model.transform(X[c == Y]).mean(axis=0) for c in range(C)]
                named = cdist(scores, means).argmin(axis=1)
            else:
                distances = cdist(scores, scores)
                np.fill_diagonal(distances, np.inf)
                named = NEW_Y[distances.argmin(axis=1)]
            errors[i, j] = np.mean(named != NEW_Y)
    return errors


@pytest.mark.parametrize("criterion", ["nearest-mean", "1-nn"])
def test_errors_are_those_of_the_scores_of_each_model(found: RoweisMap, criterion: str) -> None:
    errors = found.errors(NEW, NEW_Y, criterion=criterion)
    np.testing.assert_array_equal(errors, by_hand(found, criterion))
    assert 0 < errors.min() < errors.max() < 1


def test_held_out_rows_may_lack_classes_labels_and_values() -> None:
    names = np.array(["d", "b", "a", "c"])
    whole = roweis_map(X, names[Y], 2, model=RoweisDiscriminantAnalysis(2, missing_labels="drop", nan_policy="omit"))
    few = np.flatnonzero(NEW_Y < 2)
    expected = whole.errors(NEW[few], names[NEW_Y[few]])
    rows = np.vstack([NEW[few], np.full((1, D), np.nan), NEW[:1]])
    np.testing.assert_array_equal(whole.errors(rows, [*names[NEW_Y[few]], "a", None]), expected)


def test_a_class_whose_rows_were_all_left_out_attracts_no_held_out_rows() -> None:
    bad = X - X[Y != 2].mean(axis=0)
    held = bad[:90]
    bad = np.where((Y == 2)[:, None], np.nan, bad)
    template = RoweisDiscriminantAnalysis(2, nan_policy="omit")
    few = Y[:90] != 2
    errors = roweis_map(bad, Y, 2, model=template).errors(held[few], Y[:90][few])
    truth = roweis_map(bad[Y != 2], Y[Y != 2], 2).errors(held[few], Y[:90][few])
    np.testing.assert_array_equal(errors, truth)


def test_models_of_a_map_are_saved_loaded_and_grown(found: RoweisMap, tmp_path: Path) -> None:
    """(1, 0) among them, whose own fit keeps less of the rows than the map does."""
    for i in range(3):
        for j in range(3):
            model = found.models[i][j]
            model.save(tmp_path / f"{i}{j}")
            loaded = bp.load(tmp_path / f"{i}{j}")
            assert loaded.total_variance_ == model.total_variance_
            np.testing.assert_array_equal(loaded.transform(NEW), model.transform(NEW))
            grown = loaded.partial_fit(NEW, NEW_Y)
            truth = RoweisDiscriminantAnalysis(2, r1=model.r1, r2=model.r2)
            truth.fit(np.vstack([X, NEW]), np.append(Y, NEW_Y))
            np.testing.assert_allclose(grown.components_, truth.components_, atol=1e-9)
            assert grown.total_variance_ == pytest.approx(truth.total_variance_, rel=1e-12)


# Grids


@pytest.mark.parametrize("count", [2, 3, 11, np.int64(5)])
def test_grids_go_from_0_to_1(count: int) -> None:
    np.testing.assert_allclose(grid_values(count), np.arange(count) / (count - 1), rtol=1e-12)


def test_given_values_are_taken_as_they_are() -> None:
    whole = roweis_map(X, Y, np.array([0.25, 0.0]))
    assert whole.r1.tolist() == whole.r2.tolist() == [0.25, 0.0]
    assert (whole.models[0][1].r1, whole.models[0][1].r2) == (0.25, 0.0)


REJECTED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"grid": 1}, ValueError, "grid = 1 values; an integer of at least 2 was expected"),
    ({"grid": 2.5}, ValueError, "grid = 2.5 values"),
    ({"grid": True}, ValueError, "grid = True values"),
    ({"grid": []}, ValueError, "grid has no values"),
    ({"grid": [0.5, 1.5]}, ValueError, r"grid value = 1.5 is outside \[0, 1\]"),
    ({"grid": ["a"]}, TypeError, "grid value = 'a' is a str"),
    ({"model": RoweisDiscriminantAnalysis(0)}, ValueError, "n_components = 0 is out of range"),
    ({"model": RoweisDiscriminantAnalysis(memory_limit="1 MiB")}, MemoryBudgetError, "memory_limit"),
]


@pytest.mark.parametrize(("options", "error", "message"), REJECTED)
def test_a_map_that_cannot_be_is_rejected_before_any_read(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        roweis_map(unreadable(N, D), Y, **options)


def test_a_map_needs_classes() -> None:
    with pytest.raises(ValueError, match=r"labels are continuous numbers, and r2 = 0.5 > 0"):
        roweis_map(X, X[:, 0].copy(), 3)


def test_errors_that_cannot_be_are_rejected(found: RoweisMap) -> None:
    with pytest.raises(ValueError, match="criterion = 'loss' is unknown"):
        found.errors(NEW, NEW_Y, criterion="loss")
    with pytest.raises(ValueError, match="1 classes are new: 9"):
        found.errors(NEW, np.where(NEW_Y == 0, 9, NEW_Y))
    with pytest.raises(ValueError, match=r"1 held-out rows .* at least 2 were expected"):
        found.errors(NEW[:1], NEW_Y[:1], criterion="1-nn")
    assert found.errors(NEW[:1], NEW_Y[:1]).shape == (3, 3)
    with pytest.raises(ValueError, match="there are 3 labels for 90 rows"):
        found.errors(NEW, NEW_Y[:3])


# Under a kernel


def test_what_no_rows_could_make_right_is_rejected_before_the_read() -> None:
    with pytest.raises(TypeError, match=r"FisherDiscriminantAnalysis\(\) has no parameters r1 and r2 for a linear map"):
        roweis_map(unreadable(N, D), Y, 3, model=FisherDiscriminantAnalysis())  # type: ignore[arg-type]
    wide = unreadable(20, 50, chunk=5)
    with pytest.raises(ValueError, match="20 rows of 2 classes differ from their means in at most 18 of 50 directions"):
        roweis_map(wide, np.arange(20) % 2, 3)
