"""CKA and Procrustes similarity from one read equal the n x n computation, whatever the units, order and stores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes, sqrtm
from scipy.sparse import csr_array
from scipy.stats import kstest
from sklearn.datasets import load_digits, load_iris

import bigpca as bp
from bigpca.quality import cka, procrustes

Array = NDArray[Any]
RNG = np.random.default_rng(0)
N = 90
X = RNG.standard_normal((N, 7)) * 0.8 ** np.arange(7)
Y = X[:, :4] @ RNG.standard_normal((4, 5)) + RNG.standard_normal((N, 5))


def hsic(K: Array, L: Array) -> float:
    """Song et al. 2012, eq. 5, as it is written."""
    n = len(K)
    K, L = K - np.diag(np.diag(K)), L - np.diag(np.diag(L))
    one = np.ones(n)
    means = (one @ K @ one) * (one @ L @ one) / ((n - 1) * (n - 2))
    return float((np.trace(K @ L) + means - 2 * (one @ K @ L @ one) / (n - 2)) / (n * (n - 3)))


def pairwise_cka(A: Array, B: Array, debiased: bool = True) -> float:
    A, B = (np.asarray(one, "f8") for one in (A, B))
    A, B = A - A.mean(0), B - B.mean(0)
    if debiased:
        K, L = A @ A.T, B @ B.T
        return hsic(K, L) / np.sqrt(hsic(K, K) * hsic(L, L))
    return float(((A.T @ B) ** 2).sum() / np.sqrt(((A.T @ A) ** 2).sum() * ((B.T @ B) ** 2).sum()))


def google_cka(A: Array, B: Array) -> float:
    """google-research/representation_similarity, feature_space_linear_cka(debiased=True)."""
    A, B = A - A.mean(0), B - B.mean(0)

    def norm(of: Array, rows: Array, others: Array, squares: float, other_squares: float) -> float:
        n = len(A)
        return float((of**2).sum() - n / (n - 2.0) * rows @ others + squares * other_squares / ((n - 1) * (n - 2)))

    u, v = (A**2).sum(1), (B**2).sum(1)
    return norm(A.T @ B, u, v, u.sum(), v.sum()) / np.sqrt(
        norm(A.T @ A, u, u, u.sum(), u.sum()) * norm(B.T @ B, v, v, v.sum(), v.sum())
    )


def test_public_numbers() -> None:
    iris, images = load_iris().data, load_digits().images
    left, right = (part.reshape(len(images), -1) for part in (images[:, :, :4], images[:, :, 4:]))
    assert cka(iris[:, :2], iris[:, 2:], debiased=False).value == pytest.approx(0.770294, abs=1e-6)
    assert cka(iris[:, :2], iris[:, 2:]).value == pytest.approx(0.769728, abs=1e-6)
    assert cka(left, right, debiased=False).value == pytest.approx(0.272830, abs=1e-6)
    assert cka(left, right).value == pytest.approx(0.269554, abs=1e-6)
    assert cka(left, right).value == pytest.approx(google_cka(left, right), rel=1e-10)


@pytest.mark.parametrize("debiased", [True, False])
def test_one_read_equals_the_computation_from_all_pairs_of_rows(debiased: bool, tmp_path: Path) -> None:
    truth = pairwise_cka(X, Y, debiased)
    assert cka(X, Y, debiased=debiased).value == pytest.approx(truth, rel=1e-13)
    bp.ingest(X, tmp_path / "x.zarr", chunk_rows=7)
    assert cka(str(tmp_path / "x.zarr"), Y, debiased=debiased).value == pytest.approx(truth, rel=1e-13)
    pairs = [(X[i : i + 13], Y[i : i + 13]) for i in range(0, N, 13)]
    assert cka(bp.from_batches(iter(pairs)), debiased=debiased).value == pytest.approx(truth, rel=1e-13)
    sparse = np.where(X > 0, X, 0)
    found = cka(csr_array(sparse), Y, debiased=debiased).value
    assert found == pytest.approx(pairwise_cka(sparse, Y, debiased), rel=1e-12)


@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_offsets_cost_no_digits(offset: float) -> None:
    far = X + offset * RNG.standard_normal(7), Y - offset
    assert cka(*far).value == pytest.approx(pairwise_cka(*far), rel=1e-12 * offset / 1e4)
    groups = np.repeat([0, 1, 2], 30)[:, None] * offset  # and groups that are far apart, merged from folds
    assert cka(X + groups, Y).value == pytest.approx(pairwise_cka(X + groups, Y), rel=1e-10)


@settings(max_examples=12, deadline=None)
@given(
    power=st.integers(-60, 60), other=st.integers(-60, 60), seed=st.integers(0, 9), folds=st.integers(2, 20),
    debiased=st.booleans(),
)  # fmt: skip
def test_rotations_units_offsets_and_folds_change_nothing(
    power: int, other: int, seed: int, folds: int, debiased: bool
) -> None:
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((7, 7)))[0]
    moved = (X @ Q + rng.standard_normal(7)) * 2.0**power, Y * 2.0**other
    found = cka(*moved, debiased=debiased, n_folds=folds)
    assert found.value == pytest.approx(pairwise_cka(X, Y, debiased), rel=1e-11)
    assert procrustes(*moved, n_folds=None).value == pytest.approx(procrustes(X, Y).value, rel=1e-9)


def test_independent_data_are_debiased_and_their_p_values_uniform_enough() -> None:
    """The mean unbiased HSIC is 0; means of biased CKA are far from it."""
    values, p_values = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        found = cka(rng.standard_normal((64, 40)), rng.standard_normal((64, 30)), n_folds=None)
        values.append(found.value)
        p_values.append(found.p_value)
    assert abs(np.mean(values)) < 3 * np.std(values) / np.sqrt(40)
    assert np.mean(np.array(p_values, float) < 0.05) < 0.15
    assert kstest(p_values, "uniform").statistic < 0.4
    assert cka(X, Y).p_value < 1e-6  # type: ignore[operator]


def test_the_standard_error_is_that_of_repeated_samples_also_of_sorted_rows() -> None:
    def sample(seed: int) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((400, 6)) + rng.integers(0, 3, 400)[:, None]
        A = A[np.argsort(A[:, 0])]
        return A, A[:, :3] + 2 * rng.standard_normal((400, 3))

    found = [cka(*sample(seed), n_folds=10) for seed in range(24)]
    spread = np.std([one.value for one in found], ddof=1)
    errors = [one.standard_error or np.nan for one in found]
    assert 0.6 * spread < np.mean(errors) < 1.6 * spread


def test_procrustes_is_the_fit_of_the_best_rotation_and_the_bures_distance_of_gram_matrices() -> None:
    A, B = (one - one.mean(axis=0) for one in (X, Y))
    A, B = A / np.linalg.norm(A), B / np.linalg.norm(B)
    rotation, _ = orthogonal_procrustes(np.c_[A, np.zeros((N, B.shape[1]))], np.c_[B, np.zeros((N, A.shape[1]))])
    distance = ((np.c_[A, np.zeros_like(B)] @ rotation - np.c_[B, np.zeros_like(A)]) ** 2).sum()
    root = np.real(sqrtm(A @ A.T + 1e-16 * np.eye(N)))
    found = procrustes(X, Y)
    assert 2 - 2 * found.value == pytest.approx(distance, rel=1e-10)
    assert found.value == pytest.approx(
        np.sqrt(np.maximum(np.linalg.eigvalsh(root @ B @ B.T @ root), 0)).sum(), rel=1e-4
    )
    assert procrustes(X, 7 - 3 * X[:, ::-1]).value == pytest.approx(1, abs=1e-12)
    error = procrustes(X, Y, groups=np.arange(N) % 5).standard_error
    without = [procrustes(X[kept], Y[kept]).value for kept in (np.arange(N) % 5 != fold for fold in range(5))]
    expected = np.sqrt(4 / 5 * ((without - np.mean(without)) ** 2).sum())
    assert error == pytest.approx(expected, rel=1e-9)
    w = np.arange(N) % 3
    again = X.repeat(w, axis=0), Y.repeat(w, axis=0)
    assert procrustes(X, Y, sample_weight=w).value == pytest.approx(procrustes(*again).value, rel=1e-9)


@pytest.mark.parametrize("unit", [1e-150, 1e-85, 1e85, 1e150])
def test_units_of_both_sides_do_not_matter_or_are_rejected(unit: float) -> None:
    found, truth = procrustes(X * unit, Y * unit), procrustes(X, Y)
    assert (found.value, found.standard_error) == pytest.approx((truth.value, truth.standard_error), rel=1e-9)
    a, b = {"a": X * unit}, {"b": Y * unit}
    for sides in ((a | b,), (a, b)):
        assert bp.compare_layers(*sides, metric="procrustes").values[0, -1] == pytest.approx(truth.value, rel=1e-9)
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=r"too large or too small for float64\. Divide"):
        cka(X * unit, Y * unit, debiased=False)
    with (
        np.errstate(all="ignore"),
        pytest.raises(ValueError, match=r"total variance of X is .*: squares of the values ov"),
    ):
        procrustes(X * 1e160, Y)


def test_weights_are_repetitions_of_biased_alignment() -> None:
    w = np.arange(N) % 3
    again = X.repeat(w, axis=0), Y.repeat(w, axis=0)
    assert cka(X, Y, debiased=False, sample_weight=w).value == pytest.approx(pairwise_cka(*again, False), rel=1e-12)


def test_rows_with_missing_values_on_either_side_are_left_out() -> None:
    A, B = X.copy(), Y.copy()
    A[3, 1] = B[8, 0] = np.nan
    found = cka(A, B, nan_policy="omit")
    assert (found.n_rows, found.n_omitted) == (N - 2, 2)
    assert found.value == pytest.approx(pairwise_cka(np.delete(X, [3, 8], 0), np.delete(Y, [3, 8], 0)), rel=1e-12)
    with pytest.raises(bp.errors.NonFiniteError, match=r"7 columns\) beside .* in row 8, column 7"):
        cka(X, B)


FLAT = np.ones((N, 3))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cka(X), ValueError, "cka requires y to be passed, but the target y is None. Give Y"),
        (lambda: cka(FLAT * 7.1, Y, debiased=False), ValueError, "X is constant"),
        (lambda: cka(X, Y, sample_weight=np.ones(N)), TypeError, "copies of a row would count as independent pairs"),
        (lambda: cka(X, Y, n_folds=21), ValueError, "n_folds = 21; 2 to 20"),
        (lambda: cka(np.eye(N), Y), ValueError, "unbiased HSIC of X with itself is .* not above its rounding"),
        (lambda: procrustes(FLAT, Y), ValueError, "X is constant"),
        (lambda: cka(bp.from_batches([X])), ValueError, "the batches have one array each"),
        (lambda: cka(bp.from_batches([{"a": X, "b": Y, "c": Y}])), ValueError, "the batches have 3 blocks"),
        (lambda: cka(X, Y, memory_limit="1 MiB"), MemoryError, "memory"),
    ],
)
def test_bad_input_is_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_one_column_a_side_is_a_squared_correlation() -> None:
    r = np.corrcoef(X[:, 0], Y[:, 0])[0, 1]
    assert cka(X[:, :1], Y[:, 0], debiased=False).value == pytest.approx(r**2, rel=1e-12)
    assert float(cka(X, X)) == pytest.approx(1.0, abs=1e-14)


def test_a_table_of_layers_is_html_in_notebooks() -> None:
    found = bp.compare_layers({"first": X, "second": X**2}, {"a": X, "b": Y})
    head, *lines = str(found).splitlines()
    assert head.split() == ["cka", "a", "b"]
    assert [line.split()[0] for line in lines] == ["first", "second"]
    assert "<td style=" in found._repr_html_()
    assert all(f"{value:.3f}" in found._repr_html_() for value in found.values.ravel())
