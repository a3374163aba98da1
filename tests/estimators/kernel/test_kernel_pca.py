"""Kernel PCA equals scikit-learn's on the whole matrix, by every route; its bounds hold, and its errors say why."""

from typing import Any

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import KernelPCA as Oracle
from sklearn.metrics.pairwise import laplacian_kernel

import bigpca as bp
from bigpca import KernelPCA, kernels
from bigpca.errors import ApproximationWarning
from tests.builders import assert_covered, data_with_spectrum, power_law

N, D, K = 150, 6, 5
X = data_with_spectrum(N, power_law(D), mean=0.5)[0]
NEW = data_with_spectrum(40, power_law(D), mean=0.5, seed=7)[0]
Array = NDArray[Any]
NAMED: dict[str, dict[str, Any]] = {
    "linear": {"kernel": "linear"},
    "rbf": {"kernel": "rbf"},
    "rbf, gamma": {"kernel": "rbf", "gamma": 0.3},
    "poly": {"kernel": "poly"},
    "poly, parameters": {"kernel": "poly", "degree": 2, "gamma": 0.3, "coef0": 0.5},
    "cosine": {"kernel": "cosine"},
    "sigmoid": {"kernel": "sigmoid", "gamma": 0.01, "coef0": 0.1},
}
TANH = kernels.Tanh(gamma=0.5, coef0=-1.0)


def centred(G: Array) -> Array:
    """HGH, by NumPy."""
    return G - G.mean(axis=0) - G.mean(axis=1)[:, None] + G.mean()


def spectrum(G: Array) -> Array:
    return np.linalg.eigvalsh(centred(G))[::-1]


