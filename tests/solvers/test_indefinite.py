"""Signed eigenpairs from one product: Ritz values interlace, Nyström's keep their signs, and
cancellation ruins neither.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import DTypeLike, NDArray

from bigpca.solvers.nystrom import negative_mass, nystrom, orthonormal_product, signed_nystrom, signed_ritz
from tests.builders import CountedProduct, power_law, sketch_of, symmetric

Array = NDArray[Any]
N, Q, K, RANK = 200, 40, 5, 20
EPS = float(np.finfo(np.float64).eps)
EVEN = np.where(np.arange(N) % 2 == 0, 1.0, -1.0)
SPECTRA: dict[str, Array] = {
    "definite": power_law(N, 1.0),
    "nearly definite": np.where(np.arange(N) < 30, power_law(N, 2.0), -1e-6 * power_law(N, 1.0)),
    "evenly signed": EVEN * power_law(N, 1.0),
    "evenly signed, steep": EVEN * power_law(N, 2.0),
    "largest by modulus is negative": np.where(np.arange(N) == 1, -5.0, power_law(N, 1.5)),
    "few, of both signs": np.where(np.arange(N) < RANK, EVEN * np.linspace(2.0, 1.0, N), 0.0),
    "negative": -power_law(N, 1.0),
    "zero": np.zeros(N),
}
KINDS = ("gaussian", "orthonormal", "rank-deficient", "badly scaled")


def product(name: str, dtype: DTypeLike = np.float64) -> tuple[CountedProduct, Array]:
    """A with that spectrum, seen through products in ``dtype``, and its eigenvalues in descending order."""
    A = CountedProduct(symmetric(SPECTRA[name])[0], dtype)
    return A, np.linalg.eigvalsh(A.A)[::-1]


def assert_orthonormal_rows(V: Array) -> None:
    np.testing.assert_allclose(V @ V.T, np.eye(len(V)), rtol=0, atol=100 * EPS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SPECTRA)
def test_ritz_values_interlace_so_negative_mass_is_a_lower_bound(name: str, dtype: DTypeLike) -> None:
    A, values = product(name, dtype)
    B = np.linalg.qr(A(sketch_of()))[0] if name != "zero" else sketch_of("orthonormal")
    found = signed_ritz(B, A(B), K)
    rounding = 4 * A.precision * float(np.linalg.norm(A.A))
    assert found.values.shape == (Q,)
    assert (np.diff(found.values) <= 0).all()
    assert (found.values <= values[:Q] + rounding).all()
    assert (found.values >= values[-Q:] - rounding).all()
    assert 0 <= negative_mass(found.values, 0.0) <= -values[values < 0].sum() + Q * rounding
    assert found.vectors.shape == (K, N)
    assert_orthonormal_rows(found.vectors)
    quotients = np.einsum("ij,ij->i", found.vectors, found.vectors @ A.A)
    np.testing.assert_allclose(quotients, found.values[:K], rtol=0, atol=rounding + 100 * EPS)


def test_ritz_values_on_an_invariant_span_are_eigenvalues_of_both_signs() -> None:
    A, V = symmetric(SPECTRA["evenly signed"])
    B = V[:6].T @ np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    found = signed_ritz(B, A @ B, 3)
    np.testing.assert_allclose(found.values, np.sort(SPECTRA["evenly signed"][:6])[::-1], rtol=0, atol=100 * EPS)
    np.testing.assert_allclose(np.abs(np.sum(found.vectors * V[[0, 2, 4]], axis=1)), 1, rtol=1e-12)
    assert negative_mass(found.values, 0.0) == pytest.approx(1 / 2 + 1 / 4 + 1 / 6, rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_an_orthonormal_basis_comes_with_its_product(kind: str, dtype: DTypeLike) -> None:
    A, _ = product("evenly signed", dtype)
    W = sketch_of(kind)
    basis, AQ = orthonormal_product(W, A(W))
    assert_orthonormal_rows(basis.T)
    s = np.linalg.svd(W, compute_uv=False)
    assert (
        basis.shape[1]
        == np.count_nonzero(s > 1e-2 * s[0])
        == {"rank-deficient": Q - 2, "badly scaled": 20}.get(kind, Q)
    )
    # What is kept is magnified by 100 at most.
    np.testing.assert_allclose(AQ, A.A @ basis, rtol=0, atol=100 * 4 * A.precision * np.linalg.norm(A.A, 2))
    outside = W - basis @ (basis.T @ W)
    assert np.linalg.norm(outside, 2) <= 1e-2 * s[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["gaussian", "orthonormal", "rank-deficient"])
def test_nystrom_is_exact_where_the_product_spans_the_range_signs_included(kind: str, dtype: DTypeLike) -> None:
    A, _ = product("few, of both signs", dtype)
    W = sketch_of(kind, seed=1)
    found = signed_nystrom(W, A(W), K, precision=A.precision)
    expected = np.sort(SPECTRA["few, of both signs"][:RANK])[::-1]
    # The core's smallest eigenvalue of rank 20 in 40 columns magnifies the rounding of the products.
    tolerance = 1e3 * A.precision * float(np.linalg.norm(A.A))
    kept = np.abs(found.values) > tolerance
    assert kept.sum() == RANK
    np.testing.assert_allclose(found.values[kept], expected, rtol=0, atol=tolerance)
    assert negative_mass(found.values, 0.0) == pytest.approx(-expected[expected < 0].sum(), rel=RANK * tolerance)
    assert_orthonormal_rows(found.vectors)
    np.testing.assert_allclose(found.vectors @ A.A, found.values[:K, None] * found.vectors, rtol=0, atol=tolerance)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_nystrom_of_a_definite_matrix_is_the_formula_for_definite_ones(p: float) -> None:
    A = symmetric(power_law(N, p))[0]
    W = sketch_of()
    found, plain = signed_nystrom(W, A @ W, K), nystrom(W, A @ W, K, precision=EPS)
    np.testing.assert_allclose(found.values[:Q], plain.values, rtol=0, atol=1e-9)
    np.testing.assert_allclose(np.abs(np.sum(found.vectors * plain.vectors, axis=1)), 1, rtol=1e-9)
    assert negative_mass(found.values, 0.0) <= 1e-12


def errors(name: str, share: float | None) -> Array:
    """Of the first K values, for 20 sketches, with a share of the core's eigenvalues by NumPy, or as we keep them."""
    A, values = product(name)
    found = []
    for seed in range(20):
        W = sketch_of(seed=seed)
        basis, R = np.linalg.qr(W)
        Y = np.linalg.solve(R.T, A(W).T).T
        sigma, U = np.linalg.eigh(basis.T @ Y)
        kept = np.argsort(-np.abs(sigma))[: int(np.ceil((share or 0) * Q))]
        whole = np.linalg.eigvalsh(Y @ (U[:, kept] / sigma[kept]) @ U[:, kept].T @ Y.T)[::-1]
        found.append(np.abs((whole if share else signed_nystrom(W, A(W), K).values)[:K] - values[:K]).max())
    return np.array(found)


