"""Scores far from the origin are those of the fit: ``sum_i y_ij^2 = lambda_j`` for every kernel, dtype, offset and
route.
"""

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca import kernels
from bigpca.estimators.kernel import maps
from tests.builders import data_with_spectrum, named, power_law

N, D, K = 120, 5, 2
ROWS = data_with_spectrum(N, power_law(D))[0]
HISTOGRAMS = (
    kernels.HistogramIntersection(), kernels.GeneralizedHistogramIntersection(1.5), kernels.ChiSquare(),
    kernels.Hellinger(), kernels.JensenShannon(),
)  # fmt: skip
KERNELS: tuple[kernels.Kernel, ...] = (
    kernels.Linear(), kernels.Polynomial(gamma=1.0, degree=2), kernels.Polynomial(), kernels.Tanh(gamma=1e-10),
    kernels.Cosine(), kernels.RBF(), kernels.Laplacian(), kernels.Laplacian(norm="l2"), *HISTOGRAMS,
    kernels.RBF() + kernels.Linear(), kernels.Linear() * kernels.RBF(), kernels.normalized(kernels.Polynomial()),
    kernels.rbf_of(kernels.Linear(), 0.3),
    kernels.FromFunction(lambda A, B: A @ B.T, positive_semidefinite=True),
)  # fmt: skip
ROUTES: dict[str, tuple[Any, dict[str, Any]]] = {
    "auto": (bp.KernelPCA, {}),
    "dense": (bp.KernelPCA, {"solver": "dense"}),
    "sketch": (bp.ApproximateKernelPCA, {"approximation": "ritz", "sketch": bp.sketches.SRHT(N)}),
    "landmarks": (bp.NystromKernelPCA, {"n_landmarks": 40}),
}


def rows_at(offset: float, kernel: kernels.Kernel, dtype: Any) -> NDArray[Any]:
    rows = np.abs(ROWS + offset) if kernel in HISTOGRAMS else ROWS + offset
    return np.asarray(rows, dtype)


@pytest.mark.parametrize(
    ("kernel", "offset"), [*((k, 1e4) for k in KERNELS), (KERNELS[1], 0.0), (kernels.RBF(), 0.0)], ids=named
)
@pytest.mark.filterwarnings("ignore:Tanh:bigpca.errors.ApproximationWarning")
def test_the_squares_of_the_training_scores_sum_to_the_eigenvalues(kernel: kernels.Kernel, offset: float) -> None:
    thorough = kernel in (KERNELS[1], kernels.RBF())  # every route and dtype; other kernels enter by their values alone
    for route in ROUTES if thorough else ("auto", "landmarks"):
        kind, parameters = ROUTES[route]
        if kind is bp.NystromKernelPCA and not kernel.positive_semidefinite:
            continue
        for dtype in (np.float32, np.float64) if thorough else (np.float32,):
            X = rows_at(offset, kernel, dtype)
            model = kind(K, kernel=kernel, **parameters)
            scores = model.fit_transform(X)
            assert scores.dtype == dtype
            # What of K is constant is centred away, and its rounding in float64 stays; scores err by 1e-4 at most.
            lost = np.finfo(np.float64).eps * N * np.abs(kernel(X.astype(np.float64))).max() / model.eigenvalues_[-1]
            np.testing.assert_allclose(
                (scores.astype(np.float64) ** 2).sum(axis=0) / model.eigenvalues_, 1, rtol=0,
                atol=(2e-5 if dtype == np.float32 else 1e-9) + 100 * lost, err_msg=f"{route}, {np.dtype(dtype)}",
            )  # fmt: skip


def test_float64_is_used_only_where_the_scores_of_float32_differ() -> None:
    for kernel in (kernels.Polynomial(gamma=1.0, degree=2), kernels.Cosine(), kernels.RBF()):
        for kind, parameters in ROUTES.values():
            near, far = (rows_at(offset, kernel, np.float32) for offset in (0.0, 1e4))
            model = kind(K, kernel=kernel, **parameters)
            assert model.fit(near).transform_dtype_ == np.float32
            needed = np.float32 if isinstance(kernel, kernels.RBF) else np.float64  # distances do not see an offset
            assert model.fit(far).transform_dtype_ == needed
            assert model.fit(near.astype(np.float64)).transform_dtype_ == np.float64


@pytest.mark.parametrize("name", ["direct", "dual", "roweis"])
def test_supervised_scores_of_float32_rows_far_from_the_origin_are_those_of_float64(name: str) -> None:
    X, y = rows_at(1e4, kernels.Cosine(), np.float32), np.arange(N) % 3
    make = {
        "direct": lambda: bp.KernelSupervisedPCA(2, kernel="poly", degree=2, n_landmarks=40),
        "dual": lambda: bp.KernelSupervisedPCA(2, kernel="poly", degree=2, solver="pairs"),
        "roweis": lambda: bp.KernelRoweisDiscriminantAnalysis(2, kernel="poly", degree=2, n_landmarks=40, r2=0.0),
    }[name]
    model = make().fit(X, y)
    assert model.transform_dtype_ == np.float64
    exact = model.transform(X.astype(np.float64))
    np.testing.assert_allclose(model.transform(X), exact, rtol=0, atol=1e-6 * np.abs(exact).max())


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("kernel", ["rbf", "poly"])
def test_the_precision_is_part_of_the_model_whatever_the_chunks_and_threads(
    kernel: str, offset: float, tmp_path: Path, float32_products: None
) -> None:
    X = rows_at(offset, kernels.RBF(), np.float32)
    for kind in (bp.KernelPCA, bp.NystromKernelPCA):
        expected = None
        for workers in (1, 4):
            with dask.config.set(scheduler="threads", num_workers=workers):
                model = kind(K, kernel=kernel, gamma=0.1).fit(da.from_array(X, chunks=(40, D)))
                scores = model.transform(da.from_array(X, chunks=(7, D))).compute()
            expected = scores if expected is None else expected
            assert scores.tobytes() == expected.tobytes()
        model.save(tmp_path / kind.__name__)
        again = bp.load(tmp_path / kind.__name__)
        assert again.transform_dtype_ == model.transform_dtype_
        assert again.transform(X).tobytes() == model.transform(X).tobytes()


@pytest.mark.parametrize(
    ("kernel", "dtype", "evaluations"),
    [(kernels.RBF(), "f4", 2 * 62 * 1000), (kernels.RBF(), "f8", 0), (kernels.RBF(), "i8", 0),
     (kernels.Precomputed(), "f4", 0), (kernels.Spectrum(2), "i4", 0)],
    ids=named,
)  # fmt: skip
def test_only_rows_in_float32_are_scored_in_both_precisions(
    kernel: kernels.Kernel, dtype: str, evaluations: int
) -> None:
    assert maps.scored_evaluations(kernel, np.dtype(dtype), 1000) == evaluations