def assert_same_up_to_sign(found: Array, expected: Array, tolerance: float) -> None:
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("solver", ["auto", "dense"])
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.filterwarnings("ignore:Tanh:bigpca.errors.ApproximationWarning")
def test_scikit_learns_kernels_give_its_eigenvalues_and_scores(name: str, solver: str) -> None:
    oracle = Oracle(K, eigen_solver="dense", fit_inverse_transform=True, alpha=0.1, **NAMED[name]).fit(X)
    model = KernelPCA(K, solver=solver, **NAMED[name]).fit(X)
    np.testing.assert_allclose(model.eigenvalues_, oracle.eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(model.explained_variance_, oracle.eigenvalues_ / (N - 1), rtol=1e-10)
    np.testing.assert_allclose(model.explained_variance_ratio_, model.explained_variance_ / model.total_variance_)
    assert_same_up_to_sign(model.transform(X), oracle.transform(X), 1e-10)
    assert_same_up_to_sign(model.transform(NEW), oracle.transform(NEW), 1e-10)
    with_back = KernelPCA(K, solver=solver, fit_inverse_transform=0.1, **NAMED[name]).fit(X)
    scores, expected = with_back.transform(NEW), oracle.transform(NEW)
    assert_same_up_to_sign(scores, expected, 1e-10)
    back = oracle.inverse_transform(expected)
    np.testing.assert_allclose(with_back.inverse_transform(scores), back, rtol=0, atol=1e-9 * np.abs(back).max())
    if solver == "dense":
        assert_same_up_to_sign(model.eigenvectors_, oracle.eigenvectors_, 1e-10)


def test_few_pairs_of_a_thousand_rows_are_scikit_learns() -> None:
    rows, planned = data_with_spectrum(1100, power_law(D), mean=0.5)[0], {}
    oracle = Oracle(K, eigen_solver="arpack", kernel="rbf", tol=0).fit(rows)
    for k in (K, 60):  # iterated for, and solved for by LAPACK
        model = KernelPCA(k, kernel="rbf", solver="dense").fit(rows)
        planned[k] = model.plan_.flops
        np.testing.assert_allclose(model.eigenvalues_[:K], oracle.eigenvalues_, rtol=1e-10)
        assert_same_up_to_sign(model.eigenvectors_[:, :K], oracle.eigenvectors_, 1e-9)
    assert planned[K] < planned[60] / 2


@pytest.mark.parametrize("solver", ["dense", "krylov"])
def test_kernels_that_scikit_learn_lacks_are_those_of_its_precomputed_matrix(solver: str) -> None:
    G = laplacian_kernel(X, gamma=0.2)
    oracle = Oracle(K, kernel="precomputed", eigen_solver="dense").fit(G)
    for given, rows, new in (
        ({"kernel": "laplacian", "gamma": 0.2}, X, NEW),
        ({"kernel": "precomputed"}, G, laplacian_kernel(NEW, X, gamma=0.2)),
        ({"kernel": lambda A, B: laplacian_kernel(A, B, gamma=0.2)}, X, NEW),
    ):
        model = KernelPCA(K, solver=solver, tol=1e-9, max_passes=40, **given).fit(rows)
        if callable(
            given["kernel"]
        ):  # not known to be positive semi-definite; nothing negative is seen, and none reported
            assert str(model.negative_mass_) == "0.0"
        np.testing.assert_allclose(model.eigenvalues_, oracle.eigenvalues_, rtol=1e-8)
        expected = oracle.transform(laplacian_kernel(NEW, X, gamma=0.2))
        assert_same_up_to_sign(model.transform(new), expected, 1e-9 if solver == "dense" else 1e-3)


KRYLOV: dict[str, tuple[kernels.Kernel, Array]] = {
    "rbf": (kernels.RBF(0.2), X),
    "wide rbf": (kernels.RBF(1e-4), X),
    "narrow rbf": (kernels.RBF(20.0), X),
    "polynomial": (kernels.Polynomial(5, gamma=1.0, coef0=1.0), X),
    "laplacian": (kernels.Laplacian(0.3), X),
    "laplacian, l2": (kernels.Laplacian(0.3, "l2"), X),
    "chi square": (kernels.ChiSquare(), np.abs(X)),
    "jensen shannon": (kernels.JensenShannon(), np.abs(X)),
    "intersection": (kernels.HistogramIntersection(), np.abs(X)),
    "sum": (kernels.RBF(0.2) + 0.1 * kernels.Linear(), X),
}


SINGLE = ("rbf", "polynomial", "laplacian", "laplacian, l2", "sum")  # to be tried in float32, too


@pytest.mark.parametrize(("name", "dtype"), [*((name, "f8") for name in KRYLOV), *((name, "f4") for name in SINGLE)])
def test_an_iteration_is_within_its_tolerance_and_its_bounds_hold(
    name: str, dtype: str, float32_products: None
) -> None:
    kernel, rows = KRYLOV[name]
    rows = np.vstack([rows, rows[::3] * 1.1, rows[::2] * 0.9]).astype(dtype)
    G = kernel(rows.astype("f8"))
    values = spectrum(G)
    model = KernelPCA(K, kernel=kernel, solver="krylov", max_passes=30).fit(rows)
    assert model.converged_ is True  # of a narrow rbf, whose matrix is nearly I, once the basis is the whole space
    rounding = 50 * np.finfo(dtype).eps * np.linalg.norm(G)
    scale = np.maximum(values[:K], model.tol * values[0])
    assert (np.abs(model.eigenvalues_ - values[:K]) <= model.tol * scale + rounding).all()
    assert_covered(model.eigenvalue_bounds_, values[:K])
    assert model.total_variance_ == pytest.approx(values.sum() / (len(rows) - 1), abs=rounding)
    V = model.eigenvectors_
    np.testing.assert_allclose(V.T @ V, np.eye(K), rtol=0, atol=1e-10)
    captured = np.trace(V.T @ centred(G) @ V) / values.sum()
    least, most = model.captured_variance_bounds_
    slack = rounding / values.sum()
    assert least - slack <= captured <= most + slack


@pytest.mark.filterwarnings("ignore:the values of the kernel hardly differ")  # said, too
def test_a_kernel_that_float64_cannot_tell_from_a_constant_is_said_and_its_bounds_hold(float32_products: None) -> None:
    rows = X.astype("f4")
    with pytest.warns(
        ApproximationWarning, match=r"the last 3 of 3 eigenvalues are below .* products with precision .* exceeds tol"
    ):
        model = KernelPCA(3, kernel="rbf", gamma=1e-14, solver="krylov").fit(rows)
    wide = rows.astype("f8")
    values = spectrum(np.expm1(-1e-14 * ((wide[:, None] - wide) ** 2).sum(axis=2)))[:3]  # H annihilates the 1
    assert_covered(model.eigenvalue_bounds_, values)
    np.testing.assert_allclose(model.eigenvalues_, values, rtol=0, atol=0.01 * values[0])


@pytest.mark.parametrize("n", [300, 900], ids=["random start", "landmarks"])
@pytest.mark.parametrize(
    ("kernel", "giant"),
    [
        (kernels.Linear(), 3e3), (kernels.RBF(1e-5), 1.0), (kernels.Polynomial(3, gamma=1e-2, coef0=1.0), 30.0),
        (kernels.Tanh(1e-3, 1.0), 1.0),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Tanh:bigpca.errors.ApproximationWarning")
def test_eigenvalues_that_float32_tiles_would_hide_are_found_in_float64(
    kernel: Any, giant: float, n: int, float32_products: None
) -> None:
    rows = np.random.default_rng(0).standard_normal((n, 20)) * power_law(20, 0.25)
    rows[:, 7] *= giant
    rows = rows.astype("f4")
    wide = rows.astype("f8") - rows.mean(axis=0, dtype="f8")
    squares = ((wide[:, None] - wide) ** 2).sum(axis=2)
    given = np.expm1(-kernel.gamma * squares) if isinstance(kernel, kernels.RBF) else kernel(rows.astype("f8"))
    true = spectrum(wide @ wide.T if kernel == kernels.Linear() else given)[:8]
    model = KernelPCA(8, kernel=kernel, solver="krylov", tol=1e-3, max_passes=8).fit(rows)
    assert model.converged_
    np.testing.assert_allclose(model.eigenvalues_, true, rtol=1e-3)
    lower, upper = model.eigenvalue_bounds_.T
    assert (lower <= true * (1 + 1e-9)).all()
    assert (true <= upper * (1 + 1e-9)).all()


def test_the_start_from_landmarks_saves_sweeps_and_is_counted() -> None:
    rows = data_with_spectrum(1200, power_law(D), mean=1.0)[0]
    model = KernelPCA(3, kernel="rbf", solver="krylov").fit(rows)
    sweep = model.plan_.evaluations / 3
    assert sweep < model.kernel_evaluations_ < 1.3 * sweep  # one sweep, and landmarks
    np.testing.assert_allclose(model.eigenvalues_, spectrum(kernels.RBF(1 / D)(rows))[:3], rtol=2e-3)


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Linear(2.0), kernels.Polynomial(3, gamma=0.3, coef0=1.0), kernels.Cosine(), kernels.Hellinger(),
        kernels.Linear() + 0.5 * kernels.Linear() ** 2,
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("k", [K, 0.9, None])
def test_exact_features_give_what_the_kernel_matrix_gives(kernel: kernels.Kernel, k: Any) -> None:
    rows, new = (np.abs(A) if isinstance(kernel, kernels.Hellinger) else A for A in (X, NEW))
    features, dense = (KernelPCA(k, kernel=kernel, solver=solver).fit(rows) for solver in ("features", "dense"))
    assert (features.solver_, features.kernel_evaluations_) == ("features", 0)
    assert features.n_components_ == dense.n_components_
    np.testing.assert_allclose(features.eigenvalues_, dense.eigenvalues_, rtol=1e-8)
    assert features.total_variance_ == pytest.approx(dense.total_variance_, rel=1e-10)
    some = [i for i in range(min(K, dense.n_components_)) if dense.eigenvalues_[i] > 1e-3 * dense.eigenvalues_[0]]
    assert_same_up_to_sign(features.transform(new)[:, some], dense.transform(new)[:, some], 1e-8)
    np.testing.assert_allclose(features.novelty(new), dense.novelty(new), rtol=0, atol=1e-9 * dense.total_variance_)
    assert not hasattr(features, "eigenvectors_")


@pytest.mark.parametrize("solver", ["dense", "krylov", "features"])
@pytest.mark.parametrize("kernel", [kernels.Linear(), kernels.Polynomial(2, gamma=0.5, coef0=1.0)], ids=str)
def test_novelty_is_the_distance_to_the_subspace_in_the_features(kernel: kernels.Kernel, solver: str) -> None:
    model = KernelPCA(2, kernel=kernel, solver=solver, tol=1e-9, max_passes=40).fit(X)
    F, new = kernel.features(X), kernel.features(np.vstack([NEW, 10 * NEW]))
    axes = np.linalg.svd(F - F.mean(axis=0), full_matrices=False)[2][:2]
    about = new - F.mean(axis=0)
    expected = ((about - about @ axes.T @ axes) ** 2).sum(axis=1)
    found = model.novelty(np.vstack([NEW, 10 * NEW]))
    assert found.shape == (80,)
    assert (found >= 0).all()
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=1e-6 * expected.max() if solver == "krylov" else 1e-10 * expected.max()
    )


def test_denoising_moves_rows_towards_the_circle_they_were_drawn_from() -> None:
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, 600)
    noisy = np.column_stack([np.cos(angles), np.sin(angles)]) + 0.15 * rng.standard_normal((600, 2))
    model = KernelPCA(6, kernel="rbf", gamma=1.0).fit(noisy[:400])
    before, after = (np.abs(np.linalg.norm(rows, axis=1) - 1) for rows in (noisy[400:], model.denoise(noisy[400:])))
    assert after.mean() < 0.5 * before.mean()
    stays = model.denoise(noisy[400:], max_iter=1000, tol=1e-12)
    weights = model.transform(noisy[400:]) @ model._expansion().coefficients.T + 1 / 400
    near = weights * kernels.RBF(1.0)(stays, noisy[:400])
    np.testing.assert_allclose((near @ noisy[:400]) / near.sum(axis=1, keepdims=True), stays, atol=1e-8)  # Mika, eq. 10


@pytest.mark.parametrize("origin", [0.0, 1e3, -1e6])
@pytest.mark.parametrize("make", [KernelPCA, bp.NystromKernelPCA])
def test_denoising_depends_neither_on_the_origin_nor_on_other_rows(make: Any, origin: float) -> None:
    rows, far = X + origin, NEW + origin
    cleaned = make(3, kernel="rbf", gamma=0.3).fit(X).denoise(NEW)
    model = make(3, kernel="rbf", gamma=0.3).fit(rows)
    found = model.denoise(far)
    atol = 1e-9 + 1e-9 * abs(origin)
    np.testing.assert_allclose(found - origin, cleaned, rtol=0, atol=atol)
    alone = np.concatenate([model.denoise(far[i : i + 1]) for i in range(len(far))])
    np.testing.assert_allclose(alone, found, rtol=0, atol=atol)
    steps = [np.abs(model.denoise(far, tol=tol) - found).max() for tol in (1e-2, 1e-4)]
    assert steps[1] < steps[0]


@pytest.mark.parametrize("rule", [0.5, 0.7, bp.rules.RelativeThreshold(0.05)], ids=str)
def test_shares_and_rules_count_as_on_the_whole_spectrum(rule: Any) -> None:
    values = np.maximum(spectrum(kernels.RBF(1 / D)(X)), 0)
    expected = int((values >= 0.05 * values[0]).sum())
    if isinstance(rule, float):
        expected = int(np.searchsorted(np.cumsum(values) / values.sum(), rule, side="right")) + 1
    for solver in ("dense", "krylov"):
        assert KernelPCA(rule, kernel="rbf", solver=solver, tol=1e-5, max_passes=30).fit(X).n_components_ == expected


@pytest.mark.parametrize("k", [3, None])
def test_negative_eigenvalues_are_summed_and_said(k: int | None) -> None:
    values = spectrum(np.tanh(0.5 * X @ X.T - 1))
    with pytest.warns(
        ApproximationWarning, match=r"negative eigenvalues, whose magnitudes sum to \d.*\(Frobenius norm \d"
    ) as caught:
        model = KernelPCA(k, kernel=TANH).fit(X)
    assert "at least" not in str(caught[0].message)
    assert model.solver_ == "dense"
    mass = -values[values < -1e-10].sum()
    assert mass > 0.1 * values[0]
    assert model.negative_mass_ == pytest.approx(mass, rel=1e-10)
    positive = values[values > 1e-10]
    np.testing.assert_allclose(model.eigenvalues_, positive[:k], rtol=1e-8)


def test_an_indefinite_kernel_takes_no_share_by_iteration() -> None:
    with pytest.raises(ValueError, match=r"n_components = 0\.5 needs the whole spectrum.* Give a number, or use"):
        KernelPCA(0.5, kernel=TANH, solver="krylov").plan(X)
    assert KernelPCA(0.5, kernel=TANH).plan(da.zeros((5000, 3), chunks=(1000, 3))).solver == "dense"


def test_a_refit_forgets_what_only_the_earlier_fit_knew() -> None:
    with pytest.warns(ApproximationWarning):
        model = KernelPCA(2, kernel=TANH, solver="krylov", fit_inverse_transform=True).fit(X)
    names = ("negative_mass_", "eigenvalue_bounds_", "converged_", "eigenvectors_", "n_passes_")
    assert all(hasattr(model, name) for name in names)
    model.set_params(kernel="linear", solver="auto", fit_inverse_transform=False).fit(X)
    assert model.solver_ == "features"
    assert not any(hasattr(model, name) for name in names)
    assert not hasattr(model, "inverse_transform")
    with pytest.raises(ValueError, match="the model was not fitted for inverse_transform"):
        model.set_params(fit_inverse_transform=True).inverse_transform(np.zeros((1, 2)))


WORDS = np.array(["".join(np.random.default_rng(i).choice(list("abc"), 1 + i % 7)) for i in range(60)])
LONGER = np.array(["abcabcabcabcabcabc", "b", "", "cab"])


@pytest.mark.parametrize("kernel", [kernels.Spectrum(2), kernels.Subsequence(2, 0.5)], ids=str)
def test_strings_are_rows_of_any_length(kernel: kernels.Kernel) -> None:
    model = KernelPCA(3, kernel=kernel).fit(WORDS)
    codes, new = kernels.string_codes(WORDS), kernels.string_codes(LONGER)
    oracle = Oracle(3, kernel="precomputed", eigen_solver="dense").fit(kernel(codes))
    np.testing.assert_allclose(model.eigenvalues_, oracle.eigenvalues_, rtol=1e-10)
    expected = oracle.transform(kernel(new, codes))
    for given in (LONGER, LONGER[:, None], LONGER.astype(object), LONGER.tolist(), new):
        found = model.transform(given)
        assert isinstance(found, np.ndarray)
        assert_same_up_to_sign(found, expected, 1e-9)
    assert_same_up_to_sign(model.transform(LONGER.astype("S")), expected, 1e-6)  # of bytes, in float32
    lazy = model.transform(da.from_array(new, chunks=(2, new.shape[1])))
    assert_same_up_to_sign(lazy.compute(), expected, 1e-9)
    assert_same_up_to_sign(model.transform(np.array([""])), expected[2:3], 1e-9)
    assert model.novelty(LONGER).shape == (4,)


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("solver", ["dense", "krylov"])
def test_a_handful_of_rows_will_do(rows: int, solver: str) -> None:
    model = KernelPCA(1, kernel="rbf", solver=solver).fit(X[:rows])
    np.testing.assert_allclose(model.eigenvalues_, spectrum(kernels.RBF(1 / D)(X[:rows]))[:1], rtol=1e-10)


@pytest.mark.filterwarnings("ignore:.*is not positive semi-definite:bigpca.errors.ApproximationWarning")
@pytest.mark.parametrize("kernel", [kernels.RBF(0.2), TANH], ids=["rbf", "tanh"])
def test_a_number_of_sweeps_that_does_not_do_is_said_and_the_bounds_hold(kernel: kernels.Kernel) -> None:
    rows = np.random.default_rng(0).standard_normal((400, 30))
    with pytest.warns(ApproximationWarning, match=r"stopped after \d.* reads with eigenvalue errors .*max_passes"):
        model = KernelPCA(3, kernel=kernel, solver="krylov", tol=1e-9, max_passes=2).fit(rows)
    assert model.converged_ is False
    # Of a trace with negative parts nothing captures a share.
    assert hasattr(model, "captured_variance_bounds_") == kernel.positive_semidefinite
    assert_covered(model.eigenvalue_bounds_, spectrum(kernel(rows))[:3])


def test_changing_the_training_rows_afterwards_does_not_change_the_model() -> None:
    rows = X.copy()
    model = KernelPCA(2, kernel="rbf").fit(rows)
    before = model.transform(NEW)
    rows[:] = 0
    assert np.array_equal(model.transform(NEW), before)
