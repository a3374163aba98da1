"""Dot products of sampled pairs: NumPy's on those pairs, known answers, and no rows read but the sampled ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from numpy.typing import NDArray

import bigpca as bp
from bigpca.passes.rows import Rows
from bigpca.quality import dot_product_error, reconstruction_error
from bigpca.quality import metrics as dot_products_module
from bigpca.quality.measurement import read_rows
from tests.builders import data_with_spectrum, orthonormal_rows, power_law
from tests.passes.kit import logged, reads_in, write_store

EPS = float(np.finfo(np.float64).eps)
X = data_with_spectrum(150, power_law(12, 1.5), mean=3.0)[0]
KEYED = pd.DataFrame(X, index=[f"row {i}" for i in range(len(X))])


def dot_products(A: NDArray[Any], pairs: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    left, right = (A.astype(np.float64)[pairs[:, i]] for i in (0, 1))
    return (left * right).sum(1), np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4"])
@pytest.mark.parametrize("n", [2, 3, 60, 900])
def test_dot_product_errors_are_those_of_plain_numpy_on_the_pairs(n: int, dtype: str) -> None:
    rng = np.random.default_rng(n)
    A = (rng.standard_normal((n, 40)) * 8).astype(dtype)
    Z = A.astype(np.float64) @ rng.standard_normal((40, 25)) / 5
    found = dot_product_error(A, Z, n_pairs=200, random_state=3)
    assert found.pairs.shape == (200, 2)
    assert (found.pairs[:, 0] != found.pairs[:, 1]).all()
    assert found.pairs.min() >= 0
    assert found.pairs.max() < n
    exact, norms = dot_products(A, found.pairs)
    approximate, _ = dot_products(Z, found.pairs)
    np.testing.assert_allclose(found.exact, exact, rtol=0, atol=40 * EPS * norms.max())
    np.testing.assert_allclose(found.approximate, approximate, rtol=0, atol=1e-13 * norms.max() * 10)
    with np.errstate(divide="ignore"):
        relative = np.abs(exact - approximate) / np.abs(exact)
    assert found.mape == pytest.approx(relative.mean(), rel=1e-9)
    assert found.median == pytest.approx(np.median(relative), rel=1e-9)
    assert found.relative_to_norms == pytest.approx((np.abs(exact - approximate) / norms).mean(), rel=1e-9)


def test_known_answers_of_a_scaled_an_exact_and_a_rotated_sketch() -> None:
    A = np.random.default_rng(0).standard_normal((80, 6))
    assert dot_product_error(A, np.sqrt(2) * A).mape == pytest.approx(1.0)
    assert dot_product_error(A, A).mape == 0
    turned = dot_product_error(A, A @ orthonormal_rows(6, 6).T)
    assert turned.relative_to_norms < 10 * EPS


def test_a_product_near_0_moves_mape_but_neither_the_median_nor_the_error_relative_to_norms() -> None:
    A = np.abs(np.random.default_rng(0).standard_normal((400, 5))) + 1
    A[:20] = np.eye(5)[0]
    A[20:40] = np.eye(5)[1]  # orthogonal to those before
    found = dot_product_error(A, A + 0.01, n_pairs=2000)
    assert (found.exact == 0).any()
    assert found.mape == np.inf
    assert found.median < 0.1
    assert found.relative_to_norms < 0.1
    zeros = np.zeros((4, 3))
    assert dot_product_error(zeros, zeros).mape == dot_product_error(zeros, zeros).relative_to_norms == 0


def test_a_gaussian_sketch_s_error_falls_with_the_square_root_of_q() -> None:
    # E |error| / (|x| |y|) of a Gaussian sketch is at most sqrt(2 / q) and at least about sqrt(2 / (pi q)).
    rng = np.random.default_rng(0)
    A = rng.standard_normal((200, 300))
    for q in (25, 100, 400):
        found = dot_product_error(A, A @ rng.standard_normal((300, q)) / np.sqrt(q), n_pairs=2000)
        assert 0.7 * np.sqrt(2 / (np.pi * q)) < found.relative_to_norms < np.sqrt(2 / q)


def saved(A: NDArray[Any], folder: Path) -> Path:
    np.save(folder / "a.npy", A)
    return folder / "a.npy"


FORMS: dict[str, Callable[[NDArray[Any], Path], Any]] = {
    "memory": lambda A, folder: A,
    "zarr": lambda A, folder: Path(write_store(folder / "a.zarr", A, (17, A.shape[1])).store.root),
    "zarr in columns": lambda A, folder: write_store(folder / "b.zarr", A, (30, 4)),
    "npy": saved,
    "memmap": lambda A, folder: np.load(saved(A, folder), mmap_mode="r"),
    "dask": lambda A, folder: da.from_array(A, chunks=(23, 5)) + 0,
    "masked rows": lambda A, folder: da.from_array(A, chunks=(23, 6))[da.from_array(np.ones(len(A), bool), chunks=23)],
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_the_same_rows_gives_the_same_pairs_and_errors(form: str, tmp_path: Path) -> None:
    A = np.random.default_rng(0).standard_normal((120, 10)).astype("f4")
    Z = A[:, :6] * 1.1
    expected = dot_product_error(A, Z, n_pairs=40, random_state=5)
    found = dot_product_error(FORMS[form](A, tmp_path), Z, n_pairs=40, random_state=5)
    np.testing.assert_array_equal(found.pairs, expected.pairs)
    np.testing.assert_allclose(found.exact, expected.exact, rtol=1e-12, atol=1e-12)
    other = dot_product_error(A, Z, n_pairs=40, random_state=6)
    assert (other.pairs != expected.pairs).any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wanted", [[0], [119], [5, 6, 7, 60], list(range(0, 120, 9)), list(range(120))], ids=len)
def test_chosen_rows_are_those_rows_to_the_last_bit(form: str, wanted: list[int], tmp_path: Path) -> None:
    A = np.random.default_rng(0).standard_normal((120, 10)) + 1e5
    A[:, 3] = 1e-30
    for B in (A, A.astype("f4")):
        folder = tmp_path / B.dtype.name
        folder.mkdir()
        rows = Rows.of(bp.open(FORMS[form](B, folder)))
        np.testing.assert_array_equal(read_rows(rows, np.array(wanted), "rows"), B[wanted])


def test_only_chunks_that_hold_sampled_rows_are_read_and_once(tmp_path: Path) -> None:
    A = np.random.default_rng(0).standard_normal((1000, 4))
    write_store(tmp_path / "a.zarr", A, (10, 4))
    for number, X_ in enumerate(
        (
            logged(tmp_path / "a.zarr", tmp_path / "log0"),
            logged(tmp_path / "a.zarr", tmp_path / "log1", chunk_rows=10) + 0,
        )
    ):
        found = dot_product_error(X_, A, n_pairs=8)
        reads = reads_in(tmp_path / f"log{number}")
        chunks = [start // 10 for start, _ in reads]
        assert 2 <= len(reads) <= 16
        assert len(set(chunks)) == len(chunks)
        assert set(np.unique(found.pairs) // 10) <= set(chunks)


def test_neighbouring_rows_of_two_small_chunks_are_one_read(tmp_path: Path) -> None:
    A = np.random.default_rng(0).standard_normal((40, 4))
    write_store(tmp_path / "a.zarr", A, (10, 4))
    rows = Rows.of(logged(tmp_path / "a.zarr", tmp_path / "log"))
    np.testing.assert_array_equal(read_rows(rows, np.array([9, 10, 12, 39]), "rows"), A[[9, 10, 12, 39]])
    assert reads_in(tmp_path / "log") == [(9, 13), (39, 40)]


def test_rows_of_a_format_without_chunks_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.random.default_rng(0).standard_normal((1000, 4)))
    source = bp.open(tmp_path / "a.npy")
    kind = type(Rows.of(source).source)
    read, seen = kind.read_block, []
    monkeypatch.setattr(
        kind,
        "read_block",
        lambda self, start, stop, columns: seen.append((start, stop)) or read(self, start, stop, columns),
    )
    read_rows(Rows.of(source), np.array([3, 4, 500, 999]), "rows")
    assert sorted(seen) == [(3, 5), (500, 501), (999, 1000)]


def test_the_rows_held_fit_their_pool_and_are_spread_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    A = np.random.default_rng(0).standard_normal((1000, 64))
    monkeypatch.setattr(dot_products_module, "POOL_BYTES", 20 * 64 * 8)
    found = dot_product_error(A, A, n_pairs=500)
    used = np.unique(found.pairs)
    assert len(used) == 20
    assert (used // 50).tolist() == list(range(20))
    assert len(found.pairs) == 500


def test_pairs_are_sampled_on_a_cluster_too(tmp_path: Path) -> None:
    A = np.random.default_rng(0).standard_normal((60, 5))
    write_store(tmp_path / "a.zarr", A, (10, 5))
    expected = dot_product_error(A, A[:, :3], n_pairs=20)
    expected_error = reconstruction_error(bp.PCA(2).fit(A), A)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster),
    ):
        persisted = da.from_array(A, chunks=(10, 5)).persist()
        for source in (tmp_path / "a.zarr", persisted):
            found = dot_product_error(source, persisted[:, :3], n_pairs=20)
            assert (found.mape, found.median) == pytest.approx((expected.mape, expected.median), rel=1e-12)
            error = reconstruction_error(bp.PCA(2).fit(A), source)
            assert error.mean_squared == pytest.approx(expected_error.mean_squared, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dot_product_error(X, X[:9]), ValueError, "X has 150 rows, and Z 9: row i of Z belongs to"),
        (
            lambda: dot_product_error(KEYED, KEYED[::-1]),
            ValueError,
            "the rows of Z have the keys of the rows of X, but in",
        ),
        (lambda: dot_product_error(X[:1], X[:1]), ValueError, "X has 1 rows; at least 2 were expected"),
        (lambda: dot_product_error(X, X, 0), ValueError, "n_pairs = 0 is below 1"),
        (lambda: dot_product_error(X, X, 2.5), TypeError, "n_pairs = 2.5 is a float"),
        (lambda: dot_product_error(X, X, True), TypeError, "n_pairs = True is a bool"),
        (lambda: dot_product_error(X, X, random_state=-1), ValueError, "random_state = -1 is negative"),
        (lambda: dot_product_error(X, X, random_state=0.5), TypeError, "random_state = 0.5 is of type float"),
        (lambda: dot_product_error(X, np.full_like(X, np.nan)), bp.errors.NonFiniteError, "NaN or infinite value"),
    ],
)
def test_pairs_that_cannot_be_compared_are_rejected(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
