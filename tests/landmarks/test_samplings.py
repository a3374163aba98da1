"""What all samplings share: the seed and the rows decide, chunks and threads do not; errors name what is wrong."""

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import bigpca as bp
from bigpca.kernels.distance import RBF
from bigpca.kernels.dot import Polynomial
from bigpca.landmarks import SAMPLINGS
from tests.builders import offset_data
from tests.estimators.stores import stored
from tests.landmarks.cases import Found, choose, request

N, D, M = 600, 12, 25
KERNEL = Polynomial(degree=3, gamma=0.5, coef0=1.0)
DRAWN = [s for s in SAMPLINGS if s != "kmeans"]  # k-means' centres depend on the chunks


def rows(n: int = N, dtype: str = "f4") -> np.ndarray:
    return offset_data(n, D, mean=2.0, dtype=dtype)


def select(sampling: Any, X: Any, m: int = M, kernel: Any = KERNEL, **options: Any) -> Found:
    return choose(sampling, request(X, kernel, m, **options))


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("sampling", DRAWN)
def test_neither_chunks_nor_threads_choose_the_rows(sampling: str, scheduler: str, tmp_path: Path) -> None:
    X = rows()
    expected = select(sampling, X)
    assert expected.indices is not None
    assert len(set(expected.indices)) == M
    lazy = da.from_array(X, chunks=((0, 1, 130, 0, 200, N - 331), D))
    with dask.config.set(scheduler=scheduler):
        for given_as in (
            stored(tmp_path, X, (150, D)), stored(tmp_path, X, (200, 5)), lazy, (lazy * 2).rechunk((90, 10)) / 2,
        ):  # fmt: skip
            found = select(sampling, given_as)
            assert np.array_equal(found.indices, expected.indices)  # type: ignore[arg-type]
            assert np.array_equal(found.rows, expected.rows)
            assert np.array_equal(found.rows, X[expected.indices])


def test_diagonal_sampling_with_a_constant_diagonal_is_uniform_sampling() -> None:
    X = rows()
    uniform, diagonal = (select(s, X, kernel=RBF(gamma=0.1)).indices for s in ("uniform", "diagonal"))
    assert np.array_equal(uniform, diagonal)  # type: ignore[arg-type]
    assert not np.array_equal(uniform, select("diagonal", X).indices)  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "m"), [(240, 30), (400, 20), (500, 200), (3000, 60)])
@pytest.mark.parametrize("sampling", ["diagonal", "rpcholesky"])
def test_the_evaluations_of_a_fit_are_planned(sampling: str, n: int, m: int) -> None:
    model = bp.NystromKernelPCA(2, kernel="rbf", gamma=0.05, n_landmarks=m, sampling=sampling)
    model.fit(rows(n))
    assert 0.75 <= model.kernel_evaluations_ / model.plan_.evaluations <= 1.25


def test_given_numbers_are_read_in_the_given_order_and_given_rows_are_used_as_they_are(tmp_path: Path) -> None:
    X, numbers = rows(), np.array([401, 3, 599, 0, 150])
    for given_as in (X, stored(tmp_path, X, (150, D)), da.from_array(X, chunks=(7, 5)) * 1):
        found = select(numbers, given_as, 5)
        assert np.array_equal(found.rows, X[numbers])
        assert np.array_equal(found.indices, numbers)  # type: ignore[arg-type]
        assert (found.passes, found.evaluations, found.rows.dtype) == (1.0, 0, np.float32)
    own = select(points := np.arange(3.0 * D).reshape(3, D), X, 3)
    assert np.array_equal(own.rows, points)
    assert (own.indices, own.passes, own.rows.dtype) == (None, 0.0, np.float32)


@pytest.mark.parametrize("sampling", DRAWN)
def test_rows_with_missing_values_are_left_out(sampling: str) -> None:
    X = rows(dtype="f8")
    bad = X.copy()
    bad[::3, 4] = np.nan
    with pytest.raises(bp.errors.NonFiniteError):
        choose(sampling, request(bad, KERNEL, M))
    if sampling == "column-norm":  # a sweep compares all pairs of rows
        with pytest.raises(ValueError, match=r'"column-norm" .* cannot omit rows'):
            choose(sampling, request(bad, KERNEL, M, nan_policy="omit"))
        return
    found = choose(sampling, request(bad, KERNEL, M, nan_policy="omit"))
    assert found.indices is not None
    assert (found.indices % 3 > 0).all()
    assert np.array_equal(found.rows, X[found.indices])
    with pytest.raises(ValueError, match="401 landmarks were requested, but only 400 of 600 rows are not left out"):
        choose(sampling, request(bad, KERNEL, 401, nan_policy="omit"))


def test_more_landmarks_than_rows_none_or_an_unknown_sampling_are_rejected() -> None:
    X = rows(20)
    for sampling in SAMPLINGS:
        with pytest.raises(
            ValueError, match=r"21 landmarks were requested, but X has only 20 rows.*Give n_landmarks=20"
        ):
            select(sampling, X, 21)
    with pytest.raises(ValueError, match=r"n_landmarks = 0; at least 1 was expected"):
        select("uniform", X, 0)
    with pytest.raises(ValueError, match=r"sampling = 'random' is unknown. Use one of 'rpcholesky', 'uniform'"):
        select("random", X, 5)


def test_columns_of_zeros_and_rows_that_are_omitted_have_no_norm() -> None:
    with pytest.raises(ValueError, match=r"the sum of k\(x, y\)\^2 of all rows under Polynomial.* is 0: squares"):
        select("column-norm", np.zeros((20, D)), 5, kernel=Polynomial(degree=2, gamma=1.0, coef0=0.0))


@pytest.mark.parametrize(
    ("landmarks", "message"),
    [
        ([1, 2, 3], r"3 landmarks were given, but n_landmarks = 4. Give n_landmarks=3"),
        ([1, 2, 3, 20], r"landmark 3 is row 20, but X has rows 0 to 19"),
        ([1, -2, 3, 4], r"landmark 1 is row -2, but X has rows 0 to 19"),
        ([1, 7, 3, 7], r"row 7 is given as a landmark more than once. Remove"),
        (np.zeros((4, D + 1)), r"the given landmarks have 13 columns, but X has 12"),
        (np.full((4, D), np.inf), r"landmark 0 has inf in column 0, which is not finite"),
        (np.array(4), r"sampling has no dimension; \(m,\) .* or \(m, d\)"),
    ],
)
def test_given_landmarks_that_cannot_be_are_rejected(landmarks: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(np.asarray(landmarks), rows(20), 4)


@pytest.mark.parametrize("landmarks", [[0.0, 1.0, 2.0, 3.0], ["a", "b", "c", "d"], [True, False, True, True]])
def test_given_landmarks_that_are_no_row_numbers_are_rejected(landmarks: Any) -> None:
    with pytest.raises(TypeError, match=r"; row numbers, integers \(m,\), or rows, numbers \(m, d\)"):
        select(np.asarray(landmarks), rows(20), 4)


def test_a_given_row_with_missing_values_is_rejected() -> None:
    bad = rows(20)
    bad[7, 3] = np.nan
    with pytest.raises(ValueError, match="row 7 was given as a landmark, but it is left out"):
        choose(np.array([1, 7]), request(bad, KERNEL, 2, nan_policy="omit"))
