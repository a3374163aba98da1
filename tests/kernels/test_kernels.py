"""Every kernel against its formula, its diagonal, its flags and its promises: a new kernel is one row of cases."""

import json
import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from bigpca.kernels import Kernel, kernel_from
from bigpca.kernels.base import FIXED_BYTES
from tests.kernels.cases import CASES, Case
from tests.kernels.cases_other import OTHER_CASES

ALL = {case.name: case for case in [*CASES, *OTHER_CASES]}
N = 23
DTYPES = [np.float32, np.float64]
each_case = pytest.mark.parametrize("case", ALL.values(), ids=ALL.keys())
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])


def rows_of(case: Case, dtype: Any, seed: int = 0, n: int = N) -> Any:
    return case.rows(seed, n).astype(dtype)


def oracle(case: Case, X: Any, Y: Any) -> Any:
    return np.array([[case.oracle(x, y) for y in Y.astype(np.float64)] for x in X.astype(np.float64)])


def tolerance(case: Case, dtype: Any, K: Any) -> float:
    return float((case.tolerance32 if dtype == np.float32 else case.tolerance64) * np.abs(K).max())


def resolved(case: Case, X: Any) -> tuple[Kernel, Any]:
    return case.kernel.resolve(X.shape[1]), X.mean(axis=0, dtype=np.float64)


def test_the_names_of_the_cases_differ() -> None:
    assert len(ALL) == len(CASES) + len(OTHER_CASES)


@each_dtype
@each_case
def test_the_matrix_is_the_formula(case: Case, dtype: Any) -> None:
    X = rows_of(case, dtype)
    expected = oracle(case, X, X)
    K = case.kernel(X)
    assert K.dtype.itemsize >= X.dtype.itemsize
    np.testing.assert_allclose(K, expected, rtol=0, atol=tolerance(case, dtype, expected))


@each_dtype
@each_case
def test_the_matrix_is_symmetric_and_knows_its_diagonal(case: Case, dtype: Any) -> None:
    X = rows_of(case, dtype, seed=1)
    K = case.kernel(X)
    np.testing.assert_allclose(K, K.T, rtol=0, atol=2 * tolerance(case, dtype, K))
    diagonal = case.kernel.diagonal(X)
    assert diagonal.dtype == np.float64
    np.testing.assert_allclose(np.diagonal(K), diagonal, rtol=0, atol=2 * tolerance(case, dtype, K))


@each_dtype
@pytest.mark.parametrize("case", [case for case in ALL.values() if case.kernel.accepts_csr], ids=lambda case: case.name)
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_sparse_rows_have_the_values_of_dense_ones(case: Case, dtype: Any, offset: float) -> None:
    X, Y = rows_of(case, dtype) + dtype(offset), rows_of(case, dtype, seed=3) + dtype(offset)
    X[np.random.default_rng(4).random(X.shape) < 0.7] = 0
    X[[0, 7, N - 1]] = 0
    kernel, shift = resolved(case, Y)
    A, dense = kernel.prepare(csr_array(X), shift), kernel.prepare(X.astype("f8"), shift)
    K, expected = kernel.block(A, kernel.prepare(Y, shift)), kernel.block(dense, kernel.prepare(Y.astype("f8"), shift))
    assert K.dtype.itemsize >= dtype(0).itemsize
    sizes = np.sqrt(np.abs(np.multiply.outer(kernel.diagonal_of(dense), case.kernel.diagonal(Y))))
    allowed = (case.tolerance32 if dtype == np.float32 else case.tolerance64) * max(sizes.max(), np.abs(K).max())
    np.testing.assert_allclose(K, expected, rtol=0, atol=allowed)
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(kernel.diagonal_of(A), kernel.diagonal_of(dense), rtol=rtol, atol=1e-300)


