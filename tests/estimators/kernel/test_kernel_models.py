"""Kernel PCA, exact, sketched and by landmarks, against scikit-learn and the whole matrix."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import KernelPCA as ReferencePCA

import bigpca as bp
from bigpca.kernels import RBF, Cosine, Laplacian, Linear, Polynomial, Precomputed, Spectrum, Tanh, normalized

Matrix = NDArray[np.float64]
KERNELS = {
    "rbf": RBF(0.05),
    "laplacian": Laplacian(0.05),
    "polynomial": Polynomial(degree=3, gamma=0.1, coef0=1.0),
    "sum": normalized(Polynomial(degree=2, gamma=1.0, coef0=0.0)) + RBF(0.02),
}


def rows_of(n: int = 300, d: int = 8, seed: int = 0) -> Matrix:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * np.linspace(2, 0.3, d) + 5.0


def centred(K: Matrix) -> Matrix:
    return K - K.mean(axis=0) - K.mean(axis=1)[:, None] + K.mean()


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_dense_scores_and_new_rows_are_scikit_learns(kernel: bp.kernels.Kernel) -> None:
    X, new = rows_of(), rows_of(40, seed=1)
    reference = ReferencePCA(4, kernel="precomputed", eigen_solver="dense").fit(kernel(X))
    model = bp.KernelPCA(4, kernel=kernel, solver="dense").fit(X)
    np.testing.assert_allclose(model.eigenvalues_, reference.eigenvalues_, rtol=1e-10)
    np.testing.assert_allclose(
        np.abs(model.transform(new)), np.abs(reference.transform(kernel(new, X))), atol=1e-9 * model.eigenvalues_[0]
    )
    np.testing.assert_allclose((model.transform(X) ** 2).sum(axis=0), model.eigenvalues_, rtol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_iteration_meets_its_tolerance_and_its_bounds_hold(kernel: bp.kernels.Kernel) -> None:
    X = rows_of(700)
    true = np.linalg.eigvalsh(centred(kernel(X).astype(np.float64)))[::-1][:5]
    model = bp.KernelPCA(5, kernel=kernel, solver="krylov", tol=1e-4).fit(X)
    assert model.converged_
    np.testing.assert_allclose(model.eigenvalues_, true, rtol=1e-3)
    lower, upper = model.eigenvalue_bounds_.T
    assert (lower <= true).all()
    assert (true <= upper).all()


def test_scikit_learns_names_and_parameters_give_its_eigenvalues() -> None:
    X = rows_of(120)
    for name, options in {
        "rbf": {"gamma": 0.1}, "poly": {"degree": 2, "coef0": 0.5}, "cosine": {}, "linear": {}, "laplacian": {},
    }.items():  # fmt: skip
        model = bp.KernelPCA(3, kernel=name, **options).fit(X)
        if name == "laplacian":
            reference = ReferencePCA(3, kernel="precomputed").fit(Laplacian()(X))
        else:
            reference = ReferencePCA(3, kernel=name, **options).fit(X)
        np.testing.assert_allclose(model.eigenvalues_, reference.eigenvalues_, rtol=1e-8)


def test_a_kernel_with_a_feature_map_needs_no_kernel_matrix() -> None:
    X = rows_of(200)
    streamed = bp.KernelPCA(3, kernel=Linear() + 2 * Cosine()).fit(X)
    whole = bp.KernelPCA(3, kernel=Linear() + 2 * Cosine(), solver="dense").fit(X)
    assert (streamed.solver_, streamed.kernel_evaluations_) == ("features", 0)
    np.testing.assert_allclose(streamed.eigenvalues_, whole.eigenvalues_, rtol=1e-9)
    np.testing.assert_allclose(streamed.novelty(X), whole.novelty(X), atol=1e-8 * whole.eigenvalues_[0])
    linear = bp.KernelPCA(3).fit(X)
    np.testing.assert_allclose(linear.eigenvalues_, bp.PCA(3).fit(X).explained_variance_ * 199, rtol=1e-10)


def test_an_indefinite_kernel_has_signed_eigenvalues_and_a_warning() -> None:
    X, kernel = rows_of() - 5.0, Tanh(gamma=0.05, coef0=-1.0)
    true = np.linalg.eigvalsh(centred(kernel(X).astype(np.float64)))[::-1]
    with pytest.warns(bp.ApproximationWarning, match="not positive semi-definite"):
        dense = bp.KernelPCA(3, kernel=kernel).fit(X)
    np.testing.assert_allclose(dense.eigenvalues_, true[:3], rtol=1e-10)
    assert dense.negative_mass_ == pytest.approx(-true[true < 0].sum(), rel=1e-9)
    with pytest.warns(bp.ApproximationWarning, match="at least"):
        iterated = bp.KernelPCA(3, kernel=kernel, solver="krylov", tol=1e-4).fit(X)
    np.testing.assert_allclose(iterated.eigenvalues_, true[:3], rtol=1e-3)
    assert 0 < iterated.negative_mass_ <= dense.negative_mass_ * (1 + 1e-9)
    assert (iterated.eigenvalue_bounds_[:, 1] >= true[:3]).all()
    with pytest.raises(ValueError, match="not positive semi-definite"):
        bp.NystromKernelPCA(3, kernel=kernel, n_landmarks=20).fit(X)


def test_all_rows_as_landmarks_are_exact_kernel_pca() -> None:
    X = rows_of(150)
    exact = bp.KernelPCA(4, kernel=RBF(0.2)).fit(X)
    model = bp.NystromKernelPCA(4, kernel=RBF(0.2), n_landmarks=150, sampling="uniform").fit(X)
    np.testing.assert_allclose(model.eigenvalues_, exact.eigenvalues_, rtol=1e-7)
    np.testing.assert_allclose(np.abs(model.transform(X)), np.abs(exact.transform(X)), atol=1e-5)
    assert model.trace_error_ < 1e-7


def test_rows_that_arrive_later_change_nothing_but_the_order_of_sums() -> None:
    X = rows_of(400)
    landmarks = np.arange(0, 200, 5)
    whole = bp.NystromKernelPCA(4, kernel=RBF(0.1), sampling=landmarks).fit(X)
    parts = bp.NystromKernelPCA(4, kernel=RBF(0.1), sampling=landmarks).fit(X[:200]).partial_fit(X[200:])
    np.testing.assert_allclose(parts.eigenvalues_, whole.eigenvalues_, rtol=1e-8)
    assert parts.n_samples_ == 400


def test_several_widths_share_one_read() -> None:
    X, gammas = rows_of(300), [0.02, 0.1, 0.3]
    models = bp.NystromKernelPCA(3, kernel="rbf", gamma=0.1, n_landmarks=40, sampling="uniform").fit_widths(X, gammas)
    for gamma, model in zip(gammas, models, strict=True):
        single = bp.NystromKernelPCA(3, kernel="rbf", gamma=gamma, sampling=model.landmark_indices_).fit(X)
        np.testing.assert_allclose(model.eigenvalues_, single.eigenvalues_, rtol=1e-8)


def test_a_saved_model_scores_alike(tmp_path) -> None:
    X = rows_of(200)
    for model in (
        bp.KernelPCA(3, kernel=RBF(0.1)), bp.KernelPCA(3), bp.NystromKernelPCA(3, gamma=0.1, n_landmarks=30),
        bp.ApproximateKernelPCA(3, gamma=0.1), bp.KernelPCA(2, kernel="poly", solver="dense"),
    ):  # fmt: skip
        model.fit(X).save(tmp_path / "model", overwrite=True)
        loaded = bp.load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.transform(X), model.transform(X))
        np.testing.assert_array_equal(loaded.eigenvalues_, model.eigenvalues_)


def test_a_store_of_training_rows_is_read_again_and_lazy_rows_stay_lazy(tmp_path) -> None:
    X = rows_of(900).astype(np.float32)
    store = bp.ingest(X, tmp_path / "rows.zarr")
    model = bp.KernelPCA(3, kernel=RBF(0.1), solver="krylov").fit(store)
    lazy = model.transform(store)
    assert lazy.chunks[0] == store.chunks[0]
    np.testing.assert_allclose(lazy.compute(), model.transform(X), atol=1e-6)
    written = model.transform(store, out=tmp_path / "scores.zarr")
    np.testing.assert_allclose(written.compute(), model.transform(X), atol=1e-6)


def test_strings_and_precomputed_matrices_are_rows_too() -> None:
    words = np.array(["kernel", "colonel", "kernels", "carnal", "principal", "principle", "principles"])
    model = bp.KernelPCA(2, kernel=normalized(Spectrum(2))).fit(words)
    assert model.transform(np.array(["kernelization", "a longer string than any"])).shape == (2, 2)
    X = rows_of(80)
    K = RBF(0.1)(X)
    precomputed = bp.KernelPCA(3, kernel=Precomputed()).fit(K)
    np.testing.assert_allclose(
        precomputed.eigenvalues_, bp.KernelPCA(3, kernel=RBF(0.1)).fit(X).eigenvalues_, rtol=1e-9
    )


def test_a_denoised_circle_is_nearer_to_the_circle() -> None:
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, 400)
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    noisy = circle + 0.15 * rng.standard_normal(circle.shape)
    clean = bp.KernelPCA(4, kernel=RBF(1.0)).fit(noisy).denoise(noisy)
    before, after = (np.abs(np.linalg.norm(Z, axis=1) - 1).mean() for Z in (noisy, clean))
    assert after < 0.6 * before


def test_a_plan_counts_evaluations_and_refuses_more_than_were_allowed() -> None:
    X = rows_of(3000)
    plan = bp.KernelPCA(3, kernel="rbf").plan(X)
    assert plan.solver == "krylov"
    assert plan.evaluations == pytest.approx(1.5 * 3000**2, rel=0.1)
    with pytest.raises(bp.EvaluationBudgetError, match=r"max_kernel_evaluations.*|NystromKernelPCA"):
        bp.KernelPCA(3, kernel="rbf", max_kernel_evaluations=1e6).fit(X)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X: bp.KernelPCA(2, kernel="rbf", gamma=-1.0).fit(X), "gamma"),
        (lambda X: bp.KernelPCA("mle", kernel="rbf").fit(X), "mle"),
        (lambda X: bp.KernelPCA(2, kernel=RBF(0.1), gamma=2.0).fit(X), "of its own"),
        (lambda X: bp.KernelPCA(2, kernel="rbf", solver="features").fit(X), "no exact finite feature map"),
        (lambda X: bp.KernelPCA(2, kernel="rbf", solver="fast").fit(X), "solver"),
        (lambda X: bp.NystromKernelPCA(2, kernel="rbf", n_landmarks=1000).fit(X), "at most as many landmarks"),
        (lambda X: bp.NystromKernelPCA(2, kernel="rbf", sampling="best").fit(X), "sampling"),
        (lambda X: bp.NystromKernelPCA(2, kernel="rbf", extension="none").fit(X), "extension"),
        (lambda X: bp.ApproximateKernelPCA(2, kernel="rbf", core="none").fit(X), "core"),
        (lambda X: bp.ApproximateKernelPCA(60, kernel="rbf", sketch=bp.sketches.Gaussian(50)).fit(X), "wider sketch"),
        (lambda X: bp.KernelPCA(2, kernel="chi").fit(X), "kernel"),
        (lambda X: bp.KernelPCA(2, kernel="rbf", nan_policy="omit").fit(X), "all pairs"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(make, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make(rows_of(100))


def test_missing_values_are_named_or_left_out_by_landmarks() -> None:
    X = rows_of(100)
    X[7, 3] = np.nan
    with pytest.raises(bp.NonFiniteError, match="row 7"):
        bp.KernelPCA(2, kernel="rbf").fit(X)
    model = bp.NystromKernelPCA(2, kernel="rbf", n_landmarks=20, nan_policy="omit").fit(X)
    assert (model.n_samples_, model.n_omitted_) == (99, 1)