def test_small_eigenvalues_of_the_core_are_dropped_where_they_cancel_and_kept_where_little_is_negative() -> None:
    assert errors("evenly signed", None).max() <= 0.1 < 1.0 < errors("evenly signed", 1.0).max()  # of a first of 1
    ours = errors("nearly definite", None).mean()
    assert ours <= 1.05 * errors("nearly definite", 1.0).mean()
    assert ours <= 0.7 * errors("nearly definite", 2 / 3).mean()


@pytest.mark.parametrize("name", ["nearly definite", "evenly signed, steep", "largest by modulus is negative"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_leading_values_are_found_by_value_and_not_by_modulus(name: str, kind: str) -> None:
    A, values = product(name)
    W = sketch_of(kind, seed=3)
    found = signed_nystrom(W, A(W), K)
    assert (np.diff(found.values) <= 0).all()
    assert_orthonormal_rows(found.vectors)
    # The spectra fall at least as i^-1.5. Badly scaled, the sketch has 20 columns that count.
    np.testing.assert_allclose(found.values[:2], values[:2], rtol=0.3 if kind == "badly scaled" else 0.12)
    if name == "largest by modulus is negative":
        assert found.values[-1] == pytest.approx(-5.0, rel=0.1)
        assert negative_mass(found.values, 0.0) == pytest.approx(5.0, rel=0.1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SPECTRA)
def test_whatever_the_spectrum_the_pairs_are_finite_and_orthonormal(name: str, dtype: DTypeLike) -> None:
    A, values = product(name, dtype)
    for kind in KINDS:
        W = sketch_of(kind)
        found = signed_nystrom(W, A(W), Q, precision=A.precision)
        assert np.isfinite(found.values).all()
        assert np.abs(found.values).max() <= 2 * np.abs(values).max()
        assert_orthonormal_rows(found.vectors)
        if name == "negative":
            assert found.values.max() <= 4 * A.precision * float(np.linalg.norm(A.A))


@pytest.mark.parametrize("scale", [2.0**-300, 2.0**300])
@pytest.mark.parametrize("name", ["evenly signed", "nearly definite"])
def test_a_scale_changes_the_values_by_that_factor_alone(name: str, scale: float) -> None:
    A, _ = product(name)
    W = sketch_of()
    small, plain = signed_nystrom(W, scale * A(W), K), signed_nystrom(W, A(W), K)
    np.testing.assert_allclose(small.values / scale, plain.values, rtol=0, atol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(small.vectors * plain.vectors, axis=1)), 1, rtol=1e-8)


def test_negative_mass_is_what_the_negative_values_sum_to() -> None:
    assert negative_mass(np.array([2.0, 0.0, -0.5, -1.0]), 0.0) == 1.5
    assert str(negative_mass(np.array([2.0, -1e-17]), 1e-15)) == "0.0"