@each_case
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"), [([0, 1, 2, 9], [0, 10], np.float32), ([0], [0, *range(3, N)], np.float64)]
)
def test_how_the_rows_are_cut_changes_nothing(case: Case, rows: Any, columns: Any, dtype: Any) -> None:
    X = rows_of(case, dtype, seed=2)
    kernel, shift = resolved(case, X)
    A = [(i, kernel.prepare(X[i:j], shift, i)) for i, j in zip(rows, [*rows[1:], N], strict=True)]
    B = [(i, kernel.prepare(X[i:j], shift, i)) for i, j in zip(columns, [*columns[1:], N], strict=True)]
    K = np.block([[kernel.block(left, right) for _, right in B] for _, left in A])
    expected = oracle(case, X, X)
    np.testing.assert_allclose(K, expected, rtol=0, atol=tolerance(case, dtype, expected))
    diagonal = np.concatenate([kernel.diagonal_of(left) for _, left in A])
    np.testing.assert_allclose(diagonal, case.kernel.diagonal(X), rtol=1e-6 if dtype == np.float32 else 1e-13)


@each_dtype
@each_case
def test_prepared_rows_are_a_copy_and_the_rows_are_not_overwritten(case: Case, dtype: Any) -> None:
    X = rows_of(case, dtype)
    kernel, shift = resolved(case, X)
    given = X.copy()
    A = kernel.prepare(given, shift)
    K = kernel.block(A, A)
    np.testing.assert_array_equal(given, X)
    given[...] = 1
    np.testing.assert_array_equal(kernel.block(A, A), K)


@each_case
def test_the_flag_of_positive_semi_definiteness_is_right(case: Case) -> None:
    assert case.kernel.positive_semidefinite == case.psd
    spectra = [np.linalg.eigvalsh(oracle(case, X, X)) for X in (case.rows(seed, N) for seed in range(5))]
    relative = [float(values[0] / np.abs(values).max()) for values in spectra]
    if case.psd:
        assert min(relative) >= -100 * np.finfo(np.float64).eps * N
    else:
        assert min(relative) < -1e-3


@each_dtype
@each_case
def test_features_have_their_width_and_give_the_kernel_or_are_rejected(case: Case, dtype: Any) -> None:
    X = rows_of(case, dtype)
    kernel, _ = resolved(case, X)
    width = kernel.feature_width(X.shape[1])
    if width is None:
        with pytest.raises(TypeError, match=r"no exact finite feature map"):
            kernel.features(X)
        return
    features = kernel.features(X, 5)
    assert (features.shape, features.dtype) == ((N, width), dtype)
    wide = features.astype(np.float64)
    expected = oracle(case, X, X)
    np.testing.assert_allclose(wide @ wide.T, expected, rtol=0, atol=2 * tolerance(case, dtype, expected))


@each_case
def test_a_description_makes_the_kernel_again(case: Case) -> None:
    if case.name in ("scaled", "scaled linear", "function") or case.name.endswith("of a function"):
        with pytest.raises(TypeError, match=r"which cannot be stored in a model file"):
            case.kernel.describe()
        return
    assert kernel_from(json.loads(json.dumps(case.kernel.describe()))) == case.kernel


@each_case
def test_a_pickled_kernel_gives_the_same_bits(case: Case) -> None:
    X = rows_of(case, np.float32)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(case.kernel))(X), case.kernel(X))


@each_case
def test_threads_share_prepared_blocks(case: Case) -> None:
    X = rows_of(case, np.float64)
    kernel, shift = resolved(case, X)
    A, B = kernel.prepare(X, shift), kernel.prepare(X, shift)
    expected = kernel.block(A, B)
    with ThreadPoolExecutor(4) as pool:
        for K in pool.map(lambda _: kernel.block(A, B), range(8)):
            np.testing.assert_array_equal(K, expected)


@pytest.mark.parametrize("dtype", [np.float32])
@each_case
def test_a_block_stays_within_the_memory_that_it_announces(case: Case, dtype: Any) -> None:
    X = rows_of(case, dtype, n=1200)
    kernel, shift = resolved(case, X)
    kernel.block(kernel.prepare(X[:3], shift), kernel.prepare(X[:2], shift, 1))  # compiles, where that is needed
    most_held = 2 * 1200 * kernel.prepared_bytes(X.shape[1], X.dtype.itemsize) + 100_000
    for _ in range(3):  # what threads of earlier tests free or take meanwhile is traced too
        tracemalloc.start()
        A, B = kernel.prepare(X, shift), kernel.prepare(X, shift)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        K = kernel.block(A, B)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        most = K.size * kernel.entry_bytes(X.dtype.itemsize) + FIXED_BYTES
        if held <= most_held and K.nbytes <= peak - held <= most:
            break
    assert held <= most_held
    assert K.nbytes <= peak - held <= most
