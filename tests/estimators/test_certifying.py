"""Certificates: bounds belong to what is returned, and hold for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import bigpca as bp
from bigpca import ApproximateKernelPCA, ApproximatePCA, KernelPCA
from bigpca.cli.certificate import answer_rows, describe_answer
from bigpca.estimators.certifying import certify
from bigpca.kernels import RBF, Polynomial, Tanh
from bigpca.sketches import FeatureHash, Gaussian
from bigpca.solvers.nystrom import nystrom
from tests.builders import orthonormal_rows, power_law

Array = NDArray[Any]
doubtful = pytest.mark.filterwarnings("ignore::bigpca.ApproximationWarning")


@pytest.mark.parametrize("length", [1 - 4e-14, 1 + 4e-14])
def test_bounds_hold_for_a_basis_that_is_orthonormal_to_its_rounding_only(length: float) -> None:
    """A Krylov basis is accepted at 1e-13, 50 times the slack of float64 products."""
    spectrum = power_law(60, 2.0)
    B = length * np.linalg.qr(np.eye(60, 20) + 1e-9 * orthonormal_rows(20, 60).T)[0]
    found = nystrom(B, spectrum[:, None] * B, 5, precision=2.0**-52)
    certificate = certify(found, 5, float(spectrum.sum()), precision=2.0**-52, basis=B)
    lower, upper = certificate.eigenvalue_bounds.T
    assert (lower <= spectrum[:5]).all()
    assert (spectrum[:5] <= upper).all()
    assert (upper - lower <= 1e-11).all()


# Captured variance ----------------------------------------------------------------------------------------------------


@doubtful
@pytest.mark.parametrize("seed", range(10))
def test_the_captured_variance_of_oblique_axes_is_that_of_what_they_span(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((150, 40)) * power_law(40, 0.3)
    A = np.cov(X.T)
    model: Any = ApproximatePCA(6, Gaussian(12, seed=seed), core="tutorial").fit(X)
    Q = np.linalg.qr(model.components_.T)[0]
    least, most = model.captured_variance_bounds_ * np.trace(A)
    assert least <= np.trace(Q.T @ A @ Q) <= most
    kernel = (Polynomial(1 / 40, 1.0, 2), RBF(1 / 40))[seed % 2]
    K = kernel(X)
    G = K - K.mean(axis=0)
    G -= G.mean(axis=1)[:, None]
    model = ApproximateKernelPCA(6, kernel=kernel, sketch=Gaussian(30, seed=seed), core="tutorial").fit(X)
    Q = np.linalg.qr(model.eigenvectors_)[0]
    least, most = model.captured_variance_bounds_ * np.trace(G)
    assert least <= np.trace(Q.T @ G @ Q) <= most


@doubtful
def test_axes_that_a_sketch_without_rank_leaves_empty_capture_nothing() -> None:
    X = np.random.default_rng(0).standard_normal((100, 30))
    A = np.cov(X.T)
    model = ApproximatePCA(20, FeatureHash(20), core="tutorial").fit(X)  # some of 20 columns stay empty
    lengths, V = np.linalg.svd(model.components_)[1:]
    rank = int((lengths > 1e-10).sum())
    assert rank < 20
    least, most = model.captured_variance_bounds_ * np.trace(A)
    assert least <= np.trace(V[:rank] @ A @ V[:rank].T) * (1 + 1e-12) <= most


@doubtful
@pytest.mark.parametrize("kernel", [Tanh(1.0, -1.0), RBF(0.1) - 0.5 * RBF(3.0)], ids=["tanh", "difference"])
@pytest.mark.parametrize("route", ["krylov", "nystrom", "tutorial", "ritz"])
def test_nothing_captures_a_share_of_a_trace_with_negative_parts(route: str, kernel: Any, tmp_path: Path) -> None:
    X = np.random.default_rng(0).standard_normal((80, 4))
    model: Any = KernelPCA(2, kernel=RBF(0.1), solver="krylov").fit(X)
    assert hasattr(model, "captured_variance_bounds_")
    model = model.set_params(kernel=kernel)
    if route != "krylov":
        model = ApproximateKernelPCA(2, kernel=kernel, sketch=Gaussian(20), core=route)
    model.fit(X).save(tmp_path / "m.zarr")
    for one in (model, bp.load(tmp_path / "m.zarr")):
        assert not hasattr(one, "captured_variance_bounds_")
        assert one.bounds_confidence_ == 1.0
        answer = describe_answer(one)
        assert answer["certificate"]["captured_variance_bounds"] is None
        assert "within" not in str(answer_rows(answer)["variance captured"])
