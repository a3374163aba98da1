"""Estimators are scikit-learn transformers: its checks, pipelines, searches, names and containers."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import bigpca as bp
from bigpca import PCA, ApproximateKernelPCA, ApproximatePCA, KernelPCA, NystromKernelPCA

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 5)) @ RNG.standard_normal((5, 5))


STEPPED = (bp.SlowFeatureAnalysis, bp.MinimumNoiseFraction, bp.TICA)
WEIGHTLESS = (
    KernelPCA, ApproximateKernelPCA, NystromKernelPCA, bp.ScoredPCA, bp.CorrespondenceAnalysis, bp.SketchTransformer,
    *STEPPED,
)  # fmt: skip
WEIGHT_CHECKS = ("pandas_series", "not_an_array", "list", "shape", "not_overwritten")
EQUIVALENCE = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]


def expected_failures(estimator: Any) -> dict[str, str]:
    if isinstance(estimator, bp.Ridge):
        return dict.fromkeys(EQUIVALENCE, "cv is a number of folds, drawn by the keys of rows: it takes no splits")
    if isinstance(estimator, bp.CCA | bp.PLSSVD | bp.PLSRegression):
        return {}
    # As many components as classes, or as were asked for.
    equal = (bp.SupervisedPCA, bp.SupervisedRandomProjection, bp.FactorAnalysis, bp.ContrastivePCA)
    linear = isinstance(estimator, PCA | ApproximatePCA)
    limited = "for fewer rows than columns: repeated rows add neither components nor rank"
    expected = dict.fromkeys(EQUIVALENCE, limited)
    if isinstance(estimator, equal) or (linear and estimator.n_components == 2):
        expected = {}
    if linear and estimator.n_components is None:
        expected["check_array_api_input"] = "as many components as features leave no density for score"
    if isinstance(estimator, bp.CorrespondenceAnalysis):
        expected |= {"check_positive_only_tag_during_fit": "it names the row and its negative value in other words"}
    if isinstance(estimator, WEIGHTLESS):
        names = (*EQUIVALENCE, *(f"check_sample_weights_{name}" for name in WEIGHT_CHECKS))
        return expected | dict.fromkeys(names, "it cannot use weights, and rejects them in words")
    if "kernel" in estimator.get_params():
        return expected
    if is_classifier(estimator):
        expected["check_supervised_y_2d"] = "labels of shape (n, 1) are one column, which needs no warning"
        singular = "its classes of two points have a singular scatter"
        expected |= {f"check_sample_weights_{name}": singular for name in ("shape", "not_overwritten")}
        expected["check_array_api_input"] = "features of its rows depend on others, so their scatter is singular"
    return expected


CHECKED = [
    PCA(whiten=True), PCA(2, solver="krylov", scale=True), ApproximatePCA(2, scale=True),
    KernelPCA(), KernelPCA(2, kernel="rbf", fit_inverse_transform=True),
    ApproximateKernelPCA(2, kernel="rbf", approximation="ritz"), NystromKernelPCA(2, kernel="rbf", n_landmarks=10),
    bp.SupervisedPCA(), bp.SupervisedRandomProjection(), bp.FisherDiscriminantAnalysis(),
    bp.RoweisDiscriminantAnalysis(1, r1=1, r2=0.5, robust=True),
    bp.KernelSupervisedPCA(), bp.KernelRoweisDiscriminantAnalysis(2), bp.ScoredPCA(1),
    bp.CCA(1), bp.PLSSVD(1), bp.PLSRegression(1), bp.Ridge([0.1, 1.0]),
    bp.ContrastivePCA(1, background=1), bp.GeneralizedPCA(), bp.CorrespondenceAnalysis(),
    bp.FactorAnalysis(1), bp.SlowFeatureAnalysis(), bp.MinimumNoiseFraction(), bp.TICA(),
    bp.SketchTransformer(bp.sketches.FeatureHash(1), nan_policy="omit"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::bigpca.errors.ApproximationWarning")
@parametrize_with_checks(CHECKED, expected_failed_checks=expected_failures)
def test_scikit_learn_check(estimator: Any, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # else checks of arrays of other libraries are skipped
    check(estimator)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("get_feature_names_out", ()), ("score_samples", (X,)), ("score", (X,)), ("get_covariance", ()),
        ("get_precision", ()), ("top_features", (0,)), ("remove_components", (X, [0])),
    ],
)  # fmt: skip
def test_what_needs_a_fit_says_so(method: str, given: tuple[Any, ...]) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(PCA(2), method)(*given)


def test_grid_search_compares_preprocessing_and_whitening() -> None:
    labels = np.arange(60) % 2
    rows = np.where(labels == 1, 30.0, 0.3)[:, None] * (X + np.where(labels == 1, 3.0, -3.0)[:, None])
    steps = [None, bp.preprocessing.Power(), bp.preprocessing.L2(), [bp.preprocessing.Power(), bp.preprocessing.L2()]]
    grid = {
        "pca__preprocess": steps,
        "pca__whiten": [False, bp.scales.Whitening(0.25)],
        "pca__center": [True, np.ones(5)],
    }
    search = GridSearchCV(make_pipeline(PCA(2), NearestCentroid()), grid, cv=3, error_score="raise").fit(rows, labels)
    assert len(search.cv_results_["params"]) == 16
    best = search.best_estimator_.named_steps["pca"]
    assert best.preprocess in steps
    assert search.best_score_ > 0.9


def test_plan_leaves_the_estimator_unfitted() -> None:
    pca = PCA(2)
    before = dict(vars(pca))
    pca.plan(X)
    assert vars(pca) == before
