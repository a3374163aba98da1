"""What a solver certifies becomes attributes, survives the disk, and never outlives the fit that it was about."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bigpca as bp
from bigpca import PCA
from bigpca.errors import ModelFormatError
from bigpca.estimators.linear.maps import low_rank_plus_diagonal, orthonormality_error
from bigpca.estimators.linear.model import LinearModel
from bigpca.estimators.shared.certificates import Certificate, Certified
from bigpca.passes.accumulators.moments import Moments
from tests.builders import data_with_spectrum, power_law
from tests.estimators.stores import save_changed

X = data_with_spectrum(50, power_law(6), mean=5.0)[0]
BOUNDS = np.array([[1.0, 1.1], [0.5, 0.6], [0.3, 0.4]])
FULL = Certificate(BOUNDS, np.array([0.01, 0.02, 0.03]), np.array([0.8, 0.9]), 0.999, 2.5, False)
BARE = Certificate(BOUNDS, None, np.array([0.8, 0.9]), 1.0)


def certified(certificate: Certificate) -> PCA:
    """A PCA whose solver certified its answer."""
    pca = PCA(3).fit(X)
    pca._found = replace(pca._result, certificate=certificate)
    return pca


@pytest.fixture
def oblique(monkeypatch: pytest.MonkeyPatch) -> PCA:
    """A linear model with unit components that are not orthogonal."""
    monkeypatch.setattr(PCA, "_orthonormal", False)
    model = PCA(3).fit(X)
    components = model.components_ + 0.3 * model.components_[0]
    model.components_ = components / np.linalg.norm(components, axis=1, keepdims=True)
    return model


def certificate_of(model: Any) -> dict[str, Any]:
    return {
        name: getattr(model, name) for name in vars(Certified) if name[-1] == "_" != name[0] and hasattr(model, name)
    }


def test_a_certificate_becomes_attributes() -> None:
    found = certificate_of(certified(FULL))
    assert set(found) == {
        "eigenvalue_bounds_", "residuals_", "captured_variance_bounds_", "bounds_confidence_", "n_passes_",
        "converged_",
    }  # fmt: skip
    assert found["eigenvalue_bounds_"] is FULL.eigenvalue_bounds
    assert found["residuals_"] is FULL.residuals
    assert (found["bounds_confidence_"], found["n_passes_"], found["converged_"]) == (0.999, 2.5, False)


def test_what_is_not_known_has_no_attribute() -> None:
    assert set(certificate_of(certified(BARE))) == {
        "eigenvalue_bounds_",
        "captured_variance_bounds_",
        "bounds_confidence_",
    }
    assert certificate_of(PCA(3).fit(X)) == {}


@pytest.mark.parametrize("refit", ["fit", "partial_fit"])
def test_an_exact_fit_forgets_the_certificate_of_the_fit_before(refit: str) -> None:
    assert certificate_of(getattr(certified(FULL), refit)(X)) == {}


@pytest.mark.parametrize("certificate", [FULL, BARE], ids=["full", "bare"])
def test_a_certificate_comes_back_from_disk(certificate: Certificate, tmp_path: Path) -> None:
    model = certified(certificate)
    model.save(tmp_path / "model.zarr")
    expected, found = certificate_of(model), certificate_of(bp.load(tmp_path / "model.zarr"))
    assert list(found) == list(expected)
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert all(type(found[name]) is type(expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"certificate__eigenvalue_bounds": np.full((3, 2), np.inf)},
            "eigenvalue_bounds with values that are not finite",
        ),
        ({"certificate__eigenvalue_bounds": None}, "lacks certificate__eigenvalue_bounds"),
        ({"state__packed": None}, "packed"),
    ],
)
def test_a_wrong_certificate_or_state_is_rejected(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = save_changed(certified(FULL), changes, tmp_path / "model.zarr")
    with pytest.raises(ModelFormatError, match=rf"does not hold what a PCA of format .*{message}"):
        bp.load(path)


def test_reconstruction_from_oblique_axes_is_the_least_squares_one(oblique: PCA) -> None:
    axes = oblique.components_.T  # (d, k)
    assert orthonormality_error(oblique.components_) > 0.1
    projected = axes @ np.linalg.lstsq(axes, (X - oblique.mean_).T, rcond=None)[0]
    found = oblique.inverse_transform(oblique.transform(X))
    np.testing.assert_allclose(found, projected.T + oblique.mean_, rtol=0, atol=1e-13 * np.abs(X).max())


def test_oblique_axes_have_no_covariance_model(oblique: PCA) -> None:
    for name in ("score", "score_samples", "get_covariance", "get_precision"):
        with pytest.raises(AttributeError) as caught:
            getattr(oblique, name)
        assert "components are not orthonormal (off by 0." in str(caught.value.__cause__)


def test_a_dense_covariance_over_16_gib_is_rejected_before_it_is_allocated() -> None:
    wrong = np.ones(2)  # which no product with one component accepts
    with pytest.raises(bp.errors.MemoryBudgetError, match=r"a dense 46341 x 46341 matrix takes 16\.0 GiB, more than"):
        low_rank_plus_diagonal(np.ones((1, 46_341)), wrong, 1.0)
    with pytest.raises(ValueError, match="matmul"):
        low_rank_plus_diagonal(np.ones((1, 46_340)), wrong, 1.0)


def test_models_of_two_classes_or_of_one_that_depends_on_its_rows_are_not_merged() -> None:
    with pytest.raises(TypeError, match="a PCA and a SketchTransformer cannot be merged"):
        bp.merge(PCA(2).fit(X), bp.SketchTransformer(bp.sketches.Gaussian(2)).fit(X))
    with pytest.raises(TypeError, match="two models of dict cannot be merged"):
        bp.merge({}, {})
    rotated = bp.RotatedPCA(2).fit(X)
    with pytest.raises(TypeError, match="two models of RotatedPCA cannot be merged: what each keeps"):
        bp.merge(rotated, rotated)


def test_a_linear_model_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        LinearModel[Moments]()  # type: ignore[abstract]
